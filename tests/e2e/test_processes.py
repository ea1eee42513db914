"""Several gateway processes on one port with one ledger: what dies comes back, nothing is lost."""

import asyncio
import contextlib
import json
import os
import signal
import socket
import sqlite3
import time
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import httpx
import psycopg
import pytest

from tests.e2e import processes
from tests.e2e.load import Load, answer
from tests.e2e.processes import NO_KEEPALIVE, ask_each, holder, kill, pids, said, shown, until
from tests.e2e.server import Server, serving
from tests.fakes.backend import FakeBackend, Gate

CONFIG = """
server: {{state_dir: STATE_DIR, workers: 3, drain_s: 15}}
backends:
  b: {{kind: openai, base_url: "{url}/v1", models: [{models}]}}
{ledger}
"""
COUNT = 3
LOST_S = 3.0  # rows wait a second for their commit, on a machine that is busy with four processes
BODY = {"model": "m", "messages": [], "stream": False, "x_number": 1}
HELD = {**BODY, "stream": True, "x_hold": True}


@pytest.fixture
def gate() -> Gate:
    return Gate()


@pytest.fixture
async def backend(gate: Gate) -> AsyncIterator[FakeBackend]:
    async with FakeBackend(lambda seen: answer(seen, gate)) as running:
        yield running


@contextlib.contextmanager
def together(folder: Path, url: str, ledger: str = "", **environ: str) -> Iterator[Server]:
    """Three processes, which have greeted."""
    with serving(folder, CONFIG.format(url=url, ledger=ledger, models="m"), **environ) as server:
        yield server


@pytest.fixture(params=["sqlite", pytest.param("postgres", marks=pytest.mark.postgres)])
def ledger(request: pytest.FixtureRequest) -> tuple[str, dict[str, str]]:
    """The configuration's ledger section, and the environment it needs."""
    if request.param == "sqlite":
        return "", {}
    url = request.getfixturevalue("postgres_url")
    return 'ledger: {url: "env:LEDGER_URL"}', {"LEDGER_URL": url}


COLUMNS = "request_id, prompt_tokens, completion_tokens, stream, outcome"


def read_books(server: Server, environ: dict[str, str]) -> dict[str, tuple[Any, ...]]:
    """What every row says, by its request id; each request has one. The last is the outcome."""
    select, rows = f"SELECT {COLUMNS} FROM ledger", []
    with contextlib.suppress(sqlite3.OperationalError, psycopg.errors.UndefinedTable):  # not yet
        if environ:
            with psycopg.connect(environ["LEDGER_URL"]) as postgres:
                rows = postgres.execute(select).fetchall()
        else:
            with contextlib.closing(sqlite3.connect(server.state_dir / "ledger.sqlite")) as sqlite:
                rows = sqlite.execute(select).fetchall()
    assert len({row[0] for row in rows}) == len(rows)
    return {row[0]: row[1:] for row in rows}


def closed(rows: dict[str, tuple[Any, ...]]) -> set[str]:
    """The requests whose rows have an outcome."""
    return {name for name, row in rows.items() if row[-1] is not None}


def outcomes(server: Server, environ: dict[str, str]) -> list[Any]:
    return [row[-1] for row in read_books(server, environ).values()]


async def in_thread(work: Any, *arguments: Any) -> Any:
    """The backend answers in this event loop: whatever waits for an answer waits elsewhere."""
    return await asyncio.to_thread(work, *arguments)


class Held:
    """A streamed answer that waits in its middle until the test opens the gate."""

    def __init__(self, server: Server, gate: Gate) -> None:
        self.request_id = ""
        self._gate = gate
        self._task = asyncio.create_task(self._ask(f"{server.base}/v1/chat/completions"))

    async def _ask(self, url: str) -> str:
        async with (
            httpx.AsyncClient(timeout=60) as client,
            client.stream("POST", url, json=HELD) as response,
        ):
            assert response.status_code == 200
            self.request_id = response.headers["x-request-id"]
            return (await response.aread()).decode()

    async def begin(self) -> None:
        """Until the backend holds it."""
        async with asyncio.timeout(30):
            await self._gate.reached.wait()

    async def finish(self) -> str:
        """Opens the gate; the whole answer."""
        self._gate.open.set()
        return await self._task


async def test_all_serve_on_one_port_and_book_in_one_ledger(
    tmp_path: Path, backend: FakeBackend, ledger: tuple[str, dict[str, str]]
) -> None:
    """Every request has one row, every line its process, and the greeting came when all served."""
    section, environ = ledger
    with together(tmp_path, backend.url, section, **environ) as server:
        greeting = [n for n, line in enumerate(server.lines) if "Tandem is serving" in line]
        load = Load(server.base)
        async with load.running():
            await load.reach("load", 300)
        asked = await in_thread(ask_each, server, BODY)
        assert await in_thread(server.stop) == 0
        rows = read_books(server, environ)
    assert len(greeting) == 1
    assert len(said(server, "gateway.started")) == COUNT
    assert rows.keys() == load.booked.keys() | asked
    assert {name: rows[name] for name in load.booked} == load.booked
    assert processes.answered_by(server).keys() == rows.keys()
    for line in map(json.loads, filter(lambda line: line.startswith("{"), server.lines)):
        assert line["process"] in range(1, COUNT + 1)


