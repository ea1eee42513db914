"""One relayed request: bytes up, bytes down, unchanged. Knows no JSON of the answer and no SQL.

The only changes are those of headers, the `model` value when a route has another name for it, and
an error appended to a stream that broke. A piece of the answer walks from the backend's socket to
the client's within one callback; the tap reads it on the way.
"""

import asyncio
from collections.abc import Callable

import structlog

from gateway.backends.base import Backend
from gateway.errors import RETRY_BACKEND_BUSY_S, ApiError, stream_error_end
from gateway.exchange import CutShort, Exchange
from gateway.ledger.entry import Outcome
from gateway.relay.client import UpstreamClient
from gateway.relay.clocks import Clocks, ClockTower
from gateway.relay.connection import (
    Clock,
    ConnectFailed,
    Connection,
    GatewayStopping,
    Receiver,
    UpstreamBroken,
    UpstreamFault,
    UpstreamTimeout,
)
from gateway.relay.headers import answer_head, request_head
from gateway.relay.heartbeat import Heartbeat
from gateway.relay.tap import OF_BYTES, StreamTap, Tap, WholeTap, tap_of_bytes
from gateway.relay.usage import KeptReading
from gateway.settings.types import BackendSettings
from gateway.surfaces.request import ModelRequest
from proto.limits import QUOTED_ERROR_CHARS

log = structlog.get_logger(__name__)

_MAPPED = {401, 402, 403, 407}


class Relayed:
    """How a relayed request went, for the ledger.

    `outcome` None: it arrived to its end, and `judge` says what it counts as.
    """

    tap: Tap | None = None
    status: int | None = None
    upstream_status: int | None = None
    outcome: Outcome | None = None
    error_type: str | None = None

    @property
    def has_finished(self) -> bool:
        """Whether the client had the whole answer, even if it leaves before our end of file."""
        is_ok = self.status is not None and self.status < 400
        return is_ok and self.tap is not None and self.tap.has_finish

    def judge(self) -> None:
        """Reads an answer to its end and finds out what it counts as."""
        tap = self.tap
        if tap is None:
            return
        tap.finish()
        if self.outcome is not None:
            return
        self.outcome = "failed"
        if self.upstream_status is None or self.upstream_status >= 400:
            self.error_type = "upstream_status"
        elif tap.reading.is_failed:
            self.error_type = "upstream_error_event"
        elif tap.is_on and tap.is_stream and not tap.has_finish:
            self.error_type = "no_finish_reason"
        else:
            self.outcome = "succeeded"


