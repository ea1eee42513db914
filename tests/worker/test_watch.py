"""A run with a monitor: what it is asked, and that each of its answers is done, to the token."""

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from decoding import opened, read, write_on
from hypothesis import given, settings
from hypothesis import strategies as st
from scripted import COMPILER, END, TOKENIZER, Bench, ScriptedEngine, saying, submit, writer_of
from structlog.testing import capture_logs
from test_loop_answers import HERMES, TOOLS, _call, _calls, _of_kind
from tiny_checkpoints import write_tiny

from conductor.monitor.verdicts import (
    GO_ON,
    CallForm,
    CloseReasoning,
    Constrain,
    Continue,
    Finding,
    Inject,
    MadeCall,
    Regenerate,
    Stop,
)
from proto.chat import AnswerFormat
from proto.messages import Delta, Done
from proto.plan import REASONING_PART, MonitorPlan, MonitorTask, Plan, Thinking
from proto.worker_settings import Launch, WorkerSettings
from worker.build import build_engine
from worker.engine import Engine
from worker.hosting import Hosting
from worker.loading.locate import open_checkpoint
from worker.sampling.chooser import Chooser
from worker.sampling.params import Sampling
from worker.settings import Machine
from worker.text.sources import masked_ids
from worker.types import Replied

PLAIN = "{{ messages[0].content }}{# tools #}"
OPENING = "{{ messages[0].content }}\n<think>\n{# tools </think> #}"
NOTHING = MonitorPlan({})
THINKING = Plan(thinking=Thinking(on=True), monitor=NOTHING)
HELD = Plan(monitor=NOTHING, tool_stream="held")
CLOSE = "\n</think>\n\n"
encode = TOKENIZER.encode_literal


@dataclass
class Scripted:
    """Answers each point by a function of what it is told, the first that has one to give."""

    answers: dict[str, Callable[[Any], Any]] = field(default_factory=dict)
    step: int = 64
    asked: list[tuple[str, Any]] = field(default_factory=list)
    findings: list[Finding] = field(default_factory=list)

    def _say(self, point: str, question: Any) -> Any:
        self.asked.append((point, question))
        answer = self.answers.get(point)
        return (answer(question) if answer else None) or GO_ON

    def before_prefill(self, facts: Any) -> Any:
        return self._say("before_prefill", facts)

    def on_block(self, block: Any) -> Any:
        return self._say("on_block", block)

    def on_calls(self, calls: Any) -> Any:
        return self._say("on_calls", calls)

    def on_end(self, end: Any) -> Any:
        return self._say("on_end", end)

    def horizon(self) -> int:
        return self.step

    def take_findings(self) -> tuple[Finding, ...]:
        found, self.findings = tuple(self.findings), []
        return found

    def heard(self, point: str) -> list[Any]:
        return [question for name, question in self.asked if name == point]


def once(verdict: Any) -> Callable[[Any], Any]:
    """Says it the first time only."""
    left = [verdict]
    return lambda _: left.pop() if left else None


def _run(
    watch: Scripted, script: Any, template: str = PLAIN, *, is_strict: bool = True, **changes: Any
) -> tuple[Bench, Done]:
    new_watch = changes.pop("new_watch", lambda plan, facts: watch)
    hosting = Hosting(new_watch, encode, COMPILER, "hermes", is_strict)
    script = saying(script) if isinstance(script, str) else script
    bench = Bench(script, writer=writer_of(template), max_len=2000, hosting=hosting)
    bench.engine.is_consuming = changes.pop("is_consuming", False)
    bench.hello()
    params = {"temperature": 0.0, "max_tokens": 1000, **changes.pop("params", {})}
    plan = changes.pop("plan", Plan(monitor=NOTHING))
    bench.say(submit(params=params, plan=plan, **{"credit": 10_000, **changes}))
    return bench, bench.turn_until_done("r1", limit=2000)


