"""Nightly work: old rows go, and a copy is kept."""

import sqlite3
from collections.abc import Iterator
from contextlib import closing, contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Any
from zoneinfo import ZoneInfo

import pytest
from structlog.testing import capture_logs

from gateway.ledger.clock import Clock
from gateway.ledger.row import Row
from gateway.ledger.upkeep import DAY_MS, PRUNE_ROUNDS, PRUNE_ROWS, Upkeep
from gateway.settings.types import LedgerSettings
from gateway.store.db import Database
from tests.gateway.ledger.faults import trouble
from tests.gateway.ledger.made import FakeClock, closed, hand_driven, stored, write

BERLIN = ZoneInfo("Europe/Berlin")


def at(text: str, zone: Any = UTC) -> int:
    return round(datetime.fromisoformat(text).replace(tzinfo=zone).timestamp() * 1000)


def rows(*days_old: float, now_ms: int) -> list[Row]:
    return [
        Row(ts_ms=now_ms - round(days * DAY_MS), request_id=f"req-{i}", outcome="succeeded")
        for i, days in enumerate(days_old)
    ]


def upkeep_of(database: Database, clock: FakeClock, zone: Any = UTC, **settings: int) -> Upkeep:
    made = Clock(lambda: clock.now_ms, lambda: clock.now_s, zone)
    return Upkeep(database, LedgerSettings(**settings), made)  # type: ignore[arg-type]


def next_day(clock: FakeClock) -> None:
    clock.pass_s(24 * 3600)


@contextmanager
def counting(database: Database) -> Iterator[Any]:
    with trouble(database) as made:
        yield made


def test_rows_over_their_age_go_and_others_stay(database: Database) -> None:
    clock = FakeClock(at("2026-07-30T12:00"))
    upkeep = upkeep_of(database, clock, retention_days=400)
    write(database, [])
    upkeep.run_if_due()
    next_day(clock)
    write(database, rows(400.1, 399.9, 0.0, 800.0, now_ms=clock.now_ms))
    with capture_logs() as logs:
        upkeep.run_if_due()
    assert [row.request_id for row in stored(database)] == ["req-1", "req-2"]
    pruned = [entry["row_count"] for entry in logs if entry["event"] == "ledger.rows_pruned"]
    assert pruned == [2]


def test_it_is_due_at_four_local_time_once_a_day(database: Database) -> None:
    clock = FakeClock(at("2026-03-28T12:00", BERLIN))
    upkeep = upkeep_of(database, clock, BERLIN, retention_days=1)
    write(database, [])
    upkeep.run_if_due()
    for moment, is_pruned in [
        ("2026-03-28T23:00", False),
        ("2026-03-29T03:59", False),  # the clocks were put forward at two
        ("2026-03-29T04:00", True),
        ("2026-03-29T23:59", False),
        ("2026-03-30T04:01", True),
        ("2026-04-04T15:00", True),  # it slept for days, and through the night
    ]:
        clock.now_ms = at(moment, BERLIN)
        write(database, rows(3.0, now_ms=clock.now_ms))
        upkeep.run_if_due()
        assert (stored(database) == []) == is_pruned, moment
        with database.writer.transaction() as cursor:
            cursor.execute("DELETE FROM ledger")


def test_nothing_is_done_at_the_first_start(database: Database) -> None:
    clock = FakeClock()
    write(database, rows(900.0, now_ms=clock.now_ms))
    upkeep_of(database, clock).run_if_due()
    assert len(stored(database)) == 1


def test_another_gateway_that_did_it_counts(database: Database) -> None:
    clock = FakeClock()
    write(database, [])
    first, second = upkeep_of(database, clock), upkeep_of(database, clock)
    first.run_if_due()
    next_day(clock)
    first.run_if_due()
    write(database, rows(900.0, now_ms=clock.now_ms))
    second.run_if_due()
    assert len(stored(database)) == 1


def test_pruning_much_goes_in_pieces(sqlite: Database) -> None:
    clock = FakeClock()
    upkeep = upkeep_of(sqlite, clock)
    write(sqlite, [])
    upkeep.run_if_due()
    next_day(clock)
    most = PRUNE_ROWS * PRUNE_ROUNDS
    write(sqlite, rows(*[900.0] * (most + 10), now_ms=clock.now_ms))
    upkeep.run_if_due()
    assert len(stored(sqlite)) == 10
    upkeep.run_if_due()
    assert stored(sqlite) == []


def test_a_fault_is_said_and_tried_again_in_an_hour(database: Database) -> None:
    clock = FakeClock()
    upkeep = upkeep_of(database, clock)
    write(database, [])
    upkeep.run_if_due()
    next_day(clock)
    with trouble(database) as down, capture_logs() as logs:
        down.is_down = True
        upkeep.run_if_due()
        asked = down.count["connect"]
        clock.pass_s(3599)
        upkeep.run_if_due()
        assert down.count["connect"] == asked
        down.is_down = False
        clock.pass_s(1)
        upkeep.run_if_due()
        assert down.count["connect"] > asked
    assert [entry["event"] for entry in logs].count("ledger.upkeep_failed") == 1


