"""The one record of a run, from which usage, timings, log line and metrics are all read.

Knows no text and no tokens, only counts and times.
"""

from collections import Counter
from dataclasses import dataclass, field
from typing import Literal

from proto.events import Speculation, Timings, Usage
from worker.speculation.round import Round
from worker.state.start import NOTHING, Start
from worker.text.segments import NO_NOTES, Notes

MS = 1000.0

# What an answer's length depends on most, and can be known before it.
Kind = Literal["plain", "thinking", "form", "tools", "side"]


@dataclass(slots=True)
class RunRecord:
    """Counts and times of one run. Times in seconds by the worker's clock; None = not reached."""

    run_id: str
    arrived_s: float
    kind: Kind = "plain"
    est_wait_ms: int | None = None  # what it heard first of its wait
    prompt_tokens: int = 0  # those of notes included
    notes: Notes = NO_NOTES  # what of the prompt the client did not write
    start: Start = NOTHING  # what the prompt was resumed from
    forwarded_tokens: int = 0
    completion_tokens: int = 0
    reasoning_tokens: int = 0
    hidden_tokens: int = 0  # put in
    discarded_tokens: int = 0  # written, and dropped before they went out
    monitor_acts: int = 0
    monitor_shadows: int = 0
    rounds: Counter[str] = field(default_factory=Counter)  # by kind
    draft_tokens: int = 0
    draft_accepted: int = 0
    first_misses: list[int] = field(default_factory=list)  # rounds by the place of the miss
    admitted_s: float | None = None
    first_token_s: float | None = None
    last_token_s: float | None = None
    ended_s: float | None = None
    finish: str | None = None
    detail: str | None = None
    error: str | None = None
    param: str | None = None

    def count_token(self, now_s: float, *, is_reasoning: bool) -> None:
        """Notes one committed token that is not hidden."""
        self.completion_tokens += 1
        self.reasoning_tokens += is_reasoning
        if self.first_token_s is None:
            self.first_token_s = now_s
        self.last_token_s = now_s

    def saw_round(self, made: Round) -> None:
        """Notes a decode round."""
        self.rounds[made.kind] += 1
        self.draft_tokens += made.tree.drafted
        self.draft_accepted += made.accepted
        if made.is_missed:
            missing = made.accepted + 1 - len(self.first_misses)
            self.first_misses += [0] * missing
            self.first_misses[made.accepted] += 1

    @property
    def cached_tokens(self) -> int:
        """Prompt tokens that a kept state spared, as far as the client wrote them."""
        return self.start.position - self.notes.tokens_before(self.start.position)

    def usage(self) -> Usage:
        """The counts as client and ledger shall see them."""
        return Usage(
            prompt_tokens=self.prompt_tokens - self.notes.tokens,
            cached_tokens=self.cached_tokens,
            completion_tokens=self.completion_tokens,
            reasoning_tokens=self.reasoning_tokens,
            note_tokens=self.notes.tokens,
            hidden_tokens=self.hidden_tokens + self.discarded_tokens,
            upstream_input_tokens=self.prompt_tokens,
            upstream_cached_tokens=self.start.position,
            upstream_output_tokens=(
                self.completion_tokens + self.hidden_tokens + self.discarded_tokens
            ),
            upstream_reasoning_tokens=self.reasoning_tokens,
        )

    def timings(self) -> Timings:
        """Milliseconds: ttft is exactly queue + prompt; what was not reached is 0."""
        queue_ms = _ms(self.arrived_s, self.admitted_s)
        prompt_ms = _ms(self.admitted_s, self.first_token_s)
        return Timings(
            queue_ms=queue_ms,
            prompt_ms=prompt_ms,
            ttft_ms=queue_ms + prompt_ms if self.first_token_s is not None else 0.0,
            decode_ms=_ms(self.first_token_s, self.last_token_s),
            total_ms=_ms(self.arrived_s, self.ended_s),
            forwarded_tokens=self.forwarded_tokens,
        )

    def speculation(self) -> Speculation:
        """Rounds, and what came of the guesses."""
        return Speculation(
            rounds=self.rounds.total(),
            plain=self.rounds["plain"],
            draft_tokens=self.draft_tokens,
            draft_accepted=self.draft_accepted,
            first_miss=tuple(self.first_misses),
        )

    def log_fields(self) -> dict[str, object]:
        """The facts of the run's log line. Never text."""
        timings = self.timings()
        return {
            "run_id": self.run_id,
            "kind": self.kind,
            "finish": self.finish,
            "detail": self.detail,
            "error": self.error,
            "param": self.param,
            "prompt_tokens": self.prompt_tokens - self.notes.tokens,
            "note_tokens": self.notes.tokens,
            "forwarded_tokens": self.forwarded_tokens,
            "completion_tokens": self.completion_tokens,
            "reasoning_tokens": self.reasoning_tokens,
            "hidden_tokens": self.hidden_tokens + self.discarded_tokens,
            "monitor_acts": self.monitor_acts,
            "monitor_shadows": self.monitor_shadows,
            "cached_tokens": self.cached_tokens,
            "cache_source": str(self.start.source),
            "rounds": self.rounds.total(),
            "rounds_plain": self.rounds["plain"],
            "draft_tokens": self.draft_tokens,
            "draft_accepted": self.draft_accepted,
            "first_misses": self.first_misses,
            "est_wait_ms": self.est_wait_ms,
            "queue_ms": round(timings.queue_ms, 1),
            "ttft_ms": round(timings.ttft_ms, 1),
            "decode_ms": round(timings.decode_ms, 1),
            "total_ms": round(timings.total_ms, 1),
        }


def _ms(start_s: float | None, end_s: float | None) -> float:
    return 0.0 if start_s is None or end_s is None else (end_s - start_s) * MS
