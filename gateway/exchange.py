"""One HTTP exchange with a client: its request in, its answer out. Knows no backend and no model.

The work on a request is one task. `end` is the one way to stop it from outside: the client hung up,
a clock ran out, the gateway is shutting down.
"""

import asyncio
import json
import math
from typing import Any, Protocol

from gateway.errors import ApiError, error_body
from gateway.settings.types import Surface
from proto.limits import BODY_PIECES, HEADER_BLOCK_BYTES, UNREAD_BODY_BYTES

Headers = list[tuple[bytes, bytes]]

# Seconds, sent by the SDKs, by Claude Code and by google-genai.
WAIT_HEADERS = (b"x-stainless-read-timeout", b"x-stainless-timeout", b"x-server-timeout")
_WAIT_NAMES = frozenset(WAIT_HEADERS)
MOST_FACTS = 32
LAST_WRITE_S = 5.0  # for the error that ends an answer to be taken
NO_BODY = frozenset({204, 304})


class ClientLeft(Exception):
    """The client hung up before its answer was complete."""


class CutShort(Exception):
    """The connection to the client must be closed without ending its answer."""


class Flow(Protocol):
    """What is told when the client's socket is full, and when it takes bytes again."""

    def pause(self) -> None:
        """Stop producing."""

    def resume(self) -> None:
        """Go on."""


class Line(Protocol):
    """The connection that an exchange came over, as far as the exchange uses it."""

    is_full: bool
    speaks_chunked: bool

    def send_head(self, status: int, block: bytes, *, is_chunked: bool) -> None:
        """Makes status line and headers ready: they go with what `send` writes next."""

    def send(self, *pieces: bytes) -> None:
        """Writes bytes of the body, framing included."""

    def ask_for_body(self) -> None:
        """Tells a client that waits for permission to send the body."""

    def close_after(self) -> None:
        """The connection is closed behind the answer."""

    def end_answer(self) -> None:
        """The answer is complete."""

    def cut_answer(self) -> None:
        """Closes so that the client can tell that its answer is not complete."""


