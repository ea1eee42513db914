"""Builds the gateway: the one place where services are constructed and joined. Start reading here.

Then `routes` (the URL table), `pipeline` (the way of a request), `backends/engine` and the worker's
`loop`.
"""

from __future__ import annotations

import asyncio
import socket
import time
from collections.abc import Coroutine, Iterator, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import structlog

from gateway.backends.base import Backend
from gateway.backends.catalog import Catalog
from gateway.closing import Closing
from gateway.door.door import Door
from gateway.embedded_model import model_path
from gateway.ledger.command import OpenLedger
from gateway.ledger.prices import PriceList
from gateway.middleware.auth import Auth
from gateway.observe.logs import Logs, log_access
from gateway.observe.metrics import Metrics
from gateway.operator import Operator
from gateway.outbox import Outbox
from gateway.pipeline import ManagedWay, Pipeline, Routing
from gateway.preflight import CommandFailed
from gateway.relay.client import UpstreamClient
from gateway.relay.counting import Counting
from gateway.relay.forward import Relay
from gateway.relay.inject import AskingRelay
from gateway.routes import Endpoint, Endpoints, Router, url_table
from gateway.routing.table import RoutingTable
from gateway.settings.installation import hash_key, make_state_dir
from gateway.settings.load import SettingsError, open_to_everybody
from gateway.settings.types import Settings
from gateway.version import VERSION
from proto.worker_settings import Launch

if TYPE_CHECKING:
    from gateway.backends.engine import EngineLink
    from gateway.conducting.conducting import Conducting
    from gateway.conducting.rooms import Rooms
    from gateway.door.shared import Sharing
    from gateway.observe.spans import Spans
    from gateway.observe.worker import BeatReader
    from gateway.supervisor import Supervisor

log = structlog.get_logger(__name__)

NEED_RESTART = ("server", "worker", "engine", "ledger", "store", "journal")
LAST_ANSWERS_S = 1.0  # for answers that are not model calls, at the end
LAST_COUNTS_S = 2.0  # for tokenizers to answer what they were asked
STOP_CUT_S = 2.0  # for what is cut off at the end of a drain to be told so


def worker_end_s(settings: Settings) -> float:
    """Seconds that a worker may take to end: what was cut off is told, conversations written."""
    spill = settings.engine.cache.spill
    return STOP_CUT_S + (spill.time_s if spill.enabled else 0.0)


