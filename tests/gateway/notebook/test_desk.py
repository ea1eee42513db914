"""A database that is slow, gone or full costs a caller a second at most, and a word."""

import asyncio
import sqlite3
from pathlib import Path
from threading import Event, get_ident
from typing import Any

import pytest
import structlog

from conductor.ports import PortFault
from gateway.notebook.desk import MOST_WAITING, RETRY_S, Desk
from gateway.notebook.keeping import Keeping
from gateway.notebook.stored import StoredNotebook
from gateway.store.connection import Cursor
from gateway.store.db import Database, MigrationFailed
from gateway.store.schema import STORE, is_newest
from tests.gateway.notebook.test_notebook import PATIENCE_S, note


def do_nothing(database: Database) -> None:
    """Tables are there already."""


def count(cursor: Cursor) -> int:
    cursor.execute("SELECT count(*) FROM notebook_notes")
    return int(cursor.fetchone()[0])


async def fault_of(desk: Desk, work: Any = count) -> str:
    with pytest.raises(PortFault) as refused:
        await desk.do(work)
    return refused.value.reason


async def test_tables_are_made_when_they_are_first_needed(sqlite: Database) -> None:
    desk = Desk(sqlite, wait_s=PATIENCE_S)
    assert await desk.do(count) == 0
    assert is_newest(sqlite, STORE)
    desk.close(PATIENCE_S)


async def test_a_start_makes_them_before_anybody_asks(sqlite: Database) -> None:
    made = Event()
    desk = Desk(sqlite, wait_s=PATIENCE_S, migrate=lambda database: made.set())
    desk.start()
    assert await asyncio.to_thread(made.wait, PATIENCE_S)
    desk.close(PATIENCE_S)


async def test_work_is_done_in_one_thread_that_is_not_the_loops(sqlite: Database) -> None:
    desk = Desk(sqlite, wait_s=PATIENCE_S, migrate=do_nothing)
    threads = {await desk.do(lambda cursor: get_ident()) for _ in range(3)}
    assert len(threads) == 1 and get_ident() not in threads
    desk.close(PATIENCE_S)


async def test_nobody_waits_for_a_database_that_stands_still(sqlite: Database) -> None:
    held = Event()
    desk = Desk(sqlite, wait_s=0.01, migrate=do_nothing)
    assert await fault_of(desk, lambda cursor: held.wait(PATIENCE_S)) == "timeout"
    late = [asyncio.create_task(fault_of(desk)) for _ in range(MOST_WAITING + 1)]
    assert (await asyncio.gather(*late)).count("busy") == 1
    held.set()
    desk.close(PATIENCE_S)  # what nobody waits for any more is not done


async def test_a_fault_of_the_database_is_said_once_and_gets_over(sqlite: Database) -> None:
    desk = Desk(sqlite, wait_s=PATIENCE_S, migrate=do_nothing)
    with structlog.testing.capture_logs() as said:
        assert [await fault_of(desk) for _ in range(2)] == ["database"] * 2
        assert await desk.do(lambda cursor: 5) == 5
        assert await fault_of(desk) == "database"
    assert [line["event"] for line in said] == [
        "notebook.failed", "notebook.resumed", "notebook.failed"
    ]  # fmt: skip
    assert said[0]["reason"] == "OperationalError: no such table: notebook_notes"
    desk.close(PATIENCE_S)


async def test_tables_that_cannot_be_made_are_tried_again_later(sqlite: Database) -> None:
    now = [100.0]
    tries: list[float] = []

    def migrate(database: Database) -> None:
        tries.append(now[0])
        if len(tries) == 1:
            raise MigrationFailed("no room")

    desk = Desk(sqlite, wait_s=PATIENCE_S, now_s=lambda: now[0], migrate=migrate)
    for later_s in (0.0, RETRY_S - 0.1):
        now[0] = 100.0 + later_s
        assert await fault_of(desk) == "tables"
    now[0] = 100.0 + RETRY_S
    assert await fault_of(desk) == "database"  # there are none: nobody made them
    assert tries == [100.0, 100.0 + RETRY_S]
    desk.close(PATIENCE_S)


async def test_a_row_that_no_database_takes_is_refused_alone(sqlite: Database) -> None:
    notebook = StoredNotebook(sqlite, Keeping(), Desk(sqlite, wait_s=PATIENCE_S))
    with pytest.raises(PortFault) as refused:
        await notebook.notes.save([note(text="\ud800")])
    assert refused.value.reason == "row"
    await notebook.notes.save([note()])
    assert await notebook.notes.find("alice", ["chain"], []) == [note()]
    notebook.close(PATIENCE_S)


async def test_a_mistake_of_ours_reaches_who_made_it(sqlite: Database) -> None:
    desk = Desk(sqlite, wait_s=PATIENCE_S, migrate=do_nothing)

    def wrong(cursor: Cursor) -> None:
        raise LookupError

    with pytest.raises(LookupError):
        await desk.do(wrong)
    assert await desk.do(lambda cursor: 5) == 5
    desk.close(PATIENCE_S)


async def test_what_waits_is_written_before_the_end(tmp_path: Path) -> None:
    database = Database.open(tmp_path / "tandem.sqlite", only_below=tmp_path)
    notebook = StoredNotebook(database, Keeping(), Desk(database, wait_s=PATIENCE_S))
    notebook.close(PATIENCE_S)  # never used: nothing to end
    saving = [asyncio.create_task(notebook.notes.save([note(chain=str(n))])) for n in range(20)]
    await asyncio.sleep(0)
    await asyncio.to_thread(notebook.close, PATIENCE_S)
    await asyncio.gather(*saving)
    with sqlite3.connect(tmp_path / "tandem.sqlite") as connection:
        assert connection.execute("SELECT count(*) FROM notebook_notes").fetchone() == (20,)
    connection.close()
