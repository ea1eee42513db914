"""Whether a client sends reasoning back, by what it did before (W3, W4)."""

from dataclasses import replace

import pytest

from proto.chat import Message, TextPart, ToolCall
from worker.limits import REASONED_REPLIES
from worker.text.sent_back import SentBack

USER = Message("user", (TextPart("hi"),))


def _reply(text: str, reasoning: str | None = "hm", *calls: ToolCall) -> Message:
    return Message("assistant", (TextPart(text),), calls, reasoning=reasoning)


def _dropped(reply: Message) -> Message:
    return replace(reply, reasoning=None)


def _known(*replies: Message, salt: str = "a") -> SentBack:
    sent_back = SentBack("keep")
    for reply in replies:
        sent_back.saw_reply(salt, reply)
    return sent_back


def test_before_the_first_reply_the_setting_decides():
    assert SentBack("keep").keeps_reasoning("a", (USER,))
    assert not SentBack("omit").keeps_reasoning("a", (USER,))
    assert not SentBack().keeps_reasoning("a", (USER,))


def test_w3_reasoning_that_came_back_comes_back_again():
    assert SentBack("omit").keeps_reasoning("a", (USER, _reply("x"), USER))


def test_w3_reasoning_that_did_not_come_back_does_not():
    assert not _known(_reply("x")).keeps_reasoning("a", (USER, _dropped(_reply("x")), USER))


@pytest.mark.parametrize("is_last_kept", [True, False])
def test_w4_the_latest_reply_that_had_reasoning_decides(is_last_kept: bool):
    first, last, plain = _reply("1"), _reply("2"), _reply("3", None)
    sent = (
        (_dropped(first), USER, last) if is_last_kept else (first, USER, _dropped(last))
    )  # fmt: skip
    sent_back = _known(first, last, plain)
    # What had none says nothing of it.
    assert sent_back.keeps_reasoning("a", (USER, *sent, USER, plain, USER)) == is_last_kept


def test_w4_of_replies_that_nobody_knows_nothing_is_expected():
    assert not _known().keeps_reasoning("a", (USER, _dropped(_reply("x")), USER))


def test_w4_a_reply_is_known_to_its_own_tenant_only():
    sent_back = _known(_reply("2"), salt="b")
    messages = (USER, _reply("1"), USER, _dropped(_reply("2")), USER)
    assert sent_back.keeps_reasoning("a", messages)
    assert not sent_back.keeps_reasoning("b", messages)


def test_a_reply_is_known_by_its_words_and_calls_however_they_are_written():
    was = _reply("Look:", "hm", ToolCall("c1", "f", '{"a":1,"b":2}'))
    same = Message("assistant", (TextPart("Look:\n"),), (ToolCall("x", "f", '{"b": 2, "a": 1}'),))
    kept = _reply("old")
    for other, is_known in (
        (same, True),
        (replace(same, calls=(ToolCall("c1", "f", '{"a":1}'),)), False),
        (replace(same, calls=(ToolCall("c1", "g", '{"a":1,"b":2}'),)), False),
        (replace(same, calls=()), False),
        (replace(same, content=()), False),
    ):
        assert _known(was).keeps_reasoning("a", (USER, kept, USER, other, USER)) != is_known


def test_arguments_that_are_no_json_are_compared_as_they_are():
    was = _reply("", "hm", ToolCall("c", "f", "{oops"))
    assert not _known(was).keeps_reasoning("a", (USER, _reply("1"), USER, _dropped(was), USER))


def test_a_bounded_number_is_remembered_and_the_latest_stay():
    replies = [_reply(str(number)) for number in range(REASONED_REPLIES + 1)]
    sent_back = _known(*replies[:-1], replies[0], replies[-1])
    kept = _reply("old")

    def is_known(reply: Message) -> bool:
        return not sent_back.keeps_reasoning("a", (USER, kept, USER, _dropped(reply), USER))

    assert [is_known(replies[i]) for i in (0, 1, 2, -1)] == [True, False, True, True]


def test_the_reply_as_it_will_come_back():
    reply = _reply("x", "hm", ToolCall("c", "f", "{}"))
    assert SentBack("keep").next_form("a", (USER,), reply) == reply
    assert SentBack("omit").next_form("a", (USER,), reply) == _dropped(reply)
