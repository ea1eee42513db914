"""One relayed request: bytes up, bytes down, unchanged. Knows no JSON of the answer and no SQL.

The only changes are those of headers (credentials and hop-by-hop ones stay where they belong), the
`model` value when a route has another name for it, and an error appended to a stream that broke.
"""

from collections.abc import Callable
from dataclasses import dataclass

import structlog

from gateway.backends.base import Backend
from gateway.errors import RETRY_BACKEND_BUSY_S, ApiError, stream_error_end
from gateway.exchange import CutShort, Exchange, Headers, Watch, header_text
from gateway.ledger.entry import Outcome
from gateway.relay.client import (
    Clock,
    ConnectFailed,
    Connection,
    GatewayStopping,
    UpstreamBroken,
    UpstreamClient,
    UpstreamFault,
    UpstreamTimeout,
)
from gateway.relay.tap import Tap
from gateway.routing.table import Target
from proto.limits import QUOTED_ERROR_CHARS

log = structlog.get_logger(__name__)

_HOP_BY_HOP = frozenset({
    b"connection", b"keep-alive", b"proxy-authenticate", b"proxy-connection", b"te", b"trailer",
    b"transfer-encoding", b"upgrade",
})  # fmt: skip
_NOT_SENT_UP = _HOP_BY_HOP | {
    b"host", b"content-length", b"accept-encoding", b"expect",
    b"authorization", b"proxy-authorization", b"x-api-key", b"api-key", b"x-goog-api-key",
    b"cookie", b"openai-organization", b"openai-project",
    b"forwarded", b"x-real-ip", b"via",
}  # fmt: skip
_PREFIXES_NOT_SENT_UP = (b"x-tandem-", b"x-freellm-", b"x-forwarded-")
_NOT_SENT_DOWN = _HOP_BY_HOP | {b"set-cookie", b"x-request-id", b"x-routed-via"}
_MAPPED = {401, 402, 403, 407}


@dataclass(frozen=True, slots=True)
class Outgoing:
    """What goes up: the target's name, the path of ours that was called, the body.

    `is_decoded`: the body is no longer in the Content-Encoding that the client declared.
    """

    target: Target
    path: str
    body: bytes
    is_decoded: bool = False
    is_stream: bool = False


@dataclass(slots=True)
class Relayed:
    """How a relayed request went, for the ledger. `error_type` None with outcome `succeeded`."""

    tap: Tap | None = None
    status: int | None = None
    upstream_status: int | None = None
    outcome: Outcome = "failed"
    error_type: str | None = None

    @property
    def has_ended(self) -> bool:
        """Whether the client had the whole answer, even if it left before our end of file."""
        return self.outcome == "succeeded"


