"""Which of the running runs may step in this turn: reading prompts beside writing answers.

Pure policy over measured seconds. Knows no engine, no queue and no message.
"""

from collections.abc import Sequence

from worker.run import Run


class Turns:
    """Divides the device's time. `share`: what reading gets of it while others write.

    What starts on an idle worker is read first: whoever comes before the first of them has read
    its prompt belongs to that burst. Everything else alternates, in time and not in counts.
    """

    def __init__(self, share: float) -> None:
        self.share = share
        self._burst: list[Run] = []
        self._is_divided = False  # both want the device
        self._lead_s = 0.0  # that reading is ahead of its share
        self._was_reading = False  # in the last step of that time
        self._reader: Run | None = None  # who read last

    def choose(self, running: Sequence[Run]) -> list[Run]:
        """Whose step it is now, of all that hold a slot; parked runs never."""
        reading = [run for run in running if run.is_reading]
        writing = [
            run for run in running if run.slot is not None and not (run.is_reading or run.is_parked)
        ]
        # A parked run writes as well: its client's pause does not make the worker an idle one.
        has_writer = len(reading) < len(running)
        self._burst = [run for run in self._burst if run in reading] if has_writer else reading
        self._is_divided = bool(reading and writing and not self._burst)
        if not self._is_divided:
            self._was_reading, self._reader = False, None
            return self._burst or reading or writing
        is_behind = self._lead_s < 0.0 or (self._lead_s == 0.0 and not self._was_reading)
        return [self._next_reader(reading)] if is_behind else writing

    def is_first(self, run: Run) -> bool:
        """Whether it is of a burst that is read before anybody writes."""
        return run in self._burst

    def saw_step(self, run: Run, seconds: float, *, was_reading: bool) -> None:
        """Notes what a chosen step took."""
        if self._is_divided:
            self._was_reading = was_reading
            self._lead_s += seconds * (1.0 - self.share if was_reading else -self.share)
        else:
            # Writing alone pays back what reading had too much, so that many short prompts one
            # after the other have no more than a long one; nothing is saved up beyond that.
            paid_s = seconds * self.share
            self._lead_s = 0.0 if was_reading else max(0.0, self._lead_s - paid_s)
        if was_reading:
            self._reader = run

    def _next_reader(self, reading: Sequence[Run]) -> Run:
        """One chunk at a time, in turn: a short prompt does not wait for the end of a long one."""
        last = reading.index(self._reader) if self._reader in reading else -1
        return reading[(last + 1) % len(reading)]
