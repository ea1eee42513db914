"""One HTTP/1.1 connection to a backend, on asyncio.Protocol and httptools. Knows no pool.

It carries one exchange at a time and is kept for the next; the answer's body comes out in the
pieces the socket delivered, never decoded.

    UpstreamFault
    ├── ConnectFailed      no connection could be made
    ├── UpstreamTimeout    one of our clocks fired; `clock` is its setting's name
    ├── UpstreamBroken     the connection died, or what came over it is not HTTP
    └── GatewayStopping    we are shutting down and the time for it is over
"""

import asyncio
from typing import Literal, Protocol, cast

import httptools

from gateway.exchange import Headers
from gateway.outbox import Outbox
from proto.limits import HEADER_BLOCK_BYTES, HEADER_COUNT, RELAY_BUFFER_BYTES

Clock = Literal["connect_s", "first_event_s", "idle_s", "total_s", "client timeout"]

_LENGTHS = frozenset({b"content-length", b"transfer-encoding"})
_HEADERS_TOO_LARGE = "the backend's headers are too large"
_BODILESS = frozenset({204, 304})


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


class Receiver(Protocol):
    """What is told about an answer in the very moment that it arrives."""

    def begin(self, connection: "Connection") -> None:
        """Status and headers are there. Raises: what the exchange is to end with."""

    def take(self, piece: bytes, *, is_last: bool) -> None:
        """The next bytes of the body, b"" if there are none yet; the last ones are known as such
        unless the answer ends with its connection."""