def _hidden(bench: Bench) -> list[int]:
    deltas = bench.messages(Delta)
    return [i for d in deltas for i, h in zip(d.ids, d.hidden, strict=True) if h]


def _told(bench: Bench) -> list[str]:
    return [event.reason for delta in bench.messages(Delta) for event in delta.events or ()]


def _numbers_have_no_gaps(bench: Bench) -> bool:
    numbers = bench.numbers("r1")
    return numbers == list(range(1, len(numbers) + 1))


def then(*texts: str) -> Any:
    """Writes the first text; and behind each end that was taken back, or retry, the next one.

    What a slot holds says which: tokens behind the last end of a text are of the next one.
    """
    state = {"text": 0, "at": 0, "last": 0}

    def script(ctx: tuple[int, ...], number: int) -> int:
        ids = encode(texts[state["text"]])
        if state["at"] > len(ids):
            state["text"], state["at"] = min(state["text"] + 1, len(texts) - 1), 0
            ids = encode(texts[state["text"]])
        state["at"] += 1
        return ids[state["at"] - 1] if state["at"] <= len(ids) else END

    return script


@pytest.fixture(params=[0, 5], ids=["plain", "in blocks"], autouse=True)
def _guessed(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ScriptedEngine, "guessed", request.param)


def test_blocks_are_of_one_phase_and_never_longer_than_the_horizon():
    watch = Scripted(step=3)
    text = f"I see a cat\n</think>\n\nLook.\n{HERMES}"
    bench, done = _run(watch, text, OPENING, call=_call(tools=TOOLS), plan=THINKING)
    other, alone = _run(
        watch, text, OPENING, call=_call(tools=TOOLS), plan=Plan(thinking=Thinking(on=True))
    )
    assert bench.text("r1") == other.text("r1") and done.usage == alone.usage
    assert [args for _, args in _calls(bench)] == [args for _, args in _calls(other)]
    (facts,) = watch.heard("before_prefill")
    assert facts.is_thinking and facts.tools == TOOLS and facts.is_plain
    blocks = watch.heard("on_block")
    phases = [block.phase for block in blocks]
    assert sorted(set(phases), key=phases.index) == ["reasoning", "answer", "call"]
    assert max(block.tokens for block in blocks) <= 3
    assert sum(block.tokens for block in blocks) == done.usage.completion_tokens - 1
    said = {p: "".join(b.text for b in blocks if b.phase == p) for p in phases}
    assert said["reasoning"].startswith("I see a cat\n") and said["answer"] == "Look."
    assert '"city": "Köln"' in said["call"]
    assert [point for point, _ in watch.asked if point != "on_block"] == [
        "before_prefill", "on_calls", "on_end",
    ]  # fmt: skip


def test_no_token_of_a_phase_is_written_before_the_monitor_knows_of_it():
    """A horizon is of a phase: that of the next one may be shorter."""

    def look(block: Any) -> None:
        watch.step = 50 if block.phase == "reasoning" else 1

    watch = Scripted({"on_block": look}, step=50)
    _run(watch, "I see a cat\n</think>\n\nLook at it.", OPENING, plan=THINKING)
    assert {b.tokens for b in watch.heard("on_block") if b.phase == "answer"} == {1}


def test_closing_the_reasoning_puts_in_bridge_and_marker_and_goes_on_with_the_answer():
    def when_long(block: Any) -> Any:
        seen.append(block.tokens)
        watch.step = max(1, 6 - sum(seen))
        is_due = block.phase == "reasoning" and sum(seen) == 6
        return CloseReasoning("Enough.", "D1") if is_due else None

    seen: list[int] = []
    watch = Scripted({"on_block": when_long}, step=6)
    bench, done = _run(watch, "one two three four five six seven eight", OPENING, plan=THINKING)
    assert _hidden(bench) == [*encode("Enough."), *TOKENIZER.encode(CLOSE)]
    assert (done.thinking_closed_by, done.usage.reasoning_tokens) == ("loop", 6)
    assert done.usage.hidden_tokens == len(_hidden(bench))
    assert _of_kind(bench, "reasoning").endswith("Enough.")  # what a later turn brings again
    assert _of_kind(bench, "text") and _numbers_have_no_gaps(bench)


