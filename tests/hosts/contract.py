"""What every host of the monitor must do with a case, and a plain host that only asks."""

from dataclasses import dataclass, replace

from conductor.monitor.verdicts import (
    Block,
    Calls,
    CloseReasoning,
    Continue,
    End,
    MadeCall,
    PromptFacts,
    Regenerate,
    Stop,
    Verdict,
)
from tests.conductor.monitor.watched import tokens_of
from tests.hosts.cases import CASES, TOOLS, Case, Recorded, Shown, Writes

MODES = ("act", "shadow")
PLAYS = [(name, mode) for name in CASES for mode in MODES]


@dataclass(frozen=True)
class Played:
    """What came of a case. `shown`: None of a host that shows nothing.

    `hidden`: what the client's usage must not have; `is_usage_true`: it has what was shown alone.
    """

    said: tuple[str, ...]
    told: frozenset[tuple[str, str]]
    shown: Shown | None = None
    is_usage_true: bool = True


def check(case: Case, mode: str, played: Played) -> None:
    """One text, one verdict, whoever hosts: and in the shadow nothing but a line."""
    is_act = mode == "act"
    assert played.said == (case.acts if is_act else ()), played
    assert played.told == ({(case.task, mode)} if case.is_told else set()), played
    assert played.is_usage_true, played
    shown, expected = played.shown, case.act if is_act else case.shadow
    if shown is None:
        return
    if is_act and case.is_cut_off:
        assert 0 < len(shown.text) < len(expected.text) and expected.text.startswith(shown.text)
        shown = replace(shown, text=expected.text)
    assert shown == expected, played


def facts_of(case: Case) -> PromptFacts:
    """What a host tells of the prompt."""
    return PromptFacts(
        10, 100_000, is_thinking=True, budget=case.budget, tools=TOOLS, past=case.past
    )


def play(case: Case, mode: str) -> Played:
    """A host that is nothing but a list of tokens: it asks, and does what it is told."""
    facts = facts_of(case)
    watch = Recorded(case.plan(mode), facts)
    watch.before_prefill(facts)
    writes: Writes | None = case.writes
    is_closed = False
    while writes is not None:
        verdict = _written(watch, writes, is_closed=is_closed)
        is_closed = is_closed or isinstance(verdict, CloseReasoning)
        goes_on = not isinstance(verdict, Continue | Stop)
        writes = case.then if goes_on and writes is case.writes else None
    watch.take_findings()
    return Played(tuple(watch.said), frozenset((one.task, one.mode) for one in watch.findings))


def _written(watch: Recorded, writes: Writes, *, is_closed: bool) -> Verdict:
    """What the monitor says first to this answer that is not to go on."""
    phases = [("answer", token) for token in tokens_of(writes.text)]
    if not is_closed:
        phases = [("reasoning", token) for token in tokens_of(writes.reasoning)] + phases
    for phase, token in phases:
        verdict = watch.on_block(Block(phase, token, 1, 1000))  # type: ignore[arg-type]
        if not isinstance(verdict, Continue):
            return verdict
    whole = writes.calls[:-1] if writes.is_unclosed and writes.is_cut else writes.calls
    calls = tuple(MadeCall(index, *call) for index, call in enumerate(whole))
    if calls:
        verdict = watch.on_calls(Calls(calls, writes.text))
        if isinstance(verdict, Regenerate | Stop):
            return verdict
    finish = "length" if writes.is_cut else "tool_calls" if calls else "stop"
    end = End(
        finish,  # type: ignore[arg-type]
        "max_tokens" if writes.is_cut else "eos",
        has_text=bool(writes.text),
        calls=len(calls),
        is_open=writes.is_open and not is_closed,
        is_in_call=len(whole) < len(writes.calls),
        room=1000,
    )
    return watch.on_end(end)
