"""The ledger as the command line opens and prints it. Knows no table and no query."""

import time
from pathlib import Path

from gateway.ledger.books import Books, NoLedger
from gateway.ledger.clock import Clock
from gateway.ledger.prices import PriceList
from gateway.ledger.writer import Ledger
from gateway.settings.types import Settings
from gateway.store.db import Database


def open_books(settings: Settings, option: str | None) -> tuple[Books, Database | None]:
    """What `serve` books in. `option`: `none`, another file, or None for the configured place."""
    if option == "none":
        return NoLedger(), None
    database = open_database(settings, option)
    ledger = Ledger(
        database,
        settings.ledger,
        state_dir=settings.state_dir,
        price=PriceList(settings.prices).price,
        clock=Clock(lambda: time.time_ns() // 1_000_000, time.monotonic),
    )
    return ledger, database


def open_database(settings: Settings, option: str | None = None) -> Database:
    """The ledger's database: the file of the option, else what the configuration names."""
    if option is not None:
        return Database.open(Path(option))
    if settings.ledger.url is not None:
        return Database.open(settings.ledger.url.value)
    return Database.open(settings.ledger.path or settings.state_dir / "ledger.sqlite")
