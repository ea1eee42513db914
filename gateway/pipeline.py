"""The way of one model call through the gateway, from its bytes to its closed row. Read this first.

Knows who does each step, and does none of them itself: bodies are read by `surfaces`, names by
`routing`, bytes forwarded by `relay`, answers written by `backends/engine`, rows kept by `ledger`.
"""

import asyncio
import hashlib
import time
from collections.abc import Callable
from dataclasses import dataclass
from secrets import randbits

import structlog

from conductor.client import detect
from gateway.backends.base import Backend
from gateway.backends.catalog import Catalog
from gateway.backends.engine import EngineLink, EngineLost, no_engine, refusal_error
from gateway.errors import RETRY_DRAINING_S, ApiError
from gateway.exchange import ClientLeft, CutShort, Exchange, Watch
from gateway.ledger.books import Books
from gateway.ledger.entry import Entry, Outcome, body_hash
from gateway.middleware.auth import Identity
from gateway.relay.booking import book_relayed
from gateway.relay.client import GatewayStopping
from gateway.relay.forward import Outgoing, Relay, Relayed
from gateway.routing.table import RoutingTable, Target
from gateway.surfaces.answer import MANAGED, Answer
from gateway.surfaces.fields import clean
from gateway.surfaces.params import ManagedRequest
from gateway.surfaces.request import ModelRequest, read_request
from proto.events import Finished
from proto.faults import CodecFault, Refusal
from proto.plan import Plan

log = structlog.get_logger(__name__)

IDLE_LOOK_S = 0.05  # how often a drain looks whether it is done

# Ours, and yet the client's or the moment's doing: nothing was tried.
_REFUSED_5XX = frozenset({"draining", "backend_busy", "queue_full", "memory_full"})


@dataclass(frozen=True, slots=True)
class Routing:
    """Where requests go under one configuration; replaced whole when it is read again."""

    table: RoutingTable
    backends: dict[str, Backend]
    catalog: Catalog
    config_rev: str


@dataclass(frozen=True, slots=True)
class Limits:
    """What the pipeline must not exceed. `open_after_s`: when a waiting stream is opened."""

    max_body_bytes: int
    open_after_s: float


