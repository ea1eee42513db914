"""HTTP/1.1 toward backends on asyncio.Protocol and httptools. Knows no surface and no ledger.

One `Connection` carries one exchange at a time and is kept for the next; the answer's body comes
out in the pieces the socket delivered, never decoded. Redirects are not followed.

    UpstreamFault
    ├── ConnectFailed      no connection could be made
    ├── UpstreamTimeout    one of our clocks fired; `clock` is its setting's name
    ├── UpstreamBroken     the connection died, or what came over it is not HTTP
    └── GatewayStopping    we are shutting down and the time for it is over
"""

import asyncio
import os
import socket
import ssl
from typing import Literal, cast

import httptools

from gateway.backends.base import Origin
from gateway.exchange import Headers
from proto.limits import HEADER_BLOCK_BYTES, HEADER_COUNT, RELAY_BUFFER_BYTES

IDLE_CONNECTIONS = 256  # kept per origin; more are closed instead of kept
Clock = Literal["connect_s", "first_event_s", "idle_s", "total_s", "client timeout"]


class UpstreamFault(Exception):
    """Something went wrong between us and a backend."""


class ConnectFailed(UpstreamFault):
    """Refused, no route, name not found, TLS failed."""


class UpstreamTimeout(UpstreamFault):
    """A clock of ours fired. `clock` is the name of its setting."""

    def __init__(self, clock: Clock, limit_s: float) -> None:
        super().__init__(f"{clock} of {limit_s:g} s passed")
        self.clock = clock
        self.limit_s = limit_s


class UpstreamBroken(UpstreamFault):
    """The connection ended or its bytes are no HTTP. `before_answer`: not a byte had come."""

    def __init__(self, message: str, *, before_answer: bool) -> None:
        super().__init__(message)
        self.before_answer = before_answer


class GatewayStopping(UpstreamFault):
    """The process ends before the answer does."""


class Connection(asyncio.Protocol):
    """One connection to a backend; after `start`, also the answer that comes over it."""

    def __init__(self) -> None:
        self.status = 0
        self.headers: Headers = []
        self.is_complete = False  # the whole answer has arrived
        self.is_dead = False
        self.has_answered = False  # any byte of an answer arrived
        self.ends_by_close = False  # the answer has no length: its end is the connection's
        self._transport: asyncio.Transport | None = None
        self._parser: httptools.HttpResponseParser | None = None
        self._has_head = False
        self._pieces: list[bytes] = []
        self._waiting_bytes = 0
        self._header_bytes = 0
        self._keeps_alive = False
        self._fault: UpstreamBroken | None = None
        self._waiter: asyncio.Future[None] | None = None

    # What the client side calls.

    def start(self, request: bytes, body: bytes) -> None:
        """Sends one request; the connection must be idle."""
        assert self._transport is not None
        self._parser = httptools.HttpResponseParser(self)
        self.status, self.headers, self._pieces = 0, [], []
        self._waiting_bytes = self._header_bytes = 0
        self.is_complete = self.has_answered = self._has_head = self.ends_by_close = False
        self._fault = None
        self._transport.writelines((request, body) if body else (request,))

    async def head(self) -> None:
        """Waits for status and headers. Raises UpstreamFault."""
        while self._fault is not None or not self._has_head:
            self._raise_fault()
            await self._wait()

    async def read(self) -> bytes:
        """The next bytes of the body, b"" after the last one. Raises UpstreamFault."""
        while not self._pieces:
            if self.is_complete:
                return b""
            self._raise_fault()
            await self._wait()
        pieces, self._pieces = self._pieces, []
        if self._waiting_bytes > RELAY_BUFFER_BYTES and not self.is_dead:
            assert self._transport is not None
            self._transport.resume_reading()
        self._waiting_bytes = 0
        return pieces[0] if len(pieces) == 1 else b"".join(pieces)

    def hang_up(self) -> None:
        """Closes the socket at once; the backend sees it within a moment."""
        self.is_dead = True
        if self._transport is not None:
            self._transport.abort()

    @property
    def can_be_kept(self) -> bool:
        """Whether the next request may use this connection."""
        return self.is_complete and self._keeps_alive and not self.is_dead

    def _raise_fault(self) -> None:
        if self._fault is not None:
            raise self._fault
        if self.is_dead:
            raise UpstreamBroken(
                "the backend closed the connection", before_answer=not self.has_answered
            )

    async def _wait(self) -> None:
        self._waiter = asyncio.get_running_loop().create_future()
        try:
            await self._waiter
        finally:
            self._waiter = None

    def _wake(self) -> None:
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)

    def _break(self, message: str) -> None:
        self._fault = self._fault or UpstreamBroken(message, before_answer=False)
        self.hang_up()
        self._wake()

    # What asyncio calls.

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)  # uvloop's are no subclass

    def data_received(self, data: bytes) -> None:
        if self._parser is None or self.is_complete:
            self.hang_up()  # nobody asked: an idle connection that speaks is of no use
            return
        self.has_answered = True
        try:
            self._parser.feed_data(data)
        except (httptools.HttpParserError, httptools.HttpParserUpgrade) as fault:
            self._break(f"the backend's answer is not HTTP: {fault}")
            return
        if self._waiting_bytes > RELAY_BUFFER_BYTES and not self.is_dead:
            assert self._transport is not None
            self._transport.pause_reading()
        self._wake()

    def connection_lost(self, exc: Exception | None) -> None:
        if self._has_head and self.ends_by_close and exc is None and self._fault is None:
            self.is_complete = True
        self.is_dead = True
        self._wake()

    # What the parser calls. Bytes behind the end of the answer belong to nobody.

    def on_message_begin(self) -> None:
        if self.is_complete:
            self._keeps_alive = False

    def on_header(self, name: bytes, value: bytes) -> None:
        if self.is_complete:
            return
        self._header_bytes += len(name) + len(value)
        if self._header_bytes > HEADER_BLOCK_BYTES or len(self.headers) >= HEADER_COUNT:
            self._break("the backend's headers are too large")
            return
        if not self._has_head:  # a trailer is not a header
            self.headers.append((name.lower(), value))

    def on_headers_complete(self) -> None:
        assert self._parser is not None
        if self.is_complete or self._fault is not None:
            return
        status = self._parser.get_status_code()
        if 100 <= status < 200:
            self.headers = []
            return
        if not 200 <= status < 600:
            self._break(f"the backend answered with status {status}")
            return
        self.status, self._has_head = status, True
        names = {name for name, _ in self.headers}
        self.ends_by_close = not (
            names & {b"content-length", b"transfer-encoding"} or status in (204, 304)
        )

    def on_body(self, piece: bytes) -> None:
        if not self.is_complete:
            self._pieces.append(piece)
            self._waiting_bytes += len(piece)

    def on_message_complete(self) -> None:
        assert self._parser is not None
        if self._has_head and not self.ends_by_close and not self.is_complete:
            self.is_complete = True
            self._keeps_alive = self._parser.should_keep_alive()