class Relay:
    """Forwards requests to HTTP backends. `now`: the ledger's clock in seconds."""

    def __init__(self, client: UpstreamClient, now: Callable[[], float]) -> None:
        self._client = client
        self._now = now

    async def forward(
        self, exchange: Exchange, backend: Backend, outgoing: Outgoing, relayed: Relayed
    ) -> None:
        """Relays one request and fills in `relayed` as it goes.

        Raises: ApiError before anything was sent to the client; ClientLeft.
        """
        if 0 < backend.settings.max_in_flight <= backend.in_flight:
            raise _busy(backend)
        backend.in_flight += 1
        try:
            async with Watch(exchange) as watch:
                await self._run(exchange, watch, backend, outgoing, relayed)
        except UpstreamFault as fault:
            broken = fault
        else:
            return
        finally:
            backend.in_flight -= 1
        _note_fault(backend, broken)
        await self._end_broken(exchange, backend, broken, relayed)

    async def _run(
        self, exchange: Exchange, watch: Watch, backend: Backend, outgoing: Outgoing,
        relayed: Relayed,
    ) -> None:  # fmt: skip
        clocks = backend.settings
        connection: Connection | None = None
        try:
            watch.cap(clocks.total_s, UpstreamTimeout("total_s", clocks.total_s))
            clock, limit_s = _first_clock(exchange, backend, outgoing)
            watch.limit(limit_s, UpstreamTimeout(clock, limit_s))
            connection = await self._client.send(
                backend.origin,
                _request_head(exchange, backend, outgoing),
                outgoing.body,
                connect_s=clocks.connect_s,
            )
            relayed.upstream_status = connection.status
            backend.health.note_answer(connection.status)
            await self._check_status(connection, backend)
            await self._answer(exchange, watch, backend, outgoing.target, connection, relayed)
        finally:
            if connection is not None:
                self._client.release(backend.origin, connection)

    async def _answer(
        self, exchange: Exchange, watch: Watch, backend: Backend, target: Target,
        connection: Connection, relayed: Relayed,
    ) -> None:  # fmt: skip
        """Status and headers, then every piece of the body as it comes."""
        headers, content_type, encoding = _answer_headers(connection.status, connection.headers)
        is_stream = content_type.startswith(b"text/event-stream")
        if is_stream:
            headers += [(b"x-accel-buffering", b"no"), (b"cache-control", b"no-cache")]
        headers += [
            (b"x-request-id", exchange.request_id.encode()),
            (b"x-routed-via", header_text(target.routed_via)),
        ]
        tap = Tap(exchange.surface, is_stream=is_stream, content_encoding=encoding, now=self._now)
        relayed.tap, relayed.status = tap, connection.status
        await exchange.start(connection.status, headers)
        await self._body(exchange, watch, backend, connection, relayed, tap)
        _judge(relayed, tap, is_ok=connection.status < 400)

    async def _body(
        self, exchange: Exchange, watch: Watch, backend: Backend, connection: Connection,
        relayed: Relayed, tap: Tap,
    ) -> None:  # fmt: skip
        idle_s = backend.settings.idle_s
        idle = UpstreamTimeout("idle_s", idle_s)
        life = 0
        while piece := await connection.read():
            tap.feed(piece)
            if tap.life != life:  # comments and pings do not hide a dead backend
                life = tap.life
                watch.limit(idle_s, idle)
            left_s = watch.hold()  # a slow client is not a silent backend
            await exchange.write(piece)
            watch.resume(left_s)
            if tap.reading.finish is not None and connection.status < 400:
                relayed.outcome = "succeeded"  # even if the client leaves before our end of file
        tap.finish()
        if connection.ends_by_close and connection.status < 400 and tap.lacks_its_end:
            raise UpstreamBroken("it closed the connection without a finish", before_answer=False)
        await exchange.write(b"", is_last=True)

    async def _check_status(self, connection: Connection, backend: Backend) -> None:
        """Raises: ApiError for answers that are ours to explain."""
        status = connection.status
        if 300 <= status < 400 and status != 304:
            raise ApiError(502, "upstream_failed", "The backend answered with a redirect.")
        if status not in _MAPPED:
            return
        # Its body may quote our key: it goes to the log, masked, and no further.
        log.warning("backend.refused_credentials", backend=backend.name, status=status)
        if status == 402:
            message = "The backend says that its account is out of credits."
            raise ApiError(502, "provider_out_of_credits", message, may_retry=False)
        message = "The backend refused the credentials that this gateway has for it."
        raise ApiError(502, "provider_authentication_failed", message, may_retry=False)

    async def _end_broken(
        self, exchange: Exchange, backend: Backend, fault: UpstreamFault, relayed: Relayed
    ) -> None:
        error = upstream_error(fault)
        relayed.outcome = "failed"
        relayed.error_type = fault.clock if isinstance(fault, UpstreamTimeout) else error.code
        log.warning(
            "relay.failed",
            request_id=exchange.request_id,
            backend=backend.name,
            fault=str(fault)[:QUOTED_ERROR_CHARS],
            has_started=exchange.has_started,
        )
        if not exchange.has_started:
            raise error
        tap = relayed.tap
        assert tap is not None
        if tap.is_stream and tap.reading.finish is not None:  # it had said everything
            relayed.outcome, relayed.error_type = "succeeded", None
            await exchange.end_with(b"" if tap.is_between_events else b"\n\n")
            return
        if not tap.is_stream or tap.is_encoded:
            raise CutShort  # without the final HTTP chunk: a clean early end would pass for whole
        close = b"" if tap.is_between_events else b"\n\n"
        await exchange.end_with(
            close + stream_error_end(exchange.surface, error, exchange.request_id)
        )


