"""The monitor: one object that watches one run and runs the tasks at its four points.

Knows no host and no token ids. An exception of a task goes through: the host then switches the
monitor off, and the run goes on.
"""

from dataclasses import replace

from conductor.monitor.acts import Acts, most_tokens
from conductor.monitor.answer import AnswerText
from conductor.monitor.argument_text import ArgumentText
from conductor.monitor.budget import Budget
from conductor.monitor.call_watch import CallWatch
from conductor.monitor.ends import EndWatch
from conductor.monitor.reasoning import STEP_TOKENS, Circles
from conductor.monitor.secrets import Mask, secrets_in
from conductor.monitor.verdicts import (
    GO_ON,
    Block,
    Calls,
    CloseReasoning,
    Constrain,
    Continue,
    End,
    Finding,
    Phase,
    PromptFacts,
    Regenerate,
    Stop,
    Verdict,
)
from proto.chat import Json
from proto.plan import MonitorPlan


class Monitor:
    """Watches one run (`verdicts.Watch`). `facts` may be given again by `before_prefill`."""

    def __init__(self, plan: MonitorPlan, facts: PromptFacts) -> None:
        self._acts = acts = Acts(plan)
        self._phase: Phase | None = None
        self._tokens = 0  # of this stretch of the phase
        self._reasoned = 0
        self._is_reasoning_over = False
        self._call_tokens = 0  # since the answer began, or was rolled back
        self._reasoning_tail = ""
        self._tail_chars = acts.params("C2").count("tail_chars") if acts.is_on("C2") else 0
        has_circles = acts.is_on("D1") or acts.is_on("D1b")
        self._circles = Circles(acts.params("D1"), acts.params("D1b")) if has_circles else None
        promise_chars = acts.params("E2").count("tail_chars") if acts.is_on("E2") else 0
        has_answer = acts.is_on("D3") or promise_chars > 0
        self._answer = AnswerText(acts.params("D3"), promise_chars) if has_answer else None
        self._arguments: ArgumentText | None = None
        self._know(facts)

    def _know(self, facts: PromptFacts) -> None:
        acts = self._acts
        acts.is_plain = facts.is_plain
        self._facts = facts
        self._budget: Budget | None = None
        if facts.is_thinking and facts.budget is not None and acts.is_on("D2"):
            self._budget = Budget(facts.budget, acts.params("D2").count("line_end_tokens"))
        self._call_watch, self._ends = CallWatch(facts, acts), EndWatch(facts, acts)
        self._mask: Mask | None = None
        if acts.is_on("M1"):
            params = acts.params("M1")
            results = [call.result for call in reversed(facts.past) if call.result]
            self._mask = Mask(secrets_in(results, params), params.count("shown_chars"))

    # The four points.

    def before_prefill(self, facts: PromptFacts) -> Verdict:
        """Takes what is known of the prompt now. No task acts here yet."""
        self._know(facts)
        return GO_ON

    def on_block(self, block: Block) -> Verdict:
        """Takes committed tokens; decides where the horizon was reached."""
        if block.phase != self._phase:
            self._phase, self._tokens = block.phase, 0
            self._arguments = None
            if block.phase == "call" and self._acts.is_on("C4"):
                self._arguments = ArgumentText(self._acts.params("C4"))
        before = self._tokens
        self._tokens += block.tokens
        is_step = before // STEP_TOKENS < self._tokens // STEP_TOKENS
        if block.phase == "reasoning":
            return self._on_reasoning(block, is_step=is_step)
        self._is_reasoning_over = True
        if block.phase == "answer":
            return self._on_answer(block, is_step=is_step)
        self._call_tokens += block.tokens
        return self._on_arguments(block, is_step=is_step)

    def on_calls(self, calls: Calls) -> Verdict:
        """Judges the calls of the answer, once all are complete."""
        verdict = self._call_watch.judge(calls, self._call_tokens)
        if isinstance(verdict, Regenerate):
            self._call_tokens = self._tokens = 0
            self._phase = None
        return verdict

    def on_end(self, end: End) -> Verdict:
        """Judges the end of the answer, before it is reported."""
        held = self._mask.held if self._is_masking and self._mask is not None else ""
        is_promise = self._answer is not None and self._answer.ends_on_a_promise()
        end = replace(end, has_text=end.has_text or bool(held))
        verdict = self._ends.judge(end, self._reasoning_tail, is_promise=is_promise)
        if isinstance(verdict, CloseReasoning):
            self._is_reasoning_over = True
        return verdict or (Continue(text=self._unmasked()) if held else GO_ON)

    def horizon(self) -> int:
        """Tokens that the host may commit before it calls `on_block` again; at least 1."""
        left = STEP_TOKENS - self._tokens % STEP_TOKENS
        if self._budget is not None and not self._is_reasoning_over:
            left = min(left, self._budget.left)
        return left

    def take_findings(self) -> tuple[Finding, ...]:
        """What was found since the last time, for journal and status lines."""
        return self._acts.take_findings()

    # What a block is looked at for, by its phase.

    def _on_reasoning(self, block: Block, *, is_step: bool) -> Verdict:
        if self._is_reasoning_over:
            return GO_ON
        self._reasoned += block.tokens
        if self._tail_chars:
            self._reasoning_tail = (self._reasoning_tail + block.text)[-self._tail_chars :]
        verdict: Verdict | None = None
        if self._circles is not None:
            self._circles.read(block.text)
            verdict = self._judge_circles(self._circles) if is_step else None
        if verdict is None and self._budget is not None:
            verdict = self._judge_budget(self._budget, block)
        self._is_reasoning_over = verdict is not None
        return verdict or GO_ON

    def _judge_circles(self, circles: Circles) -> CloseReasoning | None:
        """D1, then D1b."""
        found = circles.loop()
        if found is not None and (verdict := self._close("D1", found)) is not None:
            return verdict
        if self._acts.is_on("D1b") and circles.drift(self._reasoned):
            return self._close("D1b", "drift")
        return None

    def _judge_budget(self, budget: Budget, block: Block) -> CloseReasoning | None:
        """D2."""
        if not budget.is_spent(block.text, block.tokens):
            return None
        self._budget = None
        return self._close("D2", "budget")

    def _close(self, task: str, reason: str) -> CloseReasoning | None:
        bridge = self._acts.fitting(self._acts.params(task).text("bridge"))
        numbers: dict[str, Json] = {"tokens": self._reasoned}
        acts = self._acts.act(task, reason, numbers, hidden=most_tokens(bridge))
        return CloseReasoning(bridge, task) if acts else None

    def _on_answer(self, block: Block, *, is_step: bool) -> Verdict:
        said = block.text if self._mask is None else self._masked(self._mask, block.text)
        if self._answer is not None:
            self._answer.read(block.text)
            found = self._answer.repeated() if is_step else None
            if found is not None and self._acts.act("D3", found, {"tokens": self._tokens}):
                return Stop("stop")
        return GO_ON if said == block.text else Continue(text=said)

    def _on_arguments(self, block: Block, *, is_step: bool) -> Verdict:
        """C4, while a call is written."""
        if self._arguments is None:
            return GO_ON
        self._arguments.read(block.text)
        found = self._arguments.repeated() if is_step else None
        least = self._acts.params("C4").count("min_tokens")
        if found is None or self._tokens <= least:
            return GO_ON
        acts = self._acts.act("C4", found, {"tokens": self._tokens})
        return Constrain(None, "call") if acts else GO_ON

    def _masked(self, mask: Mask, text: str) -> str:
        """M1: the text as it may go out. Where it only looks, that is the text itself."""
        before = mask.hits
        said = mask.read(text)
        self._tell_secrets(mask.hits - before)
        return said if self._is_masking else text

    def _unmasked(self) -> str:
        """What was held back for M1, at the end."""
        assert self._mask is not None
        before = self._mask.hits
        said = self._mask.finish()
        self._tell_secrets(self._mask.hits - before)
        return said

    def _tell_secrets(self, count: int) -> None:
        if count:
            self._acts.act("M1", "secret", {"secrets": count})

    @property
    def _is_masking(self) -> bool:
        return self._acts.mode("M1") == "act" and self._acts.is_plain