class Battered:
    """Requests without end, some of which a dying process breaks off.

    `answered_s`: when each was answered, by its id. `broken`: how many were not.
    """

    def __init__(self, base: str) -> None:
        self.answered_s: dict[str, float] = {}
        self.broken = 0
        self._base = base
        self._is_over = False

    @contextlib.asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        """Asks, six at a time, each on a connection of its own."""
        async with (
            httpx.AsyncClient(timeout=30, limits=NO_KEEPALIVE) as client,
            asyncio.TaskGroup() as tasks,
        ):
            for _ in range(6):
                tasks.create_task(self._work(client))
            try:
                yield
            finally:
                self._is_over = True

    async def reach(self, more: int) -> None:
        """Until so many more are answered."""
        goal = len(self.answered_s) + more
        async with asyncio.timeout(60):
            while len(self.answered_s) < goal:
                await asyncio.sleep(0.01)

    async def _work(self, client: httpx.AsyncClient) -> None:
        while not self._is_over:
            try:
                reply = await client.post(f"{self._base}/v1/chat/completions", json=BODY)
            except httpx.TransportError:
                self.broken += 1
            else:
                assert reply.status_code == 200, reply.text
                self.answered_s[reply.headers["x-request-id"]] = time.monotonic()


async def test_a_process_killed_under_load_comes_back_and_costs_no_other_a_row(
    tmp_path: Path, backend: FakeBackend, ledger: tuple[str, dict[str, str]]
) -> None:
    """Missing may be only what the killed process itself answered in its last moments."""
    section, environ = ledger
    with together(tmp_path, backend.url, section, **environ) as server:
        load = Battered(server.base)
        async with load.running():
            await load.reach(200)
            early = set(load.answered_s)
            await in_thread(
                until, lambda: early <= closed(read_books(server, environ)), "early rows"
            )
            booked_s, counts = time.time(), server.state_dir / "run" / "metrics-2.json"
            await in_thread(until, lambda: written_after(booked_s, counts), "early counts")
            killed_s = time.monotonic()
            await in_thread(kill, server, 2)
            await load.reach(200)
        answered = set(load.answered_s)
        by = processes.answered_by(server)
        first_life = processes.answered_before_restart(server, 2)
        dying = {name for name in answered - early if name in first_life or name not in by}
        counted = len(answered - dying)
        count = await in_thread(
            until, lambda: at_least(counted, processes.metric(server, "tandem_requests_total")),
            "the counts of all",
        )  # fmt: skip
        assert await in_thread(server.stop) == 0
        rows = closed(read_books(server, environ))
    missing = answered - rows
    assert missing <= dying
    assert all(killed_s - load.answered_s[name] < LOST_S for name in missing)
    assert len(rows - answered) <= load.broken  # written, but the answer was broken off
    assert count <= len(answered) + load.broken
    assert [line["how"] for line in said(server, "process.exited")] == ["was ended by SIGKILL"]
    assert not said(server, "ledger.rows_dropped")


def written_after(moment_s: float, path: Path) -> bool:
    return path.exists() and path.stat().st_mtime > moment_s


def at_least(least: float, value: float) -> float | None:
    return value if value >= least else None


async def test_a_process_that_comes_back_leaves_the_open_rows_of_the_living_alone(
    tmp_path: Path, backend: FakeBackend, gate: Gate, ledger: tuple[str, dict[str, str]]
) -> None:
    section, environ = ledger

    def outcome_of(name: str) -> Any:
        return read_books(server, environ).get(name, ["no row"])[-1]

    with together(tmp_path, backend.url, section, **environ) as server:
        held = Held(server, gate)
        await held.begin()
        holding = await in_thread(holder, server)
        await in_thread(until, lambda: outcome_of(held.request_id) is None, "an open row")
        await in_thread(kill, server, holding % COUNT + 1)
        asked = await in_thread(ask_each, server, BODY)
        await in_thread(
            until, lambda: asked <= closed(read_books(server, environ)), "rows of the new process"
        )
        assert outcome_of(held.request_id) is None
        assert "[DONE]" in await held.finish()
        assert await in_thread(server.stop) == 0
        assert outcome_of(held.request_id) == "succeeded"
    assert not said(server, "ledger.rows_lost")


async def test_sigterm_to_the_parent_drains_every_process(
    tmp_path: Path, backend: FakeBackend, gate: Gate
) -> None:
    with together(tmp_path, backend.url) as server:
        held = Held(server, gate)
        await held.begin()
        server.process.send_signal(signal.SIGTERM)
        await in_thread(
            until, lambda: len(said(server, "gateway.draining")) == COUNT, "all are draining"
        )
        late = await in_thread(lambda: httpx.get(f"{server.base}/health"))
        assert "[DONE]" in await held.finish()
        assert await in_thread(server.process.wait, 30) == 0
        assert outcomes(server, {}) == ["succeeded"]
    assert (late.status_code, late.json()["status"]) == (503, "draining")
    assert not any(map(processes.is_alive, pids(server).values()))
    assert not said(server, "process.exited")


