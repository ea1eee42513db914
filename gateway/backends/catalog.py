"""Which models each backend has, as it says itself. Knows no route and no client.

Asked at most every `models_cache_s`, two seconds a backend; a backend that does not answer keeps
the list it gave last.
"""

import asyncio
import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import structlog

from gateway.backends.base import Backend
from gateway.exchange import Headers
from gateway.relay.client import UpstreamClient
from gateway.routing.table import shadowed_models

log = structlog.get_logger(__name__)

LIST_BYTES = 8 * 1024**2  # thousands of models are a few hundred KiB
LIST_S = 2.0  # a backend that needs longer must not hang a model picker
LEAST_AGE_S = 2.0  # between two readings, however often somebody asks for a model nobody knows
# Anthropic's pages have 20 models and Google's 50 unless more are asked for; 1,000 is the most.
_PATHS = {
    "openai": ("/v1/models", b""),
    "anthropic": ("/v1/models", b"limit=1000"),
    "gemini": ("/v1beta/models", b"pageSize=1000"),
}


@dataclass(frozen=True, slots=True)
class ModelCard:
    """One model of one backend. `context_tokens` None: the backend does not say."""

    id: str
    context_tokens: int | None = None


class Catalog:
    """The models of all backends. `now`: monotonic seconds."""

    def __init__(
        self,
        backends: Mapping[str, Backend],
        client: UpstreamClient,
        cache_s: float,
        now: Callable[[], float],
    ) -> None:
        self._backends = backends
        self._client = client
        self._cache_s = cache_s
        self._now = now
        self._read_s: float | None = None
        self._lock = asyncio.Lock()
        self.on_change: Callable[[], None] = lambda: None
        self._shadowed: list[tuple[str, str, str]] = []
        self._cards: dict[str, dict[str, ModelCard]] = {
            name: {model: ModelCard(model) for model in backend.settings.models}
            if backend.settings.models != "auto"
            else {}
            for name, backend in backends.items()
        }

    def listed(self, backend: str) -> Mapping[str, ModelCard]:
        """A backend's models by id, as known right now."""
        return self._cards[backend]

    def take_over(self, before: "Catalog") -> None:
        """Keeps the lists of backends that are still the same ones."""
        for name, backend in self._backends.items():
            if before._backends.get(name) is backend:
                self._cards[name] = before._cards[name]

    async def refresh(self, *, is_urgent: bool = False) -> None:
        """Asks the backends again when the lists are old (`is_urgent`: when a name is unknown)."""
        most_s = LEAST_AGE_S if is_urgent else self._cache_s
        async with self._lock:
            if self._read_s is not None and self._now() - self._read_s < most_s:
                return
            asked = [b for b in self._backends.values() if b.settings.models == "auto"]
            if asked:
                await self._read(asked)
            self._read_s = self._now()

    async def _read(self, backends: list[Backend]) -> None:
        async with asyncio.TaskGroup() as tasks:
            readings = [tasks.create_task(self._list(backend)) for backend in backends]
        for backend, reading in zip(backends, readings, strict=True):
            cards = reading.result()
            backend.health.note_check(is_ok=cards is not None)
            if cards is not None:
                self._cards[backend.name] = {card.id: card for card in cards}
        self.on_change()
        shadowed = shadowed_models(self._cards)
        if shadowed != self._shadowed:
            self._shadowed = shadowed
            for model, owner, other in shadowed:
                log.warning("model.listed_twice", model=model, owner=owner, also=other)

    async def _list(self, backend: Backend) -> list[ModelCard] | None:
        from gateway.relay.transport import http_client  # httpx is not needed to relay

        path, headers = list_request(backend)
        try:
            async with (
                asyncio.timeout(LIST_S),
                http_client(self._client, backend, LIST_S) as client,
                client.stream("GET", path, headers=headers) as answer,
            ):
                body = b""
                async for piece in answer.raise_for_status().aiter_bytes():
                    body += piece
                    if len(body) > LIST_BYTES:
                        raise ValueError("list too long")
            return read_cards(json.loads(body))
        except Exception as fault:  # noqa: BLE001 - one backend must not hide others
            log.warning("models.not_listed", backend=backend.name, fault=type(fault).__name__)
            return None


def list_request(backend: Backend) -> tuple[str, Headers]:
    """Path and headers, beside the backend's own, of the question for its models."""
    headers = [(b"accept", b"application/json")]
    if backend.settings.kind == "anthropic":
        headers.append((b"anthropic-version", b"2023-06-01"))
    return backend.url_path(*_PATHS[backend.settings.kind]), headers


def read_cards(body: Any) -> list[ModelCard]:
    """The models of a list in OpenAI's, Anthropic's or Google's form.

    Raises: ValueError when it is none of them.
    """
    items = (body.get("data") or body.get("models")) if isinstance(body, dict) else body
    if not isinstance(items, list):
        raise ValueError("not a list of models")
    cards = []
    for item in items:
        name = (item.get("id") or item.get("name")) if isinstance(item, dict) else None
        if isinstance(name, str):
            cards.append(ModelCard(name.removeprefix("models/"), _context(item)))
    return cards


def _context(item: dict[str, Any]) -> int | None:
    meta = item.get("meta")
    for value in (
        item.get("max_model_len"),
        item.get("context_length"),
        item.get("inputTokenLimit"),
        item.get("max_input_tokens"),
        meta.get("n_ctx_train") if isinstance(meta, dict) else None,
    ):
        if type(value) is int:
            return value
    return None
