"""What a run says of its tokens: reasoning, calls, forms, and how each of them ends it."""

import json
from collections.abc import Iterator

import pytest
import structlog
from hypothesis import given, settings
from hypothesis import strategies as st
from scripted import END, TOKENIZER, Bench, ScriptedEngine, saying, submit, writer_of

from proto.chat import AnswerFormat, Call, Message, TextPart, Tool, ToolChoice
from proto.messages import Delta, Done
from proto.plan import Plan, Thinking
from worker.grammar.matcher import GrammarFault, Matcher
from worker.state.facts import CacheFacts
from worker.text.answer import AnswerSyntax, AnswerText
from worker.text.reasoning import ReasoningForm

PLAIN = "{{ messages[0].content }}{# tools #}"
OPENING = "{{ messages[0].content }}\n<think>\n{# tools </think> #}"
CHOOSING = "{{ messages[0].content }}{# tools </think> #}"
TOOLS = (Tool("now"), Tool("get_weather", None, {"type": "object", "properties": {
    "city": {"type": "string"}, "days": {"type": "integer"}, "dry": {"type": "boolean"}}}),
)  # fmt: skip
THINKING = Plan(thinking=Thinking(on=True))
HERMES = (
    '<tool_call>\n{"name": "get_weather", "arguments": {"city": "Köln", "days": 3}}\n</tool_call>'
)
XML = ("<tool_call>\n<function=get_weather>\n<parameter=city>\nKöln\n</parameter>\n"
       "<parameter=days>\n3\n</parameter>\n<parameter=dry>\ntrue\n</parameter>\n</function>\n"
       "</tool_call>")  # fmt: skip


