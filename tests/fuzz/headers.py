"""What goes up to a backend and comes down from it: heads made of the heads that strangers send.

The first byte of an input chooses backend and route, the rest is a request; what stands behind its
first `|` is the head of the backend's answer. Both are read by the gateway's own connections, so
that the code sees what it can see and nothing else.
"""

from collections.abc import Iterator
from urllib.parse import unquote_plus

from gateway.backends.base import Backend
from gateway.door.connection import ClientConnection
from gateway.errors import ApiError
from gateway.exchange import Exchange, Headers
from gateway.middleware.auth import Auth, shown_key
from gateway.outbox import Outbox
from gateway.relay.connection import Connection
from gateway.relay.headers import answer_head, request_head
from gateway.routes import Endpoints, Router, url_table
from gateway.settings.types import (
    BackendKey,
    BackendSettings,
    ClientKey,
    LedgerSettings,
    Secret,
    ServerSettings,
    Settings,
)
from gateway.surfaces.request import read_request
from tests.fuzz import rfc9112
from tests.fuzz.wire import ManualLoop, Transport, run_now

LIMITS: dict[str, int] = {}
MOST_BYTES = 2048
CLIENT_KEY = "sk-of-the-client-0123456789"
OWN_KEY = "sk-of-ours-9876543210"
HOP_BY_HOP = {b"connection", b"keep-alive", b"proxy-authenticate", b"proxy-connection", b"te",
              b"trailer", b"transfer-encoding", b"upgrade"}  # fmt: skip
CREDENTIALS = {b"authorization", b"proxy-authorization", b"x-api-key", b"api-key", b"cookie",
               b"x-goog-api-key", b"openai-organization", b"openai-project"}  # fmt: skip
QUERY_CREDENTIALS = {"key", "api_key", "access_token"}
FORWARDED = {b"forwarded", b"x-real-ip", b"via"}
PREFIXES = (b"x-forwarded-", b"x-tandem-")
ALIAS = "of another name"
_loop = ManualLoop()
_outbox = Outbox(_loop)
_KINDS = (("openai", "/v1"), ("openai", ""), ("openai", "/api/paas/v4"), ("anthropic", ""),
          ("gemini", "/v1beta"))  # fmt: skip
_BACKENDS = [
    Backend(
        kind,
        BackendSettings(
            kind=kind,  # type: ignore[arg-type]
            base_url=f"http://127.0.0.1:1{path}",
            keys=(BackendKey("k", Secret("env:K", OWN_KEY)),),
            headers={"X-Extra": "ours"},
        ),
    )
    for kind, path in _KINDS
]
_OWN = [{name for name, _ in backend.own_headers} for backend in _BACKENDS]
_AUTH = Auth(
    Settings(
        server=ServerSettings(auth="keys", admin_token=Secret("env:A", "operator")),
        ledger=LedgerSettings(),
        keys=(ClientKey("one", secret=Secret("env:C", CLIENT_KEY)),),
        rev="fuzz",
    )
)


class _Gate:
    auth = _AUTH


class _Door:
    """Keeps what was accepted; serves nothing."""

    def __init__(self) -> None:
        self.loop = _loop
        self.outbox = Outbox(_loop)
        self.connections: set[ClientConnection] = set()
        self.is_closing = False
        self.accepted: list[Exchange] = []

    def new_id(self) -> str:
        return "r1"

    def begin(self, exchange: Exchange) -> None:
        self.accepted.append(exchange)


async def _nothing(exchange: Exchange, identity: object) -> None:
    """Stands for every endpoint."""


_router = Router(_Gate(), url_table(Endpoints(*[_nothing] * 8)))


def check(data: bytes) -> None:
    """One input. Raises: AssertionError, or whatever the gateway must not raise."""
    if not data:
        return
    sent, _, answered = data[1:].partition(b"|")
    for exchange in _accepted(sent):
        _check_auth(exchange)
        _check_up(exchange, data[0])
    headers = _answered(answered)
    if headers is not None:
        _check_down(headers)


def _accepted(sent: bytes) -> list[Exchange]:
    door, transport = _Door(), Transport()
    connection = ClientConnection(door)
    connection.connection_made(transport)
    connection.data_received(sent)
    connection.connection_lost(None)
    return [exchange for exchange in door.accepted if exchange.fault is None]


