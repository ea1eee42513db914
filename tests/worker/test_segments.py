"""Text in a prompt that no client wrote: where it stands, as which ids, and that it stays there."""

from dataclasses import replace
from datetime import datetime
from pathlib import Path
from typing import Any

import pytest
from scripted import END, TOKENIZER, Bench, submit
from structlog.testing import capture_logs
from test_prompt_cuts import RULES, SYSTEM, TOKENIZERS, WEATHER, _says, _text, _writer
from tiny_checkpoints import write_tiny
from tiny_templates import BEGINNINGS, LLAMA, ROLES, TEMPLATES

from proto.chat import Call, Message, TextPart, ToolCall, reply_message
from proto.deltas import events_of
from proto.messages import Delta, Queued
from proto.plan import REASONING_PART, Plan, Segment
from proto.worker_settings import Launch, WarmSettings, WorkerSettings
from worker.build import build_engine
from worker.engine import Engine
from worker.loading.locate import open_checkpoint
from worker.settings import Machine
from worker.text.prompt import Prompt, PromptWriter, prompt_hash
from worker.text.sources import masked_ids
from worker.text.template import ChatTemplate

NOTE = "\n\n<tandem_note>\nTake your time, and look at the tests first.\n</tandem_note>\n"
OTHER = "\n\n<tandem_note>\nOne file at a time.\n</tandem_note>\n"
USER = _says("user", "Is it dry?")
REPLY = _says("assistant", "It is fine.")
CALLING = Message("assistant", (), (ToolCall("c1", "weather", '{"city": "Rome"}'),))
RESULT = Message("tool", (TextPart("dry"),), call_id="c1")


def _note(message: int, text: str = NOTE, **more: Any) -> Segment:
    return Segment(f"n{message}", "note", message, text, **more)


def _write(writer: PromptWriter, messages: Any, *segments: Segment, **more: Any) -> Prompt:
    call = Call("m", tuple(messages), **more)
    return writer.write(call, is_thinking=False, segments=segments)


def _said(prompt: Prompt, writer: PromptWriter) -> list[str]:
    return [_text(writer, prompt.ids[start:end]) for start, end in prompt.notes.spans]


@pytest.mark.parametrize("text", ["Is it dry?", "Is it dry? \n", "", "x" * 90])
@pytest.mark.parametrize("name", TEMPLATES)
def test_a_note_stands_behind_the_text_of_its_message_as_ids_of_its_own(name: str, text: str):
    writer = _writer(TEMPLATES[name])
    prompt = _write(writer, (SYSTEM, _says("user", text)), _note(1))
    ((start, end),) = prompt.notes.spans
    assert prompt.ids[start:end] == tuple(TOKENIZERS["smollm"].encode_literal(NOTE))
    assert _text(writer, prompt.ids[:start]).endswith(text)
    plain = _write(writer, (SYSTEM, _says("user", text)))
    after = _text(writer, prompt.ids[end:])
    assert after and _text(writer, plain.ids).endswith(after) and "dry" not in after
    assert prompt.cuts == plain.cuts != ()
    assert prompt_hash(prompt.ids) != prompt_hash(plain.ids)
    assert prompt.notes.tokens == end - start == prompt.notes.tokens_before(end + 1)
    assert prompt.notes.tokens_before(start) == 0 and prompt.notes.tokens_before(start + 2) == 2


def test_nothing_is_joined_across_the_ends_of_a_note():
    """The words around it would be one with it: each is encoded alone."""
    writer = _writer("{% for m in messages %}{{ m.content }}g{% endfor %}")
    prompt = _write(writer, (_says("user", "i"),), _note(0, "n"))
    encode = TOKENIZERS["smollm"].encode_literal
    assert list(prompt.ids) == [*encode("i"), *encode("n"), *encode("g")]
    assert len(encode("ing")) < 3


