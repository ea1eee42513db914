"""Deals requests with everything that may be odd about them, and the replies to them.

Everything comes from one seeded source: the same seed makes the same cases.
"""

import gzip
import zlib
from collections.abc import Iterable
from dataclasses import dataclass, replace
from importlib.util import find_spec
from random import Random

from tests.gateway.varied import headers, replies
from tests.gateway.varied.answers import Tokens
from tests.gateway.varied.backend import CASE, Plan
from tests.gateway.varied.client import Headers, Request
from tests.gateway.varied.codings import coded
from tests.gateway.varied.decks import Deck
from tests.gateway.varied.framing import (
    BEFORE,
    BY_CLOSE,
    FOR_OLD_CLIENTS,
    REPLY_FRAMINGS,
    make_plan,
    with_body,
)
from tests.gateway.varied.prompts import make_body
from tests.gateway.varied.replies import Reply, make_reply
from tests.gateway.varied.rules import Expected
from tests.gateway.varied.ways import FILES, OWN_CREDENTIALS, SURFACES, Way, find_way

WITHOUT_BODY = ("length", "old client", "closing client", "whole address")
FRAMINGS = (
    *WITHOUT_BODY, "in pieces", "byte by byte", "chunked", "odd chunks", "extensions", "trailers",
    "continue",
)  # fmt: skip
# The gateway reads br and zstd when it has the packages; the tests know by the same sign.
_WITH_PACKAGES = [
    coding for coding, module in (("br", "brotli"), ("zstd", "zstandard")) if find_spec(module)
]
CODINGS = (
    "none", "none", "identity", "gzip", "GZip", "gzip in two members", "deflate", *_WITH_PACKAGES,
)  # fmt: skip
QUERIES = (
    b"beta=true", b"a=%20+%2B", b"b", b"c=", b"d=1", b"d=2", b"%E2%82%AC=x", b"e=key=1", b"keys=2",
)  # fmt: skip
CONTENT_TYPES = (b"application/json", b"application/json; charset=utf-8", b"text/plain", None)
ADDRESS = b"tandem.invalid:8700"  # what clients call the gateway


@dataclass(frozen=True, slots=True)
class Case:
    """One request, the plan of its backend, and what must come of both.

    `tokens`: what the ledger must have booked; None where it cannot know.
    """

    number: int
    title: str
    request: Request
    plan: Plan
    expected: Expected
    tokens: Tokens | None = None


@dataclass(frozen=True, slots=True)
class Sent:
    """The part of a request that may change on the way. `body` None: it has none.

    `_there`: as the backend must receive it.
    """

    method: bytes
    target: bytes
    target_there: bytes
    body: bytes | None
    body_there: bytes
    content_headers: Headers


