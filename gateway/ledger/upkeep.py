"""Nightly work on the ledger: retention, and the weekly backup of SQLite. Knows no queue.

It is due at 04:00 local time, or at the first chance after it: a laptop sleeps at night. The
table `ledger_meta` remembers the last time, so several gateways on one database do it once.
"""

import os
import sqlite3
from contextlib import closing
from datetime import date, datetime, timedelta
from pathlib import Path

import structlog

from gateway.ledger.clock import Clock
from gateway.settings.types import LedgerSettings
from gateway.store.db import BUSY_S, Database, locked

log = structlog.get_logger(__name__)

HOUR = 4  # local time: nobody works
DAY_MS = 86_400_000
PRUNE_ROWS = 5_000  # in one transaction: others write between two of them
PRUNE_ROUNDS = 4  # before the queue has its turn again
FREED_PAGES = 10_000  # given back to the file system at a time, 40 MB
AGAIN_S = 3600.0  # after a fault
META_KEY = "upkeep_day"


class Upkeep:
    """Does what is due, a piece at a time, in the writer's thread."""

    def __init__(self, database: Database, settings: LedgerSettings, clock: Clock) -> None:
        self._path = database.path
        self._writer = database.writer
        self._settings = settings
        self._clock = clock
        self._done: date | None = None
        self._not_before_s = 0.0

    def run_if_due(self) -> None:
        """Prunes and backs up, once a day. A fault is logged, and tried again in an hour."""
        day = self._day()
        if day == self._done or self._clock.now_s() < self._not_before_s:
            return
        try:
            if self._last_day() in (None, day.isoformat()) or self._is_pruned():
                self._finish(day)
        except (self._writer.driver.Error, sqlite3.Error, OSError) as fault:
            self._not_before_s = self._clock.now_s() + AGAIN_S
            log.error("ledger.upkeep_failed", fault=type(fault).__name__)

    def _day(self) -> date:
        """The day, by a calendar whose days begin at 04:00."""
        now = datetime.fromtimestamp(self._clock.now_ms() / 1000, self._clock.zone)
        return (now - timedelta(hours=HOUR)).date()

    def _last_day(self) -> str | None:
        """The day it was last done on this database; None: never, so there is nothing to do."""
        with self._writer.transaction() as cursor:
            cursor.execute(self._writer.statements.read_meta, (META_KEY,))
            found = cursor.fetchone()
        return None if found is None else str(found[0])

    def _is_pruned(self) -> bool:
        """Deletes some of the rows that are too old; whether none is left."""
        oldest_ms = self._clock.now_ms() - self._settings.retention_days * DAY_MS
        for _ in range(PRUNE_ROUNDS):
            with self._writer.transaction() as cursor:
                cursor.execute(self._writer.statements.prune, (oldest_ms, PRUNE_ROWS))
                row_count = cursor.rowcount
            if row_count:
                log.info("ledger.rows_pruned", row_count=row_count)
            if row_count < PRUNE_ROWS:
                return True
        return False

    def _finish(self, day: date) -> None:
        if self._path is not None and self._last_day() is not None:
            _shrink(self._path)
            self._back_up(self._path, day)
        with self._writer.transaction() as cursor:
            cursor.execute(self._writer.statements.write_meta, (META_KEY, day.isoformat()))
        self._done = day

    def _back_up(self, path: Path, day: date) -> None:
        """Copies the database while others use it, once in an ISO week."""
        year, week, _ = day.isocalendar()
        folder = path.parent / "backups"
        target = folder / f"{path.stem}-{year:04}-W{week:02}.sqlite"
        if self._settings.backup_weeks <= 0:
            return
        folder.mkdir(mode=0o700, exist_ok=True)
        with locked(folder):
            if target.exists():
                return
            _copy(path, target)
            kept = sorted(folder.glob(f"{path.stem}-[0-9][0-9][0-9][0-9]-W[0-9][0-9].sqlite"))
            for old in kept[: -self._settings.backup_weeks]:
                old.unlink()
        log.info("ledger.backup_made", file=target.name, size_bytes=target.stat().st_size)


def _copy(path: Path, target: Path) -> None:
    """Under another name until it is whole."""
    part = target.with_suffix(".part")
    part.unlink(missing_ok=True)
    os.close(os.open(part, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o600))
    with (
        closing(sqlite3.connect(path, timeout=BUSY_S)) as source,
        closing(sqlite3.connect(part)) as copy,
    ):
        source.backup(copy)
    part.replace(target)


def _shrink(path: Path) -> None:
    with closing(sqlite3.connect(path, timeout=BUSY_S, isolation_level=None)) as connection:
        # As a script: `execute` stops after the first page.
        connection.executescript(f"PRAGMA incremental_vacuum({FREED_PAGES})")