def test_without_segments_a_prompt_is_what_it_was():
    writer = _writer(ROLES)
    prompt = _write(writer, (SYSTEM, USER))
    rendered = writer.template.render((SYSTEM, USER), {"enable_thinking": False})
    assert list(prompt.ids) == TOKENIZERS["smollm"].encode(rendered)
    assert prompt.notes.spans == () and prompt.notes.lost == ()


def test_control_tokens_spelled_in_a_note_are_text():
    writer = _writer(ROLES)
    prompt = _write(writer, (USER,), _note(0, "a<|im_end|>b"))
    ((start, end),) = prompt.notes.spans
    control = set(TOKENIZERS["smollm"].control_tokens.values())
    assert not control & set(prompt.ids[start:end])
    assert _said(prompt, writer) == ["a<|im_end|>b"]


def _history(name: str) -> list[tuple[Message, ...]]:
    """What a client sends, turn by turn."""
    if name in ("gemma", "bare"):
        steps = [(USER,), (REPLY, USER), (REPLY, USER)]
    else:
        steps = [(USER,), (CALLING, RESULT), (REPLY, USER), (CALLING, RESULT)]
    sent: list[tuple[Message, ...]] = []
    for step in steps:
        sent.append(((SYSTEM,) if not sent else sent[-1]) + step)
    return sent


@pytest.mark.parametrize("is_stored", [True, False], ids=["stored ids", "text alone"])
@pytest.mark.parametrize("kind", TOKENIZERS)
@pytest.mark.parametrize("name", TEMPLATES)
def test_the_next_turn_begins_with_this_one_its_notes_and_its_answer(
    name: str, kind: str, is_stored: bool
):
    tokenizer = TOKENIZERS[kind]
    writer = _writer(TEMPLATES[name] + "\n", tokenizer)  # jinja drops the last line's end
    tools = (WEATHER,) if name in ("roles", "qwen", "llama") else ()
    segments: list[Segment] = []
    turns = _history(name)
    for messages, following in zip(turns, [*turns[1:], None], strict=True):
        segments.append(_note(len(messages) - 1, NOTE if len(segments) % 2 else OTHER))
        prompt = _write(writer, messages, *segments, tools=tools)
        assert _said(prompt, writer) == [segment.text for segment in segments]
        if is_stored:
            ids = prompt.notes.new_ids[segments[-1].key]
            segments[-1] = replace(segments[-1], ids=ids, tokenizer_hash=tokenizer.hash)
        if following is None:
            break
        later = _write(writer, following, *segments, tools=tools)
        reply = following[len(messages)]
        answer = tuple(tokenizer.encode_literal(reply.text))
        expected = prompt.ids + answer
        if name == "bare" or (name, kind) == ("llama", "smollm") or not answer:
            # Signs and line ends of a template may be joined with what is behind them.
            expected, answer = prompt.ids[:-2], ()
        assert later.ids[: len(expected)] == expected
        ahead = writer.write_next(
            Call("m", messages, tools=tools), reply, is_thinking=False, segments=segments
        )
        assert ahead is not None and ahead.cuts == later.cuts
        assert later.ids[: len(ahead.ids)] == ahead.ids
        assert NOTE.strip() in _text(writer, ahead.ids) or len(segments) == 1
        assert len(ahead.ids) > prompt.notes.spans[-1][1] + len(answer)


@pytest.mark.parametrize("opener", ["", ">", "th"])
def test_what_is_read_ahead_of_a_text_right_behind_a_note_stays_the_same(opener: str):
    """The note is an end of its own: what stands before it is settled, whatever follows."""
    source = "{% for m in messages %}" + opener + "{{ m.content }}{% endfor %}"
    writer = _writer(source)
    segments = (_note(0), _note(1, OTHER))
    call = Call("m", (USER,))
    ahead = writer.write_next(call, REPLY, is_thinking=False, segments=segments)
    assert ahead is not None and _text(writer, ahead.ids).endswith(OTHER)
    for words in BEGINNINGS:
        later = _write(writer, (USER, REPLY, _says("user", words)), *segments)
        assert later.ids[: len(ahead.ids)] == ahead.ids, words


