"""R17: five hundred abandoned streams leave nothing behind, in the process or in the kernel."""

import asyncio
from collections import Counter
from pathlib import Path

from tests.e2e.server import serving
from tests.gateway.cases.proc import (
    ESTABLISHED,
    child_count,
    descriptors,
    resident_bytes,
    tcp_ends,
    thread_count,
)
from tests.gateway.cases.samples import CHAT
from tests.gateway.cases.scripted import CHUNKED_SSE, Link, ScriptedBackend, chunk
from tests.gateway.cases.stage import Caller, in_flight, kept_connections, stage

COUNT = 500
WARM_UP = 100
AT_ONCE = 50
MIB = 1024**2
CONFIG = """
server: {{state_dir: STATE_DIR}}
backends:
  b: {{kind: openai, base_url: "{url}/v1", models: [m]}}
"""


async def script(link: Link) -> None:
    await link.send(CHUNKED_SSE, *map(chunk, CHAT.events[:3]))
    await link.stay()


async def abandon(port: int, count: int) -> None:
    """Streams that are left in the middle, half of them with a reset."""
    turns = asyncio.Semaphore(AT_ONCE)

    async def one(number: int) -> None:
        async with turns:
            caller = await Caller.connect(port)
            await caller.ask(CHAT.stream_path, CHAT.body(is_stream=True))
            await caller.until(b"\xe6\x9d\xb1")
            if number % 2:
                caller.reset()
            else:
                caller.close()

    async with asyncio.TaskGroup() as tasks:
        for number in range(count):
            tasks.create_task(one(number))


def established(port: int) -> int:
    """Connections that clients still have to the gateway."""
    return sum(end.local == port and end.state == ESTABLISHED for end in tcp_ends(port))


async def all_gone(up: ScriptedBackend) -> None:
    async with asyncio.timeout(5):
        await asyncio.gather(*(link.gone.wait() for link in up.links))


async def tasks_at_rest() -> int:
    """Tasks of the test's loop, which is the gateway's, once those that can end have ended."""
    for _ in range(50):
        await asyncio.sleep(0)
    return len(asyncio.all_tasks())


async def test_a_real_process_is_back_at_its_baseline(tmp_path: Path) -> None:
    """R17: descriptors, sockets, threads and memory of `tandem serve`."""
    async with ScriptedBackend(script) as up:
        with serving(tmp_path, CONFIG.format(url=up.url)) as server:
            pid, port = server.process.pid, int(server.base.rpartition(":")[2])

            def open_ends() -> Counter[str]:
                return Counter(found.split("[")[0] for found in descriptors(pid))

            async def ended(count: int) -> None:
                """Wait until no client's socket and no request is left."""
                await all_gone(up)
                async with asyncio.timeout(5):
                    while established(port) or len(server.said("request.finished")) < count:
                        await asyncio.sleep(0.02)

            await abandon(port, WARM_UP)  # everything that is kept for good is there now
            await ended(WARM_UP)
            async with asyncio.timeout(30):
                while child_count(pid):  # what a start hands to a process of its own, with pipes
                    await asyncio.sleep(0.02)
            before, memory_bytes, threads = open_ends(), resident_bytes(pid), thread_count(pid)
            await abandon(port, COUNT)
            await ended(WARM_UP + COUNT)
            async with asyncio.timeout(5):
                while open_ends() - before:
                    await asyncio.sleep(0.02)
            assert thread_count(pid) == threads
            assert resident_bytes(pid) - memory_bytes < 8 * MIB
            assert not server.said("request.crashed")


async def test_no_task_and_no_connection_outlives_its_stream(tmp_path: Path) -> None:
    """R17: tasks, requests in flight and kept connections of the gateway itself."""
    async with stage(tmp_path, CHAT, script) as on:
        await abandon(on.port, 10)
        await on.row(9)
        await all_gone(on.up)
        before = await tasks_at_rest()
        await abandon(on.port, 100)
        await on.row(109)
        await all_gone(on.up)
        assert await tasks_at_rest() <= before
        assert in_flight(on.gateway) == 0
        assert kept_connections(on.gateway) == 0
    assert {row.outcome for row in on.gateway.books.rows} == {"aborted"}
