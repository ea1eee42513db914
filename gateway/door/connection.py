"""HTTP/1.1 toward clients on asyncio.Protocol and httptools. Knows no path, no key and no model.

A `ClientConnection` reads requests into `Exchange`s, one after the other, and writes their answers.
It goes on reading while a request runs: only so is a client seen to leave. Whatever a client sends
is bounded here. Sources: RFC 9112; docs/design/door.md says why this is not a server's library.
"""

import asyncio
import contextlib
import socket
import struct
from collections import deque
from collections.abc import Callable
from http import HTTPStatus
from typing import Protocol, cast

import httptools

from gateway.door.head import (
    UNREAD,
    KnownHead,
    head_without_offer,
    headers_too_large,
    malformed,
    split_target,
)
from gateway.errors import ApiError
from gateway.exchange import ClientLeft, Exchange, Headers
from gateway.outbox import Outbox
from proto.limits import (
    HEADER_BLOCK_BYTES,
    HEADER_COUNT,
    PIPELINED_BYTES,
    PIPELINED_REQUESTS,
    REQUEST_LINE_BYTES,
)

KEEP_ALIVE_S = 75.0  # longer than the 60 s after which proxies in front drop idle connections
HEAD_S = 30.0  # for the head of a request to arrive
BODY_S = 60.0  # between two pieces of a body
LINGER_S = 2.0  # a client that is still sending may read our answer first
LINE_REST_BYTES = len(" HTTP/1.1") + 1  # of a request line beside method and target

_STATUS_LINES = {
    status.value: f"HTTP/1.1 {status.value} {status.phrase}\r\n".encode() for status in HTTPStatus
}
_LOOPBACK = ("127.", "::1", "::ffff:127.")


class Reception(Protocol):
    """Where a connection belongs to, and what serves its requests."""

    loop: asyncio.AbstractEventLoop
    outbox: Outbox
    connections: set["ClientConnection"]
    is_closing: bool
    new_id: Callable[[], str]

    def begin(self, exchange: Exchange) -> None:
        """Starts the work on a request."""