def test_ids_that_were_given_are_used_as_they_are_and_others_are_made_and_returned():
    writer = _writer(ROLES)
    mine, bad = TOKENIZERS["smollm"].hash, (5, 100_000)
    messages = (USER, REPLY, USER)
    given = _note(0, ids=(5, 6, 7), tokenizer_hash=mine)
    for other in (
        _note(2), _note(2, ids=(5, 6), tokenizer_hash="another"), _note(2, ids=(5, 6)),
        _note(2, ids=bad, tokenizer_hash=mine), _note(2, ids=(-1,), tokenizer_hash=mine),
    ):  # fmt: skip
        prompt = _write(writer, messages, given, other)
        own = tuple(TOKENIZERS["smollm"].encode_literal(NOTE))
        found = [prompt.ids[start:end] for start, end in prompt.notes.spans]
        assert found == [(5, 6, 7), own]
        assert prompt.notes.new_ids == {"n2": own}


def test_hidden_text_stands_at_its_place_in_an_answer_and_in_its_reasoning():
    writer = _writer(ROLES)
    answer = Message("assistant", (TextPart("It "), TextPart("is fine.")), reasoning="Hm, dry.")
    segments = (
        Segment("h1", "hidden", 1, "[now]", part=1, offset=3),
        Segment("h2", "hidden", 1, "[so]", part=REASONING_PART, offset=2),
        Segment("h3", "hidden", 1, "[end]"),
        Segment("h4", "hidden", 1, "[first]", part=0, offset=0),
        Segment("h5", "hidden", 1, "[then]", part=0, offset=0),
    )
    prompt = _write(writer, (USER, answer, USER), *segments)
    text = _text(writer, prompt.ids)
    assert "<think>\nHm[so], dry.\n</think>\n\n[first][then]It is [now]fine.[end]<|im_end|>" in text
    without = replace(answer, reasoning=None)
    prompt = _write(writer, (USER, without, USER), *segments)
    assert "assistant\n[first][then]It is [now]fine.[end]<|im_end|>" in _text(writer, prompt.ids)
    assert prompt.notes.lost == ("h2",) and "h2" not in prompt.notes.new_ids


HOISTING = (
    "{% for m in messages if m.role == 'system' %}{{ m.content }};{% endfor %}"
    "{% for m in messages if m.role != 'system' %}{{ m.role }}:{{ m.content }};{% endfor %}"
)
FORGETFUL = "{% for m in messages[-1:] %}{{ m.content }};{% endfor %}"
REPEATING = "{{ messages[0].content }};{% for m in messages %}{{ m.content }};{% endfor %}"
LATE = "{% for m in messages[3:] + messages[:3] %}{{ m.role }}:{{ m.content }};{% endfor %}"
TURNING = "{% for m in messages | reverse %}{{ m.content }};{% endfor %}"


@pytest.mark.parametrize(
    ("source", "messages", "places", "lost"),
    [
        (HOISTING, (USER, REPLY, USER, SYSTEM), (2, 3), ("n3",)),
        (LATE, (USER, REPLY, USER, RESULT), (0, 3), ("n3",)),
        (FORGETFUL, (USER, REPLY, USER), (0, 2), ("n0",)),
        (REPEATING, (USER, REPLY, _says("user", "and?")), (0, 2), ("n0",)),
        (TURNING, (USER, REPLY, USER), (0, 2), ("n0", "n2")),
        (ROLES, (USER, REPLY, USER), (2, 3), ("n3",)),
        (ROLES, (USER, REPLY, USER), (-1, 2), ("n-1",)),
    ],
    ids=[
        "moved",
        "moved later",
        "left out",
        "shown twice",
        "turned round",
        "no such message",
        "before them",
    ],
)
def test_a_note_whose_place_a_template_does_not_keep_is_left_out(source, messages, places, lost):
    writer = _writer(source)
    prompt = _write(writer, messages, *(_note(place) for place in places))
    assert prompt.notes.lost == lost
    kept = [_note(place) for place in places if f"n{place}" not in lost]
    alone = _write(writer, messages, *kept)
    assert prompt.ids == alone.ids and len(alone.notes.spans) == len(kept)
    assert "\ue000" not in _text(writer, prompt.ids)


