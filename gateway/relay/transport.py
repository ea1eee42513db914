"""The relay's connections under httpx, for everything else that talks to backends. Knows no use.

One pool, one set of limits and one way to find a dead connection, whoever sends.
"""

from collections.abc import AsyncIterator
from urllib.parse import urlsplit

import httpx

from gateway.backends.base import Backend
from gateway.relay.client import UpstreamClient
from gateway.relay.connection import (
    ConnectFailed,
    Connection,
    UpstreamBroken,
    UpstreamFault,
    UpstreamTimeout,
)

_FAULTS: tuple[tuple[type[UpstreamFault], type[httpx.TransportError]], ...] = (
    (ConnectFailed, httpx.ConnectError),
    (UpstreamTimeout, httpx.ConnectTimeout),
    (UpstreamBroken, httpx.RemoteProtocolError),
)


class BackendTransport(httpx.AsyncBaseTransport):
    """Sends httpx requests to one backend over kept connections, with its own headers added.

    The request's URL says only the path: where it goes is the backend's business.
    """

    def __init__(self, client: UpstreamClient, backend: Backend) -> None:
        self._client = client
        self._backend = backend

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        """Sends one request. Raises: httpx.TransportError."""
        origin = self._backend.origin
        body = await request.aread()
        try:
            connection = await self._client.send(
                origin, self._head(request, len(body)), body, connect_s=self._connect_s(request)
            )
        except UpstreamFault as fault:
            raise _as_httpx(fault, request) from fault
        stream = _Body(self._client, self._backend, connection, request)
        return httpx.Response(connection.status, headers=connection.headers, stream=stream)

    def _head(self, request: httpx.Request, body_bytes: int) -> bytes:
        lines = [
            b"%b %b HTTP/1.1\r\n" % (request.method.encode(), request.url.raw_path),
            self._backend.head_lines,
        ]
        skipped = self._backend.own_names | {b"host", b"accept-encoding", b"connection",
                                             b"content-length", b"transfer-encoding"}  # fmt: skip
        for name, value in request.headers.raw:
            if name.lower() not in skipped:
                lines += (name, b": ", value, b"\r\n")
        if body_bytes or request.method not in ("GET", "HEAD"):
            lines.append(b"content-length: %d\r\n" % body_bytes)
        lines.append(b"\r\n")
        return b"".join(lines)

    def _connect_s(self, request: httpx.Request) -> float:
        asked = request.extensions.get("timeout", {}).get("connect")
        limit_s = self._backend.settings.connect_s
        return limit_s if asked is None else min(asked, limit_s or asked)


class _Body(httpx.AsyncByteStream):
    """The body of an answer; closing it gives the connection back."""

    def __init__(
        self, client: UpstreamClient, backend: Backend, connection: Connection,
        request: httpx.Request,
    ) -> None:  # fmt: skip
        self._client = client
        self._backend = backend
        self._connection: Connection | None = connection
        self._request = request

    async def __aiter__(self) -> AsyncIterator[bytes]:
        assert self._connection is not None
        try:
            while piece := await self._connection.read():
                yield piece
        except UpstreamFault as fault:
            raise _as_httpx(fault, self._request) from fault

    async def aclose(self) -> None:
        connection, self._connection = self._connection, None
        if connection is not None:
            self._client.release(self._backend.origin, connection)


def http_client(client: UpstreamClient, backend: Backend, timeout_s: float) -> httpx.AsyncClient:
    """An httpx client for one backend. Paths are given without its address."""
    parts = urlsplit(backend.settings.base_url)
    return httpx.AsyncClient(
        transport=BackendTransport(client, backend),
        base_url=f"{parts.scheme}://{parts.netloc}",
        timeout=timeout_s,
        follow_redirects=False,
    )


def _as_httpx(fault: UpstreamFault, request: httpx.Request) -> httpx.TransportError:
    for ours, theirs in _FAULTS:
        if isinstance(fault, ours):
            return theirs(str(fault), request=request)
    return httpx.TransportError(str(fault), request=request)
