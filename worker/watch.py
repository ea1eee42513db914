"""Where a run's monitor is asked, and what is done about its answers. Knows no task.

One object watches one run. It changes hidden text, forms and ends; a fault in it switches it off.
"""

from collections.abc import Sequence
from itertools import groupby
from typing import Any, Literal, Protocol

import structlog

from conductor.monitor.verdicts import (
    ALLOWED,
    CLOSED_BY,
    GO_ON,
    Block,
    CallForm,
    Calls,
    CloseReasoning,
    Constrain,
    Continue,
    End,
    Finding,
    Finish,
    Form,
    Inject,
    Regenerate,
    Stop,
    Verdict,
)
from proto.faults import Refusal
from proto.messages import MonitorEvent
from worker.grammar.closing import FormCloser
from worker.grammar.forms import form_of
from worker.grammar.matcher import GrammarFault, Matcher
from worker.hosting import Hosting, Watched, call_under, facts_of, made_calls, replace_calls
from worker.output import Written
from worker.run import PutIn, Run
from worker.state.slot import Slot
from worker.text.answer import Spoken

log = structlog.get_logger()

MONITOR_FAILED = "monitor.failed"

BUDGET_TASK = "D2"  # where it acts, it ends the reasoning at a line's end behind the budget,
BUDGET_SLACK = 64  # tokens; and where it then did not, the worker does

Point = Literal["before_prefill", "on_block", "on_calls", "on_end"]


class Rewinding(Protocol):
    """What is asked of the engine."""

    def inject(self, slot: Slot, ids: Sequence[int]) -> None: ...
    def rewind(self, slot: Slot, length: int, ids: Sequence[int]) -> None: ...


