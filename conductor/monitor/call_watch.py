"""The order of checks when an answer's calls are complete: tasks C1, C3, C4 and C5.

Knows the limits, and no text but that of calls and what is held beside them.
"""

from dataclasses import replace

from conductor.monitor.acts import Acts, most_tokens
from conductor.monitor.call_text import calls_in
from conductor.monitor.calls import (
    Judged,
    is_circular,
    is_mutating,
    judged,
    repaired,
    without_echoes,
    written_call,
)
from conductor.monitor.verdicts import (
    GO_ON,
    CallForm,
    Calls,
    Continue,
    MadeCall,
    PromptFacts,
    Regenerate,
    Stop,
    Verdict,
)
from proto.chat import Json


class CallWatch:
    """Judges the calls of one run."""

    def __init__(self, facts: PromptFacts, acts: Acts) -> None:
        self._acts = acts
        self._facts = facts
        self._tools = {tool.name: tool for tool in facts.tools}

    def judge(self, said: Calls, call_tokens: int) -> Verdict:
        """What becomes of them. `call_tokens`: tokens that they took, at most."""
        calls, held = self._repair(said)
        calls = without_echoes(calls)
        calls, again = self._fit(calls, call_tokens)
        again = again or self._regenerate_circle(calls, call_tokens)
        if again is not None:
            return again
        kept = self._kept(calls)
        if calls == said.calls and held == said.held:
            return GO_ON if kept == len(calls) else Stop("tool_calls", kept)
        # Where calls were changed, those that are to go are left out of what stands in for them.
        calls = tuple(replace(call, index=index) for index, call in enumerate(calls[:kept]))
        return Continue(
            text=None if held == said.held else held,
            calls=None if calls == said.calls else calls,
        )

    def _repair(self, said: Calls) -> tuple[tuple[MadeCall, ...], str]:
        """C1: calls with readable arguments, and those that were written in the held text."""
        if not self._acts.is_on("C1"):
            return said.calls, said.held
        looked = [self._unless_sent("C1", call, repaired(call)) for call in said.calls]
        calls = [one.call for one in looked]
        changes = [one.change for one in looked if one.change is not None]
        held = said.held
        if self._tools and held:
            found = calls_in(held, self._tools, is_cut=said.is_cut)
            first = calls[-1].index + 1 if calls else 0
            for index, call in enumerate(found.calls, first):
                calls.append(written_call(call, index, self._tools))
            if found.rest != held:
                changes.append("markup" if found.calls else "stray_tag")
            held = found.rest
        if not changes or not self._acts.act("C1", changes[0], {"repairs": len(changes)}):
            return said.calls, said.held
        return tuple(calls), held

    def _fit(
        self, calls: tuple[MadeCall, ...], call_tokens: int
    ) -> tuple[tuple[MadeCall, ...], Regenerate | None]:
        """C3: calls as the schemas want them, or the first that has to be written again."""
        if not self._acts.is_on("C3") or not self._tools:
            return calls, None
        edits = self._acts.params("C3").count("rename_edits")
        looked = [self._unless_sent("C3", call, judged(call, self._tools, edits)) for call in calls]
        wrong = next((one for one in looked if one.fault is not None), None)
        if wrong is not None and self._acts.act(
            "C3",
            wrong.fault or "",
            hidden=call_tokens,
            regenerates=True,
            barrier=self._barrier,
        ):
            return calls, Regenerate(wrong.call.index, CallForm(wrong.tool))
        right = {one.call.index: one.call for one in looked if one.change and one.fault is None}
        numbers: dict[str, Json] = {"calls": len(right)}
        if not right or not self._acts.act("C3", "coerced", numbers, counts=False):
            return calls, None
        return tuple(right.get(call.index, call) for call in calls), None

    def _regenerate_circle(
        self, calls: tuple[MadeCall, ...], call_tokens: int
    ) -> Regenerate | None:
        """C4: a call that was made again and again with one result is written once more."""
        if not self._acts.is_on("C4"):
            return None
        params = self._acts.params("C4")
        times, note = params.count("same_calls"), params.text("note")
        same = [call for call in calls if is_circular(call, self._facts.past, times)]
        if same and self._acts.act(
            "C4",
            "same_call",
            {"calls": len(same)},
            hidden=call_tokens + most_tokens(note),
            regenerates=True,
            barrier="late" if same[0].is_sent else self._barrier,
        ):
            return Regenerate(same[0].index, None, note)
        return None

    def _kept(self, calls: tuple[MadeCall, ...]) -> int:
        """C5: how many calls stay: one where several would change something."""
        if not self._acts.is_on("C5"):
            return len(calls)
        params = self._acts.params("C5")
        verbs, tools = params.names("verbs"), params.names("tools")
        mutating = sum(is_mutating(call.name, verbs, tools) for call in calls)
        if mutating < 2:
            return len(calls)
        kept = max(1, sum(call.is_sent for call in calls))
        barrier = "late" if kept == len(calls) else None
        acts = self._acts.act("C5", "mutations", {"calls": mutating}, barrier=barrier)
        return kept if acts else len(calls)

    @property
    def _barrier(self) -> str | None:
        return None if self._facts.may_regenerate else "host"

    def _unless_sent(self, task: str, call: MadeCall, judgement: Judged) -> Judged:
        """A judgement; of a call that the client has it is only told, and nothing is changed."""
        if not call.is_sent:
            return judgement
        found = judgement.change or (judgement.fault if task == "C3" else None)
        if found is not None:
            self._acts.act(task, found, counts=False, barrier="late")
        return Judged(call)
