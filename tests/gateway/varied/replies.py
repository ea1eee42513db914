"""What the scripted backend answers: status, headers and body of every kind, before any framing.

Knows no gateway. `framing` puts a reply on the wire.
"""

from dataclasses import dataclass, replace
from random import Random
from typing import Any

from tests.gateway.varied.answers import STREAMING, Event, Tokens, events, whole
from tests.gateway.varied.client import Headers
from tests.gateway.varied.codings import coded
from tests.gateway.varied.json_texts import ESCAPES, LONG_NUMBER, SPACES, Writer, odd_value

HUGE_LINE_BYTES = 2 * 1024 * 1024
BOM = b"\xef\xbb\xbf"
CODINGS = ("gzip", "deflate", "br", "zstd")
READABLE = ("gzip", "deflate")  # by a gateway without further packages

STREAMS = (
    "stream lf", "stream cr", "stream crlf", "stream mixed", "stream comments", "stream fields",
    "stream several data lines", "stream bom", "stream no blank", "stream byte by byte",
    "stream huge line", "stream without end", "stream done twice", "stream of an error",
    "stream gzip", "stream deflate", "stream br", "stream zstd",
)  # fmt: skip
WHOLES = (
    "json", "json odd", "json byte by byte", "json gzip", "json deflate", "json br", "json zstd",
    "error", "error text", "error gzip", "error br", "error empty", "error as a stream",
    "empty", "no content", "html", "json long number",
)  # fmt: skip
FILE_KINDS = (
    "json", "json odd", "json gzip", "json br", "binary", "binary byte by byte", "part", "created",
    "not modified", "error", "error gzip", "error empty", "empty", "no content",
)  # fmt: skip
GEMINI_ONLY = ("list", "list byte by byte")
ERRORS = (400, 404, 405, 408, 409, 413, 415, 422, 424, 429, 451, 500, 501, 503, 504, 520, 529)
JSON = b"application/json"
SSE = b"text/event-stream"


@dataclass(frozen=True, slots=True)
class Reply:
    """One answer. `pieces`: its body, in natural pieces; `is_cut`: to be sent byte by byte.

    `tokens`: what a ledger must have booked, None where it cannot know. `has_end`: a reader can
    tell from the body that it is whole, so that it may be ended by closing the connection.
    """

    status: int
    headers: Headers
    pieces: tuple[bytes, ...]
    is_cut: bool = False
    tokens: Tokens | None = None
    has_end: bool = False

    @property
    def body(self) -> bytes:
        return b"".join(self.pieces)


def make_reply(kind: str, surface: str, rng: Random) -> Reply:
    """A reply of one of the kinds above to a call of this surface."""
    if kind.startswith("stream"):
        return _stream(kind.removeprefix("stream "), surface, rng)
    if kind.startswith("list"):
        return _list(rng, is_cut=kind.endswith("byte"))
    if kind.startswith("json"):
        return _json(kind.removeprefix("json").strip(), surface, rng)
    if kind.startswith("error"):
        return _error(kind.removeprefix("error").strip(), rng)
    if kind == "no content":
        return Reply(204, [], ())
    if kind == "empty":
        return Reply(200, [(b"content-type", JSON)], ())
    return Reply(200, [(b"Content-Type", b"text/html; charset=latin-1")], (b"<p>\xe9\xff\x00</p>",))


def make_file_reply(kind: str, rng: Random) -> Reply:
    """A reply to a call that names no model; nobody reads it, so that any end is an end."""
    blob = bytes(range(256)) * rng.choice((1, 3))
    binary = [(b"content-type", b"application/octet-stream"), (b"Accept-Ranges", b"bytes")]
    if kind.startswith("binary"):
        return Reply(200, binary, (blob,), is_cut=kind.endswith("byte"), has_end=True)
    if kind == "part":
        headers = [*binary, (b"Content-Range", b"bytes 0-99/256")]
        return Reply(206, headers, (blob[:100],), has_end=True)
    if kind == "created":
        headers = [(b"Location", b"/v1/files/file-1"), (b"content-type", JSON)]
        return Reply(201, headers, (b'{"id": "file-1", "bytes": 1.0}\r\n',), has_end=True)
    if kind == "not modified":
        return Reply(304, [(b"ETag", b'W/"x"')], ())
    return replace(make_reply(kind, "embeddings", rng), tokens=None)


def kinds_for(surface: str) -> tuple[str, ...]:
    """Every kind that a call of this surface may be answered with."""
    streams = STREAMS if surface in STREAMING else ()
    return streams + WHOLES + (GEMINI_ONLY if surface == "gemini" else ())


def is_streamed(kind: str) -> bool:
    """Whether the client must have asked for a stream."""
    return kind.startswith(("stream", "list"))


