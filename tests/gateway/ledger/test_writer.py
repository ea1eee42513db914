"""Rows come to the database, once, whatever happens on the way."""

import time
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from structlog.testing import capture_logs

from gateway.ledger.books import Books, Counts, NoLedger
from gateway.ledger.clock import Clock
from gateway.ledger.intake import BATCH_ROWS, YOUNG_S, Intake
from gateway.ledger.row import Columns, row_from
from gateway.ledger.spill import SpillFile
from gateway.ledger.writer import COMMIT_S, Ledger
from gateway.settings.types import LedgerSettings
from gateway.store.db import Database
from tests.gateway.ledger.faults import trouble
from tests.gateway.ledger.made import (
    FakeClock,
    closed,
    hand_driven,
    no_thread,
    opened,
    outcomes,
    stored,
    unpriced,
    write,
)


@pytest.fixture
def clock() -> FakeClock:
    return FakeClock()


@pytest.fixture
def books(database: Database, tmp_path: Path, clock: FakeClock) -> Ledger:
    """A ledger that the test drives by hand, on each kind of database."""
    return hand_driven(database, tmp_path, clock)


def events(logs: list[Any], name: str) -> list[Any]:
    return [entry for entry in logs if entry["event"] == name]


# -- the way of a row ---------------------------------------------------------------------------


def test_a_closed_request_is_a_row(books: Ledger, database: Database) -> None:
    entry = closed("req-a", model="m", stream=True)
    books.close(entry)
    assert books.counts() == Counts(made=1, queued=1)
    books.step()
    assert books.counts() == Counts(made=1, written=1)
    assert stored(database) == [row_from(entry.columns())]


def test_an_open_request_is_known_and_its_end_completes_it(
    books: Ledger, database: Database
) -> None:
    entry = opened("req-a", model="m")
    books.open(entry)
    books.step()
    assert outcomes(database) == {"req-a": None}
    assert books.counts().made == 0  # a head is not a row in the books
    entry.close(1.0, outcome="aborted")
    books.close(entry)
    books.step()
    assert stored(database) == [row_from(entry.columns())]


def test_a_request_that_ended_already_is_written_once(books: Ledger, database: Database) -> None:
    books.step()
    entry = opened("req-a")
    books.open(entry)
    entry.close(1.0, outcome="succeeded")
    books.close(entry)
    with trouble(database) as counting:
        books.step()
    inserts = 1 if database.path is None else 2  # SQLite: and BEGIN
    assert counting.count["statement"] == inserts
    assert outcomes(database) == {"req-a": "succeeded"}


def test_a_young_request_is_not_written_twice(
    books: Ledger, database: Database, clock: FakeClock
) -> None:
    """Most are over a moment later. Those that are not are known within the second all the same."""
    books.step()
    short, long = (opened(name, arrived_s=clock.now_s) for name in ("req-short", "req-long"))
    books.open(long)
    books.open(short)
    books.step()
    assert outcomes(database) == {}
    short.close(clock.now_s, outcome="succeeded")
    books.close(short)
    clock.pass_s(YOUNG_S)
    with trouble(database) as counting:
        books.step()
    assert counting.count["statement"] == (2 if database.path is None else 3)  # SQLite: and BEGIN
    assert outcomes(database) == {"req-short": "succeeded", "req-long": None}


def test_open_requests_beyond_a_batch_stay_for_the_next(books: Ledger, database: Database) -> None:
    for number in range(BATCH_ROWS + 10):
        books.open(opened(f"req-{number:05}"))
    books.step()
    assert [*outcomes(database)] == [f"req-{number:05}" for number in range(BATCH_ROWS)]
    books.step()
    assert len(outcomes(database)) == BATCH_ROWS + 10


def test_a_head_that_comes_after_its_row_changes_nothing(
    database: Database, tmp_path: Path, clock: FakeClock
) -> None:
    entry = closed("req-a")
    write(database, [row_from(entry.columns())])
    books = hand_driven(database, tmp_path, clock)
    books.step()
    books.open(opened("req-a"))
    books.step()
    assert outcomes(database) == {"req-a": "succeeded"}


def test_heads_leave_half_of_the_queue_to_rows(
    database: Database, tmp_path: Path, clock: FakeClock
) -> None:
    books = hand_driven(database, tmp_path, clock, queue=10)
    entries = [opened(f"req-{i}") for i in range(10)]
    for entry in entries:
        books.open(entry)
    books.step()
    assert len(outcomes(database)) == 5