class Gateway:
    """Every service of one gateway process. `open` it on a socket, `drain` and `close` it."""

    def __init__(
        self,
        settings: Settings,
        ledger: OpenLedger,
        logs: Logs | None = None,
        metrics: Metrics | None = None,
    ) -> None:
        self.settings = settings
        self.ledger = ledger
        self.logs = logs or Logs(log_access)
        self.metrics = metrics or Metrics()
        self.has_failed = asyncio.Event()
        state_dir = make_state_dir(settings.state_dir)
        self.auth = Auth(settings)
        ledger.budgets.use(self.auth.budgets(), PriceList(settings.prices))
        outbox = Outbox(asyncio.get_running_loop())
        self.client = UpstreamClient(outbox)
        self.engine = _engine_link(settings)
        self.supervisor = _supervisor(settings, self.engine)
        self.counting = Counting(self.client)
        self.spans = _spans(settings)
        access = self.logs.access if self.spans is None else self.spans.beside(self.logs.access)
        self.closing = Closing(
            ledger.books, self.metrics, access, hash_key(state_dir), self.counting
        )
        self.rooms: Rooms | None = None
        self.conducting: Conducting | None = None
        relay = Relay(self.client, time.monotonic)
        self.asking = AskingRelay(relay)
        ledger.budgets.settle_ended = self.closing.settle_all
        routing = build_routing(settings, self.client, self.engine)
        self.pipeline = Pipeline(
            routing=routing,
            relay=relay,
            asking=self.asking,
            managed=self._managed(settings, routing.backends),
            ledger=ledger.books,
            closing=self.closing,
            budgets=ledger.budgets,
            max_body_bytes=settings.server.max_body_mb * 1024**2,
            version=VERSION,
        )
        self.metrics.sources = [self._backend_metrics, self._ledger_metrics, self._own_metrics]
        self._beats = _beat_reader(self.engine)
        if self._beats is not None:
            self.metrics.worker = self._beats.counts
        self.operator = Operator(self.pipeline, self.engine, ledger.database, self.metrics)
        self.table = url_table(
            Endpoints(
                model_call=self._model_call(),
                models=self.operator.models,
                health=self.operator.health,
                ready=self.operator.ready,
                root=self.operator.root,
                usage=self.operator.usage,
                cache=self.operator.cache,
                metrics=self.operator.metrics,
            )
        )
        self.door = Door(Router(self, self.table).serve, outbox)
        self._services: list[asyncio.Task[None]] = []

    async def open(self, listener: socket.socket, sharing: Sharing | None = None) -> None:
        """Starts every service and accepts connections on a bound socket, if need be `sharing` it
        with other processes."""
        self.ledger.books.start()
        works = [
            self.pipeline.routing.catalog.refresh(),  # so that the first request need not
            self.counting.run(),
        ]
        if self.engine is not None:
            works.append(self.engine.run())
        if self.rooms is not None:
            works.append(self.rooms.run())
        if self.supervisor is not None:
            works.append(self.supervisor.run())
        for work in works:
            self.start(work)
        await self.door.open(listener, sharing)
        log.info("gateway.started", config_rev=self.settings.rev)

    def start(self, work: Coroutine[Any, Any, None]) -> None:
        """Runs a service until `close`; if it fails, the process ends."""
        task = asyncio.create_task(work)
        task.add_done_callback(self._note_death)
        self._services.append(task)

    async def close(self) -> None:
        """Stops everything; rows that wait are written."""
        await self.door.close(LAST_ANSWERS_S)
        if self.supervisor is not None:
            await self.supervisor.stop(worker_end_s(self.settings))
        self.closing.settle_all()
        await self.counting.finish(LAST_COUNTS_S)
        for task in self._services:
            task.cancel()
        await asyncio.gather(*self._services, return_exceptions=True)
        self.counting.abandon()
        self.client.close()
        self.closing.settle_all()
        if self.rooms is not None:
            await asyncio.to_thread(self.rooms.close)
        counts = await asyncio.to_thread(self.ledger.books.stop)
        if self.spans is not None:
            await asyncio.to_thread(self.spans.close)
        log.info("gateway.stopped", rows_written=counts.written, rows_waiting=counts.waiting)

    def apply(self, settings: Settings) -> None:
        """Takes a configuration that was read again: keys, backends, routes, prices.

        What a running process cannot change stays as it was, and the log says so.

        Raises: SettingsError, with everything as it was.
        """
        old = self.settings
        fixed = {name: getattr(old, name) for name in NEED_RESTART}
        differing = [name for name in NEED_RESTART if getattr(settings, name) != fixed[name]]
        settings = replace(settings, **fixed)
        if (exposure := open_to_everybody(settings)) is not None:
            raise SettingsError([exposure])
        auth, prices = Auth(settings), PriceList(settings.prices)
        routing = build_routing(settings, self.client, self.engine, self.pipeline.routing)
        rooms = self.rooms
        try:
            managed = self._managed(settings, routing.backends)
        except CommandFailed as fault:  # the store cannot be opened
            raise SettingsError([str(fault)]) from fault
        self.settings, self.auth = settings, auth
        self.ledger.books.use_prices(prices.price)
        self.ledger.budgets.use(auth.budgets(), prices)
        self.pipeline.routing = routing
        if self.conducting is not None:
            self.conducting.planning = settings.planning
        self.pipeline.managed = managed or self.pipeline.managed
        if self.rooms is not None and self.rooms is not rooms:
            self.start(self.rooms.run())
        log.info("settings.applied", config_rev=settings.rev, need_restart=differing)

    async def drain(self) -> None:
        """Stops taking requests and waits for the running ones, `drain_s` at most."""
        self.pipeline.is_draining = True
        log.info("gateway.draining", in_flight=self.pipeline.in_flight)
        if not await self.pipeline.wait_idle(self.settings.server.drain_s):
            self.pipeline.cut_all()
            await self.pipeline.wait_idle(STOP_CUT_S)

    def _managed(self, settings: Settings, backends: Mapping[str, Backend]) -> ManagedWay | None:
        """It is loaded only where our own engine or the conductor answers."""
        has_conductor = any(backend.conductor for backend in settings.backends.values())
        has_conductor |= settings.worker is not None and settings.worker.conductor
        if self.engine is None and not has_conductor:
            return None
        from gateway.conducting.conducting import Conducting
        from gateway.conducting.hosts import Hosts
        from gateway.conducting.rooms import Rooms
        from gateway.managed import Managed

        if has_conductor and self.conducting is None:
            self.rooms = Rooms(settings, hash_key(settings.state_dir))
            self.conducting = Conducting(settings.planning, self.rooms)
        return Managed(
            self.engine,
            Hosts(self.engine, self.client, self.ledger.books, settings, backends),
            settings.engine.queue.open_after_s,
            self.ledger.books,
            conducting=self.conducting,
        )

    def _model_call(self) -> Endpoint:
        serve = self.pipeline.serve
        return serve if self.spans is None else self.spans.watching(serve)

    def _note_death(self, task: asyncio.Task[None]) -> None:
        """A service that died is a fault of ours: the process ends, and says so, rather than go on
        without it."""
        if not task.cancelled() and (fault := task.exception()) is not None:
            log.error("service.died", exc_info=fault)
            self.has_failed.set()

    def _backend_metrics(self) -> Iterator[tuple[str, tuple[str, ...], float]]:
        for name, backend in self.pipeline.routing.backends.items():
            yield "in_flight", (name,), backend.in_flight
        yield "attempts", ("stale_connection",), self.client.redone_count
        yield "attempts", ("inject_refused",), self.asking.refused_count

    def _ledger_metrics(self) -> Iterator[tuple[str, tuple[str, ...], float]]:
        counts = self.ledger.books.counts()
        for state in ("made", "written", "dropped"):
            yield "ledger_rows", (state,), getattr(counts, state)
        yield "ledger_waiting", (), counts.waiting

    def _own_metrics(self) -> Iterator[tuple[str, tuple[str, ...], float]]:
        yield "log_lines_dropped", (), self.logs.dropped_count()
        if self.engine is not None:
            for kind, count in self.engine.faults.items():
                yield "link_faults", (kind,), count
        if self._beats is not None:
            yield "link_faults", ("samples",), self._beats.left_out_count