class Relay:
    """Forwards requests to HTTP backends. `now`: the ledger's clock in seconds."""

    def __init__(self, client: UpstreamClient, now: Callable[[], float]) -> None:
        self._client = client
        self._now = now
        self._clocks = ClockTower(asyncio.get_running_loop())

    async def forward(
        self, exchange: Exchange, backend: Backend, request: ModelRequest, routed_via: bytes,
        relayed: Relayed, passage_type: "type[Passage] | None" = None,
    ) -> None:  # fmt: skip
        """Relays one request and fills in `relayed` as it goes.

        `request`: as it goes up. `routed_via`: how the answer names who gave it. `passage_type`:
        another way for the answer than the plain one; what it raises comes out here.

        Raises: ApiError before anything was sent to the client; ClientLeft.
        """
        settings = backend.settings
        if 0 < settings.max_in_flight <= backend.in_flight:
            raise busy_error(backend)
        backend.in_flight += 1
        clocks = self._clocks.start(exchange, *_first_clock(exchange, settings, request))
        if settings.total_s:
            clocks.cap("total_s", settings.total_s)
        passage = (passage_type or Passage)(
            exchange, backend, routed_via, relayed, clocks, self._now
        )
        receiver: Receiver = passage
        if settings.heartbeat_s > 0:
            receiver = Heartbeat(passage, exchange, relayed, settings.heartbeat_s, self._clocks.now)
            self._clocks.watch(clocks, receiver.look)
        try:
            head = request_head(exchange, backend, request)
            connection = await self._client.relay(
                backend.origin, head, request.body, receiver, connect_s=settings.connect_s
            )
            self._client.release(backend.origin, connection)
            passage.end()
            return
        except UpstreamFault as fault:
            broken = fault
        except asyncio.CancelledError:
            reason = exchange.end_reason()
            try:
                if not isinstance(reason, UpstreamFault):
                    raise reason from None
                broken = reason
            finally:
                del reason  # its traceback holds this frame, and that the request
        finally:
            exchange.flow = None
            self._clocks.stop(clocks)
            backend.in_flight -= 1
        note_fault(backend, broken)
        try:
            await self._end_broken(exchange, backend, broken, relayed, passage)
        finally:
            del broken

    async def _end_broken(
        self, exchange: Exchange, backend: Backend, fault: UpstreamFault, relayed: Relayed,
        passage: "Passage",
    ) -> None:  # fmt: skip
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
            try:
                raise error
            finally:
                del error
        tap = relayed.tap
        assert tap is not None
        close = passage.rest() + (b"" if tap.is_between_events else b"\n\n")
        if tap.is_stream:
            tap.finish()  # a record that we close may be the one that says everything
        if tap.has_finish:
            relayed.outcome = relayed.error_type = None
            await exchange.finish_soon(close)
            return
        if not tap.is_stream or tap.encoding is not None:
            raise CutShort  # without the final HTTP chunk: a clean early end would pass for whole
        end = stream_error_end(
            exchange.surface,
            error,
            exchange.request_id,
            response_id=tap.reading.response_id,
            sequence_number=tap.reading.sequence_number,
        )
        await exchange.finish_soon(close + end)


class Passage:
    """One answer on its way from the backend's socket to the client's.

    A `Receiver` of the backend's connection, and a `Flow` of the exchange: while the client is slow
    its backend waits.
    """

    __slots__ = (
        "_backend", "_clocks", "_connection", "_exchange", "_has_ended", "_life", "_now",
        "_relayed", "_routed_via", "_tap",
    )  # fmt: skip

    def __init__(
        self, exchange: Exchange, backend: Backend, routed_via: bytes, relayed: Relayed,
        clocks: Clocks, now: Callable[[], float],
    ) -> None:  # fmt: skip
        self._exchange = exchange
        self._backend = backend
        self._routed_via = routed_via
        self._relayed = relayed
        self._clocks = clocks
        self._now = now
        self._life = 0
        self._has_ended = False

    def begin(self, connection: Connection) -> None:
        """Status and headers, and the tap that fits the answer.

        Raises: ApiError for an answer that is ours to explain.
        """
        self._connection = connection
        exchange, relayed, status = self._exchange, self._relayed, connection.status
        relayed.upstream_status = status
        self._backend.health.note_answer(status)
        if (
            status >= 300
            and (error := own_error(connection, self._backend, exchange.body)) is not None
        ):
            raise error
        head = answer_head(connection.headers)
        relayed.status = status
        tap: Tap
        if (surface := exchange.surface) in OF_BYTES:
            tap = tap_of_bytes(surface, connection.headers, head.encoding, self._now)
        elif head.is_stream:
            tap = StreamTap(surface, head.encoding, self._now)
        else:
            tap = WholeTap(surface, head.encoding)
        if self._backend.counts_tokens and surface not in OF_BYTES:
            tap.reading = KeptReading()
        self._tap = relayed.tap = tap
        own = b"x-request-id: %b\r\nx-routed-via: %b\r\n"
        block = head.block + own % (exchange.request_id.encode(), self._routed_via)
        exchange.start_with(status, block, length=head.length)
        exchange.use_flow(self)

    def take(self, piece: bytes, *, is_last: bool) -> None:
        """The next piece, as it came."""
        tap = self._tap
        if piece:
            tap.feed(piece)
        if is_last:
            self._has_ended = True
            self._exchange.finish(piece)
            return
        if tap.life != self._life:  # comments and pings do not hide a dead backend
            self._life = tap.life
            self._clocks.limit("idle_s", self._backend.settings.idle_s)
        self._exchange.write(piece)

    def end(self) -> None:
        """Ends an answer whose end was that of its connection. Raises: UpstreamBroken."""
        if self._has_ended:
            return
        if self._connection.status < 400 and self._tap.lacks_its_end():
            raise UpstreamBroken("it closed the connection without a finish", before_answer=False)
        self._exchange.finish(self.rest())

    def rest(self) -> bytes:
        """What was held back of the answer when it ended: here nothing."""
        return b""

    def pause(self) -> None:
        """The client is slow: its backend waits, and is not taken for a silent one."""
        self._connection.pause()
        self._clocks.hold()

    def resume(self) -> None:
        """The client takes bytes again."""
        self._clocks.go_on()
        self._connection.resume()


