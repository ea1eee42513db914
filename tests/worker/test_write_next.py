"""What is read ahead is, token by token, what the next prompt begins with (WP1, 2, 4 to 6)."""

from dataclasses import replace
from datetime import datetime
from importlib.resources import files
from pathlib import Path
from typing import Any

import pytest
from scripted import Bench, submit
from structlog.testing import capture_logs
from test_prompt_cuts import RULES, SYSTEM, TOKENIZERS, WEATHER, _says, _writer, joining_tokenizer
from tiny_templates import BEGINNINGS, QWEN, ROLES, TEMPLATES

from proto.chat import Call, ImagePart, Message, TextPart, ToolCall
from proto.plan import Plan, Thinking
from worker.loading.gguf import GgufFile
from worker.text.prompt import PromptWriter
from worker.text.sent_back import SentBack
from worker.text.template import ChatTemplate
from worker.text.tokenizer import tokenizer_from_gguf
from worker.types import Replied, Warmable

REPLY = Message("assistant", (TextPart("It is fine."),))
THOUGHT = Message("assistant", (TextPart("It is fine."),), reasoning="Hm, the weather.")
ASKED = (
    ToolCall("c1", "weather", '{"city": "Rome"}'),
    ToolCall("c2", "weather", '{"city": "Oslo"}'),
)
CALLING = Message("assistant", (TextPart("I look."),), ASKED)
USER = _says("user", "hi")


def _result(text: str, call_id: str = "c1") -> Message:
    return Message("tool", (TextPart(text),), call_id=call_id)


def _behind(writer: PromptWriter, call: Call, reply: Message, *more: Message) -> tuple[int, ...]:
    """The prompt of the request that a client sends behind a reply."""
    messages = (*call.messages, reply, *more)
    return writer.write(replace(call, messages=messages), is_thinking=False).ids


def _covers(writer: PromptWriter, ids: tuple[int, ...], text: str) -> bool:
    """Whether the prompt goes on to the end of a text, not just up to it."""
    return text.encode() in b"".join(writer.token_bytes[i] or b"" for i in ids)


@pytest.mark.parametrize("kind", TOKENIZERS)
@pytest.mark.parametrize("name", TEMPLATES)
def test_wp1_what_is_read_ahead_of_a_user_is_what_the_next_prompt_begins_with(name: str, kind: str):
    writer = _writer(TEMPLATES[name], TOKENIZERS[kind])
    call = Call("m", (SYSTEM, USER))
    ahead = writer.write_next(call, REPLY, is_thinking=False)
    assert ahead is not None and _covers(writer, ahead.ids, "It is fine.")
    for words in BEGINNINGS:
        ids = _behind(writer, call, REPLY, _says("user", words))
        assert ids[: len(ahead.ids)] == ahead.ids, words


@pytest.mark.parametrize("kind", TOKENIZERS)
@pytest.mark.parametrize("name", ["roles", "qwen", "llama"])
def test_wp2_behind_calls_it_is_what_the_results_of_the_first_begin_with(name: str, kind: str):
    writer = _writer(TEMPLATES[name], TOKENIZERS[kind])
    call = Call("m", (SYSTEM, USER), tools=(WEATHER,))
    ahead = writer.write_next(call, CALLING, is_thinking=False)
    assert ahead is not None and _covers(writer, ahead.ids, '"Oslo"')
    for words in BEGINNINGS:
        ids = _behind(writer, call, CALLING, _result(words), _result("dry", "c2"))
        assert ids[: len(ahead.ids)] == ahead.ids, words


@pytest.mark.parametrize("opener", ["a>\n:", "a>\n", "a>\nb\n", "a> b:", "th", ">"])
def test_wp1_signs_and_words_that_are_joined_with_what_follows_are_left_out(opener: str):
    source = "{% for m in messages %}<|im_start|>" + opener + "{{ m.content }}{% endfor %}"
    writer = _writer(source, joining_tokenizer())
    ahead = writer.write_next(Call("m", (USER,)), REPLY, is_thinking=False)
    assert ahead is not None and _covers(writer, ahead.ids, "It is fine.")
    for words in (*BEGINNINGS, "e fox", ">", ">\n"):
        ids = _behind(writer, Call("m", (USER,)), REPLY, _says("user", words))
        assert ids[: len(ahead.ids)] == ahead.ids, words


def test_wp2_the_opener_of_results_is_read_where_it_is_not_the_users():
    writer = _writer(ROLES)
    call = Call("m", (USER,), tools=(WEATHER,))
    ahead = writer.write_next(call, CALLING, is_thinking=False)
    assert ahead is not None and _covers(writer, ahead.ids[-4:], "tool")
    plain = writer.write_next(call, REPLY, is_thinking=False)
    assert plain is not None and _covers(writer, plain.ids[-4:], "user")


