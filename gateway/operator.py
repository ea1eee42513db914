"""What answers about the gateway itself: models, health, usage, cache. Serves no model."""

from __future__ import annotations

import asyncio
import time
from typing import TYPE_CHECKING, Any

from gateway.errors import ApiError
from gateway.exchange import Exchange
from gateway.ledger.command import usage_body
from gateway.middleware.auth import Identity, not_found
from gateway.observe.metrics import Metrics, exposition
from gateway.pipeline import Pipeline
from gateway.store.db import Database
from gateway.surfaces.models import ListedModel, form_of, model_item, model_list

if TYPE_CHECKING:
    from gateway.backends.engine import EngineLink

USAGE_S = 30.0  # a report over a very long time may take this long


class Operator:
    """Endpoints beside the model calls."""

    def __init__(
        self,
        pipeline: Pipeline,
        engine: EngineLink | None,
        database: Database | None,
        metrics: Metrics,
    ) -> None:
        self._pipeline = pipeline
        self._engine = engine
        self._database = database
        self._metrics = metrics
        self._created = int(time.time())

    async def root(self, exchange: Exchange, identity: Identity) -> None:
        """One line that says where one is."""
        exchange.reply_json({"name": "Tandem", "api": "/v1", "models": "/v1/models"})

    async def health(self, exchange: Exchange, identity: Identity) -> None:
        """The process lives. `/health` says 503 once it is shutting down."""
        is_draining = self._pipeline.is_draining
        body = {"status": "draining" if is_draining else "ok"}
        exchange.reply_json(body, 503 if is_draining and exchange.path != "/livez" else 200)

    async def ready(self, exchange: Exchange, identity: Identity) -> None:
        """Whether a request sent now would be served; 503 with the reason otherwise."""
        reason = self._not_ready()
        body: dict[str, Any] = {"status": "ready"} if reason is None else {"reason": reason}
        exchange.reply_json(body, 200 if reason is None else 503)

    async def models(self, exchange: Exchange, identity: Identity) -> None:
        """The merged list, or one model, in the caller's form."""
        form = form_of(exchange)
        await self._pipeline.routing.catalog.refresh()
        models = [model for model in self._listed() if identity.may_use(model.id)]
        wanted = exchange.rest or None
        if wanted is None:
            exchange.reply_json(model_list(form, models, self._created))
            return
        found = next((model for model in models if model.id == wanted), None)
        if found is None:
            message = f"No model is named {wanted[:128]!r} here."
            raise ApiError(404, "model_not_found", message, param="model")
        exchange.reply_json(model_item(form, found, self._created))

    async def usage(self, exchange: Exchange, identity: Identity) -> None:
        """The ledger's report, as `tandem ledger report` prints it."""

        if self._database is None:
            raise not_found(exchange.path)
        query = exchange.query.decode("latin-1")
        async with asyncio.timeout(USAGE_S):
            body = await asyncio.to_thread(usage_body, self._database, query)
        exchange.reply(200, body)

    async def cache(self, exchange: Exchange, identity: Identity) -> None:
        """What the engine keeps of earlier requests; DELETE drops it."""
        if self._engine is None:
            message = "No engine is configured here, so that no state of one is kept."
            raise ApiError(404, "not_found", message)
        from gateway.kept_states import cache_body

        query, is_clear = exchange.query.decode("latin-1"), exchange.method == "DELETE"
        exchange.reply_json(await cache_body(self._engine, query, is_clear=is_clear))

    async def metrics(self, exchange: Exchange, identity: Identity) -> None:
        """What was counted, for Prometheus."""
        worker = await self._metrics.shown_worker()
        content_type, body = exposition(await self._metrics.shown(), worker)
        exchange.reply(200, body, content_type=content_type)

    def _listed(self) -> list[ListedModel]:
        routing = self._pipeline.routing
        listed = []
        for name in routing.table.names():
            target = routing.table.find(name)
            assert target is not None
            if target.backend is None:
                window = self._engine.ready.max_len if self._engine and self._engine.ready else None
                listed.append(ListedModel(name, "tandem", window))
                continue
            card = routing.catalog.listed(target.backend).get(target.model)
            context = card.context_tokens if card else None
            listed.append(ListedModel(name, target.backend, context))
        return listed

    def _not_ready(self) -> str | None:
        if self._pipeline.is_draining:
            return "draining"
        if self._engine is not None and not self._engine.has_lease:
            return "worker_unavailable"
        backends = self._pipeline.routing.backends.values()
        if self._engine is None and all(b.health.state == "down" for b in backends):
            return "all_upstreams_unhealthy"
        return None
