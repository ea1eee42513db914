"""Who writes the answers of managed requests: one host a request. Knows no request."""

from conductor.monitor.policy import Monitor
from gateway.backends.base import Backend
from gateway.backends.engine import EngineLink
from gateway.backends.engine_host import EngineHost
from gateway.backends.http import Place
from gateway.backends.http_host import HttpHost
from gateway.backends.run import Host
from gateway.ledger.books import Books
from gateway.relay.client import UpstreamClient


class Hosts:
    """Hosts of one configuration. `plans_engine`: our own engine's requests are planned."""

    def __init__(
        self,
        engine: EngineLink | None,
        client: UpstreamClient,
        books: Books,
        *,
        plans_engine: bool,
    ) -> None:
        self._engine = engine
        self._client = client
        self._books = books
        self._plans_engine = plans_engine

    def at(self, backend: Backend | None) -> Host:
        """The host of one request; `backend` None: our own engine."""
        if backend is not None:
            return HttpHost(Place(backend, self._client, self._books, Monitor))
        assert self._engine is not None
        return EngineHost(self._engine, is_planned=self._plans_engine)