def _check_auth(exchange: Exchange) -> None:
    """A caller gets in with the one key that is right, wherever it is shown, and with no other."""
    shown = shown_key(exchange)
    assert shown is None or isinstance(shown, bytes)
    for rule in ("client", "dashboard", "metrics", "admin"):
        try:
            identity = _AUTH.check(rule, exchange)  # type: ignore[arg-type]
        except ApiError as fault:
            assert fault.status in (401, 404)
            assert rule != "client" or shown != CLIENT_KEY.encode()
            continue
        if rule == "client":
            assert identity.label == "one" and shown == CLIENT_KEY.encode()
        else:
            assert b"operator" in exchange.fields[b"authorization"]


def _check_up(exchange: Exchange, choice: int) -> None:
    backend = _BACKENDS[choice % len(_BACKENDS)]
    own = _OWN[choice % len(_BACKENDS)]
    try:
        route = _router._find(exchange)
        if route.surface is None:
            return
        exchange.surface = route.surface
        exchange.finish_body()
        body = run_now(exchange.read_body(65_536))
        request = read_request(exchange, body, 65_536)
    except ApiError:
        return
    if choice & 0x80:
        request = request.for_model(ALIAS, is_in_path=exchange.surface == "gemini")
        again = request.body if exchange.surface != "gemini" else request.path.encode("latin-1")
        assert ALIAS.encode() in again or b"of%20another%20name" in again, request
    head = request_head(exchange, backend, request)
    strict, end = rfc9112.read_request(head + request.body, 0)
    assert end == len(head) + len(request.body), "one request became more than one"
    assert strict.first[0] == exchange.method.encode() and strict.body == request.body
    _check_target(strict.first[1])
    named = {
        token.strip().lower()
        for name, value in exchange.headers
        if name == b"connection"
        for token in value.split(b",")
    }
    sent = [field for field in strict.fields if field not in backend.own_headers]
    for name, value in sent:
        ours = name in (b"host", b"content-length", b"accept-encoding")
        assert ours or name not in named, (name, named)
        assert name not in HOP_BY_HOP | CREDENTIALS | FORWARDED, name
        assert not name.startswith(PREFIXES), name
        assert name not in own, name
        assert ours or (name, value.strip(b" \t")) in [
            (field, text.strip(b" \t")) for field, text in exchange.headers
        ], (name, value)
    for name in {b"host", b"accept-encoding"} | own:
        assert len(strict.values(name)) == 1, name


def _check_target(target: bytes) -> None:
    query = target.partition(b"?")[2].decode("latin-1")
    for piece in query.split("&"):
        assert unquote_plus(piece.partition("=")[0]) not in QUERY_CREDENTIALS, target


class _Receiver:
    headers: Headers | None = None

    def begin(self, connection: Connection) -> None:
        self.headers = connection.headers

    def take(self, piece: bytes, *, is_last: bool) -> None:
        """Reads heads only."""


def _answered(sent: bytes) -> Headers | None:
    connection, receiver = Connection(_loop, _outbox), _Receiver()
    connection.connection_made(Transport())
    connection.start(b"POST / HTTP/1.1\r\n\r\n", b"", receiver)
    connection.data_received(sent)
    connection.connection_lost(None)
    return receiver.headers


def _check_down(received: Headers) -> None:
    head = answer_head(received)
    text = b"HTTP/1.1 200 OK\r\n" + head.block + b"content-length: 0\r\n\r\n"
    strict, end = rfc9112.read_answer(text, 0, to_head=False)
    assert end == len(text), "one answer became more than one"
    named = {
        token.strip().lower()
        for name, value in received
        if name == b"connection"
        for token in value.split(b",")
    }
    ours = {b"cache-control", b"x-accel-buffering"} if head.is_stream else set()
    for name, _ in strict.fields[:-1]:
        assert name not in HOP_BY_HOP | {b"set-cookie", b"content-length", b"x-request-id"}, name
        assert name in ours or name not in named, (name, named)
    for name in ours:
        assert len(strict.values(name)) == 1, name
    dropped = HOP_BY_HOP | {b"set-cookie", b"content-length", b"x-request-id", b"x-routed-via"}
    kept = [(n, v.strip(b" \t")) for n, v in received if n not in dropped | ours | named]
    assert [field for field in strict.fields[:-1] if field[0] not in ours] == kept
    assert head.length is None or head.length >= 0


