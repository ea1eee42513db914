"""`make soak`: 10,000 requests of every kind, and what they leave behind.

A real `tandem serve` in front of a scripted backend. It is warmed with half as many requests
first; afterwards its memory, file descriptors, threads and connections must be what they were, and
the books must hold a row for each model call. Then a stream beside 10,000 refused requests must
keep its pace. Ends with status 1 when something is not as it should be. Linux only (/proc).
"""

import argparse
import asyncio
import os
import re
import sqlite3
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from tests.e2e.server import Server, serving
from tests.soak.clients import KEY, Clients
from tests.soak.pace import Pace, alone, beside_refused
from tests.soak.upstream import Upstream

AT_ONCE = 64
SETTLE_S = 20.0  # for what has ended to be gone
LOOK_S = 0.1
MOST_GROWN_MB = 4.0  # of resident memory
LEAST_PACE = 0.95  # of events a second, beside refused requests
ALONE_S = 8.0
CONFIG = """
server: {{state_dir: STATE_DIR}}
backends:
  b: {{kind: openai, base_url: "{url}/v1", models: [m]}}
keys:
  - {{label: soak, secret: "env:SOAK_KEY"}}
"""


@dataclass(frozen=True, slots=True)
class Held:
    """What a process holds. `files`: descriptors beside those of kept backend connections."""

    rss_mb: float
    files: int
    threads: int
    kept: int


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--requests", type=int, default=10_000)
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args()
    cores = sorted(os.sched_getaffinity(0))
    os.sched_setaffinity(0, {cores[0]})  # clients and backend on one, the gateway on another
    with tempfile.TemporaryDirectory() as folder:
        faults = asyncio.run(_soak(Path(folder), options.requests, options.seed, cores[-1]))
    for fault in faults:
        print(f"WRONG: {fault}")
    sys.exit(bool(faults))


async def _soak(folder: Path, request_count: int, seed: int, core: int) -> list[str]:
    async with Upstream() as upstream:
        config = CONFIG.format(url=upstream.url)
        opening = serving(folder, config, SOAK_KEY=KEY)
        server = await asyncio.to_thread(opening.__enter__)
        try:
            os.sched_setaffinity(server.process.pid, {core})
            port = int(server.base.rpartition(":")[2])
            clients = Clients(port, seed)
            await clients.run(request_count // 2, AT_ONCE)
            before = await _settled(server, upstream)
            begun_s = time.perf_counter()
            await clients.run(request_count, AT_ONCE)
            seconds = time.perf_counter() - begun_s
            after = await _settled(server, upstream)
            rows = await _rows(server.state_dir, sum(clients.booked.values()))
            single = await alone(port, ALONE_S)
            beside, refused_rate = await beside_refused(port, request_count)
            rows_later = await _rows(server.state_dir, sum(rows.values()) + 2)
        finally:
            await asyncio.to_thread(opening.__exit__, None, None, None)
    _show(clients, before, after, rows, request_count / seconds)
    _show_pace(single, beside, refused_rate)
    crashed = server.said("request.crashed") + server.said("request.not_booked")
    faults = [*_compare(before, after), *(f"logged: {line}" for line in crashed[:3])]
    if rows != clients.booked:
        faults.append(f"rows {dict(rows)} for model calls {dict(clients.booked)}")
    if sum(rows_later.values()) != sum(rows.values()) + 2:
        faults.append("refused requests left rows")
    if beside.events / beside.seconds < LEAST_PACE * single.events / single.seconds:
        faults.append("the stream lost its pace")
    return faults


async def _settled(server: Server, upstream: Upstream) -> Held:
    """What the gateway holds once that has stopped changing."""
    until_s = time.monotonic() + SETTLE_S
    last, same_count = _held(server.process.pid, upstream), 0
    while time.monotonic() < until_s and same_count < 20:
        await asyncio.sleep(LOOK_S)
        now = _held(server.process.pid, upstream)
        same_count = same_count + 1 if now == last else 0
        last = now
    return last


def _held(pid: int, upstream: Upstream) -> Held:
    status = Path(f"/proc/{pid}/status").read_text()
    numbers = {name: int(re.findall(rf"^{name}:\s+(\d+)", status, re.M)[0])
               for name in ("VmRSS", "Threads")}  # fmt: skip
    files = len(os.listdir(f"/proc/{pid}/fd"))
    kept = upstream.open_count
    return Held(round(numbers["VmRSS"] / 1024, 1), files - kept, numbers["Threads"], kept)


async def _rows(state_dir: Path, wanted: int) -> Counter[str]:
    """Closed rows by outcome, once there are as many as wanted (or there will not be)."""
    until_s = time.monotonic() + SETTLE_S
    while True:
        books = sqlite3.connect(f"file:{state_dir / 'ledger.sqlite'}?mode=ro", uri=True)
        found = books.execute(
            "SELECT outcome, count(*) FROM ledger WHERE outcome IS NOT NULL GROUP BY outcome"
        ).fetchall()
        books.close()
        rows = Counter(dict(found))
        if sum(rows.values()) >= wanted or time.monotonic() > until_s:
            return rows
        await asyncio.sleep(LOOK_S)


def _compare(before: Held, after: Held) -> list[str]:
    grown: list[tuple[str, Callable[[Held], float], float]] = [
        ("memory, MB", lambda held: held.rss_mb, MOST_GROWN_MB),
        ("file descriptors", lambda held: held.files, 0),
        ("threads", lambda held: held.threads, 0),
    ]
    faults = [
        f"{name}: {of(before):g} before, {of(after):g} after"
        for name, of, most in grown
        if of(after) - of(before) > most
    ]
    if after.kept > AT_ONCE:
        faults.append(f"{after.kept} connections to the backend are kept for {AT_ONCE} requests")
    return faults


def _show(clients: Clients, before: Held, after: Held, rows: Counter[str], rate: float) -> None:
    print(f"{sum(clients.asked.values()):,} requests, {AT_ONCE} at a time, {rate:,.0f} a second")
    for name, asked in clients.asked.most_common():
        print(f"  {name:26}{asked:7,}")
    print(f"{'':28}{'warm':>8}{'after':>8}")
    for name, what in (("memory, MB", "rss_mb"), ("file descriptors", "files"),
                       ("threads", "threads"), ("kept backend connections", "kept")):  # fmt: skip
        print(f"{name:28}{getattr(before, what):8g}{getattr(after, what):8g}")
    print(f"{'outcome':28}{'calls':>8}{'rows':>8}")
    for outcome, calls in clients.booked.most_common():
        print(f"{outcome:28}{calls:8,}{rows[outcome]:8,}")


def _show_pace(single: Pace, beside: Pace, refused_rate: float) -> None:
    print(f"a stream beside refused requests ({refused_rate:,.0f} of them a second)")
    print(f"{'':28}{'alone':>8}{'beside':>8}{'ratio':>8}")
    lines = [("events a second", single.events / single.seconds, beside.events / beside.seconds)]
    lines += [
        (f"gap, ms, {name}", getattr(single, what), getattr(beside, what))
        for name, what in (("median", "p50_ms"), ("p99", "p99_ms"), ("most", "most_ms"))
    ]
    for name, one, other in lines:
        print(f"{name:28}{one:8.2f}{other:8.2f}{other / one:8.2f}")


if __name__ == "__main__":
    main()