class ClientConnection(asyncio.Protocol):
    """One client's connection. At most one of its requests runs; a few more may wait."""

    def __init__(self, door: Reception) -> None:
        self.is_full = False
        self.speaks_chunked = True
        self._door = door
        self._loop = door.loop
        self._outbox = door.outbox
        self._parser = httptools.HttpRequestParser(self)
        self._transport: asyncio.Transport | None = None
        self._is_local = False
        self._target = b""
        self._headers: Headers = []
        self._known: KnownHead | None = None
        self._head_bytes = 0  # of the head that is arriving, in data before this one
        self._fed_bytes = 0
        self._receiving: Exchange | None = None  # its body is arriving
        self._running: Exchange | None = None
        self._waiting: deque[Exchange] = deque()  # at most PIPELINED_REQUESTS
        self._in_head = False
        self._keeps_alive = True
        self._unsent: list[bytes] = []  # until the outbox calls
        self._is_due = False
        self._is_deaf = False  # what still comes is thrown away
        self._is_lingering = False
        self._ends_by_close = False
        self._deadline: float | None = None
        self._timer: asyncio.TimerHandle | None = None

    # What asyncio calls.

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)  # uvloop's are no subclass
        peer = transport.get_extra_info("peername")
        self._is_local = not peer or str(peer[0]).startswith(_LOOPBACK)
        self._door.connections.add(self)
        self._expire_in(HEAD_S)

    def data_received(self, data: bytes) -> None:
        if self._is_deaf:
            return
        self._fed_bytes = len(data)
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserUpgrade as offer:
            self._decline_upgrade(data[offer.args[0] :])
        except httptools.HttpParserCallbackError:
            raise  # a fault of ours, and not of the request
        except httptools.HttpParserError:
            self._refuse(malformed("the request is not HTTP/1.1"))
        if self._in_head:
            self._head_bytes += len(data)
            most_bytes = REQUEST_LINE_BYTES + HEADER_BLOCK_BYTES + len(data)
            if self._head_bytes > most_bytes or len(self._headers) > HEADER_COUNT:
                self._refuse(headers_too_large())
            elif self._head_bytes == len(data) and self._running is None:
                self._expire_in(HEAD_S)  # once: not again with every piece of it
        if self._running is None and self._waiting:
            self._run_next()
        elif (exchange := self._receiving) is not None:
            if not exchange.note_data(len(data)):
                self._refuse(headers_too_large())
            elif exchange is self._running:
                self._expire_in(BODY_S)

    def connection_lost(self, exc: Exception | None) -> None:
        self._door.connections.discard(self)
        self._is_deaf = True
        self._waiting.clear()
        if self._timer is not None:
            self._timer.cancel()
        self._timer = self._receiving = None
        del self._parser  # it points back here
        if self._running is not None:
            self._running.end(ClientLeft())
            self._running = None

    def pause_writing(self) -> None:
        self.is_full = True
        if self._running is not None:
            self._running.note_full(is_full=True)

    def resume_writing(self) -> None:
        self.is_full = False
        if self._running is not None:
            self._running.note_full(is_full=False)

    # What the parser calls.

    def on_message_begin(self) -> None:
        if self._is_deaf:
            return
        self._target, self._headers = b"", []
        self._head_bytes = 0
        self._in_head = True

    def on_url(self, target: bytes) -> None:
        if self._is_deaf:
            return
        self._target += target
        if len(self._target) + LINE_REST_BYTES + len(self._method()) > REQUEST_LINE_BYTES:
            message = f"The request line is longer than {REQUEST_LINE_BYTES} bytes."
            self._refuse(ApiError(414, "request_line_too_long", message))

    def on_header(self, name: bytes, value: bytes) -> None:
        self._headers.append((name.lower(), value))

    def on_headers_complete(self) -> None:
        self._in_head = False
        if self._is_deaf:
            return
        if len(self._waiting) >= PIPELINED_REQUESTS:
            self._overflow()
            return
        if self._parser.should_upgrade():
            return  # the parser stops here: see `_decline_upgrade`
        exchange = self._new_exchange()
        self._headers = UNREAD
        if (fault := self._head_fault(exchange)) is not None:
            self._refuse(fault, exchange)
            return
        self._receiving = exchange
        self._waiting.append(exchange)

    def on_body(self, piece: bytes) -> None:
        exchange = self._receiving
        if exchange is None or self._is_deaf:
            return
        is_first = exchange is self._running or (
            self._running is None and exchange is self._waiting[0]
        )
        if not is_first and exchange.body_bytes + len(piece) > PIPELINED_BYTES:
            self._overflow()
            return
        exchange.take_body(piece)

    def on_message_complete(self) -> None:
        exchange, self._receiving = self._receiving, None
        if exchange is not None:
            exchange.finish_body()
            if exchange is self._running:
                self._expire_in(None)

    # What an exchange calls.

    def send_head(self, status: int, block: bytes, *, is_chunked: bool) -> None:
        """Makes status line and headers ready to be sent; `block`: headers as lines."""
        assert self._transport is not None
        if self._transport.is_closing() or self._running is None:
            return
        if not self._running.is_body_whole or self._door.is_closing:
            self._keeps_alive = False
        self._ends_by_close = not (is_chunked or self.speaks_chunked)
        line = _STATUS_LINES.get(status) or b"HTTP/1.1 %d \r\n" % status
        framing = b"transfer-encoding: chunked\r\n" if is_chunked else b""
        end = b"\r\n" if self._keeps_alive else b"connection: close\r\n\r\n"
        self._unsent += (line, block, framing, end)

    def send(self, *pieces: bytes) -> None:
        """Writes bytes of the body, behind the head if that has not gone yet; none: just that."""
        self._unsent += pieces
        if not self._is_due and self._unsent:
            self._is_due = True
            self._outbox.add(self)

    def flush(self) -> None:
        """Hands what was written to the socket."""
        assert self._transport is not None
        unsent, self._unsent = self._unsent, []
        self._is_due = False
        if unsent and not self._transport.is_closing():
            self._transport.writelines(unsent)

    def ask_for_body(self) -> None:
        """Lets a client that waits for it send the body."""
        if self._running is not None:
            if b"expect" in self._running.fields:
                self.send(b"HTTP/1.1 100 Continue\r\n\r\n")
            self._expire_in(BODY_S)

    def close_after(self) -> None:
        """Closes the connection behind the running answer."""
        self._keeps_alive = False

    def end_answer(self) -> None:
        """The answer is complete: the next request, or the end of the connection."""
        assert self._transport is not None
        exchange, self._running = self._running, None
        if self._transport.is_closing():
            return
        if self._keeps_alive:
            self._expire_in(KEEP_ALIVE_S)
            if self._waiting:
                self._loop.call_soon(self._run_next)
        elif exchange is not None and exchange.is_body_whole and not self._is_deaf:
            self._close()
        else:
            self._linger()

    def cut_answer(self) -> None:
        """Closes in a way that no client takes for the end of the answer."""
        self._running = None
        if self._transport is None or self._transport.is_closing():
            return
        if self._ends_by_close:
            # The end of the connection would be the end of the answer: reset it instead.
            sock = self._transport.get_extra_info("socket")
            with contextlib.suppress(OSError):
                sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            self.flush()
            self._transport.abort()
        else:
            self._close()

    # What the door calls.

    def close_soon(self) -> None:
        """Closes at once when idle, else behind the running answer."""
        self._keeps_alive = False
        if self._running is None and not self._waiting and self._transport is not None:
            self._close()

    def abort(self) -> None:
        """Closes now."""
        if self._transport is not None:
            self._transport.abort()

    # The rest.

    def _close(self) -> None:
        assert self._transport is not None
        self.flush()
        self._transport.close()

    def _method(self) -> bytes:
        return bytes(self._parser.get_method())

    def _decline_upgrade(self, rest: bytes) -> None:
        """Goes on as before, as a server may: a new parser gets the head without the offer, and
        the body that the old one has let go of.
        """
        method, target = self._method(), self._target
        if method == b"CONNECT":
            self._refuse(ApiError(405, "method_not_allowed", "CONNECT is not allowed here."))
            return
        version = self._parser.get_http_version()
        head = head_without_offer(method, target, version, self._headers)
        self._parser = httptools.HttpRequestParser(self)
        self.data_received(head + rest)

    def _new_exchange(self) -> Exchange:
        headers = self._headers
        self._known = known = KnownHead.of(headers, self._known)
        method, target = self._method().decode("ascii"), split_target(self._target)
        fields = known.fields_of(headers)
        exchange = Exchange(self, method, target, headers, fields, self._door.new_id(), known.facts)
        exchange.is_peer_local = self._is_local
        return exchange

    def _head_fault(self, exchange: Exchange) -> ApiError | None:
        """What is wrong with a head that is HTTP; also notes how the connection goes on."""
        version = self._parser.get_http_version()
        if version != "1.1":
            exchange.speaks_chunked = exchange.keeps_connection = False
        elif not self._parser.should_keep_alive():
            exchange.keeps_connection = False
        assert self._known is not None
        return self._known.fault(version, at_most_bytes=self._head_bytes + self._fed_bytes)

    def _refuse(self, fault: ApiError, exchange: Exchange | None = None) -> None:
        """Answers what was asked so far with an error, and hears no more."""
        if self._is_deaf:
            return
        self._is_deaf, self._in_head = True, False
        receiving, self._receiving = self._receiving, None
        if receiving is not None:  # its body broke off
            receiving.fail_body(fault)
            return
        exchange = exchange or self._new_exchange()
        exchange.fault = fault
        self._waiting.append(exchange)

    def _overflow(self) -> None:
        """More was sent ahead than we keep: nothing of it is answered, as RFC 9112 allows."""
        self._is_deaf, self._keeps_alive, self._receiving = True, False, None
        if self._running is not None:
            self._waiting.clear()
        while len(self._waiting) > 1:
            self._waiting.pop()

    def _run_next(self) -> None:
        if self._running is not None or not self._waiting:
            return
        self._running = exchange = self._waiting.popleft()
        self.speaks_chunked = exchange.speaks_chunked
        is_last = self._is_deaf and not self._waiting
        self._keeps_alive = exchange.keeps_connection and not is_last
        self._expire_in(None)
        self._door.begin(exchange)

    def _linger(self) -> None:
        """Lets a client that is still sending read the answer: closing now would reset it away."""
        assert self._transport is not None
        self._is_deaf = self._is_lingering = True
        self._expire_in(LINGER_S)
        self.flush()
        if self._transport.can_write_eof():
            with contextlib.suppress(OSError):
                self._transport.write_eof()

    def _expire_in(self, seconds: float | None) -> None:
        if seconds is None:
            self._deadline = None
            return
        self._deadline = self._loop.time() + seconds
        if self._timer is not None:
            if self._timer.when() <= self._deadline:
                return  # it looks again then: moving a deadline costs nothing
            self._timer.cancel()
        self._timer = self._loop.call_at(self._deadline, self._look)

    def _look(self) -> None:
        self._timer = None
        if self._deadline is None or self._transport is None:
            return
        if self._loop.time() < self._deadline:
            self._timer = self._loop.call_at(self._deadline, self._look)
        elif self._receiving is not None and self._receiving is self._running:
            message = f"The body stopped coming for {BODY_S:g} s."
            self._receiving.fail_body(ApiError(408, "request_timeout", message))
        elif self._is_lingering:
            self._transport.abort()
        else:
            self._close()
