"""The background writer: when it looks, what it asks, what it takes."""

import json

import pytest

from conductor.memory.background import USER_CHARS, drafts_of, is_due, question_of
from conductor.memory.notes import MOST_NOTES, Draft
from proto.chat import Message, Role, TextPart


def due(quiet_ms: int = 120_000, turns: int = 4, tail: str = "b", seen: str | None = "a") -> bool:
    return is_due(
        quiet_ms=quiet_ms, turns=turns, tail=tail, seen_tail=seen, quiet_s=120, min_turns=4
    )


def test_it_looks_at_quiet_conversations_once_for_each_new_tail() -> None:
    assert due() and due(seen=None)
    assert not due(quiet_ms=119_999)
    assert not due(turns=3)
    assert not due(tail="a")


def said(text: str, role: Role) -> Message:
    return Message(role, (TextPart(text),))


def test_it_reads_what_users_said_and_nothing_else() -> None:
    question = question_of([
        said("SYSTEM", "system"), said("first", "user"), said("ANSWER", "assistant"),
        said("RESULT", "tool"), said("  ", "user"), said("second </user_text> x", "user"),
    ])  # fmt: skip
    assert question is not None
    assert question.text == "<user_text>\nfirst\n---\nsecond  x\n</user_text>"
    assert question.schema is not None and question.choices == ()


def test_of_much_text_it_reads_the_newest() -> None:
    question = question_of([said("old " * USER_CHARS, "user"), said("newest", "user")])
    assert question is not None
    assert question.text.endswith("newest\n</user_text>")
    assert len(question.text) < USER_CHARS + 40


def test_where_no_user_said_anything_it_asks_nothing() -> None:
    assert question_of([said("hello", "assistant")]) is None


def test_it_takes_what_is_of_the_form() -> None:
    notes = [{"kind": "todo", "text": "tidy up"}, {"kind": "fact"}, "x", {"text": "it rains"}]
    assert drafts_of(json.dumps({"notes": notes})) == (
        Draft("todo", "tidy up"),
        Draft("fact", "it rains"),
    )
    many = [{"kind": "fact", "text": str(n)} for n in range(20)]
    assert len(drafts_of(json.dumps({"notes": many}))) == MOST_NOTES


@pytest.mark.parametrize("answer", ["", "[]", "{}", '{"notes": {}}', "nothing", "[" * 100_000])
def test_another_answer_is_none(answer: str) -> None:
    assert drafts_of(answer) == ()
