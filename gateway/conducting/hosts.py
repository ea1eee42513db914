"""Who writes the answers of managed requests, and who answers questions. Knows no request."""

from collections.abc import Mapping

from conductor.monitor.policy import Monitor
from gateway.backends.base import SELF_SERVED, Backend
from gateway.backends.engine import EngineLink
from gateway.backends.engine_host import EngineHost
from gateway.backends.http import Place
from gateway.backends.http_host import HttpHost
from gateway.backends.run import Host
from gateway.conducting.ask import Answering
from gateway.ledger.books import Books
from gateway.ledger.entry import Entry
from gateway.relay.client import UpstreamClient
from gateway.settings.types import Settings


class Hosts:
    """Hosts of one configuration. `backends`: by name."""

    def __init__(
        self,
        engine: EngineLink | None,
        client: UpstreamClient,
        books: Books,
        settings: Settings,
        backends: Mapping[str, Backend],
    ) -> None:
        self._engine = engine
        self._client = client
        self._books = books
        self._worker = settings.worker
        self._ask_backend = settings.conductor.ask_backend
        self._backends = backends

    def at(self, backend: Backend | None) -> Host:
        """The host of one request; `backend` None: our own engine."""
        if backend is not None:
            return HttpHost(Place(backend, self._client, self._books, Monitor))
        assert self._engine is not None
        is_planned = self._worker is not None and self._worker.conductor
        return EngineHost(self._engine, is_planned=is_planned)

    def answering(self, host: Host, backend: Backend | None, entry: Entry) -> Answering:
        """Who answers questions about a request of this host."""
        asked = self._backends.get(self._ask_backend)
        if self._ask_backend == "worker" and self._worker is not None and backend is not None:
            return Answering(self.at(None), self._worker.model_name, "worker")
        if asked is not None and asked is not backend:
            return Answering(self.at(asked), asked.settings.small[0], asked.name, asked.key_label)
        small = () if backend is None else backend.settings.small
        is_cloud = backend is not None and backend.settings.flavor not in SELF_SERVED
        model = small[0] if small and is_cloud else entry.upstream_model or ""
        return Answering(host, model, entry.backend, entry.upstream_key)