def test_a_request_handed_over_twice_is_booked_once(books: Ledger, database: Database) -> None:
    entry = closed("req-a")
    books.close(entry)
    books.close(entry)
    books.step()
    books.close(entry)
    books.step()
    assert books.counts() == Counts(made=1, written=1)


def test_rows_that_know_much_and_little_go_in_one_transaction(
    books: Ledger, database: Database
) -> None:
    books.step()
    entries = [closed(f"req-{i}", run_id=f"run-{i}" if i % 2 else None) for i in range(6)]
    for entry in entries:
        books.close(entry)
    with trouble(database) as counting:
        books.step()
    assert counting.count["commit"] == 1
    assert stored(database) == [row_from(entry.columns()) for entry in entries]


def test_a_brief_row_replaces_all_that_was_known_before(books: Ledger, database: Database) -> None:
    entry = opened("req-a", run_id="run")
    books.open(entry)
    books.step()
    entry.run_id = None
    entry.close(1.0, outcome="aborted")
    books.close(entry)
    books.step()
    assert stored(database) == [row_from(entry.columns())]


def test_a_whole_batch_wakes_the_writer(tmp_path: Path) -> None:
    woken: list[int] = []
    intake = Intake(
        SpillFile.claim(tmp_path),
        queue_rows=2 * BATCH_ROWS,
        on_batch=lambda: woken.append(intake.counts().queued),
        on_overflow=lambda: None,
    )
    for _ in range(BATCH_ROWS + 10):
        intake.put(closed())
    assert woken == [BATCH_ROWS]
    assert intake.is_batch_waiting


def test_batches_are_bounded(books: Ledger) -> None:
    for _ in range(2 * BATCH_ROWS + 1):
        books.close(closed())
    assert books.step() == 0.0  # there is a whole batch more: at once
    assert books.counts().written == BATCH_ROWS
    assert books.step() == COMMIT_S  # one row can wait
    assert books.counts() == Counts(made=2 * BATCH_ROWS + 1, written=2 * BATCH_ROWS, queued=1)


# -- overflow -----------------------------------------------------------------------------------


def test_rows_beyond_the_queue_go_to_the_spill_and_come_back_first(
    sqlite: Database, tmp_path: Path, clock: FakeClock
) -> None:
    books = hand_driven(sqlite, tmp_path, clock, queue=3)
    for i in range(5):
        books.close(closed(f"req-{i}"))
    assert books.counts() == Counts(made=5, queued=3, spilled=2)
    books.flush_spill()
    file = tmp_path / "ledger.spill"
    assert file.stat().st_mode & 0o777 == 0o600
    assert file.read_bytes().count(b"\n") == 2
    books.step()
    assert set(outcomes(sqlite)) == {"req-3", "req-4"}
    assert books.counts() == Counts(made=5, written=2, queued=3)
    assert file.stat().st_size == 0
    books.step()
    assert books.counts() == Counts(made=5, written=5)


def test_a_full_queue_does_not_wait_for_as_long_as_rows_overflow(
    sqlite: Database, tmp_path: Path, clock: FakeClock
) -> None:
    """It is only in memory: a kill would cost more than the rows of the last second."""
    books = hand_driven(sqlite, tmp_path, clock, queue=2)
    for i in range(6):
        books.close(closed(f"req-{i}"))
    books.step()
    books.close(closed("req-6"))  # before the writer comes around again there is one more
    books.step()
    assert {"req-0", "req-1"} <= set(outcomes(sqlite))
    for _ in range(3):
        books.step()
    assert books.counts() == Counts(made=7, written=7)


def test_what_the_run_before_left_is_written_before_anything_else(
    sqlite: Database, tmp_path: Path, clock: FakeClock
) -> None:
    """All of it: else requests of that run would be called lost whose rows are at hand."""
    first = hand_driven(sqlite, tmp_path, clock, queue=2 * BATCH_ROWS)
    entries = [opened(f"req-{i:05}") for i in range(BATCH_ROWS + 1)]
    first.open(entries[-1])
    first.step()
    for entry in entries:
        entry.close(1.0, outcome="aborted")
        first.close(entry)
    assert first.stop(0).spilled == BATCH_ROWS + 1
    with capture_logs() as logs:
        second = hand_driven(sqlite, tmp_path, clock)
        second.close(closed("req-new"))
        while second.counts().waiting:
            second.step()
    assert not events(logs, "ledger.rows_lost")
    assert second.counts() == Counts(made=BATCH_ROWS + 2, written=BATCH_ROWS + 2)


