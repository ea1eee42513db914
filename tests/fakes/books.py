"""A ledger that keeps its rows in memory, for tests of what is booked rather than how."""

from gateway.ledger.books import Counts, PriceRow
from gateway.ledger.entry import Entry
from gateway.ledger.row import Row, row_from


class MemoryBooks:
    """Every closed row, in the order of their ends."""

    def __init__(self) -> None:
        self.opened: list[str] = []
        self.rows: list[Row] = []

    def start(self) -> None:
        """Nothing to begin."""

    def open(self, entry: Entry) -> None:
        self.opened.append(entry.request_id)

    def close(self, entry: Entry) -> None:
        self.rows.append(row_from(entry.columns()))

    def counts(self) -> Counts:
        return Counts(made=len(self.rows), written=len(self.rows))

    def use_prices(self, price: PriceRow) -> None:
        """Rows are kept as they come."""

    def stop(self, wait_s: float = 0.0) -> Counts:
        return self.counts()
