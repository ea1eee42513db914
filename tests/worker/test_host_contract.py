"""The contract of hosts, against the worker's loop and a scripted model."""

import json
from collections.abc import Callable
from dataclasses import replace

import pytest
from scripted import COMPILER, END, TOKENIZER, Bench, ScriptedEngine, submit, writer_of
from test_loop_answers import _call, _calls

from conductor.monitor.tasks import monitor_plan
from conductor.monitor.verdicts import PromptFacts
from proto.chat import Message, TextPart, ToolCall
from proto.messages import Delta, Done
from proto.plan import MonitorPlan, Plan, Thinking
from tests.hosts.cases import CASES, TOOLS, Case, Recorded, Shown, Writes
from tests.hosts.contract import PLAYS, Played, check
from worker.hosting import Hosting

CHOOSING = "{{ messages[0].content }}{# tools </think> #}"
OPENING = "{{ messages[0].content }}\n<think>\n{# tools </think> #}"
MOST = 12_000


def raw(writes: Writes, *, is_closed: bool) -> str:
    """An answer as a model writes it that was taught JSON in tags."""
    calls = [
        f'<tool_call>\n{{"name": {json.dumps(name)}, "arguments": {arguments}'
        for name, arguments in writes.calls
    ]
    text = "}\n</tool_call>\n".join([*calls, ""])
    if writes.is_unclosed:
        text = text.removesuffix("}\n</tool_call>\n")
    text = writes.text + text
    if not writes.reasoning or is_closed:
        return text
    return writes.reasoning + ("" if writes.is_open else f"\n</think>\n\n{text}")


def following(first: str, then: str) -> Callable[[tuple[int, ...], int], int]:
    """Writes the first text; and the other one behind whatever it did not write itself."""
    waiting = [TOKENIZER.encode(then)]
    ids = list(TOKENIZER.encode(first))
    expected: list[tuple[int, ...]] = []

    def script(ctx: tuple[int, ...], number: int) -> int:
        if expected and ctx != expected[0] and waiting:
            ids[:] = waiting.pop()
        token = ids.pop(0) if ids else END
        expected[:] = [(*ctx, token)]
        return token

    return script


def play(case: Case, mode: str, tasks: MonitorPlan | None = None) -> Played:
    watches: list[Recorded] = []

    def make(plan: MonitorPlan, facts: PromptFacts) -> Recorded:
        watches.append(Recorded(plan, facts))
        return watches[-1]

    is_reasoning = bool(case.writes.reasoning)
    first = raw(case.writes, is_closed=False)
    script = following(first, raw(case.then, is_closed=True))
    hosting = Hosting(make, TOKENIZER.encode_literal, COMPILER, "hermes", is_strict=True)
    writer = writer_of(OPENING if is_reasoning else CHOOSING)
    bench = Bench(script, writer=writer, max_len=MOST, hosting=hosting)
    bench.hello()
    plan = Plan(
        thinking=Thinking(on=is_reasoning, budget=case.budget), monitor=tasks or case.plan(mode),
        tool_stream="held",
    )  # fmt: skip
    limit = len(TOKENIZER.encode(first)) if case.writes.is_cut else MOST
    bench.say(
        submit(
            call=replace(_call(tools=TOOLS), messages=conversation(case)), plan=plan,
            params={"temperature": 0.0, "max_tokens": limit}, credit=MOST,
        )
    )  # fmt: skip
    done = bench.turn_until_done("r1", limit=3 * MOST)
    (watch,) = watches
    told = [event for delta in bench.messages(Delta) for event in delta.events or ()]
    return Played(
        tuple(watch.said),
        frozenset((one.task, one.mode) for one in told),
        shown_of(bench, done),
        is_usage_true(bench, done),
    )


def conversation(case: Case) -> tuple[Message, ...]:
    """A question, and the calls of earlier turns with their results."""
    messages = [Message("user", (TextPart("hello"),))]
    for number, one in enumerate(case.past):
        made = ToolCall(f"p{number}", one.name, one.arguments)
        result = (TextPart(one.result or ""),)
        messages += [
            Message("assistant", (), (made,)),
            Message("tool", result, call_id=f"p{number}"),
        ]
    return tuple(messages)


def shown_of(bench: Bench, done: Done) -> Shown:
    calls = tuple((name, json.loads(arguments)) for name, arguments in _calls(bench))
    hidden = sum(sum(delta.hidden) for delta in bench.messages(Delta))
    assert done.usage.hidden_tokens >= hidden
    visible = "".join(
        piece
        for delta in bench.messages(Delta)
        for piece, kind, is_hidden in zip(delta.pieces, delta.kinds, delta.hidden, strict=True)
        if kind == "text" and not is_hidden
    )
    return Shown(visible, calls, done.finish)


def is_usage_true(bench: Bench, done: Done) -> bool:
    """What the client is told was written is what went out and is not hidden."""
    usage = done.usage
    deltas = bench.messages(Delta)
    sent = sum(len(delta.ids) - sum(delta.hidden) for delta in deltas)
    whole = usage.completion_tokens + usage.hidden_tokens
    return usage.completion_tokens == sent and usage.upstream_output_tokens == whole


def as_here(case: Case, mode: str) -> Case:
    """A case as this host has it in the shadow: a budget is a limit of the worker's own, and markup
    that nobody judges is text as it was written."""
    if case.task == "D2":
        return replace(case, shadow=case.act)
    names = [tool.name for tool in TOOLS]
    is_unknown = any(name not in names for name, _ in case.writes.calls)
    if not (case.writes.is_unclosed or is_unknown):
        return case
    shown = Shown(raw(case.writes, is_closed=False), (), "length" if case.writes.is_cut else "stop")
    return replace(case, shadow=shown, is_told=mode == "act" or not is_unknown)


@pytest.mark.parametrize("guessed", [0, 5], ids=["plain", "in blocks"])
@pytest.mark.parametrize(("name", "mode"), PLAYS)
def test_a_case_has_one_verdict(
    name: str, mode: str, guessed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ScriptedEngine, "guessed", guessed)
    check(as_here(CASES[name], mode), mode, play(CASES[name], mode))


def test_a_call_that_was_read_out_of_text_is_the_answer_and_nothing_is_asked_for_again() -> None:
    """As shipped, where an empty answer is one that is taken back."""
    case = CASES["C1 an unclosed call"]
    played = play(case, "act", monitor_plan({}))
    assert (played.said, played.shown) == (case.acts, case.act)


def test_a_call_that_writes_one_line_again_and_again_is_ended_so_that_it_can_be_read() -> None:
    """Task C4, which only the worker can do this way."""
    lines = "".join(f"value_{n} = compute({n * n})\n" for n in range(300))
    text = lines + "print(the_same_value)\n" * 200
    writes = Writes(calls=(("read_file", json.dumps({"path": text})),))
    same = Case("C4", writes, ("constrain None call",), Shown(), Shown())
    seen = play(same, "shadow").shown
    assert seen is not None and seen.calls == (("read_file", {"path": text}),)
    played = play(same, "act")
    assert (played.said, played.told) == (same.acts, {("C4", "act")}) and played.is_usage_true
    assert played.shown is not None and played.shown.finish == "tool_calls"
    ((name, arguments),) = played.shown.calls
    assert name == "read_file" and text.startswith(arguments["path"])
    assert len(lines) < len(arguments["path"]) < len(text)