def test_rows_that_never_reached_the_file_come_back_from_memory(
    sqlite: Database, tmp_path: Path, clock: FakeClock
) -> None:
    books = hand_driven(sqlite, tmp_path, clock, queue=1)
    for i in range(4):
        books.close(closed(f"req-{i}"))
    books.step()
    books.step()
    assert books.counts() == Counts(made=4, written=4)
    assert len(stored(sqlite)) == 4


def test_beyond_the_spill_rows_are_counted_and_said_once_a_minute(
    sqlite: Database, tmp_path: Path, clock: FakeClock
) -> None:
    tiny = partial(SpillFile.claim, most_bytes=0)
    books = hand_driven(sqlite, tmp_path, clock, queue=1, claim_spill=tiny)
    with capture_logs() as logs:
        for _ in range(4):
            books.close(closed())
            books.flush_spill()
        assert books.counts() == Counts(made=4, queued=1, dropped=3)
        clock.pass_s(59)
        books.flush_spill()
        said = events(logs, "ledger.rows_dropped")
        assert [entry["row_count"] for entry in said] == [1]
        clock.pass_s(1)
        books.flush_spill()
    said = events(logs, "ledger.rows_dropped")
    assert [entry["row_count"] for entry in said] == [1, 2]
    assert (tmp_path / "ledger.spill").stat().st_size == 0


# -- faults -------------------------------------------------------------------------------------


def test_a_database_that_is_gone_costs_no_row(
    books: Ledger, database: Database, clock: FakeClock
) -> None:
    books.step()
    with trouble(database) as down, capture_logs() as logs:
        down.is_down = True
        for i in range(10):
            books.close(closed(f"req-{i}"))
            assert books.step() > 0
            clock.pass_s(10)
        assert books.counts() == Counts(made=10, queued=10)
        down.is_down = False
        books.step()
        books.step()
    assert books.counts() == Counts(made=10, written=10)
    assert len(stored(database)) == 10
    assert len(events(logs, "ledger.write_failed")) == 2  # ten faults within 100 s
    assert len(events(logs, "ledger.write_resumed")) == 1


def test_a_database_that_refuses_is_asked_less_and_less_often(
    books: Ledger, database: Database, clock: FakeClock
) -> None:
    with trouble(database) as down:
        down.is_down = True
        books.close(closed())
        pauses = []
        for _ in range(8):
            pauses.append(books.step())
            asked = down.count["connect"]
            clock.pass_s(pauses[-1] / 2)
            assert books.step() == pytest.approx(pauses[-1] / 2)
            assert down.count["connect"] == asked
            clock.pass_s(pauses[-1] / 2)
    assert pauses == [0.25, 0.5, 1.0, 2.0, 4.0, 8.0, 10.0, 10.0]


def test_a_row_that_is_refused_holds_up_no_other(books: Ledger, database: Database) -> None:
    books.step()
    with capture_logs() as logs:
        for i in range(20):
            run_id = "run" if i in (3, 11) else None
            books.close(closed(f"req-{i:02}", run_id=run_id))
        while books.counts().waiting:
            books.step()
    (refused,) = events(logs, "ledger.row_refused")
    assert (refused["request_id"], refused["reason"].startswith("IntegrityError: ")) == (
        "req-11",
        True,
    )
    assert books.counts() == Counts(made=20, written=19, dropped=1)
    assert "req-03" in outcomes(database) and "req-11" not in outcomes(database)


def test_what_a_database_quotes_of_a_row_is_not_said(books: Ledger) -> None:
    books.close(closed("req-a", ts_ms=2**70, parent_request_id="secret"))  # no column holds that
    with capture_logs() as logs:
        books.step()
    (refused,) = events(logs, "ledger.row_refused")
    assert "ts_ms" in refused["reason"] and "secret" not in str(logs)