def test_an_end_inside_the_reasoning_is_taken_back():
    watch = Scripted({"on_end": once(CloseReasoning("So:", "E1"))})
    bench, done = _run(watch, then("I see a cat", "Hi!"), OPENING, plan=THINKING)
    assert watch.heard("on_end")[0].is_open and not watch.heard("on_end")[0].has_text
    assert (_of_kind(bench, "text"), done.finish, done.detail) == ("Hi!", "stop", "eos")
    assert _hidden(bench) == [*encode("So:"), *TOKENIZER.encode(CLOSE)]
    ids = [i for delta in bench.messages(Delta) for i in delta.ids]
    assert ids.count(END) == 1 and _numbers_have_no_gaps(bench)
    assert bench.engine.steps[-1].ctx.count(END) == 1
    usage = done.usage
    assert usage.completion_tokens == len(encode("I see a cat")) + len(encode("Hi!")) + 1
    assert usage.hidden_tokens == len(_hidden(bench)) + 1  # the end that was taken back
    assert usage.upstream_output_tokens == usage.completion_tokens + usage.hidden_tokens


def test_hidden_text_is_searched_by_nobody_and_counts_for_no_limit():
    watch = Scripted({"on_end": once(Inject("STOP now"))})
    params = {"stop": ("STOP",), "max_tokens": 8, "top_logprobs": None}
    bench, done = _run(watch, then(" ", "abc"), params=params)
    assert (bench.text("r1").replace("STOP now", ""), done.detail) == (" abc", "eos")
    assert _hidden(bench) == encode("STOP now")
    assert [b.text for b in watch.heard("on_block")] and "STOP" not in "".join(
        b.text for b in watch.heard("on_block")
    )


def test_an_end_by_a_limit_or_a_stop_string_is_never_taken_back():
    for params in ({"max_tokens": 2}, {"stop": ("c",)}):
        watch = Scripted({"on_end": once(Inject("go on"))})
        bench, done = _run(watch, "abcdefgh", params=params)
        assert done.detail in ("max_tokens", "stop_string") and not _hidden(bench)


def test_text_in_place_of_a_block_of_a_tail_and_behind_the_end():
    watch = Scripted({
        "on_block": lambda b: Continue(b.text.upper()), "on_end": once(Continue(" END")),
    })  # fmt: skip
    bench, _ = _run(watch, "abc def")
    assert bench.text("r1") == "ABC DEF END"


def _two(days: int = 4) -> str:
    return HERMES + "\n" + HERMES.replace("3", str(days))


def test_stop_keeps_the_first_calls_and_lets_the_rest_go():
    watch = Scripted({"on_calls": once(Stop("tool_calls", keep_calls=1))})
    bench, done = _run(watch, _two(), call=_call(tools=TOOLS), plan=HELD)
    assert len(watch.heard("on_calls")[0].calls) == 2
    assert not any(call.is_sent for call in watch.heard("on_calls")[0].calls)
    assert len(_calls(bench)) == 1
    assert (done.finish, done.detail) == ("tool_calls", "monitor")


def test_stop_in_the_middle_ends_the_answer_at_that_block():
    watch = Scripted({"on_block": lambda b: Stop("stop") if "c" in b.text else None}, step=1)
    bench, done = _run(watch, "abcdef")
    assert (bench.text("r1"), done.finish, done.detail) == ("abc", "stop", "monitor")