async def test_the_parent_ends_with_the_worst_status_of_its_children(
    tmp_path: Path, backend: FakeBackend, gate: Gate
) -> None:
    """One is killed in its drain, the others end well."""
    with together(tmp_path, backend.url) as server:
        held = Held(server, gate)
        await held.begin()
        pid = pids(server)[await in_thread(holder, server)]
        server.process.send_signal(signal.SIGINT)
        await in_thread(
            until, lambda: len(said(server, "gateway.draining")) == COUNT, "all are draining"
        )
        os.kill(pid, signal.SIGKILL)
        assert await in_thread(server.process.wait, 30) == 128 + signal.SIGKILL
        with pytest.raises(httpx.TransportError):
            await held.finish()


@pytest.mark.parametrize(
    ("name", "faulty"),
    [("tandem.yaml", "serverr: {}\n"), ("profiles/own.yaml", "name: own\nefort: on\n")],
)
async def test_a_reload_reaches_every_process_and_those_that_come_back_later(
    tmp_path: Path, backend: FakeBackend, name: str, faulty: str
) -> None:
    """Also when a file is faulty by then: what is in force is what was accepted last."""
    (tmp_path / "profiles").mkdir()
    (tmp_path / "profiles/own.yaml").write_text("name: own\n")
    with together(tmp_path, backend.url) as server:
        file = tmp_path / "tandem.yaml"
        file.write_text(file.read_text().replace("models: [m]", "models: [m, n]"))
        server.process.send_signal(signal.SIGHUP)
        await in_thread(
            until, lambda: len(said(server, "settings.applied")) == COUNT, "all have applied it"
        )
        await in_thread(ask_each, server, {**BODY, "model": "n"})
        (tmp_path / name).write_text(faulty)
        server.process.send_signal(signal.SIGHUP)
        await in_thread(until, lambda: said(server, "settings.refused"), "it is refused")
        await in_thread(kill, server, 1)
        await in_thread(ask_each, server, {**BODY, "model": "n"})
        assert await in_thread(server.stop) == 0
    assert len(said(server, "settings.refused")) == 1
    assert len(said(server, "settings.applied")) == COUNT


async def test_children_whose_parent_was_killed_free_the_port_and_finish_what_runs(
    tmp_path: Path, backend: FakeBackend, gate: Gate
) -> None:
    with together(tmp_path, backend.url) as server:
        held = Held(server, gate)
        await held.begin()
        port = int(server.base.rpartition(":")[2])
        holding = pids(server)[await in_thread(holder, server)]
        server.process.kill()
        await in_thread(until, lambda: can_bind(port), "the port is free")
        assert processes.is_alive(holding)
        assert "[DONE]" in await held.finish()
        await in_thread(
            until, lambda: not any(map(processes.is_alive, pids(server).values())), "all are gone"
        )
        assert outcomes(server, {}) == ["succeeded"]
    assert len(said(server, "parent.lost")) == COUNT


def can_bind(port: int) -> bool:
    with socket.socket() as listener:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            listener.bind(("127.0.0.1", port))
            listener.listen()
        except OSError:
            return False
        return True


async def test_metrics_are_those_of_all_processes_whichever_is_asked(
    tmp_path: Path, backend: FakeBackend, gate: Gate
) -> None:
    """Counters outlive a process that was killed, what it was doing does not."""
    with together(tmp_path, backend.url) as server:
        asked = await in_thread(ask_each, server, BODY)
        await in_thread(
            until,
            lambda: shown(server, "tandem_requests_total") == {len(asked)},
            "one count everywhere",
        )
        assert await in_thread(shown, server, "tandem_request_ms_count") == {len(asked)}
        held = Held(server, gate)
        await held.begin()
        holding = await in_thread(holder, server)
        assert await in_thread(shown, server, "tandem_in_flight{") == {1}
        with contextlib.suppress(httpx.TransportError):
            await in_thread(kill, server, holding)
            await held.finish()
        assert await in_thread(shown, server, "tandem_in_flight{") == {0}
        assert await in_thread(shown, server, "tandem_requests_total") == {len(asked)}
        files = [*(server.state_dir / "run").glob("metrics-*.json")]
        assert {file.stat().st_mode & 0o777 for file in files} == {0o600}
        assert await in_thread(server.stop) == 0
    with together(tmp_path, backend.url) as server:
        assert await in_thread(processes.metric, server, "tandem_requests_total") == 0


async def test_a_process_alone_says_no_number_and_shares_nothing(
    tmp_path: Path, backend: FakeBackend
) -> None:
    config = CONFIG.format(url=backend.url, ledger="", models="m").replace(
        "workers: 3", "workers: 1"
    )
    with serving(tmp_path, config) as server:
        reply = await in_thread(lambda: httpx.post(f"{server.base}/v1/chat/completions", json=BODY))
        assert reply.status_code == 200
        assert await in_thread(server.stop) == 0
    assert said(server, "request.finished") and not said(server, "process.spawned")
    assert not any('"process"' in line for line in server.lines)
    assert not (server.state_dir / "run").exists()