def test_an_open_request_does_not_keep_another_from_billing_its_run(
    books: Ledger, database: Database
) -> None:
    books.step()
    books.open(opened("req-a", run_id="run"))  # its gateway dies, another takes the run over
    books.step()
    books.close(closed("req-b", run_id="run"))
    books.step()
    assert outcomes(database) == {"req-a": None, "req-b": "succeeded"}


def test_a_request_without_an_id_is_counted(books: Ledger) -> None:
    nameless: Any = None
    entry = opened("x")
    entry.request_id = nameless
    entry.close(1.0, outcome="failed")
    books.close(entry)
    with capture_logs() as logs:
        books.step()
    assert books.counts() == Counts(made=1, dropped=1)
    assert events(logs, "ledger.row_refused")


def test_prices_are_applied_when_a_row_is_written(
    sqlite: Database, tmp_path: Path, clock: FakeClock
) -> None:
    def priced_at(micros: int) -> Any:
        return lambda row: row.update(cost_micros=micros)

    books = hand_driven(sqlite, tmp_path, clock, price=priced_at(5))
    books.close(closed("req-a"))
    books.step()
    books.use_prices(priced_at(7))
    books.close(closed("req-b"))
    books.step()
    assert [row.cost_micros for row in stored(sqlite)] == [5, 7]


def test_a_price_list_that_fails_costs_no_row(
    sqlite: Database, tmp_path: Path, clock: FakeClock
) -> None:
    def broken(row: Columns) -> None:
        raise ZeroDivisionError

    books = hand_driven(sqlite, tmp_path, clock, price=broken)
    with capture_logs() as logs:
        for i in range(3):
            books.close(closed(f"req-{i}"))
        books.step()
    assert [row.cost_micros for row in stored(sqlite)] == [None, None, None]
    assert len(events(logs, "ledger.price_failed")) == 1


def test_tables_that_cannot_be_made_yet_cost_no_row(
    database: Database, tmp_path: Path, clock: FakeClock
) -> None:
    """The reason is that of the database, and nobody wants a traceback of it."""
    with database.writer.transaction() as cursor:
        cursor.execute("CREATE TABLE ledger (somebody_elses INTEGER)")
    books = Ledger(
        database, LedgerSettings(), state_dir=tmp_path, price=unpriced, clock=clock.clock,
        start_thread=no_thread,
    )  # fmt: skip
    books.start()
    books.close(closed("req-a"))
    with capture_logs() as logs:
        assert books.step() > 0
    (failed,) = events(logs, "ledger.write_failed")
    assert "already exists" in failed["reason"] and not failed["exc_info"]
    assert books.counts() == Counts(made=1, queued=1)
    with database.writer.transaction() as cursor:
        cursor.execute("DROP TABLE ledger")
    clock.pass_s(10)
    books.step()
    assert books.counts() == Counts(made=1, written=1)
    assert outcomes(database) == {"req-a": "succeeded"}


