"""What the gateway books requests in, whatever keeps them. Knows no database and no thread."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

from gateway.ledger.entry import Entry
from gateway.ledger.row import Columns

# Adds the cost columns to a row that is about to be written, unless it has a `cost_source`.
PriceRow = Callable[[Columns], None]
STOP_S = 10.0  # for what waits when the process ends


@dataclass(frozen=True, slots=True)
class Counts:
    """Rows of this process, with those it found in the spill file at its start.

    At every moment made = written + waiting + dropped.
    """

    made: int = 0
    written: int = 0
    queued: int = 0
    spilled: int = 0
    dropped: int = 0

    @property
    def waiting(self) -> int:
        """Neither written nor lost."""
        return self.queued + self.spilled


class Books(Protocol):
    """A `Ledger`, or `NoLedger`. `open` and `close` never wait and never raise."""

    def start(self) -> None:
        """Begins to write."""

    def open(self, entry: Entry) -> None:
        """Makes an admitted request known, so that a crash cannot hide it."""

    def close(self, entry: Entry) -> None:
        """Books an entry that was closed."""

    def counts(self) -> Counts:
        """Where the rows are, all at one moment."""

    def use_prices(self, price: PriceRow) -> None:
        """Prices rows written from now on by another list (a reload)."""

    def stop(self, wait_s: float = STOP_S) -> Counts:
        """Writes what waits, for about `wait_s` at most. Blocks: not for an event loop."""


class NoLedger:
    """Keeps nothing (`--ledger none`)."""

    def start(self) -> None:
        """Nothing to begin."""

    def open(self, entry: Entry) -> None:
        """Forgets it."""

    def close(self, entry: Entry) -> None:
        """Forgets it."""

    def counts(self) -> Counts:
        """All zero."""
        return Counts()

    def use_prices(self, price: PriceRow) -> None:
        """Forgets them."""

    def stop(self, wait_s: float = STOP_S) -> Counts:
        """Nothing to write."""
        return Counts()