def test_calls_in_place_of_those_that_are_held():
    other = MadeCall(0, "now", "{}")
    watch = Scripted({"on_calls": once(Continue(calls=(other,)))})
    bench, done = _run(watch, HERMES, call=_call(tools=TOOLS), plan=HELD)
    assert _calls(bench) == [("now", "{}")] and done.finish == "tool_calls"
    live, _ = _run(
        Scripted({"on_calls": once(Continue(calls=(other,)))}), HERMES, call=_call(tools=TOOLS)
    )
    assert [name for name, _ in _calls(live)] == ["get_weather"]  # the client has it


def test_an_end_is_told_of_with_the_calls_that_the_client_will_get():
    one = MadeCall(0, "now", "{}")
    watch = Scripted({"on_calls": once(Continue(calls=(one,)))})
    bench, done = _run(watch, _two(), call=_call(tools=TOOLS), plan=HELD)
    assert [end.calls for end in watch.heard("on_end")] == [1] == [len(_calls(bench))]
    watch = Scripted({"on_calls": once(Continue(calls=()))})
    bench, done = _run(watch, _two(), call=_call(tools=TOOLS), plan=HELD)
    assert (done.finish, _calls(bench)) == ("stop", [])


def test_held_calls_go_out_only_when_they_were_looked_at():
    seen: list[int] = []
    watch = Scripted({"on_calls": lambda calls: seen.append(len(bench_of[0].messages(Delta)))})
    bench_of: list[Bench] = []
    script = saying("Look.\n" + HERMES)
    hosting = Hosting(lambda plan, facts: watch, encode, COMPILER, "hermes", True)
    bench = Bench(script, writer=writer_of(PLAIN), max_len=2000, hosting=hosting)
    bench_of.append(bench)
    bench.hello()
    bench.say(submit(call=_call(tools=TOOLS), plan=HELD, credit=12, params={"max_tokens": 900}))
    done = bench.turn_until_done("r1", limit=2000)
    early = [d for d in bench.messages(Delta)[: seen[0]] for part in d.calls or ()]
    assert not early and [name for name, _ in _calls(bench)] == ["get_weather"]
    assert done.finish == "tool_calls" and _numbers_have_no_gaps(bench)


@pytest.mark.parametrize("lead", ["", "I look.\n"])
@pytest.mark.parametrize("note", [None, "Use the tool now."])
def test_a_call_that_did_not_go_out_is_written_again(lead: str, note: str | None):
    watch = Scripted({"on_calls": once(Regenerate(0, CallForm("now"), note))})
    again = '<tool_call>\n{"name": "now", "arguments": {}}\n</tool_call>'
    bench, done = _run(
        watch, then(lead + HERMES, again), call=_call(tools=TOOLS), plan=HELD, is_consuming=True
    )
    assert _calls(bench) == [("now", "{}")] and done.finish == "tool_calls"
    assert _hidden(bench) == encode(note or "") and _numbers_have_no_gaps(bench)
    ids = [i for delta in bench.messages(Delta) for i in delta.ids]
    assert ids == [*encode(lead), *encode(note or ""), *encode(again), END]
    assert {delta.retry for delta in bench.messages(Delta)} <= {None, 1}
    assert bench.messages(Delta)[-1].retry == 1
    usage = done.usage
    assert usage.completion_tokens == len(encode(lead + again)) + 1
    assert usage.hidden_tokens == len(encode(HERMES)) + 1 + len(encode(note or ""))
    assert len(watch.heard("on_calls")) == 2


INSIDE = HERMES.replace("Köln", "<tool_call>")
NOW = '<tool_call>\n{"name": "now", "arguments": {}}\n</tool_call>'


def test_the_second_call_is_written_again_and_the_first_stays():
    """Whatever stands in the first one's arguments."""
    watch = Scripted({"on_calls": once(Regenerate(1, CallForm("now")))})
    script = then(f"{INSIDE}\n{HERMES}", f"{NOW}")
    bench, done = _run(watch, script, call=_call(tools=TOOLS), plan=HELD)
    assert [name for name, _ in _calls(bench)] == ["get_weather", "now"] and not _told(bench)
    assert done.usage.completion_tokens == len(encode(f"{INSIDE}\n")) + len(encode(NOW)) + 1


