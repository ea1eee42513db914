"""The smallest relay on uvicorn: raw ASGI in front, asyncio.Protocol and httptools behind.

What a gateway in Python costs before it does anything of its own: no keys, no ledger, no limits on
time or size. Each request: read the body, look `model` up, forward the bytes, relay status, headers
and body bytes as they come. The upstream is taken from RELAY_UPSTREAM (host:port).
"""

import asyncio
import json
import os
from collections.abc import AsyncIterator, Awaitable, Callable, MutableMapping
from typing import Any, cast

import httptools

Scope = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[MutableMapping[str, Any]]]
Send = Callable[[MutableMapping[str, Any]], Awaitable[None]]
Headers = list[tuple[bytes, bytes]]

UPSTREAM = os.environ.get("RELAY_UPSTREAM", "127.0.0.1:9100")
HOST, _, PORT = UPSTREAM.partition(":")
MODELS = {"mock", "mock-slow", "mock-first"}
STAYS_HERE = {
    b"connection", b"keep-alive", b"te", b"trailer", b"transfer-encoding", b"upgrade", b"host",
    b"proxy-authorization", b"proxy-authenticate", b"accept-encoding",
}  # fmt: skip
READ_AHEAD = 512  # pieces that may wait for a slow client

_idle: list["Upstream"] = []


class Upstream(asyncio.Protocol):
    """One keep-alive connection; answer pieces gather in `pieces` until somebody takes them."""

    transport: asyncio.Transport
    waiter: asyncio.Future[None] | None = None
    is_dead = False

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast("asyncio.Transport", transport)

    def start(self, request: bytes) -> None:
        """Sends a request and makes ready for its answer."""
        self.parser = httptools.HttpResponseParser(self)
        self.headers: Headers = []
        self.pieces: list[bytes] = []
        self.has_head = self.is_done = self.can_stay = False
        self.transport.write(request)

    def data_received(self, data: bytes) -> None:
        try:
            self.parser.feed_data(data)
        except httptools.HttpParserError:
            self.is_dead = True
            self.transport.close()
        self._wake()

    def on_header(self, name: bytes, value: bytes) -> None:
        self.headers.append((name.lower(), value))

    def on_headers_complete(self) -> None:
        self.has_head = True
        self.status = self.parser.get_status_code()

    def on_body(self, piece: bytes) -> None:
        self.pieces.append(piece)
        if len(self.pieces) > READ_AHEAD:
            self.transport.pause_reading()

    def on_message_complete(self) -> None:
        self.is_done = True
        self.can_stay = self.parser.should_keep_alive()

    def connection_lost(self, fault: Exception | None) -> None:
        self.is_dead = True
        self._wake()

    def _wake(self) -> None:
        if self.waiter is not None and not self.waiter.done():
            self.waiter.set_result(None)

    async def wait(self) -> None:
        """Returns when something has come. Raises: ConnectionError."""
        if self.is_dead:
            raise ConnectionError("upstream closed")
        self.waiter = asyncio.get_running_loop().create_future()
        await self.waiter
        self.waiter = None

    async def body(self) -> AsyncIterator[bytes]:
        """The answer's bytes as they come."""
        while True:
            if self.pieces:
                pieces, self.pieces = self.pieces, []
                yield pieces[0] if len(pieces) == 1 else b"".join(pieces)
                self.transport.resume_reading()
            elif self.is_done:
                return
            else:
                await self.wait()

    def release(self) -> None:
        """Back among the idle ones, or closed."""
        if self.is_done and self.can_stay and not self.is_dead:
            _idle.append(self)
        else:
            self.transport.abort()


async def send_up(method: str, path: str, headers: Headers, body: bytes) -> Upstream:
    """Sends a request; returns once the answer's head is there."""
    upstream = None
    while _idle and (upstream is None or upstream.is_dead):
        upstream = _idle.pop()
    if upstream is None or upstream.is_dead:
        loop = asyncio.get_running_loop()
        _, upstream = await loop.create_connection(Upstream, HOST, int(PORT))
    lines = [f"{method} {path} HTTP/1.1\r\nhost: {UPSTREAM}\r\n".encode()]
    lines += [b"%b: %b\r\n" % header for header in headers]
    upstream.start(b"".join([*lines, b"\r\n", body]))
    while not upstream.has_head:
        await upstream.wait()
    return upstream


async def app(scope: Scope, receive: Receive, send: Send) -> None:
    """The relay as an ASGI application (to be served with `--lifespan off`)."""
    message = await receive()
    body = message.get("body", b"")
    while message.get("more_body"):
        message = await receive()
        body += message.get("body", b"")
    if scope["method"] == "POST" and json.loads(body).get("model") not in MODELS:
        not_found = [(b"content-length", b"0")]
        await send({"type": "http.response.start", "status": 404, "headers": not_found})
        await send({"type": "http.response.body"})
        return
    kept = [header for header in scope["headers"] if header[0] not in STAYS_HERE]
    upstream = await send_up(scope["method"], scope["path"], kept, body)
    try:
        back = [header for header in upstream.headers if header[0] not in STAYS_HERE]
        await send({"type": "http.response.start", "status": upstream.status, "headers": back})
        async for piece in upstream.body():
            await send({"type": "http.response.body", "body": piece, "more_body": True})
        await send({"type": "http.response.body"})
    finally:
        upstream.release()
