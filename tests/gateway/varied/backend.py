"""A backend that plays one plan a case and keeps every byte it was sent. Knows no gateway.

A request says which case it belongs to in its header `x-case`.
"""

import asyncio
from collections import defaultdict
from dataclasses import dataclass
from types import TracebackType
from typing import Self

from tests.gateway.varied.client import Headers, NotHttp, split_header, tokens, values

READ_BYTES = 1024 * 1024
CASE = b"x-case"


@dataclass(frozen=True, slots=True)
class Plan:
    """Raw bytes to write, each piece on its own; `closes`: their end is the connection's."""

    pieces: tuple[bytes, ...]
    closes: bool = False


@dataclass(frozen=True, slots=True)
class Received:
    """One request as it arrived. `head` is raw; `body` is without its chunks."""

    head: bytes
    method: bytes
    target: bytes
    headers: Headers
    body: bytes


class ScriptedBackend:
    """Listens on a free port of this machine.

    `received` holds the requests of each case; `faults`: what arrived and is no HTTP.
    """

    def __init__(self) -> None:
        self.plans: dict[int, Plan] = {}
        self.received: defaultdict[int, list[Received]] = defaultdict(list)
        self.faults: list[str] = []
        self._tasks: set[asyncio.Task[None]] = set()

    @property
    def port(self) -> int:
        return int(self._server.sockets[0].getsockname()[1])

    @property
    def authority(self) -> bytes:
        return b"127.0.0.1:%d" % self.port

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    async def __aenter__(self) -> Self:
        self._server = await asyncio.start_server(self._accept, "127.0.0.1", 0, limit=READ_BYTES)
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        fault: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._server.close()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await self._server.wait_closed()

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        try:
            while await self._answer_one(reader, writer):
                pass
        except (ConnectionError, asyncio.IncompleteReadError):
            return  # whoever called has gone
        except (NotHttp, ValueError) as fault:
            self.faults.append(repr(fault))
        finally:
            writer.close()

    async def _answer_one(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> bool:
        """Whether the connection may be used again."""
        head = await reader.readuntil(b"\r\n\r\n")
        first, *lines = head[:-4].split(b"\r\n")
        method, target, version = first.split(b" ")
        headers = [split_header(line) for line in lines]
        if b"100-continue" in tokens(headers, b"expect"):
            writer.write(b"HTTP/1.1 100 Continue\r\n\r\n")
        body = await _body(reader, headers)
        case = int(values(headers, CASE)[0])
        self.received[case].append(Received(head, method, target, headers, body))
        plan = self.plans[case]
        for piece in plan.pieces:
            writer.write(piece)
            await writer.drain()
            await asyncio.sleep(0)  # so that the other side reads it on its own
        wants_close = version == b"HTTP/1.0" or b"close" in tokens(headers, b"connection")
        return not (plan.closes or wants_close)


async def _body(reader: asyncio.StreamReader, headers: Headers) -> bytes:
    lengths = values(headers, b"content-length")
    codings = values(headers, b"transfer-encoding")
    if len(lengths) + len(codings) > 1:
        raise NotHttp(f"no length that one can rely on: {codings} {lengths}")
    if not codings:
        return await reader.readexactly(int(lengths[0])) if lengths else b""
    pieces = []
    while size := int((await reader.readuntil(b"\r\n")).partition(b";")[0], 16):
        pieces.append(await reader.readexactly(size))
        if await reader.readexactly(2) != b"\r\n":
            raise NotHttp("a chunk is longer than it says")
    while await reader.readuntil(b"\r\n") != b"\r\n":
        pass  # a trailer
    return b"".join(pieces)
