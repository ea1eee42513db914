"""The way of one model call through the gateway, from its bytes to its closed row. Read this first.

Knows who does each step, and does none of them itself: bodies are read by `surfaces`, names by
`routing`, bytes forwarded by `relay`, answers written by `managed`, ends settled by `closing`.
"""

import asyncio
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

import structlog

from conductor.client import detect
from gateway.backends.base import Backend
from gateway.backends.catalog import Catalog
from gateway.closing import Closing, Ended
from gateway.errors import RETRY_DRAINING_S, ApiError, internal_error
from gateway.exchange import ClientLeft, CutShort, Exchange
from gateway.ledger.books import Books
from gateway.ledger.budget import Budgets
from gateway.ledger.entry import Entry, Outcome
from gateway.middleware.auth import Identity
from gateway.relay.connection import GatewayStopping
from gateway.relay.forward import Relay, Relayed
from gateway.relay.inject import AskingRelay
from gateway.routing.table import RoutingTable, Target
from gateway.surfaces.request import ModelRequest, read_request
from gateway.surfaces.size import size_of

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


class ManagedWay(Protocol):
    """Answers what is not relayed."""

    async def serve(
        self, exchange: Exchange, request: ModelRequest, target: Target, entry: Entry,
        backend: Backend | None,
    ) -> Outcome:  # fmt: skip
        """Answers one request; `backend` None: with our own engine."""


class Pipeline:
    """Serves model calls. `now`: monotonic seconds; `wall`: epoch seconds."""

    def __init__(
        self,
        *,
        routing: Routing,
        relay: Relay,
        asking: AskingRelay,
        managed: ManagedWay | None,
        ledger: Books,
        closing: Closing,
        budgets: Budgets,
        max_body_bytes: int,
        version: str,
        now: Callable[[], float] = time.monotonic,
        wall: Callable[[], float] = time.time,
    ) -> None:
        self.routing = routing
        self.is_draining = False
        self._running: set[Exchange] = set()
        self._relay = relay
        self._asking = asking
        self.managed = managed
        self._ledger = ledger
        self._closing = closing
        self._budgets = budgets
        self._max_body_bytes = max_body_bytes
        self._version = version
        self._now = now
        self._wall = wall

    async def serve(self, exchange: Exchange, identity: Identity) -> None:
        """One model call: arrive → admit → route → relayed or managed → close.

        Whatever happens, the client has its answer or its error and the ledger its one row.
        Raises: CutShort, when the connection must not be ended cleanly.
        """
        entry = self._arrive(exchange, identity)
        ended = Ended(entry, None, 0.0)
        self._running.add(exchange)
        try:
            if self.is_draining:
                raise _draining()
            body = await exchange.read_body(self._max_body_bytes)
            request = ended.request = self._admit(exchange, body, entry)
            routing = self.routing
            if (found := routing.table.find(request.model)) is None:
                await routing.catalog.refresh(is_urgent=True)  # it may have been loaded just now
                found = routing.table.find(request.model)
            target = routing.table.check(found, request.model, exchange.surface)
            backend = None if target.backend is None else routing.backends[target.backend]
            self._route(identity, request, target, entry, backend)
            if identity.budget is not None:
                ended.reserve = await self._budgets.admit(entry, size_of(request))
            self._ledger.open(entry)
            if backend is not None and entry.path == "relay":
                sent = request.for_model(target.model, is_in_path=exchange.surface == "gemini")
                ended.backend = backend
                relayed = ended.relayed = Relayed()
                relay = self._asking if backend.asks_for_usage else self._relay
                await relay.forward(exchange, backend, sent, target.via_header, relayed)
            else:
                assert self.managed is not None
                ended.outcome = await self.managed.serve(exchange, request, target, entry, backend)
        except asyncio.CancelledError:
            self._note_end(exchange, ended, exchange.end_reason())
        except ClientLeft as reason:
            self._note_end(exchange, ended, reason)
        except ApiError as error:
            is_ours = error.status < 500 or error.code in _REFUSED_5XX
            ended.outcome = "refused" if is_ours else "failed"
            self._reply_error(exchange, entry, error)
        except CutShort:
            raise
        except Exception:
            log.exception("request.crashed", request_id=exchange.request_id)
            ended.outcome = "failed"
            self._reply_error(exchange, entry, internal_error())
        finally:
            self._running.discard(exchange)
            ended.ended_s = self._now()
            self._closing.take(ended)

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
        for exchange in [*self._running]:
            exchange.end(GatewayStopping("the gateway is shutting down"))

    def _arrive(self, exchange: Exchange, identity: Identity) -> Entry:
        return Entry(
            request_id=exchange.request_id,
            ts_ms=int(self._wall() * 1000),
            arrived_s=self._now(),
            client_id=identity.client_id,
            user_id=identity.user_id,
            client_kind=detect(exchange.fields),
            surface=exchange.surface,
            version=self._version,
        )

    def _admit(self, exchange: Exchange, body: bytes, entry: Entry) -> ModelRequest:
        request = read_request(exchange, body, self._max_body_bytes)
        entry.kind = request.kind
        entry.model = request.model or None
        entry.stream = int(request.is_stream)
        entry.max_tokens = request.max_tokens
        return request

    def _route(
        self, identity: Identity, request: ModelRequest, target: Target, entry: Entry,
        backend: Backend | None,
    ) -> None:  # fmt: skip
        if not identity.may_use(request.model, target.routed_via):
            raise _not_allowed(request.model)
        is_managed = backend is None or backend.is_managed_on(entry.surface)
        entry.path = "managed" if is_managed else "relay"
        entry.backend = target.backend or "worker"
        entry.upstream_key = None if backend is None else backend.key_label
        entry.upstream_model = target.model or None
        entry.config_rev = self.routing.config_rev

    def _note_end(self, exchange: Exchange, ended: Ended, reason: Exception) -> None:
        """The work was ended from outside before its answer was whole, as far as is known here."""
        relayed = ended.relayed
        if isinstance(reason, ClientLeft):
            if relayed is None or not relayed.has_finished:
                ended.outcome, ended.entry.error_type = "aborted", "client_left"
                if relayed is not None:
                    relayed.outcome = "aborted"
            return
        ended.outcome = "refused"
        self._reply_error(exchange, ended.entry, _draining())

    def _reply_error(self, exchange: Exchange, entry: Entry, error: ApiError) -> None:
        entry.error_type = entry.error_type or error.code
        entry.status = error.status
        if exchange.has_started:
            raise CutShort
        exchange.reply_error(error)


def _not_allowed(model: str) -> ApiError:
    message = f"This API key may not use the model {model!r}."
    if not model:
        message = "This API key is for certain models; files and batches need one for all of them."
    return ApiError(403, "model_not_allowed", message, param="model" if model else None)


def _draining() -> ApiError:
    message = "The gateway is shutting down; send the request again."
    return ApiError(503, "draining", message, retry_after_s=RETRY_DRAINING_S)