def test_a_fault_of_our_own_does_not_end_the_writer(
    books: Ledger, database: Database, clock: FakeClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    books.close(closed())
    with monkeypatch.context() as patch:
        patch.setattr(books, "_migrate", lambda database: 1 / 0)
        assert books.step() > 0
    clock.pass_s(10)
    books.step()
    assert books.counts() == Counts(made=1, written=1)


# -- runs that did not end ----------------------------------------------------------------------


def test_what_a_crash_left_open_is_lost_and_said(
    database: Database, tmp_path: Path, clock: FakeClock
) -> None:
    crashed = hand_driven(database, tmp_path, clock)
    for i in range(3):
        crashed.open(opened(f"req-{i}"))
    crashed.close(closed("req-x"))
    crashed.step()
    with capture_logs() as logs:
        hand_driven(database, tmp_path, clock).step()
    assert outcomes(database) == {
        "req-0": "lost", "req-1": "lost", "req-2": "lost", "req-x": "succeeded",
    }  # fmt: skip
    (lost,) = events(logs, "ledger.rows_lost")
    assert (lost["row_count"], lost["reason"]) == (3, "the run before did not end cleanly")


def test_a_start_after_a_clean_end_says_nothing(
    database: Database, tmp_path: Path, clock: FakeClock
) -> None:
    first = hand_driven(database, tmp_path, clock)
    entry = opened("req-a")
    first.open(entry)
    first.step()
    entry.close(1.0, outcome="succeeded")
    first.close(entry)
    first.stop(0)  # no time to write: the row waits in the spill
    with capture_logs() as logs:
        second = hand_driven(database, tmp_path, clock)
        second.step()
        second.step()
    assert outcomes(database) == {"req-a": "succeeded"}
    assert not events(logs, "ledger.rows_lost")
    assert events(logs, "ledger.spill_found")[0]["row_count"] == 1


def test_a_request_of_another_gateway_heals_when_it_ends(
    database: Database, tmp_path: Path, clock: FakeClock
) -> None:
    running = hand_driven(database, tmp_path, clock)
    entry = opened("req-a", model="m")
    running.open(entry)
    running.step()
    hand_driven(database, tmp_path, clock).step()  # a second gateway starts
    assert outcomes(database) == {"req-a": "lost"}
    entry.close(9.0, outcome="succeeded")
    running.close(entry)
    running.step()
    assert stored(database) == [row_from(entry.columns())]


def test_a_replay_changes_no_row_that_is_closed(
    database: Database, tmp_path: Path, clock: FakeClock
) -> None:
    entry = closed("req-a")
    frozen = replace(row_from(entry.columns()), cost_micros=5, price_input=1)
    write(database, [frozen])
    books = hand_driven(database, tmp_path, clock)
    books.close(entry)  # the same request, priced by another list
    books.step()
    assert stored(database) == [frozen]
    assert books.counts() == Counts(made=1, written=1)


# -- the end ------------------------------------------------------------------------------------


def test_what_cannot_be_written_at_the_end_is_written_at_the_next_start(
    database: Database, tmp_path: Path, clock: FakeClock
) -> None:
    books = hand_driven(database, tmp_path, clock, queue=4)
    books.step()
    with trouble(database) as down:
        down.is_down = True
        for i in range(2):
            books.close(closed(f"req-{i}"))
        books.step()  # a batch is under way
        for i in range(2, 8):
            books.close(closed(f"req-{i}"))
        assert books.stop(0) == Counts(made=8, spilled=8)
    again = hand_driven(database, tmp_path, clock)
    assert again.counts() == Counts(made=8, spilled=8)
    again.step()
    assert again.counts() == Counts(made=8, written=8)
    assert len(stored(database)) == 8


def test_a_batch_half_written_is_not_counted_twice_at_the_end(
    sqlite: Database, tmp_path: Path, clock: FakeClock
) -> None:
    books = hand_driven(sqlite, tmp_path, clock)
    books.step()
    for i in range(4):
        books.close(closed(f"req-{i}", run_id="run" if i in (0, 3) else None))
    with trouble(sqlite) as down:
        down.fails_at = ("commit", 3)  # after the whole was refused, its halves are tried
        books.step()
    counts = books.stop(0)
    assert counts.made == 4 and counts.made == counts.written + counts.waiting + counts.dropped
    assert 0 < counts.written < 4
    again = hand_driven(sqlite, tmp_path, clock)
    again.step()
    assert len(stored(sqlite)) == 3


def test_what_comes_after_the_end_is_counted(books: Ledger) -> None:
    with capture_logs() as logs:
        books.stop(0)
        books.close(closed())
        books.open(opened())
        books.flush_spill()
    assert books.counts() == Counts(made=1, dropped=1)
    assert events(logs, "ledger.rows_dropped")
    assert books.stop(0) == Counts(made=1, dropped=1)


def test_threads_write_by_themselves_and_stop_waits_for_them(
    database: Database, tmp_path: Path
) -> None:
    books = Ledger(
        database,
        LedgerSettings(),
        state_dir=tmp_path,
        price=unpriced,
        clock=Clock(lambda: time.time_ns() // 1_000_000, time.monotonic),
    )
    books.start()
    for _ in range(1500):
        books.close(closed())
    began = time.monotonic()
    assert books.stop(120) == Counts(made=1500, written=1500)
    assert time.monotonic() - began < 60  # no longer than it takes
    assert len(stored(database)) == 1500
    if database.path is not None:  # the journal is folded into it
        assert [file.name for file in database.path.parent.iterdir()] == ["ledger.sqlite"]


def test_a_ledger_that_keeps_nothing() -> None:
    books: Books = NoLedger()
    books.start()
    entry = opened()
    books.open(entry)
    books.close(entry)
    books.use_prices(unpriced)
    assert books.counts() == books.stop() == Counts()
