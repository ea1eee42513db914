"""Entries, clocks and ledgers for the tests of the ledger."""

from collections.abc import Callable, Sequence
from itertools import count
from operator import attrgetter
from pathlib import Path
from typing import Any

from hypothesis import HealthCheck, settings
from sqlalchemy import select

from gateway.ledger.books import PriceRow
from gateway.ledger.budget import Budgets
from gateway.ledger.clock import Clock
from gateway.ledger.entry import Entry
from gateway.ledger.living import Living
from gateway.ledger.row import COLUMNS, Columns, Row
from gateway.ledger.spill import SpillFile
from gateway.ledger.writer import Ledger
from gateway.settings.types import LedgerSettings
from gateway.store.db import Database
from gateway.store.migrate import migrate
from gateway.store.schema import is_newest
from gateway.store.tables import ledger

# A busy machine is slow by itself: no property test is judged by its time.
UNHURRIED = settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])
NOON_MS = 1_785_499_200_000  # 2026-07-31 12:00 UTC
_numbers = count(1)


class FakeClock:
    """A clock that stands still until it is moved."""

    def __init__(self, now_ms: int = NOON_MS) -> None:
        self.now_ms = now_ms
        self.now_s = 1000.0
        self.clock = Clock(lambda: self.now_ms, lambda: self.now_s)

    def pass_s(self, seconds: float) -> None:
        """Time goes by."""
        self.now_s += seconds
        self.now_ms += round(seconds * 1000)


class NoThread:
    """Stands in for a thread that a test runs by hand."""

    def join(self, timeout: float | None = None) -> None:
        """There is nothing to wait for."""


def no_thread(name: str, work: Callable[[], None]) -> NoThread:
    """Starts nothing: the test calls `step` and `flush_spill`."""
    return NoThread()


def unpriced(row: Columns) -> None:
    """A price list without entries."""


def migrate_here(database: Database) -> None:
    """As a gateway does it, but in this process, which is quicker."""
    if not is_newest(database):
        migrate(database)


def hand_driven(
    database: Database,
    state_dir: Path,
    clock: FakeClock,
    *,
    queue: int = 10_000,
    price: PriceRow = unpriced,
    claim_spill: Callable[[Path], SpillFile] = SpillFile.claim,
    budgets: Budgets | None = None,
    living: Living | None = None,
) -> Ledger:
    """A ledger without threads."""
    made = Ledger(
        database,
        LedgerSettings(queue=queue),
        state_dir=state_dir,
        price=price,
        clock=clock.clock,
        migrate=migrate_here,
        start_thread=no_thread,
        claim_spill=claim_spill,
        budgets=budgets,
        living=living,
    )
    made.start()
    return made


def opened(request_id: str | None = None, **columns: Any) -> Entry:
    """A request that has arrived."""
    name = request_id or f"req-{next(_numbers)}"
    given = {"ts_ms": NOON_MS, "arrived_s": 0.0, "surface": "chat", **columns}
    return Entry(request_id=name, **given)


def closed(request_id: str | None = None, **columns: Any) -> Entry:
    """A request that went well."""
    entry = opened(request_id, **columns)
    entry.book_usage(prompt=100, completion=10, source="backend")
    entry.close(1.0, outcome="succeeded", status=200)
    return entry


def write(database: Database, rows: Sequence[Row]) -> None:
    """Puts rows into a database, past the writer."""
    migrate(database)
    with database.writer.transaction() as cursor:
        values = [attrgetter(*COLUMNS)(row) for row in rows]
        cursor.executemany(database.writer.statements.write_row, values)


def stored(database: Database) -> list[Row]:
    """Every row of a database, in the order of request ids."""
    columns = [ledger.c[name] for name in COLUMNS]
    with database.reader.connect() as connection:
        found = connection.execute(select(*columns).order_by(ledger.c.request_id)).all()
    return [Row(*row) for row in found]


def outcomes(database: Database) -> dict[str, str | None]:
    """Outcome by request id."""
    return {row.request_id: row.outcome for row in stored(database)}
