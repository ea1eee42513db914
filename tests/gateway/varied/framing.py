"""Puts bodies on the wire, in every form that HTTP/1.1 allows. Knows no meaning of a body."""

from collections.abc import Iterable
from random import Random

from tests.gateway.varied.backend import Plan
from tests.gateway.varied.client import NO_BODY, Headers
from tests.gateway.varied.replies import Reply

REPLY_FRAMINGS = (
    "length", "length in one write", "length, head cut", "chunked", "odd chunks",
    "chunks in one write", "extensions",    "trailers", "close", "old length", "old close",
)  # fmt: skip
BY_CLOSE = ("close", "old close")
FOR_OLD_CLIENTS = ("length", "length in one write", "length, head cut", *BY_CLOSE, "old length")
BEFORE = ("nothing", "nothing", "nothing", "early hints", "two interim answers")

_INTERIM = b"HTTP/1.1 103 Early Hints\r\nlink: </a>; rel=preload\r\nx-interim: 1\r\n\r\n"
_BEFORE = {
    "nothing": b"",
    "early hints": _INTERIM,
    "two interim answers": b"HTTP/1.1 102 Processing\r\n\r\n" + _INTERIM,
}
_REASONS = (b"OK", b"", b"A reason with blanks", b"caf\xc3\xa9")


def make_plan(reply: Reply, framing: str, before: str, method: bytes, rng: Random) -> Plan:
    """The reply as raw bytes. A HEAD request gets the head of what a GET would get."""
    version = b"HTTP/1.0" if framing.startswith("old") else b"HTTP/1.1"
    first = b"%b %d %b\r\n" % (version, reply.status, rng.choice(_REASONS))
    headers = reply.headers[:]
    is_close = framing in BY_CLOSE
    has_body = reply.status not in NO_BODY
    if is_close:
        headers.append((b"Connection", b"close"))
    elif "length" in framing and has_body:
        headers.append((b"Content-Length", b"%d" % len(reply.body)))
    elif has_body:
        headers.append((b"Transfer-Encoding", b"chunked"))
    if framing == "trailers" and has_body:
        headers.append((b"Trailer", b"x-checksum, set-cookie"))
    rng.shuffle(headers)
    lines = [name + rng.choice((b": ", b":", b":\t ")) + value for name, value in headers]
    head = first + b"".join(line + b"\r\n" for line in lines) + b"\r\n"
    pieces = _reply_pieces(reply, framing, rng) if has_body and method != b"HEAD" else []
    return Plan(_joined(_BEFORE[before], head, pieces, framing), is_close or version == b"HTTP/1.0")


def _joined(before: bytes, head: bytes, pieces: list[bytes], framing: str) -> tuple[bytes, ...]:
    if framing.endswith("in one write"):
        return (before + head + b"".join(pieces),)
    if framing == "length, head cut":
        return (before, *single_bytes(head), *pieces)
    return (before, head, *pieces)


def _reply_pieces(reply: Reply, framing: str, rng: Random) -> list[bytes]:
    pieces: Iterable[bytes] = reply.pieces
    if reply.is_cut:
        pieces = single_bytes(reply.body)
    elif framing in ("odd chunks", "chunks in one write"):
        pieces = cut(reply.body, rng)
    if "length" in framing or framing in BY_CLOSE:
        return list(pieces)
    return chunks(pieces, framing, rng)


def chunks(pieces: Iterable[bytes], framing: str, rng: Random) -> list[bytes]:
    """The pieces as chunks, and the last chunk."""
    done = []
    for piece in filter(None, pieces):
        size = rng.choice(("%x", "%X", "%04x")) % len(piece)
        if framing == "extensions":
            size += rng.choice((";a=b", ";a", ';a="q;r"', ";" + "e" * 200))
        done.append(size.encode() + b"\r\n" + piece + b"\r\n")
    trailers = b"X-Checksum: 1\r\nSet-Cookie: t=1\r\nx-api-key: s3cret-in-a-trailer\r\n"
    return [*done, b"0\r\n" + (trailers if framing == "trailers" else b"") + b"\r\n"]


def cut(body: bytes, rng: Random) -> list[bytes]:
    """The body in pieces of rare sizes."""
    pieces = []
    while body:
        size = rng.choice((1, 2, 3, 7, 61, 255, 256, 4095, 65_537))
        pieces.append(body[:size])
        body = body[size:]
    return pieces


def single_bytes(body: bytes) -> list[bytes]:
    """The body, byte by byte."""
    return [body[at : at + 1] for at in range(len(body))]


def with_body(framing: str, headers: Headers, body: bytes, rng: Random) -> tuple[bytes, ...]:
    """The pieces of a request's body; adds the headers that go with them."""
    if framing in ("chunked", "odd chunks", "extensions", "trailers"):
        headers.append((b"Transfer-Encoding", b"chunked"))
        if framing == "trailers":
            headers.append((b"Trailer", b"x-checksum"))
        pieces = [body] if framing == "chunked" else cut(body, rng)
        return tuple(chunks(pieces, framing, rng))
    headers.append((rng.choice((b"Content-Length", b"content-length")), b"%d" % len(body)))
    if framing == "byte by byte":
        return (*single_bytes(body[:300]), body[300:])
    return tuple(cut(body, rng)) if framing == "in pieces" else (body,)