def test_a_call_without_a_beginning_of_its_own_is_not_written_again():
    two = "<function=get_weather>\n</function>\n<function=now>\n</function>"
    for text, index in ((f"<tool_call>\n{two}\n</tool_call>\n{NOW}", 1), (f"hm\n{HERMES}", 0)):
        watch = Scripted({"on_calls": once(Regenerate(index, CallForm("now")))})
        bench, done = _run(
            watch, text, OPENING if index == 0 else PLAIN, call=_call(tools=TOOLS),
            plan=Plan(thinking=Thinking(on=index == 0), monitor=NOTHING, tool_stream="held"),
        )  # fmt: skip
        assert _told(bench) == ["sent"] and done.finish == "tool_calls"
        assert _calls(bench)[0][0] == "get_weather"


def test_what_went_out_is_not_written_again():
    watch = Scripted({"on_calls": once(Regenerate(0, CallForm("now")))})
    bench, _ = _run(watch, HERMES, call=_call(tools=TOOLS))
    assert [name for name, _ in _calls(bench)] == ["get_weather"] and _told(bench) == ["sent"]


def test_a_form_begins_where_the_monitor_says_so():
    digits = Constrain(AnswerFormat("regex", "[0-9]+"), "answer")
    for point in ("before_prefill", "on_block"):
        watch = Scripted({point: once(digits)}, step=1)
        text = "42" if point == "before_prefill" else "x42"
        bench, done = _run(watch, text, is_consuming=True)
        assert (bench.text("r1"), done.finish) == (text, "stop")
        _, failed = _run(Scripted({point: once(digits)}, step=1), "xyz", is_consuming=True)
        assert failed.finish == "error"  # the script writes what the form forbids


@pytest.mark.parametrize("plan", [HELD, Plan(monitor=NOTHING)], ids=["held", "live"])
def test_the_shortest_end_of_a_call_is_written_for_the_model(plan: Plan):
    def long(block: Any) -> Any:
        said.append(block.text if block.phase == "call" else "")
        return Constrain(None) if "Kö" in "".join(said) else None

    said: list[str] = []
    watch = Scripted({"on_block": long}, step=1)
    bench, done = _run(watch, HERMES, call=_call(tools=TOOLS), plan=plan)
    ((name, args),) = _calls(bench)
    assert name == "get_weather" and args.startswith('{"city": "Kö') and args.endswith("}")
    assert len(args) < 25 and done.finish == "tool_calls"


def test_before_a_prompt_is_read_text_is_put_behind_it_or_the_run_ends():
    watch = Scripted({"before_prefill": once(Inject("By the way."))})
    bench, done = _run(watch, then("Hi!"))
    assert _hidden(bench) == encode("By the way.") and "Hi!" in bench.text("r1")
    assert done.usage.prompt_tokens == len(encode("hello")) and _numbers_have_no_gaps(bench)
    bench, done = _run(Scripted({"before_prefill": once(Stop("stop"))}), "Hi!")
    assert (done.finish, done.detail, done.usage.completion_tokens) == ("stop", "monitor", 0)
    assert not bench.engine.steps


def test_findings_go_out_with_the_next_tokens_and_are_counted():
    def look(block: Any) -> None:
        if not watch.findings and len(watch.heard("on_block")) == 1:
            numbers = {"n": 2, "of": "a text"}
            watch.findings += [Finding("D1", "act", "loop", numbers), Finding("M1", "shadow", "k")]

    watch = Scripted({"on_block": look})
    bench, done = _run(watch, "abc")
    events = [event for delta in bench.messages(Delta) for event in delta.events or ()]
    assert [(e.task, e.mode, e.numbers) for e in events] == [
        ("D1", "act", {"n": 2.0}), ("M1", "shadow", None),
    ]  # fmt: skip
    assert (done.monitor.acts, done.monitor.shadows) == (1, 1)