class Cases:
    """Deals cases. Every kind of every thing comes about equally often."""

    def __init__(self, rng: Random) -> None:
        self._rng = rng
        self._count = 0
        self._surfaces = Deck(rng, SURFACES)
        self._kinds = {surface: Deck(rng, replies.kinds_for(surface)) for surface in SURFACES}
        self._files = Deck(rng, [*FILES])
        self._file_kinds = Deck(rng, replies.FILE_KINDS)
        self._framings = Deck(rng, FRAMINGS)
        self._reply_framings = Deck(rng, REPLY_FRAMINGS)
        self._codings = Deck(rng, CODINGS)
        self._credentials = Deck(rng, headers.CREDENTIALS)
        self._sent = Deck(rng, headers.SENT)
        self._answered = Deck(rng, headers.ANSWERED)
        self._before = Deck(rng, BEFORE)
        self._names = Deck(rng, ("its name", "its name", "its name", "a route's name"))

    def deal(self) -> Case:
        """The next call of a model."""
        rng = self._rng
        surface, name, coding = self._surfaces.draw(), self._names.draw(), self._codings.draw()
        kind = self._kinds[surface].draw()
        is_streamed = replies.is_streamed(kind)
        way = find_way(surface, rng, is_aliased=name != "its name", is_streamed=is_streamed)
        body = make_body(surface, way.model, rng, is_stream=is_streamed)
        packed = there = _packed(body.text, coding)
        if way.is_aliased and way.backend != "gem":
            there = body.with_model(f'"{way.model_there}"')
        credential = self._credentials.draw()
        query, query_there = self._query(credential, is_sse=kind.startswith("stream"))
        content_headers = _coding_header(coding)
        if (content_type := rng.choice(CONTENT_TYPES)) is not None:
            content_headers.append((rng.choice((b"Content-Type", b"content-type")), content_type))
        sent = Sent(
            b"POST", way.path + query, way.path_there + query_there, packed, there, content_headers
        )
        title = f"{surface}, by {name}, coding {coding}, key: {credential}"
        return self._case(title, sent, credential, way, kind, make_reply(kind, surface, rng))

    def deal_file(self) -> Case:
        """The next call that names no model: it goes to the backend marked as the default."""
        rng = self._rng
        title, kind = self._files.draw(), self._file_kinds.draw()
        method, path, content = FILES[title]
        coding = "none" if content is None else self._codings.draw()
        body = None if content is None else _packed(content, coding)
        credential = self._credentials.draw()
        query, query_there = self._query(credential, is_sse=False)
        content_headers = _coding_header(coding)
        if body:
            content_headers.append((b"Content-Type", b"multipart/form-data; boundary=x"))
        sent = Sent(method, path + query, path + query_there, body, body or b"", content_headers)
        way = Way("open", path, path, "", "")
        reply = replies.make_file_reply(kind, rng)
        return self._case(f"{title}, {coding}, {credential}", sent, credential, way, kind, reply)

    def _case(
        self, title: str, sent: Sent, credential: str, way: Way, kind: str, reply: Reply
    ) -> Case:
        self._count += 1
        framing = self._framings.draw_of(FRAMINGS if sent.body is not None else WITHOUT_BODY)
        drawn = [self._sent.draw_of(_sent_by(framing)) for _ in range(3)]
        kinds = list(dict.fromkeys(drawn))  # "many" twice would be more than a head may have
        request = self._request(sent, framing, kinds, headers.credentials(credential))
        answered = self._answered.draw()
        reply = replace(reply, headers=reply.headers + headers.answered(answered, self._rng))
        plan, reply_framing = self._plan(reply, request)
        expected = Expected(
            target=sent.target_there,
            body=sent.body_there,
            own_credential=OWN_CREDENTIALS[way.backend],
            routed_via=way.routed_via,
            is_edited=(sent.body or b"") != sent.body_there,
        )
        asked = ", ".join((title, framing, *kinds))
        title = f"{asked} → {kind}, {reply_framing}, {answered}"
        return Case(self._count, title, request, plan, expected, reply.tokens)

    def _query(self, credential: str, *, is_sse: bool) -> tuple[bytes, bytes]:
        """The query as the client sends it, and as the backend must see it."""
        kept = self._rng.sample(QUERIES, self._rng.randrange(4))
        kept += [b"alt=sse"] if is_sse else []
        secret = headers.credentials_in_query(credential)
        pieces = kept + secret
        self._rng.shuffle(pieces)
        there = [piece for piece in pieces if piece not in secret]
        both = [b"?" + b"&".join(part) if part else b"" for part in (pieces, there)]
        return both[0], both[1]

    def _request(
        self, sent: Sent, framing: str, kinds: Iterable[str], credentials: Headers
    ) -> Request:
        rng = self._rng
        lines = [(b"Host", ADDRESS), (b"User-Agent", b"varied/1.0 (\xc3\xa9)")]
        lines += sent.content_headers + credentials
        for kind in kinds:
            lines += headers.sent(kind, rng)
        lines.append((CASE, b"%d" % self._count))
        pieces = () if sent.body is None else with_body(framing, lines, sent.body, rng)
        if framing == "continue":
            lines.append((b"Expect", b"100-continue"))
        if framing == "closing client":
            lines.append((b"Connection", b"close"))
        rng.shuffle(lines)
        is_whole = framing == "whole address"
        return Request(
            method=sent.method,
            target=b"http://" + ADDRESS + sent.target if is_whole else sent.target,
            headers=lines,
            pieces=pieces,
            version=b"HTTP/1.0" if framing == "old client" else b"HTTP/1.1",
            waits=framing == "continue",
        )

    def _plan(self, reply: Reply, request: Request) -> tuple[Plan, str]:
        """The reply on the wire, in a form that this client understands and can trust."""
        allowed = FOR_OLD_CLIENTS if request.version == b"HTTP/1.0" else REPLY_FRAMINGS
        if reply.status < 400 and not reply.has_end:
            allowed = tuple(framing for framing in allowed if framing not in BY_CLOSE)
        framing, before = self._reply_framings.draw_of(allowed), self._before.draw()
        if request.version == b"HTTP/1.0" or framing.startswith("old"):
            before = "nothing"
        if framing.startswith("old"):  # a server that old promises nothing about its connection
            kept = [header for header in reply.headers if b"keep-alive" not in header[1]]
            reply = replace(reply, headers=kept)
        plan = make_plan(reply, framing, before, request.method, self._rng)
        return plan, framing if before == "nothing" else f"{framing} after {before}"


def _sent_by(framing: str) -> tuple[str, ...]:
    """Kinds of headers beside a framing; HTTP/1.0 has no way to keep a connection that counts."""
    if framing != "old client":
        return headers.SENT
    return tuple(kind for kind in headers.SENT if kind != "named by connection")


def _coding_header(coding: str) -> Headers:
    named = coding.partition(" ")[0].encode()
    return [] if coding == "none" else [(b"Content-Encoding", named)]


def _packed(body: bytes, coding: str) -> bytes:
    """The body in a content coding."""
    if coding in ("none", "identity"):
        return body
    if coding == "gzip in two members":
        middle = len(body) // 2
        return gzip.compress(body[:middle]) + gzip.compress(body[middle:])
    if coding in ("br", "zstd"):
        return b"".join(coded(coding, [body]))
    return zlib.compress(body) if coding == "deflate" else gzip.compress(body)