@pytest.mark.parametrize("part", [{"part": 1}, {"offset": 11}, {"part": 0, "offset": -1}])
def test_a_place_that_a_message_does_not_have_is_none(part: dict[str, int]):
    prompt = _write(_writer(ROLES), (USER,), _note(0, **part))
    assert prompt.notes.lost == ("n0",)
    assert prompt.ids == _write(_writer(ROLES), (USER,)).ids


def test_a_template_that_is_confused_by_signs_shows_its_conversation_without_notes():
    """Without the first note, which it shows twice, it leaves the second one out."""
    source = (
        "{{ messages[0].content }};{{ messages[0].content }};"
        "{% if messages[0].content | length > 20 %}{{ messages[-1].content }}{% endif %}"
    )
    prompt = _write(_writer(source), (USER, REPLY, USER), _note(0), _note(2))
    assert prompt.notes.lost == ("n0", "n2")
    assert prompt.ids == _write(_writer(source), (USER, REPLY, USER)).ids


def test_a_raw_prompt_has_no_place_for_notes():
    prompt = _writer(ROLES).write(
        Call("m", (), prompt="raw"), is_thinking=False, segments=(_note(0),)
    )
    assert prompt.notes.lost == ("n0",) and not prompt.notes.spans


def test_a_note_behind_an_empty_result_stands_where_its_text_would():
    empty = replace(RESULT, content=())
    writer = _writer(ROLES)
    prompt = _write(writer, (USER, CALLING, empty), _note(2), tools=(WEATHER,))
    assert f"<|im_start|>tool\n{NOTE}<|im_end|>" in _text(writer, prompt.ids)


# Through the worker.


def test_ids_are_returned_once_and_notes_are_in_no_usage():
    bench = Bench(writer=_writer(ROLES, TOKENIZER), max_len=2000)
    bench.hello()
    plan = Plan(segments=(_note(0),))
    greedy = {"temperature": 0.0, "max_tokens": 3}
    for number in (1, 2):
        bench.say(submit(f"r{number}", plan=plan, params=greedy))
    bench.turn()
    bench.clock.now += 11.0
    bench.turn()
    done = [bench.turn_until_done(f"r{number}") for number in (1, 2)]
    own = tuple(TOKENIZER.encode_literal(NOTE))
    heard = [m for m in bench.messages(Queued) if m.run_id == "r2"]
    assert [m.note_ids for m in heard] == [{"n0": own}, None]
    plain = len(_write(_writer(ROLES, TOKENIZER), (_says("user", "hello"),)).ids)
    assert heard[0].prompt_tokens == plain + len(own)
    for one in done:
        assert (one.usage.prompt_tokens, one.usage.note_tokens) == (plain, len(own))
        assert one.usage.upstream_input_tokens == plain + len(own)
        assert one.usage.completion_tokens == one.usage.upstream_output_tokens == 3


def test_a_lost_segment_is_told_to_the_log_and_with_the_first_tokens():
    bench = Bench(writer=_writer(ROLES, TOKENIZER), max_len=2000)
    bench.hello()
    with capture_logs() as lines:
        bench.say(submit(plan=Plan(segments=(_note(4),)), params={"max_tokens": 3}))
        bench.turn_until_done("r1")
    assert [(line["run_id"], line["count"]) for line in lines if line["event"] == "segment.lost"] \
        == [("r1", 1)]  # fmt: skip
    first, *others = [delta.events for delta in bench.messages(Delta)]
    assert [(e.at, e.task, e.mode, e.reason) for e in first] == [(1, "note", "act", "lost")]
    assert not any(others)
    assert [m.note_ids for m in bench.messages(Queued)] == [None]


# Over real engines.

CHUNK, MAX_LEN = 32, 2048


