"""One generation while it lives: its limits, its text machine, its record. Knows no device.

One owner, the loop. What crosses to other threads is frozen (`types`).
"""

from collections.abc import Sequence
from dataclasses import dataclass

from proto.limits import STOP_STRINGS_USED
from worker import prefill
from worker.record import RunRecord
from worker.state.slot import Slot
from worker.text.answer import AnswerText
from worker.types import Ending, Prepared


@dataclass(frozen=True, slots=True)
class RunLimits:
    """What bounds a run. `default_max_tokens` when the client names none; seconds of a lane."""

    max_len: int
    default_max_tokens: int
    wall_clock_s: float


class Run:
    """A run from the queue to its end."""

    def __init__(
        self, prepared: Prepared, limits: RunLimits, token_bytes: Sequence[bytes | None]
    ) -> None:
        submit = prepared.arrival.submit
        self.id = submit.run_id
        self.band = submit.plan.band
        self.prompt = prepared.prompt
        self.prompt_hash = prepared.prompt_hash
        self.sampling = prepared.sampling
        self.number = submit.start_token  # of the next token
        self.allowed = submit.start_token - 1 + submit.credit  # the last number it may release
        self.text = AnswerText(token_bytes, submit.params.stop[:STOP_STRINGS_USED])
        self.record = RunRecord(
            self.id, prepared.arrival.arrived_s, prompt_tokens=len(prepared.prompt)
        )
        self.slot: Slot | None = None
        self.plan: prefill.Plan | None = None
        self.told_s = prepared.arrival.arrived_s  # when it last heard of its place or progress
        self.wish: Ending | None = None  # an end asked for from outside
        self._room = limits.max_len - len(self.prompt)
        wanted = submit.params.max_tokens or limits.default_max_tokens
        self._wanted = min(wanted, submit.plan.cap or wanted)
        self._wall_clock_s = limits.wall_clock_s
        self._deadline_s = submit.deadline_ms / 1000 if submit.deadline_ms > 0 else None

    @property
    def max_tokens(self) -> int:
        """Tokens it may write: what was asked for, clamped to the room."""
        return min(self._wanted, self._room)

    @property
    def is_reading(self) -> bool:
        """Whether part of its prompt is still to be forwarded."""
        return self.slot is not None and self.slot.kv_len < len(self.prompt)

    @property
    def is_parked(self) -> bool:
        """Whether it decodes but has no credit for the next token."""
        return self.slot is not None and not self.is_reading and self.number > self.allowed

    def ending_by_length(self) -> Ending | None:
        """The end that its written tokens bring, if any."""
        if self.record.completion_tokens < self.max_tokens:
            return None
        return Ending("length", "max_tokens" if self._wanted <= self._room else "context")

    def ending_by_clock(self, now_s: float) -> Ending | None:
        """The end that its deadline or the wall clock brings, if any."""
        arrived, admitted = self.record.arrived_s, self.record.admitted_s
        is_late = self._deadline_s is not None and now_s - arrived >= self._deadline_s
        if admitted is not None:
            is_late = is_late or now_s - admitted >= self._wall_clock_s
        return Ending("length", "wall_clock") if is_late else None