def build_routing(
    settings: Settings,
    client: UpstreamClient,
    engine: EngineLink | None,
    before: Routing | None = None,
) -> Routing:
    """Backends, their models and the names that lead to them, under one configuration.

    What did not change since `before` keeps its connections, its health and its list of models.
    """
    kept = before.backends if before else {}
    backends = {
        name: kept[name]
        if name in kept and kept[name].settings == backend
        else Backend(name, backend)
        for name, backend in settings.backends.items()
    }
    catalog = Catalog(backends, client, settings.server.models_cache_s, time.monotonic)
    if before is not None:
        catalog.take_over(before.catalog)
    table = RoutingTable(settings, catalog.listed, lambda: engine is None or engine.can_embed)
    catalog.on_change = table.forget
    return Routing(
        table=table,
        backends=backends,
        catalog=catalog,
        config_rev=settings.rev,
    )


def build_launch(settings: Settings) -> Launch:
    """What a worker of this configuration is told."""
    assert settings.worker is not None
    return Launch(
        settings=settings.engine,
        model_name=settings.worker.model_name,
        model_path=str(model_path(settings.state_dir, settings.engine.model)),
        endpoint=settings.worker_endpoint,
        state_dir=str(settings.state_dir),
        drain_s=settings.server.drain_s,
    )


def _engine_link(settings: Settings) -> EngineLink | None:
    """ZeroMQ and the link's messages are loaded only where there is an engine."""
    if settings.worker is None:
        return None
    from gateway.backends.engine import EngineLink

    return EngineLink(settings.worker_endpoint)


def _beat_reader(engine: EngineLink | None) -> BeatReader | None:
    if engine is None:
        return None
    from gateway.observe.worker import BeatReader

    return BeatReader(engine)


def _supervisor(settings: Settings, engine: EngineLink | None) -> Supervisor | None:
    if engine is None or settings.worker is None or not settings.worker.spawn:
        return None
    from gateway.supervisor import Supervisor

    return Supervisor(build_launch(settings), engine.lose)


def _spans(settings: Settings) -> Spans | None:
    """OpenTelemetry is loaded only where a collector is configured."""
    if settings.server.otel_endpoint is None:
        return None
    from gateway.observe.spans import Spans

    return Spans.to(settings.server.otel_endpoint, VERSION)