class Exchange:
    """What one request carries through the gateway.

    `path` is the one value that routing and authorization both use, with escapes resolved;
    `raw_path` as it came; `rest` the part of the path that the route leaves open. `fields`: the
    first header of each (lower-case) name. `surface` names the dialect of its errors.
    `facts`: what is known of its headers by earlier requests with the same (`note_fact`).
    `is_peer_local`: the connection comes from this machine (a proxy on it may speak for others).
    """

    # What most requests never change stays with the class: making an exchange must cost little.
    rest = ""
    surface: Surface = "chat"
    is_peer_local = False
    speaks_chunked = True  # the client, in this request; false in HTTP/1.0
    keeps_connection = True  # the client may ask more over the same connection
    fault: ApiError | None = None  # known before anybody looked at the request
    body = b""
    has_started = False
    flow: Flow | None = None
    task: asyncio.Task[None] | None = None
    is_body_whole = False  # the request has arrived to its end
    body_bytes = 0  # how much of the body has arrived
    _limit_bytes: int = UNREAD_BODY_BYTES
    _seen_bytes = 0  # of the body, when data came last
    _apart_bytes = 0  # of data since then
    _gathered: bytearray | None = None  # what came before the pieces, when they were many
    _is_chunked = False
    _is_over = False
    _has_begun = False
    _reason: Exception | None = None
    _waiter: asyncio.Future[None] | None = None

    def __init__(
        self, line: Line, method: str, target: tuple[str, bytes, bytes], headers: Headers,
        fields: dict[bytes, bytes], request_id: str, facts: dict[object, Any] | None = None,
    ) -> None:  # fmt: skip
        self.method = method
        self.path, self.raw_path, self.query = target
        self.headers = headers
        self.fields = fields
        self.request_id = request_id
        self.facts = {} if facts is None else facts
        self._line = line
        self._pieces: list[bytes] = []

    # The request.

    def note_fact(self, about: object, fact: Any) -> None:
        """Remembers what follows from the headers alone, for requests that have the same."""
        if len(self.facts) >= MOST_FACTS:  # of backends and keys that are no longer configured
            self.facts.clear()
        self.facts[about] = fact

    def announced_wait_s(self) -> float | None:
        """How long the client says that it will wait; None when it does not, or not in numbers."""
        if _WAIT_NAMES.isdisjoint(self.fields):
            return None
        for name in WAIT_HEADERS:
            if (text := self.fields.get(name)) is None:
                continue
            try:
                seconds = float(text)
            except ValueError:
                continue
            if math.isfinite(seconds) and seconds > 0:
                return seconds
        return None

    async def read_body(self, limit_bytes: int) -> bytes:
        """The whole request body, also kept as `body`.

        Raises: ApiError 413 as soon as it is over the limit, 408 when it stops coming.
        """
        if not self.is_body_whole:
            await self._rest_of_body(limit_bytes)
        if self.fault is not None:
            self.raise_fault()
        if self.body_bytes > limit_bytes:
            self._line.close_after()
            raise too_large(limit_bytes)
        pieces, self._pieces = self._pieces, []
        if self._gathered is not None:
            pieces.insert(0, bytes(self._gathered))
            self._gathered = None
        self.body = pieces[0] if len(pieces) == 1 else b"".join(pieces)
        return self.body

    async def _rest_of_body(self, limit_bytes: int) -> None:
        declared = self.fields.get(b"content-length", b"0").strip()
        self._limit_bytes = limit_bytes
        if not declared.isdigit() or int(declared) > limit_bytes or self.body_bytes > limit_bytes:
            self._drop_body()
            raise too_large(limit_bytes)
        self._line.ask_for_body()
        while not self.is_body_whole and self.fault is None:  # other news wake it too
            await self._wait()

    def take_body(self, piece: bytes) -> None:
        """A piece of the body arrived."""
        self.body_bytes += len(piece)
        if self.body_bytes <= self._limit_bytes:
            self._pieces.append(piece)
        elif self.fault is None:
            self.fail_body(too_large(self._limit_bytes))
            self._drop_body()

    def note_data(self, data_bytes: int) -> bool:
        """More came for a body that had begun. False: and too much of it is none.

        Trailers and the extensions of chunks have the bounds of a head.
        """
        if self.body_bytes == self._seen_bytes:
            self._apart_bytes += data_bytes
            return self._apart_bytes <= HEADER_BLOCK_BYTES
        self._seen_bytes, self._apart_bytes = self.body_bytes, 0
        if len(self._pieces) > BODY_PIECES:  # each costs more than the bytes in it
            self._gathered = self._gathered if self._gathered is not None else bytearray()
            self._gathered += b"".join(self._pieces)
            self._pieces.clear()
        return True

    def finish_body(self) -> None:
        """The whole body is here."""
        self.is_body_whole = True
        self._wake()

    def fail_body(self, fault: ApiError) -> None:
        """The body will not be whole."""
        self.fault = fault
        self._wake()

    def raise_fault(self) -> None:
        """Raises what is known to be wrong with the request, once. Raises: ApiError."""
        if (fault := self.fault) is None:
            return
        self.fault = None
        try:
            raise fault
        finally:
            del fault  # its traceback holds this frame, and that the request

    def _drop_body(self) -> None:
        """Nothing of it is kept, whatever still comes; the connection ends with the answer."""
        self._pieces, self._gathered, self._limit_bytes = [], None, 0
        self._line.close_after()

    # The answer.

    def start(self, status: int, headers: Headers, *, length: int | None = None) -> None:
        """Status and headers, sent with the next `write`. An error can only end the answer now.

        `headers` without framing; `length` of the body in bytes, None when nobody knows it.
        """
        block = b"".join([b"%b: %b\r\n" % header for header in headers])
        self.start_with(status, block, length=length)

    def start_with(self, status: int, block: bytes, *, length: int | None = None) -> None:
        """The same with headers that are lines already."""
        self.has_started = True
        if self.method == "HEAD" or status in NO_BODY:
            length = None if status in NO_BODY else length
            is_chunked = False
        else:
            is_chunked = length is None and self._line.speaks_chunked
        self._is_chunked = is_chunked
        if length is not None:
            block += b"content-length: %d\r\n" % length
        self._line.send_head(status, block, is_chunked=is_chunked)

    def write(self, piece: bytes) -> None:
        """Sends a piece of the body; never waits (see `drain` and `flow`)."""
        if not piece or self.method == "HEAD":
            self._line.send()
        elif self._is_chunked:
            self._line.send(b"%x\r\n" % len(piece), piece, b"\r\n")
        else:
            self._line.send(piece)

    def finish(self, piece: bytes = b"") -> None:
        """Ends the answer, with a last piece."""
        if not self._is_chunked:
            self.write(piece)
        elif piece:
            self._line.send(b"%x\r\n" % len(piece), piece, b"\r\n0\r\n\r\n")
        else:
            self._line.send(b"0\r\n\r\n")
        self._is_over = True
        self._line.end_answer()

    async def drain(self) -> None:
        """Waits while the client's socket is full."""
        while self._line.is_full and not self._is_over:
            await self._wait()

    async def finish_soon(self, piece: bytes) -> None:
        """Ends a started answer; a client that takes no bytes does not hold it up.

        Raises: CutShort.
        """
        try:
            async with asyncio.timeout(LAST_WRITE_S):
                await self.drain()
        except TimeoutError as fault:
            raise CutShort from fault
        self.finish(piece)

    def reply(
        self, status: int, body: bytes, headers: Headers | None = None,
        content_type: str = "application/json",
    ) -> None:  # fmt: skip
        """Sends a whole answer, JSON unless another type is named."""
        common = [
            (b"content-type", content_type.encode()),
            (b"x-request-id", self.request_id.encode()),
        ]
        self.start(status, common + (headers or []), length=len(body))
        self.finish(body)

    def reply_json(self, body: Any, status: int = 200) -> None:
        """Sends a value as JSON."""
        self.reply(status, json.dumps(body, ensure_ascii=False).encode())

    def reply_error(self, error: ApiError) -> None:
        """Sends an error in the surface's form. Only before anything else was sent."""
        headers = error.headers()
        if self.surface in ("messages", "count_tokens"):
            headers.append((b"request-id", self.request_id.encode()))  # where that SDK looks
        self.reply(error.status, error_body(self.surface, error, self.request_id), headers)

    def cut(self) -> None:
        """Closes the connection without ending the answer."""
        if not self._is_over:
            self._is_over = True
            self._line.cut_answer()

    # Its life.

    def end(self, reason: Exception) -> None:
        """Ends the work on this request now, wherever it waits; the first reason counts."""
        if self._reason is None and not self._is_over:
            self._reason = reason
            if self._has_begun and self.task is not None:
                self.task.cancel()

    def begin(self) -> None:
        """The task has begun: from now on `end` interrupts it, also if it was called before."""
        self._has_begun = True
        if self._reason is not None and self.task is not None:
            self.task.cancel()

    def end_reason(self) -> Exception:
        """Why the task was cancelled, once.

        Raises: CancelledError when it was not `end` that did it.
        """
        reason, self._reason = self._reason, None
        if reason is None or self.task is None:
            raise asyncio.CancelledError
        self.task.uncancel()
        return reason

    def use_flow(self, flow: Flow) -> None:
        """Tells `flow` from now on whether the client takes bytes."""
        self.flow = flow
        if self._line.is_full:
            flow.pause()

    def note_full(self, *, is_full: bool) -> None:
        """The client's socket is full, or takes bytes again."""
        if not is_full:
            self._wake()
        if self.flow is not None:
            if is_full:
                self.flow.pause()
            else:
                self.flow.resume()

    async def _wait(self) -> None:
        self._waiter = asyncio.get_running_loop().create_future()
        try:
            await self._waiter
        finally:
            self._waiter = None

    def _wake(self) -> None:
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)


def too_large(limit_bytes: int) -> ApiError:
    """The error of a body over `server.max_body_mb`."""
    limit_mb = limit_bytes // 1024**2
    return ApiError(
        413, "request_too_large", f"The body is larger than {limit_mb} MiB (server.max_body_mb)."
    )


def header_text(value: str) -> bytes:
    """A header value from a name somebody chose: printable ASCII, the rest percent-encoded."""
    value = value[:256]
    if value.isascii() and value.isprintable() and "%" not in value:
        return value.encode()
    return b"".join(
        char.encode() if " " <= char <= "~" and char != "%" else _percent(char) for char in value
    )


def _percent(char: str) -> bytes:
    is_surrogate = "\ud800" <= char <= "\udfff"
    raw = ("\ufffd" if is_surrogate else char).encode()
    return "".join(f"%{byte:02X}" for byte in raw).encode()