def test_wp2_the_first_call_is_the_one_that_is_answered():
    naming = "{% for m in messages %}{{ m.role }} {{ m.tool_call_id }}\n{{ m.content }}{% endfor %}"
    writer = _writer(naming + "{# tools #}")
    ahead = writer.write_next(Call("m", (USER,)), CALLING, is_thinking=False)
    assert ahead is not None and _covers(writer, ahead.ids, "tool c1")


def test_wp2_reasoning_between_calls_is_shown_as_in_the_next_prompt():
    """Qwen's manner: a user's words behind a reply hide its reasoning, a result does not."""
    writer = _writer(QWEN)
    call, reply = Call("m", (USER,), tools=(WEATHER,)), replace(CALLING, reasoning="Rome first.")
    ahead = writer.write_next(call, reply, is_thinking=True)
    assert ahead is not None and _covers(writer, ahead.ids, "Rome first.")
    ids = _behind(writer, call, reply, _result("dry"), _result("wet", "c2"))
    assert ids[: len(ahead.ids)] == ahead.ids
    said = writer.write_next(call, THOUGHT, is_thinking=True)
    assert said is not None and not _covers(writer, said.ids, "weather.")


@pytest.mark.parametrize("name", TEMPLATES)
@pytest.mark.parametrize("tools", [(), (WEATHER,)])
def test_w1_request_and_what_is_read_ahead_of_it_are_cut_at_one_place(name: str, tools):
    writer = _writer(TEMPLATES[name])
    if tools and not writer.template.takes_tools:
        tools = ()
    call = Call("m", (SYSTEM, USER), tools=tools)
    ahead = writer.write_next(call, REPLY, is_thinking=False)
    messages = (*call.messages, REPLY, _says("user", "and?"))
    following = writer.write(replace(call, messages=messages), is_thinking=False)
    assert ahead is not None and ahead.cuts
    assert ahead.cuts == following.cuts == writer.write(call, is_thinking=False).cuts


@pytest.mark.parametrize("args", [{}, {"style": "x"}])
def test_arguments_of_the_template_are_those_of_the_request(args: dict[str, Any]):
    writer = _writer("{{ style }}{{ enable_thinking }}" + ROLES)
    call = Call("m", (USER,), template_args=args)
    ahead = writer.write_next(call, REPLY, is_thinking=False)
    ids = _behind(writer, call, REPLY, USER)
    assert ahead is not None and ids[: len(ahead.ids)] == ahead.ids
    assert _covers(writer, ahead.ids, f"{args.get('style', '')}False")


def test_what_the_model_is_asked_with_at_the_end_is_no_part_of_it():
    """A template that hides the next words proves nothing, however alike its texts are."""
    writer = _writer("{% for m in messages[:2] %}{{ m.content }};{% endfor %}go")
    assert writer.write_next(Call("m", (USER,)), REPLY, is_thinking=False) is None


@pytest.mark.parametrize(
    ("source", "call", "reply"),
    [
        (ROLES, Call("m", (), prompt="raw"), REPLY),
        (TEMPLATES["gemma"], Call("m", (USER, USER)), REPLY),
        ("{{ messages[0].content }}", Call("m", (USER,), tools=(WEATHER,)), REPLY),
        ("{% for m in messages %}{{ m.content }}{% endfor %}", Call("m", (_says("user", ""),)),
         Message("assistant")),
        (ROLES, Call("m", (Message("user", (ImagePart("data:x"),)),)), REPLY),
    ],
)  # fmt: skip
def test_where_there_is_no_telling_there_is_nothing_to_read(source: str, call: Call, reply):
    assert _writer(source).write_next(call, reply, is_thinking=False) is None


@pytest.mark.model
def test_wp1_wp2_with_the_embedded_model(embedded_model: Path):
    keys = GgufFile.open(embedded_model).keys
    source = files("worker.text").joinpath("templates", "smollm2.jinja").read_text("utf-8")
    template = ChatTemplate(source, {}, datetime.now)
    writer = PromptWriter(tokenizer_from_gguf(keys), template)
    call = Call("m", (SYSTEM, USER), tools=(WEATHER,))
    for reply, role in ((REPLY, "user"), (CALLING, "tool")):
        ahead = writer.write_next(call, reply, is_thinking=False)
        assert ahead is not None
        lost = len(_behind(writer, call, reply)) - len(ahead.ids)
        assert lost < 4 and _covers(writer, ahead.ids, "Oslo" if reply.calls else "fine.")
        for words in (*BEGINNINGS, "What about Tuesday?", "12 more", " - and then?", "🙂 thanks!"):
            following = Message(role, (TextPart(words),), call_id="c1")  # type: ignore[arg-type]
            ids = _behind(writer, call, reply, following)
            assert ids[: len(ahead.ids)] == ahead.ids, words


# Through the preparer: with the reply's reasoning or without it.

THINKING = Plan(thinking=Thinking(on=True))