def test_freed_pages_go_back_to_the_file_system(sqlite: Database) -> None:
    clock = FakeClock()
    upkeep = upkeep_of(sqlite, clock)
    write(sqlite, [])
    upkeep.run_if_due()
    next_day(clock)
    write(sqlite, rows(*[900.0] * 3000, now_ms=clock.now_ms))
    with sqlite.reader.connect() as connection:
        before = connection.exec_driver_sql("PRAGMA page_count").scalar()
    upkeep.run_if_due()
    with sqlite.reader.connect() as connection:
        assert connection.exec_driver_sql("PRAGMA freelist_count").scalar() == 0
        after = connection.exec_driver_sql("PRAGMA page_count").scalar()
    assert before is not None and after is not None and after < before / 3


def backups(database: Database) -> list[str]:
    assert database.path is not None
    folder = database.path.parent / "backups"
    return sorted(file.name for file in folder.iterdir()) if folder.exists() else []


def test_a_backup_a_week_by_iso_name_and_the_oldest_goes(sqlite: Database) -> None:
    clock = FakeClock(at("2026-12-16T12:00"))
    upkeep = upkeep_of(sqlite, clock, backup_weeks=2)
    write(sqlite, rows(0.0, now_ms=clock.now_ms))
    seen = []
    with capture_logs() as logs:
        for _ in range(28):
            upkeep.run_if_due()
            seen.append(backups(sqlite))
            next_day(clock)
    made = [entry["file"] for entry in logs if entry["event"] == "ledger.backup_made"]
    assert len(made) == len(set(made)) == 5
    assert seen[0] == [] and seen[1] == ["ledger-2026-W51.sqlite"]
    assert seen[-1] == ["ledger-2027-W01.sqlite", "ledger-2027-W02.sqlite"]
    assert ["ledger-2026-W52.sqlite", "ledger-2026-W53.sqlite"] in seen
    assert sqlite.path is not None
    copy = sqlite.path.parent / "backups" / seen[-1][1]
    assert copy.stat().st_mode & 0o777 == 0o600
    assert copy.parent.stat().st_mode & 0o777 == 0o700
    with closing(sqlite3.connect(copy)) as connection:
        assert connection.execute("SELECT request_id FROM ledger").fetchall() == [("req-0",)]
        assert connection.execute("PRAGMA integrity_check").fetchone() == ("ok",)


def test_a_backup_is_made_while_others_write(sqlite: Database) -> None:
    clock = FakeClock()
    upkeep = upkeep_of(sqlite, clock)
    write(sqlite, rows(0.0, now_ms=clock.now_ms))
    upkeep.run_if_due()
    next_day(clock)
    assert sqlite.path is not None
    upkeep._done = upkeep._day()  # only the backup, so that nothing waits for the lock
    with closing(sqlite3.connect(sqlite.path, isolation_level=None)) as other:
        other.execute("BEGIN IMMEDIATE")
        other.execute("DELETE FROM ledger")
        upkeep._back_up(sqlite.path, upkeep._day())
    (name,) = backups(sqlite)
    with closing(sqlite3.connect(sqlite.path.parent / "backups" / name)) as connection:
        assert connection.execute("SELECT count(*) FROM ledger").fetchone() == (1,)


def test_no_backups_when_none_are_wanted(sqlite: Database) -> None:
    clock = FakeClock()
    upkeep = upkeep_of(sqlite, clock, backup_weeks=0)
    write(sqlite, [])
    for _ in range(3):
        upkeep.run_if_due()
        next_day(clock)
    assert backups(sqlite) == []


def test_a_backup_that_broke_off_is_made_anew(sqlite: Database) -> None:
    clock = FakeClock()
    upkeep = upkeep_of(sqlite, clock)
    write(sqlite, [])
    upkeep.run_if_due()
    next_day(clock)
    assert sqlite.path is not None
    folder = sqlite.path.parent / "backups"
    folder.mkdir()
    (folder / "ledger-2026-W31.part").write_bytes(b"half")
    upkeep.run_if_due()
    assert backups(sqlite) == ["ledger-2026-W31.sqlite"]


def test_the_writer_does_it_when_nothing_waits(sqlite: Database, tmp_path: Path) -> None:
    clock = FakeClock()
    books = hand_driven(sqlite, tmp_path, clock)
    books.step()
    next_day(clock)
    books.close(closed(ts_ms=clock.now_ms - 401 * DAY_MS))
    books.step()
    assert stored(sqlite) == []
    assert len(backups(sqlite)) == 1


@pytest.mark.postgres
def test_postgres_has_backups_of_its_own(postgres_url: str) -> None:
    database = Database.open(postgres_url)
    clock = FakeClock()
    upkeep = upkeep_of(database, clock)
    write(database, [])
    for _ in range(2):
        upkeep.run_if_due()
        next_day(clock)
    database.close()