def _seeds() -> Iterator[bytes]:
    body = b'{"model":"m"}'
    length = b"content-length: %d\r\n\r\n" % len(body) + body
    key = CLIENT_KEY.encode()
    targets = [b"/v1/chat/completions", b"/v1/messages?beta=true&key=" + key,
               b"/v1/embeddings?k%65y=x",
               b"/v1beta/models/g:generateContent?alt=sse&key=a&api_key=b", b"/v1/responses",
               b"/v1beta/models/g%2Fh:streamGenerateContent?access%5Ftoken=1", b"/v1/models",
               b"/v1beta/models/g%3AgenerateContent", b"/v1beta/%6dodels/g:generateContent",
               b"http://x/v1/completions?a=1", b"/v1/messages/count_tokens?+=&&=&a"]  # fmt: skip
    headers = [
        b"Authorization: Bearer " + key + b"\r\nX-Api-Key: " + key + b"\r\n",
        b"authorization: bearer  " + key + b" \r\ncookie: a\r\nopenai-project: p\r\n",
        b"Connection: close, X-Mine, Authorization\r\nX-Mine: 1\r\nX-Other: 2\r\n",
        b"Connection: Host\r\nConnection: content-length,accept-encoding\r\nx-extra: theirs\r\n",
        b"TE: trailers\r\nUpgrade: h2c\r\nKeep-Alive: 5\r\nProxy-Connection: close\r\n",
        b"X-Forwarded-For: 1.2.3.4\r\nForwarded: for=1\r\nVia: x\r\nX-Tandem-A: b\r\n",
        b"x-goog-api-key: " + key + b"\r\nAccept-Encoding: br\r\nExpect: 100-continue\r\n",
        b"X-Text: \xff\xfe\tb\r\nEmpty:\r\nanthropic-version: 2023-06-01\r\n",
    ]
    answers = [
        b"content-type: text/event-stream\r\n"
        b"Cache-Control: max-age=1\r\ntransfer-encoding: chunked\r\n",
        b"content-type: application/json\r\ncontent-length: 2\r\n"
        b"set-cookie: a\r\nx-request-id: 1\r\n",
        b"connection: close, X-A, cache-control\r\nx-a: 1\r\nx-b: 2\r\ncontent-encoding: gzip\r\n",
        b"content-type: Text/Event-Stream; x\r\n"
        b"connection: x-accel-buffering\r\nX-Accel-Buffering: a\r\n",
        b"content-length: 00012\r\nproxy-authenticate: a\r\nkeep-alive: 5\r\ntrailer: a\r\n",
    ]  # fmt: skip
    for number, target in enumerate(targets):
        for other, lines in enumerate(headers):
            answer = answers[(number + other) % len(answers)]
            choice = bytes([(number + other) % len(_BACKENDS) + 0x80 * (other % 2)])
            head = b"POST " + target + b" HTTP/1.1\r\nHost: x\r\n" + lines
            yield choice + head + length + b"|HTTP/1.1 200 OK\r\n" + answer + b"\r\n"


def _renamed(path: bytes) -> bytes:
    return b"\x84POST " + path + b" HTTP/1.1\r\nHost: x\r\nContent-Length: 2\r\n\r\n{}"


FINDS: dict[str, bytes] = {
    "a method behind an escaped colon": _renamed(b"/v1beta/models/g%3AgenerateContent"),
    "an escape in a Gemini path": _renamed(b"/v1beta/%6dodels/g:generateContent"),
}
SEEDS: list[bytes] = [*_seeds(), *FINDS.values()]
WORDS: list[bytes] = [
    b"Connection: ", b"Authorization: Bearer ", b"x-api-key: ", CLIENT_KEY.encode(), b"key=", b"&",
    b"%0d%0a", b"%3A", b":generateContent", b"transfer-encoding: chunked\r\n", b"content-length: ",
    b"\r\n\r\n", b"/models/", b"|HTTP/1.1 200 OK\r\n",
]  # fmt: skip
