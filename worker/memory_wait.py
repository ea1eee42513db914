"""Who waits for memory, and who may pass them. Knows no gate, no run and no clock."""

from collections.abc import Iterator
from typing import Generic, TypeVar

T = TypeVar("T")

MOST_PASSES = 8  # of others before one that waits; then all wait behind it
RECHECK_S = 1.0  # what others on the machine give back is no end that anybody hears of


class MemoryWait(Generic[T]):
    """Those that do not fit now, in the order in which they came.

    They stand before all that did not ask yet. One that fits may pass those before it, each of them
    `MOST_PASSES` times.
    """

    def __init__(self) -> None:
        self._waiting: list[T] = []
        self._passed: list[int] = []  # how often each of them was
        self._has_ended = False
        self._asked_s = 0.0

    def __len__(self) -> int:
        return len(self._waiting)

    def __iter__(self) -> Iterator[T]:
        return iter(tuple(self._waiting))  # a copy: they leave while they are looked at

    def add(self, item: T) -> None:
        """Takes a place behind those that wait already; it has just been asked for in vain."""
        self._waiting.append(item)
        self._passed.append(0)

    def may_ask(self, item: T) -> bool:
        """Whether nobody before it has been passed too often. Who does not wait is behind all."""
        return all(passed < MOST_PASSES for passed in self._passed[: self._place(item)])

    def started(self, item: T) -> None:
        """Notes that one fitted: it waits no longer, and has passed those before it."""
        for place in range(self._place(item)):
            self._passed[place] += 1
        self.remove(item)

    def remove(self, item: T) -> None:
        """Gives its place up, if it has one."""
        place = self._place(item)
        del self._waiting[place : place + 1], self._passed[place : place + 1]

    def saw_end(self) -> None:
        """Notes that something ended, or gave memory back in another way."""
        self._has_ended = True

    def take_due(self, now_s: float) -> bool:
        """Whether those that wait are to be asked for again now."""
        is_due = bool(self._waiting) and (self._has_ended or now_s - self._asked_s >= RECHECK_S)
        if is_due:
            self._has_ended, self._asked_s = False, now_s
        return is_due

    def _place(self, item: T) -> int:
        waits = (place for place, other in enumerate(self._waiting) if other is item)
        return next(waits, len(self._waiting))
