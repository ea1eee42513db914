"""What one key has spent and reserved of its budget. Knows no database, no thread and no price.

A request's money is in one place at a time: *held* while it runs (the most it can cost), *waiting*
once it has ended (what it cost; its row is not written yet), *written* since the last reading of
the database, and then in the reading. All amounts are integers, 1e-6 of the currency.
"""

from concurrent.futures import Future
from dataclasses import dataclass
from decimal import Decimal

from gateway.ledger.entry import MICROS
from gateway.ledger.window import start_ms
from gateway.settings.types import BudgetSettings

HOLD_S = 600.0  # then a request that still runs holds nothing; what it costs counts at its end
READ_EVERY_S = 60.0
MOST_WAITING = 20_000  # ended requests told apart; a database that is away for long takes more
MINUTE_MS = 60_000


@dataclass(frozen=True, slots=True)
class State:
    """A budget at one moment, in micros."""

    limit: int
    spent: int
    reserved: int


class Minutes:
    """Costs by the minute in which their requests arrived: what lies too far back is forgotten."""

    def __init__(self) -> None:
        self.total = 0
        self._by_minute: dict[int, int] = {}
        self._first = 0

    def add(self, ts_ms: int, micros: int) -> None:
        """Notes a cost; one from before what was forgotten does not count."""
        minute = ts_ms // MINUTE_MS
        if minute >= self._first:
            self._by_minute[minute] = self._by_minute.get(minute, 0) + micros
            self.total += micros

    def forget_before(self, since_ms: int) -> None:
        """Forgets the minutes that ended before this moment."""
        first = since_ms // MINUTE_MS
        if first > self._first:
            for minute in [minute for minute in self._by_minute if minute < first]:
                self.total -= self._by_minute.pop(minute)
        self._first = first

    def clear(self) -> None:
        """Forgets everything."""
        self._by_minute.clear()
        self.total = 0


class Account:
    """One key's budget. Whoever has several threads guards it.

    `is_recorded`: costs are written to a database, which is read. `reading`: done when the reading
    that was asked for is over. `read_s` None: nothing was read yet.
    """

    def __init__(self, budget: BudgetSettings, *, is_recorded: bool) -> None:
        self.budget = budget
        self.limit = _limit(budget)
        self.is_recorded = is_recorded
        self.read_s: float | None = None
        self.reading: Future[None] | None = None
        self.reserved = 0
        self._held: dict[object, tuple[int, float]] = {}  # hold → micros, when it expires
        self._waiting: dict[str, tuple[int, int]] = {}  # request → when it arrived, micros
        self._waiting_total = 0
        self._written = Minutes()
        self._read = 0
        self._read_since_ms = 0

    def change(self, budget: BudgetSettings) -> None:
        """Another budget for the same key; what runs keeps its holds."""
        is_other = (budget.window, budget.currency) != (self.budget.window, self.budget.currency)
        if budget.currency != self.budget.currency:
            self._waiting.clear()
            self._waiting_total = 0
            self._written.clear()
        if is_other:
            self.read_s, self._read = None, 0
        self.budget = budget
        self.limit = _limit(budget)

    def state(self, now_ms: int, now_s: float) -> State:
        """What is spent and reserved now."""
        since_ms = start_ms(self.budget.window, now_ms)
        self._written.forget_before(since_ms)
        self._expire(now_s)
        if self.budget.window in ("day", "month") and self._read_since_ms < since_ms:
            self._read = 0  # of the day, or the month, before
        spent = self._read + self._written.total + self._waiting_total
        return State(self.limit, spent, self.reserved)

    def hold(self, key: object, micros: int, now_s: float) -> None:
        """Reserves an amount under a key of its own."""
        self._held[key] = (micros, now_s + HOLD_S)
        self.reserved += micros

    def end(self, key: object, request_id: str, ts_ms: int, micros: int) -> None:
        """Releases a hold, if it is still there, and notes what the request cost."""
        self._release(key)
        if not micros:
            return
        if not self.is_recorded:
            self._written.add(ts_ms, micros)
            return
        if len(self._waiting) >= MOST_WAITING:
            oldest_ms, oldest = self._take(next(iter(self._waiting)))
            self._written.add(oldest_ms, oldest)
        self._waiting[request_id] = (ts_ms, micros)
        self._waiting_total += micros

    def note_written(self, request_id: str, ts_ms: int, micros: int) -> None:
        """A row is in the database, with this cost."""
        if request_id in self._waiting:
            self._take(request_id)
        self._written.add(ts_ms, micros)

    def is_due(self, now_s: float) -> bool:
        """Whether the database should be read."""
        return self.reading is not None or self.is_older(READ_EVERY_S, now_s)

    def is_older(self, seconds: float, now_s: float) -> bool:
        """Whether the last reading is older, or there is none."""
        return self.read_s is None or now_s - self.read_s > seconds

    def take_reading(self, micros: int, since_ms: int, now_s: float) -> None:
        """What the database says. It has every row that was noted as written before this."""
        self._read, self._read_since_ms, self.read_s = micros, since_ms, now_s
        self._written.clear()
        self._expire(now_s)
        gone = [name for name, (ts_ms, _) in self._waiting.items() if ts_ms < since_ms]
        for request_id in gone:  # their rows were lost, or nobody could write them for so long
            self._take(request_id)

    def _take(self, request_id: str) -> tuple[int, int]:
        ts_ms, micros = self._waiting.pop(request_id)
        self._waiting_total -= micros
        return ts_ms, micros

    def _expire(self, now_s: float) -> None:
        """Holds are in the order of their ends: they all last equally long."""
        while self._held:
            key, (_, until_s) = next(iter(self._held.items()))
            if until_s > now_s:
                return
            self._release(key)

    def _release(self, key: object) -> None:
        micros, _ = self._held.pop(key, (0, 0.0))
        self.reserved -= micros


def _limit(budget: BudgetSettings) -> int:
    return int(budget.limit * Decimal(MICROS))
