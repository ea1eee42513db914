"""The whole URL table: path, methods, who may, what answers. Knows no handler's inside.

A path without a rule does not exist. Endpoints are bare ASGI callables: no `Request`, no
`StreamingResponse`, nothing parsed before the endpoint wants it.
"""

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Protocol

from starlette.exceptions import HTTPException
from starlette.routing import Route

from gateway.errors import ApiError
from gateway.exchange import ClientLeft, CutShort, Exchange, Receive, Scope, Send
from gateway.middleware.auth import Auth, Identity, Rule, not_found
from gateway.middleware.request_id import new_request_id
from gateway.settings.types import Surface
from gateway.surfaces.models import surface_of

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


def url_table(gate: Gate, to: Endpoints) -> list[Route]:
    """Every path that exists."""

    def route(
        path: str, method: str, rule: Rule, endpoint: Endpoint, surface: Surface | None = None
    ) -> Route:
        return Route(path, Guarded(gate, rule, surface, endpoint), methods=[method])

    return [
        route("/v1/chat/completions", "POST", "client", to.model_call, "chat"),
        route("/v1/completions", "POST", "client", to.model_call, "completions"),
        route("/v1/responses", "POST", "client", to.model_call, "responses"),
        route("/v1/embeddings", "POST", "client", to.model_call, "embeddings"),
        route("/v1/messages", "POST", "client", to.model_call, "messages"),
        route("/v1/messages/count_tokens", "POST", "client", to.model_call, "count_tokens"),
        route("/v1/models/{call:path}", "POST", "client", to.model_call, "gemini"),
        route("/v1beta/models/{call:path}", "POST", "client", to.model_call, "gemini"),
        route("/v1/models", "GET", "client", to.models),
        route("/v1/models/{model:path}", "GET", "client", to.models),
        route("/v1beta/models", "GET", "client", to.models),
        route("/v1beta/models/{model:path}", "GET", "client", to.models),
        route("/v1/dashboard/usage", "GET", "dashboard", to.usage),
        route("/livez", "GET", "open", to.health),
        route("/health", "GET", "open", to.health),
        route("/readyz", "GET", "open", to.ready),
        route("/", "GET", "open", to.root),
    ]


class Guarded:
    """An ASGI endpoint behind its rule; errors are answered in the form of its surface.

    `surface` None: the path belongs to no surface, the caller's headers tell its form.
    """

    def __init__(self, gate: Gate, rule: Rule, surface: Surface | None, endpoint: Endpoint) -> None:
        self.rule = rule
        self._gate = gate
        self._surface = surface
        self._endpoint = endpoint

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        exchange = new_exchange(scope, receive, send, self._surface)
        try:
            identity = self._gate.auth.check(self.rule, exchange)
            await self._endpoint(exchange, identity)
        except ApiError as error:
            await exchange.reply_error(error)
        except (CutShort, ClientLeft):
            return  # without the end of the answer: the server closes the connection


def new_exchange(scope: Scope, receive: Receive, send: Send, surface: Surface | None) -> Exchange:
    """An exchange with an id; without a surface, errors have the form that the caller reads."""
    exchange = Exchange(
        scope, receive, send, surface=surface or "chat", request_id=new_request_id()
    )
    if surface is None:
        exchange.surface = surface_of(exchange)
    return exchange


async def answer_unrouted(scope: Scope, receive: Receive, send: Send, fault: HTTPException) -> None:
    """The answer for a path or a method that the table does not have."""
    path: str = scope["path"]
    surface: Surface | None = None
    if path.startswith("/v1/messages"):
        surface = "messages"
    elif path.startswith("/v1/models/") and ":" in path:
        surface = "gemini"
    exchange = new_exchange(scope, receive, send, surface)
    if fault.status_code == 405:
        allowed = (fault.headers or {}).get("Allow", "")
        message = f"{scope['method']} is not allowed here; use {allowed}."
        await exchange.reply_error(ApiError(405, "method_not_allowed", message))
        return
    await exchange.reply_error(not_found(path))
