"""A backend that says exactly the bytes a test gives it, and notes what it saw. Knows no dialect.

A script is a coroutine function that gets the `Link` of one request. It sends pieces, waits at
events of its own, closes or resets; a link that the gateway closed ends its script.
"""

import asyncio
import contextlib
import socket
import struct
from collections.abc import Awaitable, Callable
from types import TracebackType
from typing import Any, Self, cast

from tests.gateway.cases.samples import Sample

Script = Callable[["Link"], Awaitable[None]]
RESET = struct.pack("ii", 1, 0)  # SO_LINGER: on, for no time


class Gone(Exception):
    """The gateway closed the connection."""


class Asked:
    """One request as it arrived."""

    def __init__(self, head: bytes, body: bytes) -> None:
        self.head = head
        self.body = body
        first, *lines = head.decode("latin-1").rstrip("\r\n").split("\r\n")
        self.method, self.target, _ = first.split(" ")
        pairs = (line.split(":", 1) for line in lines)
        self.headers = [(name.lower(), value.strip()) for name, value in pairs]

    def header(self, name: str) -> list[str]:
        """Every value of a header."""
        return [value for key, value in self.headers if key == name]


class Link(asyncio.Protocol):
    """One connection from the gateway. `asked`: its requests so far.

    `gone`: set when the gateway closed it, at `gone_s` of the loop's clock; `is_full`: set while
    the gateway takes no more; `offered_bytes`: what the script gave, in flight or not.
    """

    def __init__(self, backend: "ScriptedBackend") -> None:
        self.asked: list[Asked] = []
        self.received_bytes = 0
        self.gone = asyncio.Event()
        self.gone_s = 0.0
        self.is_full = asyncio.Event()
        self.is_free = asyncio.Event()
        self.is_free.set()
        self.offered_bytes = 0
        self._backend = backend
        self._rest = b""
        self._has_request = asyncio.Event()

    @property
    def body(self) -> bytes:
        """The body of the newest request."""
        return self.asked[-1].body

    @property
    def sent_bytes(self) -> int:
        """What the kernel has taken."""
        return self.offered_bytes - self._transport.get_write_buffer_size()

    async def send(self, *pieces: bytes) -> None:
        """Sends the pieces; the network may join them, unlike `Lockstep`. Raises Gone."""
        for piece in pieces:
            if self.gone.is_set():
                raise Gone
            self.offered_bytes += len(piece)
            self._transport.write(piece)
            await asyncio.sleep(0)  # the loop writes what it was given
            await _first(self.is_free, self.gone)

    async def wait(self, event: asyncio.Event) -> None:
        """Waits, unless the gateway goes first. Raises Gone."""
        await _first(event, self.gone)
        if not event.is_set():
            raise Gone

    async def until_received(self, size_bytes: int) -> None:
        """Waits for so many bytes of the connection. Raises Gone."""
        while self.received_bytes < size_bytes:
            self._has_request.clear()
            await self._has_request.wait()
            if self.gone.is_set():
                raise Gone

    async def pause(self, seconds: float) -> None:
        """Takes its time, as slow backends do. Raises Gone."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await self.gone.wait()
        if self.gone.is_set():
            raise Gone

    async def stay(self) -> None:
        """Says nothing more until the gateway goes. Raises Gone."""
        await self.gone.wait()
        raise Gone

    def close(self) -> None:
        """Ends the connection when everything was sent."""
        self._transport.close()

    def stop_reading(self) -> None:
        """Takes no more of the request."""
        self._transport.pause_reading()

    def reset(self) -> None:
        """Ends the connection with a reset."""
        sock: Any = self._transport.get_extra_info("socket")
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, RESET)
        self._transport.abort()

    # What asyncio calls.

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        self._task = asyncio.ensure_future(self._serve())
        self._backend.links.append(self)
        self._backend.grew.set()

    def data_received(self, data: bytes) -> None:
        self.received_bytes += len(data)
        self._rest += data
        self._has_request.set()

    def connection_lost(self, exc: Exception | None) -> None:
        self.gone_s = asyncio.get_running_loop().time()
        self.gone.set()
        self._has_request.set()

    def pause_writing(self) -> None:
        self.is_free.clear()
        self.is_full.set()

    def resume_writing(self) -> None:
        self.is_full.clear()
        self.is_free.set()

    async def _serve(self) -> None:
        try:
            while await self._read():
                await self._backend.script(self)
        except Gone:
            return
        except Exception as fault:
            self._backend.faults.append(fault)
            raise

    async def _read(self) -> bool:
        while not self.gone.is_set():
            head, mark, body = self._rest.partition(b"\r\n\r\n")
            if mark:
                asked = Asked(head, body)
                size = 0
                if not self._backend.is_early and (lengths := asked.header("content-length")):
                    size = int(lengths[0])
                if len(body) >= size:
                    asked.body, self._rest = body[:size], body[size:]
                    self.asked.append(asked)
                    self._backend.asked.append(asked)
                    self._backend.grew.set()
                    return True
            self._has_request.clear()
            await self._has_request.wait()
        return False

    async def end(self) -> None:
        """Ends what still runs."""
        self._transport.abort()
        self._task.cancel()
        await asyncio.gather(self._task, return_exceptions=True)


class ScriptedBackend:
    """Listens on a free loopback port and runs `script` for each request.

    `is_early`: the script starts at the end of a request's head, without its body.
    """

    def __init__(
        self, script: Script, *, is_early: bool = False, send_bytes: int | None = None
    ) -> None:
        self.script = script
        self.is_early = is_early
        self.links: list[Link] = []
        self.asked: list[Asked] = []
        self.faults: list[Exception] = []
        self.grew = asyncio.Event()
        self._send_bytes = send_bytes

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    async def until(self, is_so: Callable[[], bool]) -> None:
        """Waits until a new connection or request makes this true."""
        async with asyncio.timeout(5):
            while not is_so():
                self.grew.clear()
                await self.grew.wait()

    async def __aenter__(self) -> Self:
        listener = socket.create_server(("127.0.0.1", 0), backlog=256)
        if self._send_bytes is not None:
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, self._send_bytes)
        self.port: int = listener.getsockname()[1]
        loop = asyncio.get_running_loop()
        self._server = await loop.create_server(lambda: Link(self), sock=listener)
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        fault: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._server.close()
        for link in self.links:
            await link.end()
        await self._server.wait_closed()
        assert kind is not None or not self.faults, self.faults


async def _first(*events: asyncio.Event) -> None:
    """Returns when one of them is set."""
    if any(event.is_set() for event in events):
        return
    waits = [asyncio.ensure_future(event.wait()) for event in events]
    try:
        await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for wait in waits:
            wait.cancel()


# What scripts say.

SSE = "text/event-stream"
JSON = "application/json"
LAST_CHUNK = b"0\r\n\r\n"


def head(status: int = 200, kind: str = JSON, *lines: str) -> bytes:
    """A status line and headers; `lines` say how the body is framed."""
    named = "".join(f"{line}\r\n" for line in (f"content-type: {kind}", *lines))
    return f"HTTP/1.1 {status} Scripted\r\n{named}\r\n".encode("latin-1")


def chunk(piece: bytes) -> bytes:
    """One chunk of a chunked body."""
    return b"%x\r\n%b\r\n" % (len(piece), piece)


CHUNKED_SSE = head(200, SSE, "transfer-encoding: chunked")


def streaming(*events: bytes) -> Script:
    """Answers with a whole stream, one chunk an event."""

    async def script(link: Link) -> None:
        await link.send(CHUNKED_SSE, *map(chunk, events), LAST_CHUNK)

    return script


def answering(body: bytes, status: int = 200, kind: str = JSON, *lines: str) -> Script:
    """Answers with a whole body and its length."""

    async def script(link: Link) -> None:
        await link.send(head(status, kind, f"content-length: {len(body)}", *lines) + body)

    return script


class Lockstep:
    """A chunked answer, piece by piece: `send` each when the client has the one before."""

    def __init__(self, kind: str = SSE) -> None:
        self._start = head(200, kind, "transfer-encoding: chunked")
        self._links: asyncio.Queue[Link] = asyncio.Queue()

    async def script(self, link: Link) -> None:
        await link.send(self._start)
        self._links.put_nowait(link)

    async def link(self) -> Link:
        """The next request's connection, its headers sent."""
        async with asyncio.timeout(5):
            return await self._links.get()


def speaking(sample: Sample) -> Script:
    """Answers as a backend of this sample does, streamed or whole as it was asked."""
    stream, whole = streaming(*sample.events), answering(sample.whole)

    async def script(link: Link) -> None:
        asked = link.asked[-1]
        is_stream = b'"stream": true' in asked.body or ":streamGenerate" in asked.target
        await (stream if is_stream else whole)(link)

    return script