def _raise(_: Any) -> Any:
    raise KeyError("a fault of the monitor")


@pytest.mark.parametrize("point", ["before_prefill", "on_block", "on_calls", "on_end", "new"])
def test_a_fault_of_the_monitor_switches_it_off_and_the_run_goes_on(point: str):
    watch = Scripted({point: _raise})
    changes = {"new_watch": lambda plan, facts: _raise(0)} if point == "new" else {}
    with capture_logs() as lines:
        bench, done = _run(watch, HERMES, call=_call(tools=TOOLS), plan=HELD, **changes)
    assert [name for name, _ in _calls(bench)] == ["get_weather"] and done.finish == "tool_calls"
    assert [line["error"] for line in lines if line["event"] == "monitor.failed"] == ["KeyError"]
    assert "failed" in _told(bench)
    assert len(watch.heard(point)) == (point != "new")


def test_without_its_monitor_a_run_keeps_to_its_budget():
    budget = Plan(
        thinking=Thinking(True, 3), monitor=MonitorPlan({"D2": MonitorTask("act")}),
    )  # fmt: skip
    text = "one two three four five six seven eight"
    _, done = _run(Scripted({"on_block": once(None)}), text, OPENING, plan=budget)
    assert done.usage.reasoning_tokens == done.usage.completion_tokens  # it is the monitor's
    _, done = _run(Scripted({"on_block": _raise}, step=1), text, OPENING, plan=budget)
    assert (done.thinking_closed_by, done.usage.reasoning_tokens) == ("budget", 3)


def test_a_verdict_that_its_point_does_not_allow_is_a_fault_in_tests_alone():
    with pytest.raises(AssertionError, match="does not allow"):
        _run(Scripted({"on_block": once(Inject("x"))}), "abc")
    bench, _ = _run(Scripted({"on_block": once(Inject("x"))}), "abc", is_strict=False)
    assert bench.text("r1") == "abc" and _told(bench) == ["not_allowed"]


def test_no_more_is_hidden_than_the_plan_allows():
    few = Plan(monitor=MonitorPlan({}, hidden_tokens=2))
    bench, done = _run(Scripted({"on_end": once(Inject("a longer text"))}), "abc", plan=few)
    assert not _hidden(bench) and _told(bench) == ["room"] and done.detail == "eos"


def test_the_next_turn_is_read_ahead_with_the_hidden_text_in_place():
    watch = Scripted({"on_block": once(CloseReasoning("Enough.", "D1"))}, step=4)
    bench, _ = _run(watch, "one two three four five", OPENING, plan=THINKING)
    (replied,) = (i for i in bench.to_preparer.take_all() if isinstance(i, Replied))
    (hidden,) = replied.hidden
    assert (hidden.text, hidden.part, hidden.message) == ("Enough.", REASONING_PART, 1)
    assert hidden.offset == len(replied.reply.reasoning)


@settings(max_examples=60, deadline=None)
@given(st.integers(1, 5), st.lists(st.integers(0, 7), min_size=1, max_size=5))
def test_the_same_text_has_the_same_verdicts_however_rounds_are_cut(step: int, cuts: list[int]):
    def heard(sizes: list[int]) -> list[tuple[Any, ...]]:
        """What a watch that decides at multiples of its step has seen there."""
        state: dict[str, Any] = {"phase": "", "tokens": 0, "text": ""}
        places: list[tuple[Any, ...]] = []

        def look(block: Any) -> Any:
            if block.phase != state["phase"]:
                places.append((state["phase"], state["text"], state["tokens"]))
                state.update(phase=block.phase, tokens=0, text="")
            state["tokens"] += block.tokens
            state["text"] += block.text
            watch.step = step - state["tokens"] % step
            if state["tokens"] and watch.step == step:
                places.append((block.phase, state["text"], state["tokens"]))
                if len(places) == 3 and block.phase == "reasoning":
                    return CloseReasoning("So.", "D1")
            return None

        watch = Scripted({"on_block": look}, step=step)
        text = f"I see a cat and 3 dogs\n</think>\n\nLook at it.\n{HERMES}"
        with pytest.MonkeyPatch.context() as patch:
            turns = iter(sizes * 500)
            patch.setattr(ScriptedEngine, "guessed", property(lambda _: next(turns)))
            bench, done = _run(watch, text, OPENING, call=_call(tools=TOOLS), plan=THINKING)
        ids = tuple(i for delta in bench.messages(Delta) for i in delta.ids)
        return [*places, (ids, done.usage, _calls(bench))]

    assert heard(cuts) == heard([0])


