"""A backend whose every byte is scripted. Knows no gateway; keeps what it was sent."""

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, field
from types import TracebackType
from typing import Literal, Self

Framing = Literal["length", "chunked", "close"]


@dataclass(frozen=True, slots=True)
class Seen:
    """One request as it arrived."""

    method: str
    target: str
    headers: dict[str, str]
    body: bytes


class Gate:
    """A place in a reply where the backend waits until the test lets it go on."""

    def __init__(self) -> None:
        self.reached = asyncio.Event()
        self.open = asyncio.Event()


class Cut:
    """A place in a reply where the backend drops the connection."""


@dataclass(slots=True)
class Reply:
    """What the backend answers. `pieces` are written one by one, each flushed."""

    status: int = 200
    headers: dict[str, str] = field(default_factory=lambda: {"content-type": "application/json"})
    pieces: list[bytes | Gate | Cut] = field(default_factory=list)
    framing: Framing = "length"
    keep_alive: bool = True


def sse(*pieces: bytes | Gate | Cut, framing: Framing = "chunked") -> Reply:
    """A stream of server-sent events."""
    return Reply(headers={"content-type": "text/event-stream"}, pieces=[*pieces], framing=framing)


class FakeBackend:
    """Listens on a free loopback port and answers every request with `script`."""

    def __init__(self, script: Callable[[Seen], Reply]) -> None:
        self.script = script
        self.seen: list[Seen] = []
        self.connections = 0
        self.hung_up = asyncio.Event()  # a client closed while we were answering
        self._tasks: set[asyncio.Task[None]] = set()
        self._writers: set[asyncio.StreamWriter] = set()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self._server.sockets[0].getsockname()[1]}"

    async def __aenter__(self) -> Self:
        self._server = await asyncio.start_server(self._accept, "127.0.0.1", 0)
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        fault: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._server.close()
        for writer in self._writers:
            writer.transport.abort()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await self._server.wait_closed()

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._tasks.add(task)
        self._writers.add(writer)
        task.add_done_callback(self._tasks.discard)
        self.connections += 1
        try:
            while (seen := await self._read(reader)) is not None:
                self.seen.append(seen)
                if not await self._answer(self.script(seen), reader, writer):
                    break
        except ConnectionError:
            self.hung_up.set()
        finally:
            self._writers.discard(writer)
            writer.close()
            await asyncio.gather(writer.wait_closed(), return_exceptions=True)

    async def _read(self, reader: asyncio.StreamReader) -> Seen | None:
        try:
            head = await reader.readuntil(b"\r\n\r\n")
        except asyncio.IncompleteReadError:
            return None
        first, *lines = head.decode("latin-1").split("\r\n")
        method, target, _ = first.split(" ")
        headers = {}
        for line in filter(None, lines):
            name, _, value = line.partition(":")
            headers[name.lower()] = value.strip()
        body = await reader.readexactly(int(headers.get("content-length", "0")))
        return Seen(method, target, headers, body)

    async def _answer(
        self, reply: Reply, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> bool:
        headers = dict(reply.headers)
        whole = b"".join(piece for piece in reply.pieces if isinstance(piece, bytes))
        if reply.framing == "length":
            headers.setdefault("content-length", str(len(whole)))
        elif reply.framing == "chunked":
            headers["transfer-encoding"] = "chunked"
        if reply.framing == "close" or not reply.keep_alive:
            headers["connection"] = "close"
        lines = "".join(f"{name}: {value}\r\n" for name, value in headers.items())
        writer.write(f"HTTP/1.1 {reply.status} Scripted\r\n{lines}\r\n".encode("latin-1"))
        for piece in reply.pieces:
            if isinstance(piece, Cut):
                await writer.drain()
                return False
            if isinstance(piece, Gate):
                await writer.drain()
                piece.reached.set()
                if not await self._wait(piece, reader):
                    return False
                continue
            if reply.framing == "chunked":
                piece = b"%x\r\n%b\r\n" % (len(piece), piece)
            writer.write(piece)
            await writer.drain()
        if reply.framing == "chunked":
            writer.write(b"0\r\n\r\n")
        await writer.drain()
        return reply.framing != "close" and reply.keep_alive

    async def _wait(self, gate: Gate, reader: asyncio.StreamReader) -> bool:
        """Waits at a gate; False when the other side hangs up first."""
        opened = asyncio.create_task(gate.open.wait())
        closed = asyncio.create_task(reader.read(1))
        await asyncio.wait({opened, closed}, return_when=asyncio.FIRST_COMPLETED)
        if not opened.done():
            opened.cancel()
            self.hung_up.set()
            return False
        closed.cancel()
        await asyncio.gather(closed, return_exceptions=True)
        return True