def _judge(relayed: Relayed, tap: Tap, *, is_ok: bool) -> None:
    """What an answer that arrived whole counts as."""
    relayed.outcome = "failed"
    if not is_ok:
        relayed.error_type = "upstream_status"
    elif tap.reading.is_failed:
        relayed.error_type = "upstream_error_event"
    elif tap.is_on and tap.is_stream and tap.reading.finish is None:
        relayed.error_type = "no_finish_reason"
    else:
        relayed.outcome = "succeeded"


def upstream_error(fault: UpstreamFault) -> ApiError:
    """What a client is told about a fault between us and a backend."""
    if isinstance(fault, UpstreamTimeout) and fault.clock != "connect_s":
        message = f"The backend was silent for too long: {fault}."
        return ApiError(504, "upstream_timeout", message)
    if isinstance(fault, (ConnectFailed, UpstreamTimeout)):
        return ApiError(502, "upstream_failed", f"The backend cannot be reached: {fault}.")
    return ApiError(502, "upstream_failed", f"The backend's answer broke off: {fault}.")


def _request_head(exchange: Exchange, backend: Backend, outgoing: Outgoing) -> bytes:
    scope = exchange.scope
    path = backend.url_path(outgoing.path, scope["query_string"])
    named = _named_by_connection(scope["headers"])
    lines = [
        f"{scope['method']} {path} HTTP/1.1\r\nhost: ".encode(),
        backend.origin.authority,
        b"\r\naccept-encoding: identity\r\n",
    ]
    own = {name for name, _ in backend.own_headers}
    for name, value in scope["headers"]:
        if name in _NOT_SENT_UP or name in named or name in own:
            continue
        if name.startswith(_PREFIXES_NOT_SENT_UP):
            continue
        if outgoing.is_decoded and name == b"content-encoding":
            continue
        lines += (name, b": ", value, b"\r\n")
    for name, value in backend.own_headers:
        lines += (name, b": ", value, b"\r\n")
    if outgoing.body or scope["method"] not in ("GET", "HEAD"):
        lines.append(b"content-length: %d\r\n" % len(outgoing.body))
    lines.append(b"\r\n")
    return b"".join(lines)


def _answer_headers(status: int, received: Headers) -> tuple[Headers, bytes, bytes | None]:
    """Headers for the client, the content type and the content encoding."""
    headers: Headers = []
    content_type, encoding = b"", None
    named = _named_by_connection(received)
    for name, value in received:
        if name == b"content-type":
            content_type = value.lower()
        elif name == b"content-encoding":
            encoding = value
        if name not in _NOT_SENT_DOWN and name not in named:
            headers.append((name, value))
    dropped: set[bytes] = set()
    if content_type.startswith(b"text/event-stream"):
        dropped = {b"cache-control", b"content-length"}  # its end may be an error of ours
    elif status in (204, 304):
        dropped = {b"content-length"}
    headers = [(name, value) for name, value in headers if name not in dropped]
    return headers, content_type, encoding


def _named_by_connection(headers: Headers) -> frozenset[bytes]:
    return frozenset(
        item.strip().lower()
        for name, value in headers
        if name == b"connection"
        for item in value.split(b",")
    )


def _first_clock(exchange: Exchange, backend: Backend, outgoing: Outgoing) -> tuple[Clock, float]:
    """The clock that runs until the first event: ours, or the client's own where it is shorter.

    Nobody hears an answer that comes after the client's time; a stream's events keep it listening.
    """
    ours_s = backend.settings.first_event_s
    announced_s = None if outgoing.is_stream else exchange.announced_wait_s()
    if announced_s is not None and (ours_s <= 0 or announced_s < ours_s):
        return "client timeout", announced_s
    return "first_event_s", ours_s


def _note_fault(backend: Backend, fault: UpstreamFault) -> None:
    """Books a fault against the backend, unless it was the client's or our own doing."""
    clock = fault.clock if isinstance(fault, UpstreamTimeout) else None
    if isinstance(fault, GatewayStopping) or clock in ("total_s", "client timeout"):
        return
    is_connect = isinstance(fault, ConnectFailed) or clock == "connect_s"
    backend.health.note_fault(is_connect=is_connect)


def _busy(backend: Backend) -> ApiError:
    return ApiError(
        503,
        "backend_busy",
        f"The backend has {backend.settings.max_in_flight} requests in flight, its limit.",
        retry_after_s=RETRY_BACKEND_BUSY_S,
    )
