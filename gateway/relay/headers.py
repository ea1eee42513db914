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
_BODILESS_METHODS = frozenset({"GET", "HEAD", "OPTIONS", "DELETE"})
_NO_NAMES: frozenset[bytes] = frozenset()


def request_head(exchange: Exchange, backend: Backend, request: ModelRequest) -> bytes:
    """Request line and headers for a backend, closed by the blank line."""
    headers = exchange.headers
    body_bytes = len(request.body)
    hidden = _hidden(backend.own_names, is_decoded=request.is_decoded)
    if b"connection" in exchange.fields:
        hidden |= named_by_connection(headers)
    method = exchange.method
    url = backend.url_path(request.path, exchange.query)
    lines = [f"{method} {url} HTTP/1.1\r\n".encode("latin-1"), backend.head_lines]
    for name, value in headers:
        if name not in hidden and not name.startswith(_PREFIXES_NOT_SENT_UP):
            lines += (name, b": ", value, b"\r\n")
    if body_bytes or method not in _BODILESS_METHODS:
        lines.append(b"content-length: %d\r\n\r\n" % body_bytes)
    else:
        lines.append(b"\r\n")
    return b"".join(lines)


@lru_cache(maxsize=256)
def _hidden(own_names: frozenset[bytes], *, is_decoded: bool) -> frozenset[bytes]:
    decoded = frozenset({b"content-encoding"}) if is_decoded else _NO_NAMES
    return _NOT_SENT_UP | own_names | decoded


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
    named: frozenset[bytes] = _NO_NAMES
    lines: list[bytes] = []
    for name, value in received:
        if name == b"content-length":
            length = int(value)
            continue
        if name in _NOT_SENT_DOWN:
            if name == b"connection":
                named |= _names_in(value)
            continue
        if name == b"content-type":
            is_stream = value[:17].lower() == b"text/event-stream"
        elif name == b"content-encoding":
            encoding = value
        lines += (name, b": ", value, b"\r\n")
    if is_stream:
        length = None  # its end may be an error of ours
        named |= {b"cache-control", b"x-accel-buffering"}
    if named:
        lines = [
            part
            for at in range(0, len(lines), 4)
            if lines[at] not in named
            for part in lines[at : at + 4]
        ]
    if is_stream:
        lines.append(b"x-accel-buffering: no\r\ncache-control: no-cache\r\n")
    return AnswerHead(b"".join(lines), is_stream, length, encoding)


def named_by_connection(headers: Headers) -> frozenset[bytes]:
    """The names of headers that belong to this hop because `Connection` says so."""
    return _NO_NAMES.union(*(_names_in(value) for name, value in headers if name == b"connection"))


def _names_in(value: bytes) -> frozenset[bytes]:
    return frozenset(item.strip().lower() for item in value.split(b","))
