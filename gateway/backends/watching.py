"""A run's monitor at the points of an HTTP answer: asked at every delta, held to what can be done.

Knows no socket and no body. What a backend cannot do, and what is over the plan's limits, happens
in the shadow: it is found, and nothing comes of it.
"""

from collections.abc import Callable
from dataclasses import dataclass

import structlog

from conductor.monitor.verdicts import (
    ALLOWED,
    GO_ON,
    Block,
    CallForm,
    Calls,
    CloseReasoning,
    Constrain,
    Continue,
    End,
    Finding,
    Inject,
    PastCall,
    PromptFacts,
    Regenerate,
    Stop,
    Verdict,
    Watch,
)
from gateway.backends.answer_form import form_fields
from gateway.backends.base import Backend
from gateway.backends.chat_reader import estimate
from proto.chat import Call
from proto.messages import MonitorEvent
from proto.plan import MonitorPlan

log = structlog.get_logger(__name__)

TRIES = 2  # of one call in one round of regeneration

MakeWatch = Callable[[MonitorPlan, PromptFacts], Watch]


@dataclass(frozen=True, slots=True)
class State:
    """Where an answer is: its tokens so far, what of it the client has, and what is held."""

    at: int = 0
    has_text: bool = False
    has_calls: bool = False


class Watching:
    """One run's monitor, where it has one. `findings`: acts and shadow hits so far."""

    def __init__(self, backend: Backend, plan: MonitorPlan | None, make: MakeWatch | None) -> None:
        self.findings: list[MonitorEvent] = []
        self._backend = backend
        self._plan = plan
        self._make = make
        self._watch: Watch | None = None
        self._continuations = 0
        self._rounds = 0
        self._tries = 0  # of the call that was asked for again last
        self._hidden_tokens = 0

    @property
    def is_on(self) -> bool:
        """Whether this run is watched."""
        return self._plan is not None and self._make is not None

    def begin(self, facts: PromptFacts) -> Verdict:
        """The prompt is built, and nothing was sent."""
        if self._plan is not None and self._make is not None:
            self._watch = self._make(self._plan, facts)
        return self._ask("before_prefill", State(), lambda watch: watch.before_prefill(facts))

    def block(self, block: Block, state: State) -> Verdict:
        """A delta came."""
        return self._ask("on_block", state, lambda watch: watch.on_block(block))

    def calls(self, calls: Calls, state: State) -> Verdict:
        """All calls of the answer are there."""
        return self._ask("on_calls", state, lambda watch: watch.on_calls(calls))

    def end(self, end: End, state: State) -> Verdict:
        """The answer is over."""
        return self._ask("on_end", state, lambda watch: watch.on_end(end))

    def note_refused(self, state: State) -> None:
        """The backend did not take what was asked of it to carry out a verdict."""
        self.findings.append(MonitorEvent(state.at, "host", "shadow", "refused"))

    def _ask(self, point: str, state: State, ask: Callable[[Watch], Verdict]) -> Verdict:
        watch = self._watch
        if watch is None:
            return GO_ON
        try:
            verdict = ask(watch)
            found = watch.take_findings()
        except Exception:  # a detector's fault must not end an answer
            log.exception("monitor.failed", point=point)
            self._watch = None
            return GO_ON
        hindrance = self._hindrance(point, verdict, state)
        self._note(found, verdict, hindrance, state)
        if hindrance is not None:
            return GO_ON
        self._spend(verdict)
        return verdict

    def _note(
        self, found: tuple[Finding, ...], verdict: Verdict, hindrance: str | None, state: State
    ) -> None:
        for one in found:
            numbers = {
                name: float(value)
                for name, value in (one.numbers or {}).items()
                if isinstance(value, (int, float))
            }
            mode = one.mode if hindrance is None else "shadow"
            self.findings.append(MonitorEvent(state.at, one.task, mode, one.reason, numbers))
        if hindrance is not None:
            kind = type(verdict).__name__
            log.info("monitor.hindered", verdict=kind, reason=hindrance)
            self.findings.append(MonitorEvent(state.at, "host", "shadow", hindrance))

    def _hindrance(self, point: str, verdict: Verdict, state: State) -> str | None:
        """Why a verdict is not carried out, in a word; None where it is."""
        plan = self._plan
        assert plan is not None
        if not isinstance(verdict, ALLOWED[point]):
            return "not_allowed"
        match verdict:
            case Continue() | Stop():
                return None
            case CloseReasoning(bridge):
                if not self._backend.can_go_on:
                    return "no_prefix"
                return "late" if state.has_calls else self._over(bridge)
            case Inject(text):
                if point == "before_prefill" or (state.has_text and not self._backend.can_go_on):
                    return "no_prefix"
                return "late" if state.has_calls else self._over(text)
            case Constrain():
                return None if point == "before_prefill" and self._can_hold(verdict) else "no_form"
            case Regenerate():
                return self._no_again(verdict, state)

    def _over(self, text: str) -> str | None:
        plan = self._plan
        assert plan is not None
        is_over = self._continuations >= plan.continuations
        return "limit" if is_over or self._hidden_after(text) > plan.hidden_tokens else None

    def _no_again(self, verdict: Regenerate, state: State) -> str | None:
        plan = self._plan
        assert plan is not None
        if verdict.index is None and state.has_text:
            return "sent"
        if not self._can_hold(verdict):
            return "no_form"
        is_same_round = 0 < self._tries < TRIES
        if not is_same_round and self._rounds >= plan.regenerations:
            return "limit"
        return "limit" if self._hidden_after(verdict.note or "") > plan.hidden_tokens else None

    def _can_hold(self, verdict: Constrain | Regenerate) -> bool:
        spec = verdict.spec
        if spec is None:
            return isinstance(verdict, Regenerate)
        if isinstance(spec, CallForm):
            return True
        return form_fields(spec, self._backend.settings.flavor) is not None

    def _hidden_after(self, text: str) -> int:
        return self._hidden_tokens + estimate(text)

    def _spend(self, verdict: Verdict) -> None:
        match verdict:
            case CloseReasoning(text) | Inject(text):
                self._continuations += 1
                self._hidden_tokens = self._hidden_after(text)
            case Regenerate():
                if self._tries % TRIES == 0:
                    self._rounds += 1
                self._tries += 1
                self._hidden_tokens = self._hidden_after(verdict.note or "")
            case _:
                return


def past_calls(call: Call) -> tuple[PastCall, ...]:
    """The calls of a conversation, with their results."""
    results = {m.call_id: m.text for m in call.messages if m.role == "tool" and m.call_id}
    return tuple(
        PastCall(made.name, made.arguments, results.get(made.id))
        for message in call.messages
        for made in message.calls
    )