class UpstreamClient:
    """Keeps connections to backends and sends requests over them."""

    def __init__(self) -> None:
        self._idle: dict[Origin, list[Connection]] = {}

    async def send(
        self, origin: Origin, request: bytes, body: bytes, *, connect_s: float
    ) -> Connection:
        """Sends one request and returns when the answer's head is there.

        `request`: request line and headers, closed by the blank line. A kept connection that turns
        out to be dead before a byte of answer is replaced once by a fresh one; nothing else is
        ever sent twice. The caller gives the connection back with `release`.

        Raises: UpstreamFault.
        """
        while (kept := self._take_idle(origin)) is not None:
            try:
                return await self._ask(kept, request, body)
            except UpstreamBroken as fault:
                if not fault.before_answer:
                    raise
                break
        return await self._ask(await self._connect(origin, connect_s), request, body)

    def release(self, origin: Origin, connection: Connection) -> None:
        """Keeps a connection whose answer was read to its end; hangs up on any other."""
        idle = self._idle.setdefault(origin, [])
        if connection.can_be_kept and len(idle) < IDLE_CONNECTIONS:
            idle.append(connection)
        else:
            connection.hang_up()

    def close(self) -> None:
        """Hangs up on every kept connection."""
        for idle in self._idle.values():
            while idle:
                idle.pop().hang_up()

    def idle_count(self) -> int:
        """Connections kept and waiting."""
        return sum(map(len, self._idle.values()))

    async def _ask(self, connection: Connection, request: bytes, body: bytes) -> Connection:
        try:
            connection.start(request, body)
            await connection.head()
        except BaseException:
            connection.hang_up()
            raise
        return connection

    def _take_idle(self, origin: Origin) -> Connection | None:
        idle = self._idle.get(origin, [])
        while idle:
            connection = idle.pop()
            if not connection.is_dead:
                return connection
        return None

    async def _connect(self, origin: Origin, connect_s: float) -> Connection:
        loop = asyncio.get_running_loop()
        try:
            async with asyncio.timeout(connect_s or None):
                _, connection = await loop.create_connection(
                    Connection,
                    origin.host,
                    origin.port,
                    ssl=origin.tls,
                    server_hostname=origin.host if origin.tls else None,
                )
        except TimeoutError as fault:
            raise UpstreamTimeout("connect_s", connect_s) from fault
        except OSError as fault:
            raise ConnectFailed(_connect_fault(fault)) from fault
        return connection


def _connect_fault(fault: OSError) -> str:
    """Why no connection could be made, without the address: clients are told this too."""
    if isinstance(fault, ssl.SSLError):
        return f"TLS failed ({fault.reason})"
    if isinstance(fault, socket.gaierror):
        return "its name is not known"
    return os.strerror(fault.errno).lower() if fault.errno else "no address answered"
