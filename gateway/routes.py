"""The whole URL table: path, methods, who may, what answers. Knows no handler's inside.

A path without a rule does not exist. Router and rule use one and the same value, `exchange.path`.
"""

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Protocol

import structlog

from gateway.errors import ApiError, internal_error
from gateway.exchange import ClientLeft, CutShort, Exchange
from gateway.middleware.auth import Auth, Identity, Rule, not_found
from gateway.settings.types import Surface
from gateway.surfaces.models import surface_of

log = structlog.get_logger(__name__)

Endpoint = Callable[[Exchange, Identity], Awaitable[None]]


class Gate(Protocol):
    """Who decides about access right now (the keys may be read again at any time)."""

    auth: Auth


@dataclass(frozen=True, slots=True)
class Endpoints:
    """What answers. `model_call` serves every surface."""

    model_call: Endpoint
    models: Endpoint
    health: Endpoint
    ready: Endpoint
    root: Endpoint
    usage: Endpoint
    cache: Endpoint
    metrics: Endpoint


@dataclass(frozen=True, slots=True)
class Route:
    """One line of the table. A path that ends with `*` stands for all that begin so.

    `surface` None: the path belongs to no surface, the caller's headers tell its form.
    """

    path: str
    method: str
    rule: Rule
    endpoint: Endpoint
    surface: Surface | None = None


def url_table(to: Endpoints) -> list[Route]:
    """Every path that exists. GET answers HEAD as well."""
    return [
        Route("/v1/chat/completions", "POST", "client", to.model_call, "chat"),
        Route("/v1/completions", "POST", "client", to.model_call, "completions"),
        Route("/v1/responses", "POST", "client", to.model_call, "responses"),
        Route("/v1/embeddings", "POST", "client", to.model_call, "embeddings"),
        Route("/v1/audio/speech", "POST", "client", to.model_call, "audio"),
        Route("/v1/audio/transcriptions", "POST", "client", to.model_call, "audio"),
        Route("/v1/audio/translations", "POST", "client", to.model_call, "audio"),
        Route("/v1/images/generations", "POST", "client", to.model_call, "images"),
        Route("/v1/images/edits", "POST", "client", to.model_call, "images"),
        Route("/v1/images/variations", "POST", "client", to.model_call, "images"),
        Route("/v1/moderations", "POST", "client", to.model_call, "moderations"),
        Route("/v1/messages", "POST", "client", to.model_call, "messages"),
        Route("/v1/messages/count_tokens", "POST", "client", to.model_call, "count_tokens"),
        Route("/v1/models/*", "POST", "client", to.model_call, "gemini"),
        Route("/v1beta/models/*", "POST", "client", to.model_call, "gemini"),
        *_modelless("/v1/files", to.model_call, "files"),
        *_modelless("/v1/batches", to.model_call, "batches"),
        Route("/v1/models", "GET", "client", to.models),
        Route("/v1/models/*", "GET", "client", to.models),
        Route("/v1beta/models", "GET", "client", to.models),
        Route("/v1beta/models/*", "GET", "client", to.models),
        Route("/v1/dashboard/usage", "GET", "dashboard", to.usage),
        Route("/v1/cache", "GET", "admin", to.cache),
        Route("/v1/cache", "DELETE", "admin", to.cache),
        Route("/metrics", "GET", "metrics", to.metrics),
        Route("/livez", "GET", "open", to.health),
        Route("/health", "GET", "open", to.health),
        Route("/readyz", "GET", "open", to.ready),
        Route("/", "GET", "open", to.root),
    ]


def _modelless(path: str, endpoint: Endpoint, surface: Surface) -> list[Route]:
    """A path and all below it, for calls that name no model."""
    return [
        Route(each, method, "client", endpoint, surface)
        for each in (path, f"{path}/*")
        for method in ("GET", "POST", "DELETE", "OPTIONS")
    ]


class Router:
    """Takes every request in: finds its route, checks its rule, answers what goes wrong."""

    def __init__(self, gate: Gate, table: list[Route]) -> None:
        self._gate = gate
        self._exact: dict[str, dict[str, Route]] = {}
        self._open: dict[str, dict[str, Route]] = {}
        for route in table:
            known = self._open if route.path.endswith("*") else self._exact
            by_method = known.setdefault(route.path.removesuffix("*"), {})
            by_method[route.method] = route
            if route.method == "GET":
                by_method["HEAD"] = route

    async def serve(self, exchange: Exchange) -> None:
        """Answers one request, whatever it is."""
        exchange.begin()
        try:
            route = self._find(exchange)
            exchange.surface = route.surface or surface_of(exchange)
            if exchange.fault is not None:
                exchange.raise_fault()
            await route.endpoint(exchange, self._gate.auth.check(route.rule, exchange))
        except ApiError as error:
            exchange.reply_error(error)
        except (CutShort, ClientLeft):
            exchange.cut()
        except asyncio.CancelledError:
            exchange.cut()
            exchange.end_reason()
        except Exception:
            log.exception("request.crashed", request_id=exchange.request_id)
            if exchange.has_started:
                exchange.cut()
            else:
                exchange.reply_error(internal_error())

    def _find(self, exchange: Exchange) -> Route:
        """The route of a request. Raises: ApiError 404, 405, with the form of its errors set."""
        path, method = exchange.path, exchange.method
        by_method = self._exact.get(path)
        if by_method is None:
            for prefix, found in self._open.items():
                if path.startswith(prefix) and len(path) > len(prefix):
                    by_method, exchange.rest = found, path[len(prefix) :]
                    break
        if by_method is not None and (route := by_method.get(method)) is not None:
            return route
        exchange.surface = _unrouted_surface(exchange)
        exchange.raise_fault()
        if by_method is None:
            raise not_found(path)
        allowed = ", ".join(sorted(by_method))
        raise ApiError(405, "method_not_allowed", f"{method} is not allowed here; use {allowed}.")


def _unrouted_surface(exchange: Exchange) -> Surface:
    if exchange.path.startswith("/v1/messages"):
        return "messages"
    if exchange.path.startswith("/v1/models/") and ":" in exchange.path:
        return "gemini"
    return surface_of(exchange)