class Connection(asyncio.Protocol):
    """One connection to a backend; after `start`, also the answer that comes over it.

    An answer is either given to a `Receiver` as it comes, or waits to be `read`.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop, outbox: Outbox) -> None:
        self._loop = loop
        self._outbox = outbox
        self._unsent: tuple[bytes, ...] = ()
        self.status = 0
        self.headers: Headers = []
        self.is_complete = False  # the whole answer has arrived
        self.is_dead = False
        self.idle_since_s = 0.0
        self._transport: asyncio.Transport | None = None
        self._parser: httptools.HttpResponseParser | None = None
        self._is_head_request = False
        self._has_answered = False  # any byte of an answer arrived
        self._has_head = False
        self._pieces: list[bytes] = []
        self._waiting_bytes = 0  # since the last piece that was given on
        self._head_bytes = 0  # of data that came before the head was whole
        self._keeps_alive = False
        self._is_paused = False
        self._receiver: Receiver | None = None
        self._has_begun = False
        self._fault: Exception | None = None
        self._waiter: asyncio.Future[None] | None = None

    # What the client side calls.

    def start(
        self, head: bytes, body: bytes, receiver: Receiver | None = None
    ) -> asyncio.Future[None]:
        """Sends one request; the connection must be idle.

        What it returns is done when the receiver has had the whole answer, and raises what went
        wrong. Without a receiver it says that there is something new.
        """
        assert self._transport is not None
        self._parser = httptools.HttpResponseParser(self)
        self._is_head_request = head.startswith(b"HEAD ")
        self.status, self.headers, self._pieces = 0, [], []
        self._waiting_bytes = self._head_bytes = 0
        self.is_complete = self._has_answered = self._has_head = self._has_begun = False
        self._fault = None
        self._receiver = receiver
        self._unsent = (head, body) if body else (head,)
        self._outbox.add(self)
        self._waiter = self._loop.create_future()
        return self._waiter

    def flush(self) -> None:
        """Hands the request to the socket."""
        unsent, self._unsent = self._unsent, ()
        if unsent and not self.is_dead and self._transport is not None:
            self._transport.writelines(unsent)

    @property
    def ends_by_close(self) -> bool:
        """Whether the answer has no length: its end is the connection's."""
        return self.status not in _BODILESS and not any(
            name in _LENGTHS for name, _ in self.headers
        )

    async def has_head(self) -> None:
        """Waits for status and headers. Raises UpstreamFault."""
        while not self._has_head or self._fault is not None:
            self._raise_fault()
            self._waiter = self._loop.create_future()
            await self._waiter

    async def read(self) -> bytes:
        """The next bytes of the body, b"" after the last one. Raises UpstreamFault."""
        while not self._pieces:
            if self.is_complete:
                return b""
            self._raise_fault()
            self._waiter = self._loop.create_future()
            await self._waiter
        piece = self._take()
        self.resume()
        return piece

    def arrived(self) -> bytes:
        """What waits of the body, left where it is."""
        return b"".join(self._pieces)

    def pause(self) -> None:
        """Stops reading: what the backend goes on sending waits at its side."""
        if not self._is_paused and not self.is_dead and self._transport is not None:
            self._is_paused = True
            self._transport.pause_reading()

    def resume(self) -> None:
        """Reads on."""
        if self._is_paused and not self.is_dead and self._transport is not None:
            self._is_paused = False
            self._transport.resume_reading()

    def hang_up(self) -> None:
        """Closes the socket at once; the backend sees it within a moment."""
        self.is_dead = True
        if self._transport is not None:
            self._transport.abort()

    def rest(self) -> bool:
        """Makes ready for another request; False when that cannot be."""
        assert self._transport is not None
        self._receiver = None
        can = self.is_complete and self._keeps_alive and not self.is_dead
        is_asked = not self._unsent and not self._transport.get_write_buffer_size()
        if not (can and is_asked):  # it answered before it had the whole request
            return False
        self.resume()
        return True

    def _raise_fault(self) -> None:
        if self._fault is not None:
            fault, self._fault = self._fault, None
            try:
                raise fault
            finally:
                del fault  # its traceback holds this frame
        if self.is_dead:
            raise _closed(before_answer=not self._has_answered)

    def _wake(self) -> None:
        waiter = self._waiter
        if waiter is None or waiter.done():
            return
        if self._receiver is None or (self.is_complete and self._fault is None):
            waiter.set_result(None)
        else:
            fault = self._fault or _closed(before_answer=not self._has_answered)
            waiter.set_exception(fault)
            waiter.exception()  # it is no mistake when nobody waits any more

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
        self._has_answered = True
        if not self._has_head:
            self._head_bytes += len(data)
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserCallbackError:
            raise  # a fault of ours, and not of the backend
        except (httptools.HttpParserError, httptools.HttpParserUpgrade) as fault:
            self._deliver(len(data))
            if self.is_complete:  # the answer was whole: what stands behind it is nobody's
                self.hang_up()
                self._wake()
            else:
                self._break(f"the backend's answer is not HTTP: {fault}")
            return
        if not self._has_head and (
            self._head_bytes > HEADER_BLOCK_BYTES + len(data) or len(self.headers) > HEADER_COUNT
        ):
            self._break(_HEADERS_TOO_LARGE)
        self._deliver(len(data))
        if self._receiver is None or self.is_complete or self.is_dead:
            self._wake()

    def _deliver(self, data_bytes: int) -> None:
        receiver = self._receiver
        if receiver is None:
            if not self._pieces:
                self._note_no_body(data_bytes)
            elif self._waiting_bytes > RELAY_BUFFER_BYTES:
                self.pause()
        elif self._has_head and self._fault is None:
            try:
                if not self._has_begun:
                    self._has_begun = True
                    receiver.begin(self)
                    receiver.take(self._take(), is_last=self.is_complete)
                elif self._pieces or self.is_complete:
                    receiver.take(self._take(), is_last=self.is_complete)
                else:
                    self._note_no_body(data_bytes)
            except Exception as fault:  # noqa: BLE001 - it is raised where the end is awaited
                self._fault = fault
                self.hang_up()

    def _note_no_body(self, data_bytes: int) -> None:
        """Trailers and what else stands between the pieces of a body have the bounds of a head."""
        if self._has_head and not self.is_complete:
            self._waiting_bytes += data_bytes
            if self._waiting_bytes > HEADER_BLOCK_BYTES:
                self._break(_HEADERS_TOO_LARGE)

    def _take(self) -> bytes:
        pieces, self._pieces = self._pieces, []
        self._waiting_bytes = 0
        return pieces[0] if len(pieces) == 1 else b"".join(pieces)

    def connection_lost(self, exc: Exception | None) -> None:
        if self._has_head and self.ends_by_close and exc is None and self._fault is None:
            self.is_complete = True
        self.is_dead = True
        self._wake()
        # What points back here would keep the request until the garbage collector comes.
        if self._receiver is not None:
            self._fault = None  # the waiter has it
        self._parser = self._receiver = self._waiter = None

    # What the parser calls. Bytes behind the end of the answer belong to nobody.

    def on_message_begin(self) -> None:
        if self.is_complete:
            self._keeps_alive = False

    def on_header(self, name: bytes, value: bytes) -> None:
        if not self._has_head:  # a trailer is not a header
            self.headers.append((name.lower(), value))

    def on_headers_complete(self) -> None:
        assert self._parser is not None
        if self.is_complete or self._has_head:
            return
        if len(self.headers) > HEADER_COUNT or (
            self._head_bytes > HEADER_BLOCK_BYTES
            and sum(len(name) + len(value) + 4 for name, value in self.headers) > HEADER_BLOCK_BYTES
        ):
            self._break(_HEADERS_TOO_LARGE)
            return
        status = self._parser.get_status_code()
        if 100 <= status < 200:
            self.headers, self._head_bytes = [], 0
            return
        if not 200 <= status < 600:
            self._break(f"the backend answered with status {status}")
            return
        self.status, self._has_head = status, True
        if self._is_head_request:  # it has no body, whatever its length says
            self.is_complete = True
            self._keeps_alive = False  # a body that comes all the same would pass for an answer
            return

    def on_body(self, piece: bytes) -> None:
        if not self.is_complete:
            self._pieces.append(piece)
            self._waiting_bytes += len(piece)

    def on_message_complete(self) -> None:
        assert self._parser is not None
        if self._has_head and not self.is_complete:
            self.is_complete = True
            self._keeps_alive = self._parser.should_keep_alive()


def _closed(*, before_answer: bool) -> UpstreamBroken:
    return UpstreamBroken("the backend closed the connection", before_answer=before_answer)
