"""Several gateway processes on one port, as a test watches them. Knows no ledger."""

import json
import os
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import httpx

from tests.e2e.server import Server

WITHIN_S = 30.0
NO_KEEPALIVE = httpx.Limits(max_keepalive_connections=0)  # any process may take the next one


def until(is_so: Callable[[], Any], what: str, most_s: float = WITHIN_S) -> Any:
    """Waits for something that no event tells; returns it."""
    until_s = time.monotonic() + most_s
    while not (found := is_so()):
        assert time.monotonic() < until_s, f"not within {most_s:g} s: {what}"
        time.sleep(0.02)
    return found


def said(server: Server, event: str) -> list[dict[str, Any]]:
    """The log lines of one event, read."""
    return [json.loads(line) for line in server.said(event)]


def pids(server: Server) -> dict[int, int]:
    """The process id of each process that was started last, by its number."""
    return {line["process"]: line["pid"] for line in said(server, "process.spawned")}


def is_alive(pid: int) -> bool:
    """Whether there is such a process; one that nobody has asked for its status counts as gone."""
    try:
        return ") Z " not in Path(f"/proc/{pid}/stat").read_text()
    except FileNotFoundError:
        return False


def answered_by(server: Server) -> dict[str, int]:
    """Which process answered each request, as far as it has said so."""
    return {line["request_id"]: line["process"] for line in said(server, "request.finished")}


def answered_before_restart(server: Server, number: int) -> set[str]:
    """What the first process with this number has said it answered."""
    found, starts = set(), 0
    for line in map(json.loads, (line for line in server.lines if line.startswith("{"))):
        if line["process"] == number:
            starts += line["event"] == "gateway.started"
            if line["event"] == "request.finished" and starts == 1:
                found.add(line["request_id"])
    return found


def ask_each(server: Server, body: dict[str, Any]) -> set[str]:
    """Asks until every process has answered, on a new connection each time; the request ids."""
    asked: set[str] = set()

    def have_all_answered() -> bool:
        answer = client.post(f"{server.base}/v1/chat/completions", json=body)
        assert answer.status_code == 200, answer.text
        asked.add(answer.headers["x-request-id"])
        by = answered_by(server)
        return {by[name] for name in asked & by.keys()} == pids(server).keys()

    with httpx.Client(timeout=WITHIN_S, limits=NO_KEEPALIVE) as client:
        until(have_all_answered, "an answer of each process")
    return asked


def in_flight(server: Server) -> dict[int, float]:
    """How many requests each process is answering, as its file for the others says."""
    found = {}
    for number in pids(server):
        file = server.state_dir / "run" / f"metrics-{number}.json"
        if file.exists():
            samples = json.loads(file.read_bytes()).get("in_flight", [])
            found[number] = sum(value for _, value in samples)
    return found


def holder(server: Server) -> int:
    """The number of the process that is answering the one request that runs."""
    busy = until(
        lambda: [number for number, count in in_flight(server).items() if count],
        "a process that says it is answering",
    )
    assert len(busy) == 1
    return int(busy[0])


def kill(server: Server, number: int) -> None:
    """Ends a process as hard as it goes, and waits until its successor serves."""
    pid, starts = pids(server)[number], count_starts(server, number)
    os.kill(pid, 9)
    until(lambda: count_starts(server, number) > starts, f"process {number} is there again")


def count_starts(server: Server, number: int) -> int:
    """How often a process with this number has begun to serve."""
    return Counter(line["process"] for line in said(server, "gateway.started"))[number]


def metric(server: Server, name: str) -> float:
    """The sum of a metric over its labels, as `/metrics` shows it."""
    with httpx.Client() as client:
        return _metric(client, server, name)


def shown(server: Server, name: str) -> set[float]:
    """The same from several processes: it is asked for twelve times on new connections."""
    with httpx.Client(limits=NO_KEEPALIVE) as client:
        return {_metric(client, server, name) for _ in range(12)}


def _metric(client: httpx.Client, server: Server, name: str) -> float:
    text = client.get(f"{server.base}/metrics").text
    values = [line.rsplit(" ", 1)[1] for line in text.splitlines() if line.startswith(name)]
    return sum(map(float, values))
