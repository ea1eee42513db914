"""Keys with budgets in a ledger that a test drives by hand: a dollar a token, nothing else."""

import asyncio
from decimal import Decimal
from itertools import count
from pathlib import Path
from typing import Any

from gateway.ledger.account import State
from gateway.ledger.budget import Budgets, Reserve
from gateway.ledger.entry import Entry, Outcome
from gateway.ledger.prices import PriceList
from gateway.settings.types import BudgetSettings, PriceSettings, TokenPrices, Window
from gateway.store.db import Database
from gateway.surfaces.size import Size
from tests.gateway.ledger.made import FakeClock, hand_driven

DOLLAR = 1_000_000  # micros; the price of a token of an answer
PRICES = PriceList([
    PriceSettings("m", per_mtok=TokenPrices(input=Decimal(0), output=Decimal(DOLLAR))),
])  # fmt: skip
KEY = "k:ours"
STUCK_S = 20.0
_numbers = count(1)


def budget(limit: int = 30, window: Window = "day", **more: Any) -> BudgetSettings:
    """A budget in dollars."""
    return BudgetSettings(Decimal(limit), window, **more)


class Desk:
    """One process: its budgets, and its ledger unless `database` is None.

    Whoever waits for a reading makes the writer take a step at once.
    """

    def __init__(
        self, database: Database | None, folder: Path, clock: FakeClock, *,
        prices: PriceList = PRICES, **budgets: BudgetSettings,
    ) -> None:  # fmt: skip
        self.clock = clock
        self.budgets = Budgets(clock.clock)
        self.books = None
        self.reading_count = 0
        if database is not None:
            self.books = hand_driven(
                database, folder, clock, price=prices.price, budgets=self.budgets
            )
            self.budgets.read_by(self._read)
        self._is_open = False
        self.budgets.use(budgets or {KEY: budget()}, prices)
        self._is_open = True

    def _read(self) -> None:
        if self._is_open:  # before, the thread has not begun
            assert self.books is not None
            self.reading_count += 1
            self.books.step()

    def arrive(self, tokens: int | None = 10, key: str = KEY, **columns: Any) -> Entry:
        """A request of the key that may cost this many dollars."""
        given = {
            "client_id": key, "max_tokens": tokens, "model": "m", "backend": "b",
            "upstream_model": "m", **columns,
        }  # fmt: skip
        return Entry(
            request_id=f"req-{next(_numbers)}", ts_ms=self.clock.now_ms, arrived_s=0.0, **given
        )

    def admit(self, entry: Entry, size: Size = Size(0, 1)) -> Reserve:  # noqa: B008 - frozen
        """Raises: ApiError; TimeoutError when it waits for what does not come."""

        async def wait() -> Reserve | None:
            async with asyncio.timeout(STUCK_S):
                return await self.budgets.admit(entry, size)

        admitted = asyncio.run(wait())
        assert admitted is not None
        return admitted

    def end(
        self, reserve: Reserve, entry: Entry, tokens: int = 10, outcome: Outcome = "succeeded"
    ) -> None:
        """The answer was so long; the row waits to be written."""
        entry.book_usage(prompt=0, completion=tokens, source="backend")
        entry.close(1.0, outcome=outcome)
        reserve.settle(entry)
        if self.books is not None:
            self.books.close(entry)

    def spend(self, tokens: int, key: str = KEY) -> None:
        """One request from its arrival to its end."""
        entry = self.arrive(tokens, key)
        self.end(self.admit(entry), entry, tokens)

    def write(self) -> None:
        """The writer takes a step."""
        assert self.books is not None
        self.books.step()

    def state(self, key: str = KEY) -> State:
        found = self.budgets.state(key)
        assert found is not None
        return found

    @property
    def spent(self) -> int:
        """In dollars."""
        return self.state().spent // DOLLAR

    @property
    def reserved(self) -> int:
        """In dollars."""
        return self.state().reserved // DOLLAR