class Pipeline:
    """Serves model calls. `now`: monotonic seconds; `wall`: epoch seconds."""

    def __init__(
        self,
        *,
        routing: Routing,
        relay: Relay,
        engine: EngineLink | None,
        ledger: Books,
        limits: Limits,
        hash_key: bytes,
        version: str,
        now: Callable[[], float] = time.monotonic,
        wall: Callable[[], float] = time.time,
    ) -> None:
        self.routing = routing
        self.is_draining = False
        self._running: set[Exchange] = set()
        self._relay = relay
        self._engine = engine
        self._ledger = ledger
        self._limits = limits
        self._hash_key = hash_key
        self._version = version
        self._now = now
        self._wall = wall

    async def serve(self, exchange: Exchange, identity: Identity) -> None:
        """One model call: admit → route → relay or managed → close.

        Whatever happens, the client has its answer or its error and the ledger its one row.
        Raises: CutShort, when the connection must not be ended cleanly.
        """
        entry = self._arrive(exchange, identity)
        outcome: Outcome = "failed"
        self._running.add(exchange)
        try:
            request = await self._admit(exchange, entry)
            target = await self._route(exchange, identity, request, entry)
            self._ledger.open(entry)
            way = self._managed if target.backend is None else self._relayed
            outcome = await way(exchange, request, target, entry)
        except ClientLeft:
            outcome = "aborted"
            entry.error_type = "client_left"
        except ApiError as error:
            is_ours = error.status < 500 or error.code in _REFUSED_5XX
            outcome = "refused" if is_ours else "failed"
            await self._answer_error(exchange, entry, error)
        except CutShort:
            raise
        except Exception:
            log.exception("request.crashed", request_id=exchange.request_id)
            crash = ApiError(500, "internal_error", "The gateway failed on this request.")
            await self._answer_error(exchange, entry, crash)
        finally:
            self._running.discard(exchange)
            self._close(entry, outcome)

    @property
    def in_flight(self) -> int:
        """Model calls that have arrived and are not closed."""
        return len(self._running)

    async def wait_idle(self, most_s: float) -> bool:
        """Waits until nothing runs; False when something still does after `most_s`."""
        until_s = self._now() + most_s
        while self._running and self._now() < until_s:
            await asyncio.sleep(IDLE_LOOK_S)
        return not self._running

    def cut_all(self) -> None:
        """Ends what still runs with an error in its surface's form."""
        for exchange in self._running:
            if exchange.watch is not None:
                exchange.watch.end(GatewayStopping("the gateway is shutting down"))

    def _arrive(self, exchange: Exchange, identity: Identity) -> Entry:
        headers = {
            name.decode("latin-1"): value.decode("latin-1")
            for name, value in exchange.scope["headers"]
        }
        return Entry(
            request_id=exchange.request_id,
            ts_ms=int(self._wall() * 1000),
            arrived_s=self._now(),
            client_id=identity.client_id,
            user_id=identity.user_id,
            client_kind=detect(headers),
            surface=exchange.surface,
            version=self._version,
        )

    async def _admit(self, exchange: Exchange, entry: Entry) -> ModelRequest:
        if self.is_draining:
            message = "The gateway is shutting down; send the request again."
            raise ApiError(503, "draining", message, retry_after_s=RETRY_DRAINING_S)
        request = await read_request(exchange, self._limits.max_body_bytes)
        entry.kind = request.kind
        entry.model = request.model
        entry.stream = request.is_stream
        entry.max_tokens = request.max_tokens
        entry.body_hash = body_hash(self._hash_key, request.envelope.text, request.envelope.spans)
        return request

    async def _route(
        self, exchange: Exchange, identity: Identity, request: ModelRequest, entry: Entry
    ) -> Target:
        if self.routing.table.find(request.model) is None:
            await self.routing.catalog.refresh(is_urgent=True)  # it may have been loaded just now
        target = self.routing.table.resolve(request.model, exchange.surface)
        if not identity.may_use(request.model, target.routed_via):
            message = f"This API key may not use the model {request.model!r}."
            raise ApiError(403, "model_not_allowed", message, param="model")
        entry.path = "managed" if target.backend is None else "relay"
        entry.backend = target.backend or "worker"
        entry.upstream_model = target.model
        entry.config_rev = self.routing.config_rev
        return target

    async def _relayed(
        self, exchange: Exchange, request: ModelRequest, target: Target, entry: Entry
    ) -> Outcome:
        assert target.backend is not None
        backend = self.routing.backends[target.backend]
        sent = request.for_model(target.model, is_in_path=exchange.surface == "gemini")
        entry.upstream_key = backend.key_label
        outgoing = Outgoing(target, sent.path, sent.body, sent.is_decoded, request.is_stream)
        relayed = Relayed()
        try:
            await self._relay.forward(exchange, backend, outgoing, relayed)
        except ClientLeft:
            if not relayed.has_ended:
                relayed.outcome, relayed.error_type = "aborted", "client_left"
        finally:
            book_relayed(entry, relayed, request, backend.settings)
        return relayed.outcome

    async def _managed(
        self, exchange: Exchange, request: ModelRequest, target: Target, entry: Entry
    ) -> Outcome:
        parsed = MANAGED[exchange.surface].parse(clean(request.envelope.fields))
        answer = Answer(exchange, parsed, target, created=int(self._wall()))
        try:
            async with Watch(exchange):
                finished = await self._run_engine(parsed, answer, entry)
        except CodecFault as fault:
            message = f"The request cannot be sent to the engine: {fault}."
            raise ApiError(400, "invalid_request", message) from fault
        except (Refusal, EngineLost, GatewayStopping) as fault:
            error = refusal_error(fault) if isinstance(fault, Refusal) else no_engine()
            if not exchange.has_started:
                raise error from fault
            entry.error_type = error.code
            await answer.end_with_error(error)
            return "failed"
        entry.finish_reason = finished.reason
        entry.status = entry.upstream_status = 200
        return "succeeded"

    async def _run_engine(self, request: ManagedRequest, answer: Answer, entry: Entry) -> Finished:
        """Submits the run and writes its events to the client as they come."""
        if self._engine is None:
            raise EngineLost
        seed = request.seed if request.seed is not None else randbits(63)
        salt = hashlib.blake2b((entry.user_id or "anon").encode(), digest_size=8).hexdigest()
        run = await self._engine.submit(request.call, Plan(), request.params, seed, salt)
        entry.run_id = run.run_id
        async with run:
            try:
                finished = await answer.write(run.events(), self._limits.open_after_s, self._now)
            except BaseException:
                if run.completion_tokens:
                    entry.book_usage(
                        prompt=run.prompt_tokens,
                        completion=run.completion_tokens,
                        source="counted",
                    )
                raise
        entry.book_engine(finished.usage)
        entry.book_timings(finished.timings)
        entry.book_speculation(finished.speculation)
        entry.cache_source = finished.cache_source
        entry.served_model = self._engine.ready.model if self._engine.ready else None
        return finished

    async def _answer_error(self, exchange: Exchange, entry: Entry, error: ApiError) -> None:
        entry.error_type = entry.error_type or error.code
        entry.status = error.status
        if exchange.has_started:
            raise CutShort
        await exchange.reply_error(error)

    def _close(self, entry: Entry, outcome: Outcome) -> None:
        entry.close(self._now(), outcome=outcome)
        self._ledger.close(entry)
        log.info(
            "request.finished",
            request_id=entry.request_id,
            surface=entry.surface,
            model=entry.model,
            backend=entry.backend,
            client_id=entry.client_id,
            client_kind=entry.client_kind,
            status=entry.status,
            outcome=entry.outcome,
            error_type=entry.error_type,
            prompt_tokens=entry.prompt_tokens,
            completion_tokens=entry.completion_tokens,
            ttft_ms=entry.ttft_ms,
            total_ms=entry.total_ms,
        )