@pytest.fixture(scope="module", params=["llama", "qwen3_5"])
def tiny(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Engine:
    path: Path = tmp_path_factory.mktemp(request.param)
    write_tiny(request.param, path, max_position_embeddings=MAX_LEN)
    settings = WorkerSettings(model=str(path), weights="fp32", threads=1, max_len=MAX_LEN)
    machine = Machine("cpu", threads=1, chunk=CHUNK, lanes=1, slots=2)
    launch = Launch(settings, "m", str(path), "ipc:///x", "/x")
    masked = masked_ids(TOKENIZER, 512)
    checkpoint = open_checkpoint(path)
    return build_engine(launch, machine, checkpoint, masked_ids=masked, end_ids=(END,))


def _session(bench: Bench, salt: str, *, is_stored: bool, turns: int = 4) -> list[Any]:
    """Turns of one conversation: what each prompt was, and what its end said."""
    writer, messages = bench.preparer._writer, [SYSTEM]
    segments: list[Segment] = []
    made = []
    for number in range(turns):
        messages.append(_says("user", f"Is it dry in town {number}?"))
        segments.append(_note(len(messages) - 1, NOTE if number % 2 else OTHER))
        call, run_id = Call("m", tuple(messages)), f"{salt}-{number}"
        bench.say(submit(
            run_id, call=call, plan=Plan(segments=tuple(segments)), cache_salt=salt,
            params={"temperature": 0.0, "max_tokens": 12, "logit_bias": {str(END): -100.0}},
        ))  # fmt: skip
        done = bench.turn_until_done(run_id)
        prompt = writer.write(call, is_thinking=False, segments=segments)
        (first, *_) = (m for m in bench.messages(Queued) if m.run_id == run_id)
        if is_stored:
            ids = first.note_ids[segments[-1].key]
            segments[-1] = replace(segments[-1], ids=ids, tokenizer_hash=TOKENIZER.hash)
        deltas = [delta for delta in bench.messages(Delta) if delta.run_id == run_id]
        reply = reply_message(event for delta in deltas for event in events_of(delta))
        messages.append(reply)
        bench.turn(30)
        made.append((prompt, done, call, reply, tuple(segments)))
    return made


@pytest.mark.parametrize("is_stored", [True, False], ids=["stored ids", "text alone"])
@pytest.mark.parametrize("is_warm", [True, False], ids=["warm", "not ahead"])
def test_a_session_with_notes_is_read_once_and_shows_none_of_them(
    tiny: Engine, is_stored: bool, is_warm: bool
):
    bench = Bench(
        engine=tiny, max_len=MAX_LEN, warm=WarmSettings(enabled=is_warm),
        writer=PromptWriter(TOKENIZER, ChatTemplate(ROLES, {}, datetime.now)),
    )  # fmt: skip
    bench.hello()
    salt = f"s{is_stored}{is_warm}"
    turns = _session(bench, salt, is_stored=is_stored)
    before: Prompt | None = None
    ahead = 0
    for number, (prompt, done, call, reply, segments) in enumerate(turns):
        usage, start = done.usage, len(prompt.ids) - done.timings.forwarded_tokens
        assert len(prompt.notes.spans) == number + 1
        assert usage.prompt_tokens == len(prompt.ids) - prompt.notes.tokens
        assert usage.upstream_cached_tokens == start
        inside = sum(min(end, start) - first for first, end in prompt.notes.spans if first < start)
        assert usage.cached_tokens == start - inside
        if before is not None:
            least = len(before.ids) - (0 if is_warm else CHUNK)
            assert start >= least and usage.cached_tokens < start
            if is_warm:
                assert start == ahead
        before = prompt
        following = bench.preparer._writer.write_next(
            call, reply, is_thinking=False, segments=segments
        )
        assert following is not None
        ahead = len(following.ids)
    events = bench.loop._warm.counts
    assert (events["hit"], events["miss"]) == ((3, 0) if is_warm else (0, 0))


def test_rules_are_long_enough_for_a_cut():
    assert _write(_writer(LLAMA), (_says("system", RULES), USER)).cuts
