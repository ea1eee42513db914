"""One HTTP exchange with a client: its body in, bytes and errors out. Knows no backend or model.

Also the watch over it: a client that hangs up, or a clock that runs out, ends the work at once,
whatever it was waiting for.
"""

import asyncio
import json
import math
import zlib
from collections.abc import Awaitable, Callable, MutableMapping
from types import TracebackType
from typing import Any, Self

from gateway.errors import ApiError, error_body
from gateway.settings.types import Surface
from proto.limits import DECOMPRESSION_RATIO

Scope = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[MutableMapping[str, Any]]]
Send = Callable[[MutableMapping[str, Any]], Awaitable[None]]
Headers = list[tuple[bytes, bytes]]

# Seconds, sent by the SDKs, by Claude Code and by google-genai.
WAIT_HEADERS = (b"x-stainless-read-timeout", b"x-stainless-timeout", b"x-server-timeout")
LAST_WRITE_S = 5.0  # for the error that ends an answer to be taken
DEFLATE_ANY = 32 + zlib.MAX_WBITS  # zlib or gzip header, whichever is there


class ClientLeft(Exception):
    """The client hung up before its answer was complete."""


class CutShort(Exception):
    """The connection to the client must be closed without ending its answer."""


class Exchange:
    """What one request carries through the gateway.

    `surface` names the dialect of its errors; `path` is the one value that routing and
    authorization both use.
    """

    __slots__ = (
        "_receive", "_send", "body", "has_started", "path", "request_id", "scope",
        "surface", "watch",
    )  # fmt: skip

    def __init__(
        self, scope: Scope, receive: Receive, send: Send, *, surface: Surface, request_id: str
    ) -> None:
        self.scope = scope
        self.surface = surface
        self.request_id = request_id
        self.path: str = scope["path"]
        self.body = b""
        self.has_started = False
        self.watch: Watch | None = None
        self._receive = receive
        self._send = send

    def header(self, name: bytes) -> bytes | None:
        """The first header of this (lower-case) name."""
        for key, value in self.scope["headers"]:
            if key == name:
                return bytes(value)
        return None

    def announced_wait_s(self) -> float | None:
        """How long the client says that it will wait; None when it does not, or not in numbers."""
        for name in WAIT_HEADERS:
            try:
                seconds = float(self.header(name) or b"")
            except ValueError:
                continue
            if math.isfinite(seconds) and seconds > 0:
                return seconds
        return None

    async def read_body(self, limit_bytes: int) -> None:
        """Reads the whole request body.

        Raises: ApiError 413 as soon as it is over the limit; ClientLeft.
        """
        declared = self.header(b"content-length")
        if declared is not None and declared.isdigit() and int(declared) > limit_bytes:
            raise too_large(limit_bytes)
        pieces: list[bytes] = []
        size_bytes = 0
        while True:
            message = await self._receive()
            if message["type"] == "http.disconnect":
                raise ClientLeft
            piece = message.get("body", b"")
            size_bytes += len(piece)
            if size_bytes > limit_bytes:
                raise too_large(limit_bytes)
            pieces.append(piece)
            if not message.get("more_body", False):
                break
        self.body = pieces[0] if len(pieces) == 1 else b"".join(pieces)

    async def start(self, status: int, headers: Headers) -> None:
        """Sends status and headers. From here on an error can only end the stream."""
        self.has_started = True
        await self._send({"type": "http.response.start", "status": status, "headers": headers})

    async def write(self, piece: bytes, *, is_last: bool = False) -> None:
        """Sends a piece of the body; waits while the client's socket is full."""
        await self._send({"type": "http.response.body", "body": piece, "more_body": not is_last})

    async def end_with(self, piece: bytes) -> None:
        """Ends a started answer; a client that takes no bytes does not hold it up.

        Raises: CutShort.
        """
        try:
            async with asyncio.timeout(LAST_WRITE_S):
                await self.write(piece, is_last=True)
        except TimeoutError as fault:
            raise CutShort from fault

    async def reply(self, status: int, body: bytes, headers: Headers | None = None) -> None:
        """Sends a whole JSON answer."""
        common = [
            (b"content-type", b"application/json"),
            (b"content-length", str(len(body)).encode()),
            (b"x-request-id", self.request_id.encode()),
        ]
        await self.start(status, common + (headers or []))
        await self.write(b"" if self.scope["method"] == "HEAD" else body, is_last=True)

    async def reply_json(self, body: Any, status: int = 200) -> None:
        """Sends a value as JSON."""
        await self.reply(status, json.dumps(body, ensure_ascii=False).encode())

    async def reply_error(self, error: ApiError) -> None:
        """Sends an error in the surface's form. Only before anything else was sent."""
        body = error_body(self.surface, error, self.request_id)
        headers = error.headers()
        if error.status == 413:
            headers.append((b"connection", b"close"))
        await self.reply(error.status, body, headers)

    async def client_left(self) -> None:
        """Returns when the client has hung up."""
        while (await self._receive())["type"] != "http.disconnect":
            pass