def own_error(connection: Connection, backend: Backend, sent: bytes) -> ApiError | None:
    """The error for an answer that is ours to explain, None for one that passes as it is.

    `sent`: what of its words may be a quotation and is kept out of the log.
    """
    status = connection.status
    if status < 400 and status != 304:
        return ApiError(502, "upstream_failed", "The backend answered with a redirect.")
    if status not in _MAPPED:
        return None
    # Its body may quote our key: it goes to the log, masked, and no further.
    said = connection.arrived()[: 4 * QUOTED_ERROR_CHARS]
    words = backend.masked(said, sent)[:QUOTED_ERROR_CHARS]
    log.warning("backend.refused_credentials", backend=backend.name, status=status, words=words)
    if status == 402:
        message = "The backend says that its account is out of credits."
        return ApiError(502, "provider_out_of_credits", message, may_retry=False)
    message = "The backend refused the credentials that this gateway has for it."
    return ApiError(502, "provider_authentication_failed", message, may_retry=False)


def upstream_error(fault: UpstreamFault) -> ApiError:
    """What a client is told about a fault between us and a backend."""
    if isinstance(fault, UpstreamTimeout) and fault.clock != "connect_s":
        message = f"The backend was silent for too long: {fault}."
        return ApiError(504, "upstream_timeout", message)
    if isinstance(fault, (ConnectFailed, UpstreamTimeout)):
        return ApiError(502, "upstream_failed", f"The backend cannot be reached: {fault}.")
    return ApiError(502, "upstream_failed", f"The backend's answer broke off: {fault}.")


def _first_clock(
    exchange: Exchange, settings: BackendSettings, request: ModelRequest
) -> tuple[Clock, float]:
    """The clock that runs until the first event: ours, or the client's own where it is shorter.

    Nobody hears an answer that comes after the client's time; a stream's events keep it listening.
    """
    ours_s = settings.first_event_s
    announced_s = None if request.is_stream else exchange.announced_wait_s()
    if announced_s is not None and (ours_s <= 0 or announced_s < ours_s):
        return "client timeout", announced_s
    return "first_event_s", ours_s


def note_fault(backend: Backend, fault: UpstreamFault) -> None:
    """Books a fault against the backend, unless it was the client's or our own doing."""
    clock = fault.clock if isinstance(fault, UpstreamTimeout) else None
    if isinstance(fault, GatewayStopping) or clock in ("total_s", "client timeout"):
        return
    is_connect = isinstance(fault, ConnectFailed) or clock == "connect_s"
    backend.health.note_fault(is_connect=is_connect)


def busy_error(backend: Backend) -> ApiError:
    """What a client is told while a backend has as many requests as it may have."""
    return ApiError(
        503,
        "backend_busy",
        f"The backend has {backend.settings.max_in_flight} requests in flight, its limit.",
        retry_after_s=RETRY_BACKEND_BUSY_S,
    )