@pytest.fixture(autouse=True, scope="module", params=[0, 5], ids=["plain", "in blocks"])
def _guessed(request: pytest.FixtureRequest) -> Iterator[None]:
    """All of this holds whether tokens come one by one or several in a round."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(ScriptedEngine, "guessed", request.param)
        yield


def _call(prompt: str = "hello", **more) -> Call:
    return Call("m", (Message("user", (TextPart(prompt),)),), **more)


def _run(text: str, template: str = CHOOSING, **changes) -> tuple[Bench, Done]:
    bench = Bench(saying(text), writer=writer_of(template), max_len=2000)
    bench.hello()
    params = {"temperature": 0.0, "max_tokens": 1000, **changes.pop("params", {})}
    bench.say(submit(params=params, credit=10_000, **changes))
    return bench, bench.turn_until_done("r1", limit=2000)


def _of_kind(bench: Bench, kind: str) -> str:
    return "".join(
        piece
        for delta in bench.messages(Delta)
        for piece, its in zip(delta.pieces, delta.kinds, strict=True)
        if its == kind
    )


def _calls(bench: Bench) -> list[tuple[str, str]]:
    found: dict[int, list[str]] = {}
    for delta in bench.messages(Delta):
        for part in delta.calls or ():
            if part.name is not None:
                found[part.index] = [part.name, ""]
            found[part.index][1] += part.args or ""
    return [(name, args) for name, args in found.values()]


# Reasoning.


@pytest.mark.parametrize(
    ("template", "text"),
    [(OPENING, "I see.\n</think>\n\nHi!"), (CHOOSING, "<think>\nI see.\n</think>\n\nHi!")],
)
def test_reasoning_and_text_come_apart(template: str, text: str):
    bench, done = _run(text, template, plan=THINKING)
    assert (_of_kind(bench, "reasoning"), _of_kind(bench, "text")) == ("I see.", "Hi!")
    closing = TOKENIZER.encode(text).index(TOKENIZER.encode("</think>")[0]) + 1
    assert done.usage.reasoning_tokens == closing
    assert done.usage.completion_tokens == len(TOKENIZER.encode(text)) + 1
    assert (done.thinking_closed_by, done.finish) == ("model", "stop")


def test_b34_reasoning_that_nobody_closes_is_all_reasoning():
    bench, done = _run("I see a cat", OPENING, plan=THINKING)
    assert (_of_kind(bench, "reasoning"), _of_kind(bench, "text")) == ("I see a cat", "")
    assert done.usage.reasoning_tokens == done.usage.completion_tokens
    assert done.thinking_closed_by is None


def test_a_template_without_reasoning_gives_plain_text():
    bench, done = _run("<think>x</think>y", PLAIN, plan=THINKING)
    assert (_of_kind(bench, "text"), done.usage.reasoning_tokens) == ("<think>x</think>y", 0)


def test_stop_strings_are_not_looked_for_in_reasoning():
    bench, done = _run("stop it</think>go stop", OPENING, plan=THINKING,
                       params={"stop": ("stop",)})  # fmt: skip
    assert (_of_kind(bench, "reasoning"), _of_kind(bench, "text")) == ("stop it", "go ")
    assert done.detail == "stop_string"


@pytest.mark.parametrize("budget", [1, 3, 7])
def test_b30_a_spent_budget_closes_the_block_at_exactly_that_token(budget: int):
    text = "one two three four five six"
    bench, done = _run(text, OPENING, plan=Plan(thinking=Thinking(True, budget)))
    ids = TOKENIZER.encode(text)
    hidden = [
        token for d in bench.messages(Delta) for token, h in zip(d.ids, d.hidden, strict=True) if h
    ]
    assert hidden == TOKENIZER.encode("\n</think>\n\n")
    assert done.usage.reasoning_tokens == budget
    assert done.usage.hidden_tokens == len(hidden)
    assert done.thinking_closed_by == "budget"
    reasoning = TOKENIZER.token_bytes
    spelled = b"".join(reasoning[token] or b"" for token in ids[:budget]).decode()
    assert _of_kind(bench, "reasoning") == spelled
    numbers = bench.numbers("r1")
    assert numbers == list(range(1, len(numbers) + 1))
    # The script goes on by number, so it misses what the hidden tokens stand for.
    later = b"".join(reasoning[token] or b"" for token in ids[budget + len(hidden) :]).decode()
    assert _of_kind(bench, "text") == later


def test_b29_a_forced_close_that_does_not_fit_ends_the_run():
    room = len(TOKENIZER.encode("hello\n<think>\n")) + 3 + len(TOKENIZER.encode("\n</think>\n\n"))
    bench = Bench(saying("one two three"), writer=writer_of(OPENING), max_len=room)
    bench.hello()
    bench.say(submit(plan=Plan(thinking=Thinking(True, 3))))
    done = bench.turn_until_done("r1")
    assert (done.finish, done.detail) == ("length", "context")
    assert done.usage.hidden_tokens == 0


def test_b3_tokens_that_were_put_in_take_room_of_the_context():
    prompt, closing = (TOKENIZER.encode(text) for text in ("hello\n<think>\n", "\n</think>\n\n"))
    most = len(prompt) + 3 + len(closing) + 4
    bench = Bench(saying("one two three four five six"), writer=writer_of(OPENING), max_len=most)
    bench.hello()
    bench.say(submit(plan=Plan(thinking=Thinking(True, 3))))
    done = bench.turn_until_done("r1")
    assert (done.finish, done.detail) == ("length", "context")
    assert (done.usage.hidden_tokens, done.usage.completion_tokens) == (len(closing), 3 + 4)


def test_b31_a_close_marker_as_first_token_closes_once():
    bench, done = _run("</think>\n\nHi", OPENING, plan=THINKING)
    assert (_of_kind(bench, "reasoning"), _of_kind(bench, "text")) == ("", "Hi")
    assert (done.thinking_closed_by, done.usage.reasoning_tokens) == ("model", 1)


# Calls.


@pytest.mark.parametrize("text", [HERMES, XML])
@pytest.mark.parametrize("stream", ["live", "held"])
def test_a_call_is_told_apart_and_ends_the_run(text: str, stream: str):
    bench, done = _run("Let me see.\n" + text, call=_call(tools=TOOLS),
                       plan=Plan(tool_stream=stream))  # fmt: skip
    assert _of_kind(bench, "text") == "Let me see."
    ((name, arguments),) = _calls(bench)
    assert name == "get_weather"
    assert json.loads(arguments)["city"] == "Köln" and json.loads(arguments)["days"] == 3
    assert (done.finish, done.detail) == ("tool_calls", "eos")
    ids = [p.id for d in bench.messages(Delta) for p in d.calls or () if p.id]
    assert len(ids) == 1 and ids[0].startswith("call_") and len(ids[0]) == 29


@pytest.mark.parametrize(("stream", "most"), [("live", None), ("held", 1)])
def test_a_held_call_comes_in_one_piece(stream: str, most: int | None):
    bench, _ = _run(XML, call=_call(tools=TOOLS), plan=Plan(tool_stream=stream))
    pieces = [p for d in bench.messages(Delta) for p in d.calls or () if p.args]
    assert len(pieces) == most or (most is None and len(pieces) > 2)


def test_reasoning_and_text_of_one_token_go_out_one_after_the_other():
    spelled = [b"so</think>yes", b"!", b""]
    answer = AnswerText(spelled, AnswerSyntax(reasoning=ReasoningForm("prompt"), is_open=True))
    said = [answer.push(0, 1), answer.push(1, 2), answer.finish(3, is_cut=False)]
    assert [(one.kind, one.piece) for one in said] == [
        ("reasoning", "so"), ("text", "yes!"), ("text", ""),
    ]  # fmt: skip


def test_what_was_held_for_a_call_is_searched_for_stop_strings_as_well():
    # At the end it becomes text again.
    spelled = [b'say <tool_call>\n{"name": "now", "argu', b""]
    syntax = AnswerSyntax(tools=TOOLS, tool_stream="held", stops=("<tool_call>",))
    answer = AnswerText(spelled, syntax)
    said = [answer.push(0, 1), answer.finish(2, is_cut=True)]
    assert "".join(one.piece for one in said) == "say "
    assert answer.is_stopped


def test_pieces_of_call_tokens_are_empty():
    bench, _ = _run(HERMES, call=_call(tools=TOOLS))
    assert all(piece == "" for delta in bench.messages(Delta) for piece in delta.pieces)


def test_a_call_that_a_limit_cuts_is_no_call_of_the_answer():
    cut = len(TOKENIZER.encode(HERMES)) - 8
    for stream in ("live", "held"):
        bench, done = _run(HERMES, call=_call(tools=TOOLS), params={"max_tokens": cut},
                           plan=Plan(tool_stream=stream))  # fmt: skip
        assert (done.finish, done.detail) == ("length", "max_tokens")
        for _, arguments in _calls(bench):
            json.loads(arguments)  # what was sent already is closed


def test_with_no_calls_wanted_they_are_text():
    bench, done = _run(HERMES, call=_call(tools=TOOLS, tool_choice=ToolChoice("none")))
    assert (_of_kind(bench, "text"), done.finish) == (HERMES, "stop")


def test_b32_a_call_inside_the_reasoning_ends_the_block():
    bench, done = _run("hm\n" + HERMES, OPENING, call=_call(tools=TOOLS), plan=THINKING)
    assert _of_kind(bench, "reasoning") == "hm"
    assert [name for name, _ in _calls(bench)] == ["get_weather"]
    assert (done.thinking_closed_by, done.finish) == ("call", "tool_calls")


def test_a_call_inside_the_reasoning_ends_no_block_where_the_answer_has_a_form():
    """The form begins at its own start, so half a call before it would spoil both."""
    call = _call(tools=TOOLS, tool_choice=ToolChoice("required"))
    bench, done = _run(f"hm {HERMES}</think>\n\n{HERMES}", OPENING, call=call, plan=THINKING)
    assert _of_kind(bench, "reasoning") == f"hm {HERMES}"
    assert [name for name, _ in _calls(bench)] == ["get_weather"]
    assert (done.thinking_closed_by, done.finish) == ("model", "tool_calls")


def test_a_stop_string_behind_a_call_leaves_the_call():
    params = {"stop": ("STOP",)}
    bench, done = _run(HERMES + "\nok STOP x", PLAIN, call=_call(tools=TOOLS), params=params)
    assert [name for name, _ in _calls(bench)] == ["get_weather"]
    assert (done.finish, done.detail) == ("tool_calls", "stop_string")


def test_b40_a_forced_choice_gives_one_call_even_when_the_model_writes_two():
    call = _call(tools=TOOLS, tool_choice=ToolChoice("required"), parallel_tool_calls=False)
    other = HERMES.replace("3", "4")
    bench, done = _run(HERMES + "\n" + other, call=call)
    assert [json.loads(args)["days"] for _, args in _calls(bench)] == [3]
    assert done.finish == "tool_calls"


def test_a_model_whose_template_knows_no_tools_is_not_asked_with_some():
    bench = Bench(saying("x"))
    bench.hello()
    bench.say(submit(call=_call(tools=TOOLS)))
    bench.turn(2)
    (refused,) = bench.sent[b"gw:1"][-1:]
    assert (refused.code, refused.param) == ("bad_request", "tools")


# Forms.


def test_a_form_begins_behind_the_reasoning_and_its_blank():
    call = _call(answer_format=AnswerFormat("regex", "[0-9]+"))
    bench, done = _run("so</think>42", OPENING, call=call, plan=THINKING)
    hidden = [
        token for d in bench.messages(Delta) for token, h in zip(d.ids, d.hidden, strict=True) if h
    ]
    assert hidden == TOKENIZER.encode("\n\n")
    assert _of_kind(bench, "reasoning") == "so"
    run_ids = [token for d in bench.messages(Delta) for token in d.ids]
    assert run_ids[-1] == END
    assert done.thinking_closed_by == "model"


def test_where_the_model_may_reason_a_form_makes_the_prompt_open_the_block():
    call = _call(answer_format=AnswerFormat("regex", "[0-9]+"))
    bench, done = _run("so</think>42", CHOOSING, call=call, plan=THINKING)
    assert _of_kind(bench, "reasoning") == "so"
    opened = len(TOKENIZER.encode("hello<think>\n"))
    assert done.usage.prompt_tokens == opened
    _, off = _run("42", CHOOSING, call=call)
    assert off.usage.prompt_tokens == len(TOKENIZER.encode("hello"))


# One text, however it comes.


def test_what_an_unclosed_reasoning_held_back_stays_reasoning():
    bench, _ = _run("a\n\n", OPENING, params={"stop": ("\n\n",)}, plan=THINKING)
    assert (_of_kind(bench, "reasoning"), _of_kind(bench, "text")) == ("a\n\n", "")


@settings(max_examples=100, deadline=None)
@given(
    st.lists(
        st.sampled_from(["a", "é", "😀", "👩‍👩‍👧", "\n\n", " stop", "STO", "P",
                         "<tool_call>", HERMES, XML, "</think>", "<think>", "語", "```\n", "{", '"',
                         "x < y "]),
        min_size=1, max_size=8,
    ),
    st.sampled_from([PLAIN, OPENING, CHOOSING]),
    st.lists(st.sampled_from(["stop", "STOP", "P", "😀", "\n\n"]), max_size=3),
    st.booleans(),
)  # fmt: skip
def test_b33_b38_streamed_and_held_say_the_same(parts, template, stops, has_tools):
    call = _call(tools=TOOLS if has_tools else ())
    said = []
    for stream in ("live", "held"):
        bench, done = _run("".join(parts), template, call=call, params={"stop": tuple(stops)},
                           plan=Plan(thinking=Thinking(True), tool_stream=stream))  # fmt: skip
        text = _of_kind(bench, "text")
        assert not any(stop in text for stop in stops)
        said.append((_of_kind(bench, "reasoning"), text, _calls(bench), done.finish, done.detail))
    live, held = said
    if live[3] != "stop" or not has_tools:  # a call that never ends is text when it was held
        assert live == held


# One record of it all.


def test_b44_usage_is_the_same_in_the_answer_the_log_and_the_metrics():
    with structlog.testing.capture_logs() as lines:
        bench, done = _run("hm</think>yes", OPENING, plan=Plan(thinking=Thinking(True, 50)))
    (line,) = [line for line in lines if line["event"] == "run.finished"]
    usage = done.usage
    for name in ("prompt_tokens", "completion_tokens", "reasoning_tokens", "hidden_tokens"):
        assert line[name] == getattr(usage, name), name
    assert usage.upstream_output_tokens == usage.completion_tokens + usage.hidden_tokens
    counted = {
        sample.labels["kind"]: sample.value
        for sample in bench.loop._metrics.samples({}, CacheFacts())
        if sample.name.endswith("generated_tokens_total")
    }
    assert counted["reasoning"] == usage.reasoning_tokens
    assert sum(counted.values()) == usage.upstream_output_tokens


def test_a_fault_in_the_text_of_one_run_ends_that_run_alone(monkeypatch: pytest.MonkeyPatch):
    bench = Bench(saying("abc"), lanes=2, slots=3)
    bench.hello()
    for run_id in ("r1", "r2"):
        bench.say(submit(run_id))
    bench.turn()
    broken = bench.loop._lanes.running[0]
    monkeypatch.setattr(broken.text, "push", lambda *_: 1 / 0)
    dones = {run_id: bench.turn_until_done(run_id) for run_id in ("r1", "r2")}
    assert (dones[broken.id].finish, dones[broken.id].error) == ("error", "ZeroDivisionError")
    (other,) = set(dones) - {broken.id}
    assert (dones[other].finish, bench.text(other)) == ("stop", "abc")


def test_b46_the_first_delta_has_a_token():
    bench, done = _run("hm</think>yes", OPENING, plan=THINKING, params={"stop": ("yesterday",)})
    assert all(delta.ids for delta in bench.messages(Delta))
    assert done.timings.ttft_ms == done.timings.queue_ms + done.timings.prompt_ms


def test_a_capped_form_is_completed_and_a_limit_of_the_client_is_not():
    schema = {"type": "object", "properties": {"a": {"type": "string"}}, "required": ["a"]}
    call = _call(answer_format=AnswerFormat("json_schema", schema))
    begun = TOKENIZER.encode('{"a": "')
    for plan, params, finish in (
        (Plan(cap=len(begun)), {}, ("stop", "schema")),
        (Plan(), {"max_tokens": len(begun)}, ("length", "max_tokens")),
        (Plan(cap=len(begun)), {"max_tokens": len(begun) - 1}, ("length", "max_tokens")),
    ):
        bench = Bench(saying('{"a": "' + "x" * 50), writer=writer_of(CHOOSING))
        bench.engine.is_consuming = True
        bench.hello()
        bench.say(submit(call=call, plan=plan, params={"temperature": 0.0, **params}))
        done = bench.turn_until_done("r1")
        assert (done.finish, done.detail) == finish
        text = _of_kind(bench, "text")
        assert (json.loads(text) == {"a": ""}) if finish[0] == "stop" else text.startswith("{")


def test_a_form_that_the_library_cannot_complete_is_cut(monkeypatch):
    def give_up(self: Matcher) -> bytes:
        raise GrammarFault("too complex")

    bench = Bench(saying('{"aaaa'), writer=writer_of(PLAIN))
    bench.hello()
    bench.say(submit(call=_call(answer_format=AnswerFormat("json_object")), plan=Plan(cap=4)))
    bench.turn()
    monkeypatch.setattr(Matcher, "mask", give_up)
    done = bench.turn_until_done("r1")
    assert (done.finish, done.detail) == ("length", "max_tokens")
    assert done.usage.completion_tokens == 4
