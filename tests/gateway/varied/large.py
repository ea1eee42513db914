"""The few cases with bodies of 64 MiB, the most that is allowed, up and down."""

from tests.gateway.varied.backend import CASE, Plan
from tests.gateway.varied.cases import ADDRESS, Case
from tests.gateway.varied.client import Headers, Request
from tests.gateway.varied.headers import CLIENT_KEY
from tests.gateway.varied.rules import Expected
from tests.gateway.varied.ways import OWN_CREDENTIALS, PATHS

LARGE = ("up, with a length", "up, in chunks", "down, with a length", "down, a stream in chunks")
LARGE_BYTES = 64 * 1024 * 1024
_CHUNK_BYTES = 1024 * 1024
_SMALL = b'{"choices":[{"index":0,"message":{"content":"x"},"finish_reason":"stop"}]}'


def large_case(form: str) -> Case:
    """One of the cases above; the other direction is small."""
    before = b'{"model":"m","messages":[{"role":"user","content":"'
    body = _filled(before, b'"}]}', LARGE_BYTES if form.startswith("up") else 1000)
    headers: Headers = [(b"Host", ADDRESS), (CASE, b"1"), (b"x-api-key", CLIENT_KEY)]
    pieces = [body]
    if form == "up, in chunks":
        headers.append((b"Transfer-Encoding", b"chunked"))
        pieces = _chunks(body)
    else:
        headers.append((b"Content-Length", b"%d" % len(body)))
    request = Request(b"POST", PATHS["chat"], headers, tuple(pieces))
    expected = Expected(PATHS["chat"], body, OWN_CREDENTIALS["open"], b"open/m")
    return Case(1, form, request, _plan(form), expected)


def _plan(form: str) -> Plan:
    before = b'{"choices":[{"index":0,"message":{"content":"'
    after = b'"},"finish_reason":"stop"}]}'
    if form == "down, with a length":
        body = _filled(before, after, LARGE_BYTES)
        return Plan((_head(b"application/json", b"Content-Length: %d" % len(body)), body))
    if form == "down, a stream in chunks":
        event = _filled(b'data: {"choices":[{"index":0,"delta":{"content":"', b'"}}]}\n\n', 524_288)
        stream = event * (LARGE_BYTES // len(event))
        return Plan((_head(b"text/event-stream", b"Transfer-Encoding: chunked"), *_chunks(stream)))
    return Plan((_head(b"application/json", b"Content-Length: %d" % len(_SMALL)), _SMALL))


def _head(content_type: bytes, length: bytes) -> bytes:
    return b"HTTP/1.1 200 OK\r\nContent-Type: %b\r\n%b\r\n\r\n" % (content_type, length)


def _filled(before: bytes, after: bytes, size: int) -> bytes:
    """Text of two bytes a character, so that no cut is safe, in so many bytes altogether."""
    room = size - len(before) - len(after)
    return before + "é".encode() * (room // 2) + b"." * (room % 2) + after


def _chunks(body: bytes) -> list[bytes]:
    pieces = []
    for at in range(0, len(body), _CHUNK_BYTES + 7):
        piece = body[at : at + _CHUNK_BYTES + 7]
        pieces.append(b"%x\r\n%b\r\n" % (len(piece), piece))
    return [*pieces, b"0\r\n\r\n"]
