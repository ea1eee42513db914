"""R14, P8: a client that reads slowly slows its backend, and memory stays flat."""

import asyncio
import socket
from pathlib import Path

from proto.limits import RELAY_BUFFER_BYTES
from tests.gateway.cases.proc import kernel_bytes, resident_bytes
from tests.gateway.cases.samples import CHAT, chat_chunk
from tests.gateway.cases.scripted import CHUNKED_SSE, LAST_CHUNK, Link, chunk, streaming
from tests.gateway.cases.stage import Caller, Stage, stage

MIB = 1024**2
DELTA = chat_chunk({"content": "x" * 32_000})
COUNT = 100 * MIB // len(DELTA)  # the backend offers 100 MiB
READ_BYTES = 64 * 1024  # of one read that is under way, on top of what waits


async def test_a_slow_reader_stalls_its_backend_and_memory_stays_flat(tmp_path: Path) -> None:
    """R14: 100 MiB offered; the client reads some KiB, then everything."""

    async def script(link: Link) -> None:
        await link.send(CHUNKED_SSE)
        for _ in range(COUNT):
            await link.send(chunk(DELTA))
        await link.send(*map(chunk, CHAT.events[CHAT.finish_at :]), LAST_CHUNK)

    async with (
        stage(tmp_path, CHAT, script, send_bytes=64 * 1024) as on,
        on.caller(receive_bytes=4096) as slow,
    ):
        at_start_bytes = resident_bytes()
        await slow.head()
        link = on.up.links[0]
        read_bytes = 0
        for _ in range(4):
            for _ in range(8):
                read_bytes += len(await slow.receive(1024))
            await _stalls(link)
            assert _held_bytes(on, link, read_bytes) <= RELAY_BUFFER_BYTES + READ_BYTES
        assert link.sent_bytes < 16 * MIB
        await _others_keep_their_pace(on)
        most_bytes = await _read_everything(slow)
        row = await on.row(1)
    assert (row.outcome, row.usage_source) == ("succeeded", "backend")
    assert most_bytes - at_start_bytes < 24 * MIB


async def _stalls(link: Link) -> None:
    """Waits until the backend can send no more."""
    async with asyncio.timeout(10):
        sent_bytes = -1
        while sent_bytes != link.sent_bytes:
            sent_bytes = link.sent_bytes
            await link.is_full.wait()
            await asyncio.sleep(0.1)  # whether it stays so can only be seen by looking again


def _held_bytes(on: Stage, link: Link, read_bytes: int) -> int:
    """What has left the backend's kernel and not reached the client's: in the gateway's hands."""
    return link.sent_bytes - read_bytes - kernel_bytes(on.up.port) - kernel_bytes(on.port)


async def _others_keep_their_pace(on: Stage) -> None:
    script, on.up.script = on.up.script, streaming(*CHAT.events)
    for _ in range(3):
        async with asyncio.timeout(1):
            assert (await on.ask()).body == CHAT.stream
    on.up.script = script


async def _read_everything(slow: Caller) -> int:
    """Reads to the end; the most memory that this process had on the way."""
    slow.sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, MIB)
    most_bytes = total_bytes = 0
    while piece := await slow.receive(MIB):
        total_bytes += len(piece)
        most_bytes = max(most_bytes, resident_bytes())
        if piece.endswith(LAST_CHUNK):
            break
    assert total_bytes > COUNT * len(DELTA) - MIB
    return most_bytes