def _json(form: str, surface: str, rng: Random) -> Reply:
    value, tokens = whole(surface, rng)
    writer = Writer(rng)
    if form == "odd":
        writer = Writer(rng, spaces=rng.choice([*SPACES]), escapes=rng.choice(ESCAPES))
    if form == "long number":
        value.append(("x_long", LONG_NUMBER))
        return Reply(200, [(b"content-type", JSON)], (writer.write(value).encode(),), has_end=True)
    body = writer.write(value).encode()
    headers = [(b"content-type", rng.choice((JSON, JSON + b"; charset=utf-8")))]
    reply = Reply(200, headers, (body,), tokens=tokens, has_end=True)
    if form in CODINGS:
        return _coded(reply, form, at=rng.randrange(len(body)))
    return replace(reply, is_cut=form == "byte by byte")


def _coded(reply: Reply, coding: str, *, at: int | None = None) -> Reply:
    """The reply in a content coding; a whole body is coded in two pieces, cut at `at`."""
    pieces = reply.pieces if at is None else (reply.body[:at], reply.body[at:])
    headers = [*reply.headers, (b"Content-Encoding", coding.encode())]
    tokens = reply.tokens if coding in READABLE else None
    return replace(reply, headers=headers, pieces=tuple(coded(coding, pieces)), tokens=tokens)


def _error(form: str, rng: Random) -> Reply:
    status = rng.choice(ERRORS)
    headers: Headers = [(b"content-type", JSON)]
    if status in (429, 503, 529):
        headers += [(b"Retry-After", rng.choice((b"7", b"Wed, 21 Oct 2026 07:28:00 GMT")))]
        headers += [(b"retry-after-ms", b"300"), (b"x-should-retry", b"false")]
    body = Writer(rng, spaces="any").write({"error": odd_value(rng), "type": "error"}).encode()
    if form == "text":
        headers[0] = (b"content-type", b"text/plain")
        body = b"upstream connect error \xe9\xfe\xff\x00"
    elif form == "as a stream":
        headers[0] = (b"content-type", SSE)
        body = b"event: error\r\ndata: " + body.replace(b"\r", b" ").replace(b"\n", b" ") + b"\n\n"
    reply = Reply(status, headers, () if form == "empty" else (body,))
    return _coded(reply, form) if form in CODINGS else reply


def _list(rng: Random, *, is_cut: bool) -> Reply:
    """Gemini without `alt=sse`: one JSON list, an item at a time."""
    said, tokens = events("gemini", rng)
    items = [Writer(rng).write(value).encode() for _, value in said]
    pieces = (b"[" + items[0], *(b",\r\n" + item for item in items[1:]), b"\n]\n")
    headers = [(b"content-type", b"application/json; charset=UTF-8")]
    return Reply(200, headers, pieces, is_cut=is_cut, tokens=tokens, has_end=True)


def _stream(form: str, surface: str, rng: Random) -> Reply:
    huge_bytes = HUGE_LINE_BYTES if form == "huge line" else 0
    said, tokens = events(surface, rng, huge_bytes=huge_bytes)
    has_end = form not in ("without end", "of an error")
    if not has_end:
        said = said[: rng.randrange(1, 3)]
    if form == "bom":  # the event behind it must be one that counts
        said = said[{"chat": -2, "messages": 0}.get(surface, -1) :]
    if form == "of an error":
        error = {"type": "error", "error": {"message": rng.choice(("busy", "\u00e9"))}}
        said.append(("error", error))
    pieces = [_event(event, form, rng) for event in said]
    if surface in ("chat", "completions") and form != "of an error":
        pieces += [b"data: [DONE]\n\n"] * (2 if form == "done twice" else 1)
    if form == "done twice":
        pieces.insert(1, b"data:  [DONE] \n\n")
    if form == "bom":
        pieces[0] = BOM + pieces[0]
    content_type = rng.choice((SSE, SSE + b"; charset=utf-8", b"Text/Event-Stream;charset=UTF-8"))
    headers = [(b"Content-Type", content_type)]
    reply = Reply(
        200, headers, tuple(pieces), is_cut=form == "byte by byte",
        tokens=tokens if has_end else None, has_end=has_end,
    )  # fmt: skip
    return _coded(reply, form) if form in CODINGS else reply


def _event(event: Event, form: str, rng: Random) -> bytes:
    """One event as lines, closed by a blank line."""
    name, value = event
    text = _event_text(value, form, rng)
    blank = "" if form == "no blank" else " "
    lines = [f"event:{blank}{name}"] if name else []
    lines += [f"data:{blank}{line}" for line in text.split("\n")]
    if form in ("comments", "byte by byte"):
        lines.insert(rng.randrange(len(lines) + 1), ": ping \u2764")
        lines.insert(0, ":")
    if form in ("fields", "mixed"):
        lines[:0] = ["id: 7", "retry: 3000", "never-heard-of: x", "lonely"]
    ends = {"cr": "\r", "crlf": "\r\n", "mixed": rng.choice(("\r", "\n", "\r\n"))}
    end = ends.get(form, "\n")
    before = f": a comment{end}{end}" if form == "comments" else ""
    after = end * rng.randrange(3) if form == "fields" else ""
    return (before + "".join(line + end for line in lines) + end + after).encode()


def _event_text(value: Any, form: str, rng: Random) -> str:
    if form == "several data lines":
        return Writer(rng, spaces="lines", escapes="any").write(value).strip()
    return Writer(rng, spaces=rng.choice(("none", "single"))).write(value).strip(" ")
