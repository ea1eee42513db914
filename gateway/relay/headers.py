"""Which headers go up to a backend, and which come down from it. Pure; knows no socket.

Credentials and hop-by-hop headers stay on the side where they belong; everything else passes.
"""

from collections.abc import Collection
from dataclasses import dataclass

from gateway.backends.base import Backend
from gateway.exchange import Exchange, Headers

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


def request_head(
    exchange: Exchange, backend: Backend, *, path: str, body_bytes: int, is_decoded: bool
) -> bytes:
    """Request line and headers for a backend, closed by the blank line.

    `path`: ours, as it goes to the backend. `is_decoded`: the body is no longer in the
    Content-Encoding that the client declared.
    """
    headers = exchange.headers
    named = named_by_connection(headers) if b"connection" in exchange.fields else _NO_NAMES
    own = backend.own_names
    method = exchange.method
    url = backend.url_path(path, exchange.query)
    lines = [f"{method} {url} HTTP/1.1\r\n".encode("latin-1"), backend.head_lines]
    for name, value in headers:
        if (
            name in _NOT_SENT_UP
            or name in own
            or name in named
            or name.startswith(_PREFIXES_NOT_SENT_UP)
            or (is_decoded and name == b"content-encoding")
        ):
            continue
        lines += (name, b": ", value, b"\r\n")
    if body_bytes or method not in _BODILESS_METHODS:
        lines.append(b"content-length: %d\r\n\r\n" % body_bytes)
    else:
        lines.append(b"\r\n")
    return b"".join(lines)


@dataclass(slots=True)
class AnswerHead:
    """A backend's headers as the client gets them, and what they say about the body.

    `length` of the body in bytes; None: nobody says. `encoding`: the value of Content-Encoding.
    """

    headers: Headers
    is_stream: bool = False
    length: int | None = None
    encoding: bytes | None = None


def answer_head(received: Headers) -> AnswerHead:
    """Sorts a backend's headers. The framing is written anew for the client's connection."""
    head = AnswerHead([])
    named: Collection[bytes] = _NO_NAMES
    for name, value in received:
        if name == b"content-type":
            head.is_stream = value[:17].lower() == b"text/event-stream"
        elif name == b"content-length":
            head.length = int(value)
        elif name == b"content-encoding":
            head.encoding = value
        elif name == b"connection":
            named = named or named_by_connection(received)
        if name not in _NOT_SENT_DOWN:
            head.headers.append((name, value))
    if named:
        head.headers = [(name, value) for name, value in head.headers if name not in named]
    if head.is_stream:
        head.length = None  # its end may be an error of ours
        head.headers = [(name, value) for name, value in head.headers if name != b"cache-control"]
        head.headers += ((b"x-accel-buffering", b"no"), (b"cache-control", b"no-cache"))
    return head


def named_by_connection(headers: Headers) -> frozenset[bytes]:
    """The names of headers that belong to this hop because `Connection` says so."""
    return frozenset(
        item.strip().lower()
        for name, value in headers
        if name == b"connection"
        for item in value.split(b",")
    )