def too_large(limit_bytes: int) -> ApiError:
    """The error of a body over `server.max_body_mb`."""
    limit_mb = limit_bytes // 1024**2
    return ApiError(
        413, "request_too_large", f"The body is larger than {limit_mb} MiB (server.max_body_mb)."
    )


def decoded_body(body: bytes, encoding: bytes | None, limit_bytes: int) -> bytes:
    """The body without its Content-Encoding.

    Raises: ApiError 415 for an encoding we cannot read, 413 for a bomb, 400 for a broken one.
    """
    if encoding is None or encoding.lower() in (b"", b"identity"):
        return body
    if encoding.lower() not in (b"gzip", b"deflate"):
        raise ApiError(
            415,
            "unsupported_content_encoding",
            "Send the body as it is, or with Content-Encoding gzip or deflate.",
        )
    most = min(limit_bytes, len(body) * DECOMPRESSION_RATIO)
    unpacker = zlib.decompressobj(DEFLATE_ANY)
    try:
        plain = unpacker.decompress(body, most + 1)
    except zlib.error as fault:
        raise ApiError(400, "invalid_json", "The compressed body cannot be unpacked.") from fault
    if len(plain) > most:
        raise too_large(limit_bytes)
    if not unpacker.eof:
        raise ApiError(400, "invalid_json", "The compressed body is cut short.")
    return plain


def header_text(value: str) -> bytes:
    """A header value from a name somebody chose: printable ASCII, the rest percent-encoded."""
    return b"".join(
        char.encode() if " " <= char <= "~" and char != "%" else _percent(char)
        for char in value[:256]
    )


def _percent(char: str) -> bytes:
    is_surrogate = "\ud800" <= char <= "\udfff"
    raw = ("\ufffd" if is_surrogate else char).encode()
    return "".join(f"%{byte:02X}" for byte in raw).encode()


class Watch:
    """Ends a block of work when the client leaves or a deadline passes, wherever it waits.

    The block is cancelled and the reason raised in its place: ClientLeft, or the fault that was
    given with the deadline.
    """

    __slots__ = (
        "_cap", "_deadline", "_exchange", "_fault", "_loop", "_reason", "_task", "_timer",
        "_watcher",
    )  # fmt: skip

    def __init__(self, exchange: Exchange) -> None:
        self._exchange = exchange
        self._deadline: float | None = None
        self._fault: Exception | None = None
        self._reason: Exception | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._cap: asyncio.TimerHandle | None = None

    async def __aenter__(self) -> Self:
        self._loop = asyncio.get_running_loop()
        task = asyncio.current_task()
        assert task is not None
        self._task = task
        self._watcher = self._loop.create_task(self._wait_for_client())
        self._exchange.watch = self
        return self

    def limit(self, seconds: float, fault: Exception) -> None:
        """Sets the deadline `seconds` from now (0: none) and what it raises."""
        self._fault = fault
        self._deadline = self._loop.time() + seconds if seconds > 0 else None
        if self._deadline is None or (self._timer and self._timer.when() <= self._deadline):
            return  # a timer that fires earlier looks again then: moving a deadline costs nothing
        if self._timer is not None:
            self._timer.cancel()
        self._timer = self._loop.call_at(self._deadline, self._look)

    def hold(self) -> float | None:
        """Stops the clock; returns the seconds that were left, for `resume`."""
        deadline, self._deadline = self._deadline, None
        return None if deadline is None else deadline - self._loop.time()

    def resume(self, seconds: float | None) -> None:
        """Lets the clock go on with what was left."""
        if seconds is not None and self._fault is not None:
            self.limit(max(seconds, 0.001), self._fault)

    def cap(self, seconds: float, fault: Exception) -> None:
        """Sets a deadline (0: none) that nothing moves."""
        if seconds > 0:
            self._cap = self._loop.call_later(seconds, self.end, fault)

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        fault: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._exchange.watch = None
        self._watcher.cancel()
        for timer in (self._timer, self._cap):
            if timer is not None:
                timer.cancel()
        if self._reason is not None and isinstance(fault, asyncio.CancelledError):
            if self._task.uncancel() > 0:
                return  # somebody else wants this task to end as well
            raise self._reason from None

    async def _wait_for_client(self) -> None:
        await self._exchange.client_left()
        self.end(ClientLeft())

    def _look(self) -> None:
        self._timer = None
        if self._deadline is None or self._fault is None:
            return
        if self._loop.time() < self._deadline:
            self._timer = self._loop.call_at(self._deadline, self._look)
        else:
            self.end(self._fault)

    def end(self, reason: Exception) -> None:
        """Ends the block now; the first reason counts."""
        if self._reason is None:
            self._reason = reason
            self._task.cancel()
