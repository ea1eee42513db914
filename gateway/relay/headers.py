"""Which headers go up to a backend, and which come down from it. Pure; knows no socket.

Credentials and hop-by-hop headers stay on the side where they belong; everything else passes.
"""

from functools import lru_cache
from typing import NamedTuple

from gateway.backends.base import Backend
from gateway.exchange import Exchange, Headers
from gateway.surfaces.request import ModelRequest

_HOP_BY_HOP = frozenset({
    b"connection", b"keep-alive", b"proxy-authenticate", b"proxy-connection", b"te", b"trailer",
    b"transfer-encoding", b"upgrade",
})  # fmt: skip
_NOT_SENT_UP = _HOP_BY_HOP | {
    b"host", b"content-length", b"accept-encoding", b"expect", b"http2-settings",
    b"authorization", b"proxy-authorization", b"x-api-key", b"api-key", b"x-goog-api-key",
    b"cookie", b"openai-organization", b"openai-project",
    b"forwarded", b"x-real-ip", b"via",
}  # fmt: skip
_PREFIXES_NOT_SENT_UP = (b"x-tandem-", b"x-freellm-", b"x-forwarded-")
_NOT_SENT_DOWN = _HOP_BY_HOP | {
    b"set-cookie", b"x-request-id", b"x-routed-via", b"content-length",
}  # fmt: skip
_SPECIAL = _NOT_SENT_DOWN | {b"content-type", b"content-encoding"}
_OF_STREAMS = frozenset({b"cache-control", b"x-accel-buffering"})
KNOWN_NAMES = 1_000  # remembered for each backend
_BODILESS_METHODS = frozenset({"GET", "HEAD", "OPTIONS", "DELETE"})
_NO_NAMES: frozenset[bytes] = frozenset()


def request_head(exchange: Exchange, backend: Backend, request: ModelRequest) -> bytes:
    """Request line and headers for a backend, closed by the blank line."""
    block: bytes | None = exchange.facts.get(backend)
    if block is None or request.is_decoded:
        block = _block(exchange, backend, request)
        if not request.is_decoded:
            exchange.note_fact(backend, block)
    method = exchange.method
    body_bytes = len(request.body)
    if body_bytes or method not in _BODILESS_METHODS:
        block += b"content-length: %d\r\n" % body_bytes
    url = backend.url_path(request.path, exchange.query)
    first = f"{method} {url} HTTP/1.1\r\n".encode("latin-1")
    return b"".join((first, backend.head_lines, block, b"\r\n"))


def _block(exchange: Exchange, backend: Backend, request: ModelRequest) -> bytes:
    """The client's headers that go up, as lines."""
    headers = exchange.headers
    passes = _going_up(backend.own_names)
    lines = [b"%b: %b\r\n" % header for header in headers if passes[header[0]]]
    if request.is_decoded or b"connection" in exchange.fields:
        hidden = named_by_connection(headers)
        if request.is_decoded:
            hidden |= {b"content-encoding"}
        lines = [line for line in lines if line.partition(b":")[0] not in hidden]
    return b"".join(lines)


class _Passes(dict[bytes, bool]):
    """Whether a header of this name passes; found out once for each name."""

    def __init__(self, hidden: frozenset[bytes], prefixes: tuple[bytes, ...]) -> None:
        super().__init__()
        self._hidden = hidden
        self._prefixes = prefixes

    def __missing__(self, name: bytes) -> bool:
        if len(self) >= KNOWN_NAMES:
            self.clear()
        passes = self[name] = not (name in self._hidden or name.startswith(self._prefixes))
        return passes


@lru_cache(maxsize=256)
def _going_up(own_names: frozenset[bytes]) -> _Passes:
    return _Passes(_NOT_SENT_UP | own_names, _PREFIXES_NOT_SENT_UP)


class AnswerHead(NamedTuple):
    """A backend's headers as the client gets them, and what they say about the body.

    `block`: as they are sent. `length` of the body in bytes; None: nobody says. `encoding`: the
    value of Content-Encoding.
    """

    block: bytes
    is_stream: bool
    length: int | None
    encoding: bytes | None


def answer_head(received: Headers) -> AnswerHead:
    """Sorts a backend's headers. The framing is written anew for the client's connection."""
    is_stream = False
    length: int | None = None
    encoding: bytes | None = None
    hidden: frozenset[bytes] = _NO_NAMES
    lines: list[bytes] = []
    for header in received:
        name, value = header
        if name not in _SPECIAL:
            lines.append(b"%b: %b\r\n" % header)
        elif name == b"content-length":
            length = int(value)
        elif name == b"content-type":
            lines.append(b"%b: %b\r\n" % header)
            is_stream = value[:17].lower() == b"text/event-stream"
        elif name == b"content-encoding":
            lines.append(b"%b: %b\r\n" % header)
            encoding = value
        elif name == b"connection":
            hidden |= _names_in(value)
    if is_stream:
        length = None  # its end may be an error of ours
        hidden |= _OF_STREAMS
        lines = [line for line in lines if line.partition(b":")[0] not in hidden]
        lines.append(b"x-accel-buffering: no\r\ncache-control: no-cache\r\n")
    elif hidden:
        lines = [line for line in lines if line.partition(b":")[0] not in hidden]
    return AnswerHead(b"".join(lines), is_stream, length, encoding)


def named_by_connection(headers: Headers) -> frozenset[bytes]:
    """The names of headers that belong to this hop because `Connection` says so."""
    return _NO_NAMES.union(*(_names_in(value) for name, value in headers if name == b"connection"))


def _names_in(value: bytes) -> frozenset[bytes]:
    return frozenset(item.strip().lower() for item in value.split(b","))
