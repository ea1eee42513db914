"""What may follow where an answer ends: tasks E1, E2, C2 and C6. Knows the limits, no tokens.

Only an end that the model chose can be taken back; a limit or a stop string ends for good.
"""

from conductor.monitor.acts import Acts, most_tokens
from conductor.monitor.call_text import calls_named_in
from conductor.monitor.verdicts import (
    CloseReasoning,
    End,
    Inject,
    PromptFacts,
    Stop,
    Verdict,
)

OWN_END = "eos"  # the detail of an end token


class EndWatch:
    """Judges the ends of one run: there may be two, when the first was taken back."""

    def __init__(self, facts: PromptFacts, acts: Acts) -> None:
        self._facts = facts
        self._acts = acts
        self._names = frozenset(tool.name for tool in facts.tools)

    def judge(self, end: End, reasoning: str, *, is_promise: bool) -> Verdict | None:
        """What becomes of it, None for what was said. `reasoning`: its last part.

        `is_promise`: the answer's last sentence says what will be done now.
        """
        if end.is_in_call and end.finish == "length":
            cut = self._acts.act("C6", "cut_call", {"calls": end.calls})
            return Stop("length", end.calls) if cut else None
        if end.finish != "stop" or end.detail != OWN_END or end.calls:
            return None
        verdict = self._call_in_reasoning(end, reasoning)
        if verdict is None and not end.has_text:
            verdict = self._go_on(end)
        if end.has_text and self._names and is_promise:
            self._acts.act("E2", "promise")
        return verdict

    def _call_in_reasoning(self, end: End, reasoning: str) -> Verdict | None:
        """C2: the model made its call inside the block, and nothing behind it."""
        if not self._acts.is_on("C2") or not self._names:
            return None
        found = calls_named_in(reasoning, self._names)
        if not found:
            return None
        bridge = self._acts.fitting(self._acts.params("C2").text("bridge"))
        acts = self._acts.act(
            "C2",
            "call_in_reasoning",
            {"calls": found},
            continues=True,
            hidden=most_tokens(bridge),
            barrier=None if end.is_open else "closed",
        )
        return CloseReasoning(bridge, "C2") if acts else None

    def _go_on(self, end: End) -> Verdict | None:
        """E1: nothing was said that the client could use."""
        if not self._acts.is_on("E1"):
            return None
        params = self._acts.params("E1")
        text = params.text("bridge" if end.is_open else "nudge")
        if not self._acts.act(
            "E1",
            "open" if end.is_open else "empty",
            {"room": end.room},
            continues=True,
            hidden=most_tokens(text),
            barrier=None if end.room > 0 else "room",
        ):
            return None
        return CloseReasoning(text, "E1") if end.is_open else Inject(text)