# Over real engines: what was dropped leaves nothing behind.

CHUNK = 16


@pytest.fixture(scope="module", params=["llama", "qwen3_5"])
def tiny(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Engine:
    path: Path = tmp_path_factory.mktemp(request.param)
    write_tiny(request.param, path, max_position_embeddings=512)
    settings_ = WorkerSettings(model=str(path), weights="fp32", threads=1, max_len=512)
    machine = Machine("cpu", threads=1, chunk=CHUNK, lanes=1, slots=2)
    launch = Launch(settings_, "m", str(path), "ipc:///x", "/x")
    masked = masked_ids(TOKENIZER, 512)
    return build_engine(launch, machine, open_checkpoint(path), masked_ids=masked, end_ids=(END,))


@pytest.mark.parametrize("ids", [(), (40,), (40, 41, 42)], ids=["none", "one", "some"])
@pytest.mark.parametrize("kept", [0, 1, 5, 20, 38])
def test_behind_a_rewind_a_sequence_goes_on_as_if_nothing_had_been_dropped(
    tiny: Engine, kept: int, ids: tuple[int, ...]
):
    prompt = tuple(30 + (i * 7) % 60 for i in range(2 * CHUNK + 3))
    greedy = Sampling(0.0, 1.0, 0, 0.0, seed=1, frequency_penalty=0.3)
    slot = opened(tiny, prompt, Chooser(greedy, prompt))
    written = [read(tiny, slot), *write_on(tiny, slot, 40)]
    slot.chooser.rewind(len(written) - kept, written[kept:])
    tiny.rewind(slot, len(prompt) + kept, ids)
    assert slot.ctx == [*prompt, *written[:kept], *ids]
    assert all(anchor.position <= slot.kv_len for anchor in slot.anchors)
    more = [] if slot.kv_len >= len(prompt) else [read(tiny, slot)]
    more += write_on(tiny, slot, 12 - len(more))
    assert slot.chooser.number == 1 + kept + len(ids) + 12
    tiny.close(slot)

    whole = (*prompt, *written[:kept], *ids)
    fresh = Chooser(greedy, prompt)
    for token in written[:kept]:
        fresh._counts.add(token)
    other = opened(tiny, whole, fresh)
    assert [read(tiny, other), *write_on(tiny, other, 11)] == more
    tiny.close(other)


def test_an_end_is_dropped_and_text_put_in_its_place(tiny: Engine):
    prompt = tuple(range(40, 40 + CHUNK + 2))
    greedy = Sampling(0.0, 1.0, 0, 0.0, seed=1)
    for ids in ((50,), (50, 51, 52)):
        slot = opened(tiny, prompt, Chooser(greedy, prompt))
        written = [read(tiny, slot), *write_on(tiny, slot, 5)]
        slot.drop_root()
        tiny.inject(slot, ids)
        more = write_on(tiny, slot, 8)
        tiny.close(slot)
        whole = (*prompt, *written[:-1], *ids)
        other = opened(tiny, whole, Chooser(greedy, whole))
        assert [read(tiny, other), *write_on(tiny, other, 7)] == more
        tiny.close(other)
