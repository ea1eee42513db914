"""How long a phase of training may take, and the line that shows how far it is. Knows no phase."""

import sys
import time

SHOW_EVERY_S = 1.0
WIDTH = 20


class Clock:
    """The time of one phase. `spent_s`: what earlier processes spent of it."""

    def __init__(self, seconds: float, spent_s: float = 0.0) -> None:
        self._seconds = seconds
        self._spent_s = spent_s
        self._began_s = time.monotonic()
        self._shown_s = 0.0

    @property
    def now_s(self) -> float:
        """Seconds of the phase so far."""
        return self._spent_s + time.monotonic() - self._began_s

    @property
    def here_s(self) -> float:
        """Seconds of it in this process."""
        return time.monotonic() - self._began_s

    @property
    def done(self) -> float:
        """How much of it is over, 0 to 1."""
        return min(1.0, self.now_s / self._seconds) if self._seconds > 0 else 1.0

    def show(self, what: str, done: float, facts: str) -> None:
        """One line that is written over, at most once a second and at the end."""
        now_s = time.monotonic()
        if now_s - self._shown_s < SHOW_EVERY_S and done < 1.0:
            return
        self._shown_s = now_s
        filled = min(WIDTH, int(WIDTH * done))
        bar = "#" * filled + "." * (WIDTH - filled)
        print(f"\r{what} [{bar}] {100 * done:3.0f} %  {facts}   ", end="", file=sys.stderr)

    def end_line(self) -> None:
        """Leaves the line as it is."""
        print(file=sys.stderr)