class Watching:
    """Asks the monitors. One thread uses it, that of the loop."""

    def __init__(self, engine: Rewinding, hosting: Hosting | None, closer: FormCloser) -> None:
        self._engine = engine
        self._hosting = hosting
        self._closer = closer

    # Before anything is forwarded.

    def begin(self, run: Run) -> None:
        """Gives a run its monitor, where its plan has one, and asks it."""
        submit, hosting = run.prepared.arrival.submit, self._hosting
        plan = submit.plan.monitor
        if plan is None or hosting is None:
            return
        facts = facts_of(run)
        try:
            run.host = Watched(hosting.new_watch(plan, facts), plan.hidden_tokens)
        except Exception as fault:  # noqa: BLE001 - see `_failed`
            self._failed(run, fault)
            return
        run.out.holds_calls = submit.plan.tool_stream == "held"
        task = plan.tasks.get(BUDGET_TASK)
        if task is not None and task.mode == "act" and run.budget is not None:
            run.budget += BUDGET_SLACK
        match self._ask(run, "before_prefill", facts):
            case Inject(text):
                ids = self._encode(text)
                if self._has_room(run, ids):
                    run.prompt += ids
                    run.chooser.skip(len(ids))
                    run.take_hidden(PutIn(ids, text))
                    run.out.reviewed = len(run.out.log)
            case Constrain(spec, until):
                self._constrain(run, spec, until)
            case Stop(finish):
                run.stop(finish)

    # Behind each round.

    def review(self, run: Run, slot: Slot) -> None:
        """Shows a run's monitor what was written, and does what it says."""
        if run.host is None:
            return
        fresh = [one for one in run.out.log[run.out.reviewed :] if not one.is_hidden]
        run.out.reviewed = len(run.out.log)
        for _, some in groupby(fresh, key=lambda one: (one.phase, one.is_end)):
            self._review_block(run, list(some))
            if run.host is None or _is_stopped(run):
                return
        if run.ending is not None:
            self._review_end(run, slot)

    def _review_block(self, run: Run, tokens: list[Written]) -> None:
        phase, is_end = tokens[0].phase, tokens[0].is_end
        text = "".join(map(_text_of, tokens))
        if is_end and not text:
            return
        block = Block(phase, text, 0 if is_end else len(tokens), run.tokens_left)
        match self._ask(run, "on_block", block):
            case Continue(str(said)):
                for place, one in enumerate(tokens):
                    one.said = Spoken(one.said.kind, "" if place else said, one.said.calls)
            case CloseReasoning(bridge, by):
                put_in = self._close(run, bridge, by)
                if run.ending is not None or not run.text.is_reasoning:
                    self._deny(run, "late")
                elif self._has_room(run, put_in.ids):
                    run.due = put_in
            case Constrain(spec, until):
                if run.ending is not None:
                    self._deny(run, "late")
                elif spec is None:
                    self._complete_call(run)
                else:
                    self._constrain(run, spec, until)
            case Stop(finish, keep):
                self._stop(run, finish, keep, last=tokens[-1])

    # Behind the last token.

    def _review_end(self, run: Run, slot: Slot) -> None:
        self._ask_calls(run, slot)
        if run.host is not None and run.ending is not None and not _is_stopped(run):
            self._ask_end(run, slot)

    def _ask_calls(self, run: Run, slot: Slot) -> None:
        assert run.ending is not None
        last = run.out.log[-1]
        made, held = made_calls(run), last.said.piece if _is_shown(last) else ""
        offered = run.prepared.arrival.submit.call.tools
        if not made and not (offered and held.strip()):
            return
        shown = "".join(one.said.piece for one in run.out.log if _is_shown(one))
        calls = Calls(made, shown, held, is_cut=run.ending.finish == "length")
        match self._ask(run, "on_calls", calls):
            case Continue(said, instead):
                if said is not None:
                    last.said = Spoken("text", said, last.said.calls)
                if instead is not None:
                    replace_calls(run, instead)
            case Constrain(spec, _):
                self._again(run, slot, len(run.out.log) - 1, spec, None)
            case Regenerate(index, spec, note):
                self._regenerate(run, slot, index, spec, note)
            case Stop(finish, keep):
                self._stop(run, finish, keep, last=last)

    def _ask_end(self, run: Run, slot: Slot) -> None:
        assert run.ending is not None
        text, last, ended = run.text, run.out.log[-1], run.ending.finish
        finish: Finish = ended if ended in ("stop", "tool_calls") else "length"
        has_text = any(one.said.piece.strip() for one in run.out.log if _is_shown(one))
        end = End(
            finish, run.ending.detail, has_text, text.calls, text.is_reasoning,
            is_in_call=text.is_in_call, room=run.tokens_left,
        )  # fmt: skip
        match self._ask(run, "on_end", end):
            case Continue(str(said)):
                last.said = Spoken("text", last.said.piece + said, last.said.calls)
            case Inject(said):
                self._go_on(run, slot, PutIn(self._encode(said), said))
            case CloseReasoning(bridge, by) if text.is_reasoning:
                self._go_on(run, slot, self._close(run, bridge, by))
            case CloseReasoning(bridge):
                self._go_on(run, slot, PutIn(self._encode(bridge), bridge))
            case Regenerate(index, spec, note):
                self._regenerate(run, slot, index, spec, note)
            case Stop(finish, keep):
                self._stop(run, finish, keep, last=last)

    # What a verdict does.

    def _go_on(self, run: Run, slot: Slot, put_in: PutIn) -> None:
        """Takes the end back, which was never forwarded, and writes on behind hidden text."""
        if not put_in.ids or not self._may_go_back(run) or not self._has_room(run, put_in.ids):
            return
        run.drop(len(run.out.log) - 1)
        slot.drop_root()
        self._engine.inject(slot, put_in.ids)
        run.take_hidden(put_in)
        run.out.reviewed = len(run.out.log)

    def _regenerate(
        self, run: Run, slot: Slot, index: int | None, spec: Form | None, note: str | None
    ) -> None:
        start = run.out.call_start(index or 0)
        self._again(run, slot, -1 if start is None else start, spec, note)

    def _again(self, run: Run, slot: Slot, start: int, spec: Form | None, note: str | None) -> None:
        """Goes back to before a token that did not go out, and writes on under a form."""
        ids = self._encode(note or "")
        matcher = None if spec is None else self._matcher(run, spec)
        if start < 0:
            self._deny(run, "sent")
        elif spec is not None and matcher is None:
            self._deny(run, "form")
        elif self._may_go_back(run) and self._has_room(run, ids):
            run.drop(start)
            run.out.retry += 1
            run.follow(matcher, is_one_call=isinstance(spec, CallForm))
            self._engine.rewind(slot, len(run.prepared.prompt) + start, ids)
            if ids:
                run.take_hidden(PutIn(ids, note or ""))
            run.out.reviewed = len(run.out.log)

    def _may_go_back(self, run: Run) -> bool:
        """Only an end that the model chose is taken back, and no form of the client's is broken."""
        is_own = run.ending is not None and run.ending.detail == "eos"
        is_formed = run.prepared.matcher is not None and not run.chooser.is_free
        if not is_own or is_formed:
            self._deny(run, "form" if is_own else "late")
        return is_own and not is_formed

    def _constrain(self, run: Run, spec: Form | None, until: str) -> None:
        matcher = None if spec is None else self._matcher(run, spec)
        if matcher is None or run.prepared.matcher is not None:
            self._deny(run, "form")
            return
        run.follow(matcher, is_one_call=until == "call" and isinstance(spec, CallForm))
        run.chooser.is_free = run.text.is_reasoning

    def _complete_call(self, run: Run) -> None:
        """The shortest valid end of the call that is being written."""
        start, matcher = run.out.call_start(run.text.calls), self._matcher(run, CallForm())
        path = None
        if start is not None and matcher is not None:
            try:
                for one in run.out.log[start:]:
                    matcher.consume(one.id)
                path = self._closer.find(matcher)
            except GrammarFault:  # it is written otherwise than the grammar has it
                path = None
        if path:
            run.complete(path)
        else:
            self._deny(run, "form")

    def _stop(self, run: Run, finish: Finish, keep: int | None, *, last: Written) -> None:
        behind = next(n for n, one in enumerate(run.out.log) if one is last) + 1
        if behind < len(run.out.log):
            run.drop(behind)
        run.stop(finish)
        for one in run.out.log[run.out.sent :]:
            kept = tuple(part for part in one.said.calls if keep is None or part.index < keep)
            one.said = Spoken(one.said.kind, one.said.piece, kept)

    def _close(self, run: Run, bridge: str, by: str) -> PutIn:
        ids = (*self._encode(bridge), *run.closing.whole)
        return PutIn(ids, bridge, CLOSED_BY.get(by, by), begins_form=True)

    def _encode(self, text: str) -> tuple[int, ...]:
        assert self._hosting is not None
        return tuple(self._hosting.encode(text)) if text else ()

    def _matcher(self, run: Run, spec: Form) -> Matcher | None:
        """A new grammar, None where none can be made of this form."""
        assert self._hosting is not None
        try:
            call = call_under(run.prepared.arrival.submit.call, spec)
            form = form_of(call, self._hosting.call_syntax)
            return None if form is None else self._hosting.compiler.compile(form)
        except Refusal:
            return None

    def _has_room(self, run: Run, ids: tuple[int, ...]) -> bool:
        assert isinstance(run.host, Watched)
        hidden = run.record.hidden_tokens + run.record.discarded_tokens + len(ids)
        if hidden <= run.host.most_hidden and len(ids) < run.room_left():
            return True
        self._deny(run, "room")
        return False

    # Asking.

    def _ask(self, run: Run, point: Point, question: Any) -> Verdict:
        assert self._hosting is not None and isinstance(run.host, Watched)
        watch = run.host.watch
        try:
            verdict: Verdict = getattr(watch, point)(question)
            found = watch.take_findings()
            run.host.look_ahead()
        except Exception as fault:  # noqa: BLE001 - see `_failed`
            self._failed(run, fault)
            return GO_ON
        for finding in found:
            self._note(run, finding)
        if not isinstance(verdict, ALLOWED[point]):
            assert not self._hosting.is_strict, f"{point} does not allow {verdict}"
            self._deny(run, "not_allowed")
            return GO_ON
        return verdict

    def _failed(self, run: Run, fault: Exception) -> None:
        """A fault of the monitor is nobody's but its own: it is switched off, the run goes on."""
        log.warning(MONITOR_FAILED, run_id=run.id, error=type(fault).__name__)
        run.host = None
        run.budget = run.prepared.arrival.submit.plan.thinking.budget
        run.out.let_go()
        self._deny(run, "failed")

    def _deny(self, run: Run, reason: str) -> None:
        """What was asked for cannot be done here, or not any more: told, and the run goes on."""
        run.events.append(MonitorEvent(run.number, "monitor", "act", reason))

    def _note(self, run: Run, finding: Finding) -> None:
        acts = finding.mode == "act"
        run.record.monitor_acts += acts
        run.record.monitor_shadows += not acts
        given = (finding.numbers or {}).items()
        numbers = {name: float(value) for name, value in given if isinstance(value, int | float)}
        task, mode, reason = finding.task, finding.mode, finding.reason
        run.events.append(MonitorEvent(run.number, task, mode, reason, numbers or None))


def _is_stopped(run: Run) -> bool:
    return run.ending is not None and run.ending.detail == "monitor"


def _is_shown(one: Written) -> bool:
    return one.said.kind == "text" and not one.is_hidden


def _text_of(one: Written) -> str:
    """What is shown of an answer; reasoning and calls as they were written."""
    return one.said.piece if one.is_end or one.phase == "answer" else one.raw
