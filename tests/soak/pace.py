"""A stream that keeps its pace, and the refused requests beside it (reliability: P17).

`python -m tests.soak.pace PORT COUNT` is the flood, a process of its own: it must not hold up the
one that looks at the stream.
"""

import asyncio
import os
import sys
import time
from dataclasses import dataclass
from itertools import count, pairwise

from tests.soak.clients import WITHIN_S, Clients, Line

FLOOD_AT_ONCE = 8
FLOOD_NICE = 19  # the stream's reader comes first on their core
WARM_EVENTS = 20


@dataclass(frozen=True, slots=True)
class Pace:
    """Gaps between the events of a stream, milliseconds."""

    events: int
    seconds: float
    p50_ms: float
    p99_ms: float
    most_ms: float


async def paced(port: int, until: asyncio.Event) -> Pace:
    """Reads a stream of an event every 10 ms until the time has come."""
    clients, line = Clients(port, seed=1), Line(port)
    _, body = clients.call("paced", x_events=1_000_000)
    await line.send(clients.post(body))
    await line.reader.readuntil(b"\r\n\r\n")
    times_s: list[float] = []
    while not until.is_set():
        async with asyncio.timeout(WITHIN_S):
            await line.reader.readuntil(b"\n\n\r\n")
        times_s.append(time.perf_counter())
    await line.leave()
    times_s = times_s[WARM_EVENTS:]
    gaps = sorted(after - before for before, after in pairwise(times_s))
    share = [1000 * gaps[int(part * (len(gaps) - 1))] for part in (0.5, 0.99, 1)]
    return Pace(len(times_s), times_s[-1] - times_s[0], *share)


async def alone(port: int, seconds: float) -> Pace:
    """The stream with nothing beside it, for so long."""
    until = asyncio.Event()
    asyncio.get_running_loop().call_later(seconds, until.set)
    return await paced(port, until)


async def beside_refused(port: int, request_count: int) -> tuple[Pace, float]:
    """The stream beside so many refused requests; and how many of these were answered a second."""
    until = asyncio.Event()
    stream = asyncio.create_task(paced(port, until))
    begun_s = time.perf_counter()
    flood = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "tests.soak.pace", str(port), str(request_count)
    )
    status = await flood.wait()
    seconds = time.perf_counter() - begun_s
    until.set()
    pace = await stream
    assert status == 0, "a refused request was not refused as it should be"
    return pace, request_count / seconds


async def _flood(port: int, request_count: int) -> None:
    numbers = count()

    async def refused() -> None:
        clients, line = Clients(port, seed=2), Line(port)
        large = b"POST /v1/chat/completions HTTP/1.1\r\nHost: x\r\nContent-Length: 999999999\r\n"
        ways = (
            (clients.post(b"{}", key="wrong"), 401),
            (b"GET /v1/nothing HTTP/1.1\r\nHost: x\r\n\r\n", 404),
            (clients.post(b"{}").replace(b"Authorization", b"X-Nothing"), 401),
            (large + b"Authorization: Bearer wrong\r\n\r\n" + b"x" * 1000, 401),
            (clients.post(b"{}", key="wrong", more="X-Large: " + "x" * 70_000 + "\r\n"), 431),
            (b"\0\0\0\r\n\r\n", 400),
        )
        while (number := next(numbers)) < request_count:
            sent, wanted = ways[number % len(ways)]
            async with asyncio.timeout(WITHIN_S):
                await line.send(sent)
                status, answer = await line.receive()
            assert status == wanted, (sent[:200], status, answer)
            if wanted == 431 or sent.startswith(large):
                await line.leave()
        await line.leave()

    async with asyncio.TaskGroup() as workers:
        for _ in range(FLOOD_AT_ONCE):
            workers.create_task(refused())


if __name__ == "__main__":
    os.nice(FLOOD_NICE)
    asyncio.run(_flood(int(sys.argv[1]), int(sys.argv[2])))