def _ahead(sent_back: SentBack, *earlier: Message, **changes: Any) -> Warmable:
    bench = Bench(writer=_writer(ROLES), sent_back=sent_back, max_len=2000)
    call = Call("m", (*earlier, USER))
    asked = submit(call=call, plan=THINKING, **changes)
    bench.to_preparer.put(Replied(asked, THOUGHT, "s", 7.0))
    bench.preparer.work()
    (found,) = bench.to_loop.take_all()
    assert isinstance(found, Warmable) and (found.session, found.made_s) == ("s", 7.0)
    return found


def _starts(warmable: Warmable, reply: Message, *earlier: Message) -> bool:
    ids = _behind(_writer(ROLES), Call("m", (*earlier, USER)), reply, _says("user", "go on"))
    return bool(warmable.prompt) and ids[: len(warmable.prompt)] == warmable.prompt


DROPPED = replace(THOUGHT, reasoning=None)


def test_wp4_a_first_turn_goes_by_the_setting():
    assert _starts(_ahead(SentBack("omit")), DROPPED)
    assert _starts(_ahead(SentBack("keep")), THOUGHT)
    assert not _starts(_ahead(SentBack("omit")), THOUGHT)


@pytest.mark.parametrize("first", ["omit", "keep"])
def test_wp5_wp6_later_turns_go_by_what_the_client_does(first: Any):
    was = Message("assistant", (TextPart("Yes."),), reasoning="Is it?")
    for sent, reply in ((was, THOUGHT), (replace(was, reasoning=None), DROPPED)):
        sent_back = SentBack(first)
        sent_back.saw_reply("", was)
        assert _starts(_ahead(sent_back, USER, sent), reply, USER, sent)


def test_the_preparer_remembers_that_a_reply_had_reasoning():
    sent_back = SentBack("keep")
    kept = Message("assistant", (TextPart("Yes."),), reasoning="Is it?")
    earlier = (USER, kept, USER, DROPPED)
    assert _starts(_ahead(sent_back, *earlier), THOUGHT, *earlier)
    assert _starts(_ahead(sent_back, *earlier), DROPPED, *earlier)


@pytest.mark.parametrize("limits", [{"max_len": 20}, {"vocab_size": 40}])
def test_w5_what_the_model_cannot_read_is_not_read_ahead(limits: dict[str, int]):
    bench = Bench(writer=_writer(ROLES), **{"max_len": 2000, **limits})
    bench.to_preparer.put(Replied(submit(), THOUGHT, "s", 7.0))
    bench.preparer.work()
    (found,) = bench.to_loop.take_all()
    assert found == Warmable((), (), "", "s", 7.0)


def test_a_prompt_just_below_the_context_is_read():
    whole = len(_ahead(SentBack()).prompt)
    for max_len, expected in ((whole, 0), (whole + 1, whole)):
        bench = Bench(writer=_writer(ROLES), max_len=max_len)
        bench.to_preparer.put(Replied(submit(call=Call("m", (USER,))), THOUGHT, "s", 7.0))
        bench.preparer.work()
        (found,) = bench.to_loop.take_all()
        assert len(found.prompt) == expected


def test_a_fault_of_rendering_ahead_is_nobodys(monkeypatch: pytest.MonkeyPatch):
    bench = Bench(writer=_writer(ROLES), max_len=2000)
    monkeypatch.setattr(PromptWriter, "write_next", lambda *_, **__: 1 / 0)
    bench.to_preparer.put(Replied(submit("r0"), THOUGHT, "s", 7.0))
    with capture_logs() as lines:
        bench.hello()
        bench.say(submit("r1", "hello", params={"max_tokens": 3, "temperature": 0.0}))
        bench.preparer.work()
    assert [line["event"] for line in lines if line["log_level"] == "warning"] == [
        "warm.not_rendered"
    ]
    prepared, warmable = bench.to_loop.take_all()
    assert prepared.arrival.submit.run_id == "r1"
    assert warmable.prompt == ()


def test_requests_are_prepared_before_replies_that_nobody_waits_for():
    bench = Bench(writer=_writer(ROLES), max_len=2000)
    bench.hello()
    bench.to_preparer.put(Replied(submit("r0"), THOUGHT, "s", 7.0))
    for number in (1, 2):
        bench.say(submit(f"r{number}"))
    bench.preparer.work()
    found = bench.to_loop.take_all()
    assert [type(item).__name__ for item in found] == ["Prepared", "Prepared", "Warmable"]
    assert [item.arrival.submit.run_id for item in found[:2]] == ["r1", "r2"]


def test_a_prepared_run_says_where_it_is_cut_and_of_which_conversation_it_is():
    bench = Bench(writer=_writer(ROLES), max_len=2000)
    bench.hello()
    for number, text in enumerate((RULES, RULES, f"{RULES}!")):
        call = Call("m", (_says("system", text), USER))
        bench.say(submit(f"r{number}", call=call))
    bench.preparer.work()
    first, second, third = bench.to_loop.take_all()
    assert first.cuts == _writer(ROLES).write(first.arrival.submit.call, is_thinking=False).cuts
    assert first.cuts and first.session == second.session != third.session
