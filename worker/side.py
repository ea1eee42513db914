"""The lane of short requests, beside the others. Knows no engine and no message.

A title or a classification must not wait for a long answer: it is served between two steps of what
runs, in a slot of its own, and takes a bounded share of the device's time.
"""

from collections import deque
from collections.abc import Iterator

from proto.worker_settings import SideSettings
from worker.run import Run

WINDOW_S = 10.0  # over which the share is held


class SideLane:
    """At most one run at a time, and a few that wait for it."""

    def __init__(self, settings: SideSettings) -> None:
        self.running: Run | None = None
        self._settings = settings
        self._waiting: deque[Run] = deque()
        self._spent: deque[tuple[float, float]] = deque()  # when a step ended, how long it took

    def __len__(self) -> int:
        return len(self._waiting)

    def __iter__(self) -> Iterator[Run]:
        return iter(tuple(self._waiting))

    def admits(self, run: Run) -> bool:
        """Whether a run is short enough and there is a place for it."""
        settings = self._settings
        return (
            settings.enabled
            and len(self._waiting) < settings.waiting
            and len(run.prompt) <= settings.prompt
            and run.max_tokens <= settings.output
            and not run.is_thinking
            and run.choices == 1
        )

    def add(self, run: Run) -> None:
        """Takes a place among those that wait."""
        self._waiting.append(run)

    def remove(self, run: Run) -> None:
        """Gives a place up."""
        self._waiting.remove(run)

    def next(self) -> Run:
        """The run whose turn it is."""
        return self._waiting.popleft()

    def may_step(self, now_s: float, *, is_alone: bool) -> bool:
        """Whether its share of the last seconds allows a step; alone it always may."""
        while self._spent and self._spent[0][0] <= now_s - WINDOW_S:
            self._spent.popleft()
        return is_alone or sum(took for _, took in self._spent) < self._settings.share * WINDOW_S

    def saw_step(self, now_s: float, seconds: float) -> None:
        """Notes what a step took."""
        self._spent.append((now_s, seconds))
