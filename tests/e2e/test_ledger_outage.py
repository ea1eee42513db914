"""PostgreSQL goes away and comes back under a running gateway: nobody waits, nothing is lost."""

import asyncio
import signal
import time
from collections.abc import Iterator
from pathlib import Path
from statistics import median

import psycopg
import pytest

from tests.e2e.load import Booked, Load, answer
from tests.e2e.server import Server, serving
from tests.fakes.backend import FakeBackend, Gate
from tests.fakes.postgres import Postgres, running_postgres

pytestmark = pytest.mark.postgres

CONFIG = """
server: {{state_dir: STATE_DIR}}
backends:
  b: {{kind: openai, base_url: "{url}/v1", models: [m]}}
ledger: {{url: "env:LEDGER_URL", queue: {queue}}}
"""
SMALL_QUEUE = 64  # full at once, so that rows take the longer way through the spill file
LARGE_QUEUE = 10_000  # never full
WRITTEN_S = 40.0  # the writer tries again every 10 s at the latest
SLOWEST_S = 3.0  # of any request, on a machine that is starting a database beside it


@pytest.fixture(scope="module")
def server_of_databases() -> Iterator[Postgres]:
    """A PostgreSQL that no other test uses."""
    with running_postgres() as postgres:
        yield postgres


@pytest.fixture
def postgres(server_of_databases: Postgres) -> Postgres:
    """The same, running and with empty books."""
    server_of_databases.start()
    with psycopg.connect(server_of_databases.url, autocommit=True) as connection:
        connection.execute("DROP SCHEMA public CASCADE")
        connection.execute("CREATE SCHEMA public")
    return server_of_databases


def read_books(postgres: Postgres) -> list[tuple[str, Booked]]:
    """Every row: its request id, and what it says; none while there is no table yet."""
    columns = "request_id, prompt_tokens, completion_tokens, stream, outcome"
    with psycopg.connect(postgres.url) as connection:
        try:
            rows = connection.execute(f"SELECT {columns} FROM ledger")
        except psycopg.errors.UndefinedTable:
            return []
        return [(row[0], tuple(row[1:])) for row in rows]  # type: ignore[misc]


def count_books(postgres: Postgres) -> int:
    """How many rows are closed; none while there is no table yet."""
    with psycopg.connect(postgres.url) as connection:
        try:
            counted = connection.execute("SELECT count(*) FROM ledger WHERE outcome IS NOT NULL")
        except psycopg.errors.UndefinedTable:
            return 0
        return int(counted.fetchone()[0])  # type: ignore[index]


def check_books(postgres: Postgres, load: Load) -> None:
    """One row a request, no more, with the tokens that the backend reported."""
    rows = read_books(postgres)
    assert len(rows) == len(load.booked)
    assert dict(rows) == load.booked
    for column in (0, 1):
        total = sum(row[column] for _, row in rows)
        assert total == sum(row[column] for row in load.booked.values())


async def wait_for_books(postgres: Postgres, request_count: int) -> None:
    """Until so many rows are closed, or it has taken too long."""
    until_s = time.monotonic() + WRITTEN_S
    while await asyncio.to_thread(count_books, postgres) < request_count:
        if time.monotonic() > until_s:
            return
        await asyncio.sleep(0.05)


def check_times(load: Load) -> None:
    """Requests during the outage took as long as those before it, as far as noise allows."""
    before_s, during_s = load.times_s["before"], load.times_s["down"]
    assert median(during_s) < 3 * median(before_s) + 0.01
    assert max(max(times_s) for times_s in load.times_s.values()) < SLOWEST_S


def count_of(server: Server, event: str) -> int:
    return len(server.said(event))


@pytest.mark.parametrize(
    ("number", "queue"),
    [(signal.SIGINT, SMALL_QUEUE), (signal.SIGQUIT, LARGE_QUEUE)],
    ids=["stopped, rows in the spill file", "crashed, rows in memory"],
)
async def test_an_outage_under_load_costs_no_request_and_no_row(
    tmp_path: Path, postgres: Postgres, number: signal.Signals, queue: int
) -> None:
    """Down and up again under hundreds of requests, one of them held open all the while."""
    gate = Gate()
    async with FakeBackend(lambda seen: answer(seen, gate)) as backend:
        config = CONFIG.format(url=backend.url, queue=queue)
        with serving(tmp_path, config, LEDGER_URL=postgres.url) as server:
            load = Load(server.base)
            async with load.running():
                await load.reach("before", 200)
                held = asyncio.create_task(load.ask_held(gate))
                await gate.reached.wait()
                load.phase = "stopping"
                await asyncio.to_thread(postgres.stop, number)
                await load.reach("down", 600)
                load.phase = "starting"
                await asyncio.to_thread(postgres.start)
                await load.reach("after", 200)
                gate.open.set()
                await held
            await wait_for_books(postgres, len(load.booked))
            check_books(postgres, load)
            assert await asyncio.to_thread(server.stop) == 0
        check_books(postgres, load)
    check_times(load)
    assert count_of(server, "ledger.write_failed") and count_of(server, "ledger.write_resumed")
    assert not count_of(server, "ledger.rows_dropped")


async def test_rows_of_a_gateway_that_ends_during_an_outage_are_written_by_the_next(
    tmp_path: Path, postgres: Postgres
) -> None:
    """SIGTERM while PostgreSQL is down: exit status 0, and the rows wait in the spill file."""
    async with FakeBackend(answer) as backend:
        config = CONFIG.format(url=backend.url, queue=SMALL_QUEUE)
        with serving(tmp_path, config, LEDGER_URL=postgres.url) as server:
            load = Load(server.base)
            async with load.running():
                await load.reach("before", 100)
                await asyncio.to_thread(postgres.stop, signal.SIGINT)
                await load.reach("down", 300)
            assert await asyncio.to_thread(server.stop) == 0
        assert not count_of(server, "ledger.rows_dropped")
        await asyncio.to_thread(postgres.start)
        assert len(read_books(postgres)) < len(load.booked)
        with serving(tmp_path, config, LEDGER_URL=postgres.url) as server:
            await wait_for_books(postgres, len(load.booked))
            check_books(postgres, load)
            assert await asyncio.to_thread(server.stop) == 0
        check_books(postgres, load)
