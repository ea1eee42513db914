"""The list of models in the form that the asking program understands. Knows no backend's list.

Source: the model list pages of OpenAI, Anthropic and Google; one path serves all three.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, Literal

from gateway.exchange import Exchange
from gateway.settings.types import Surface

Form = Literal["openai", "anthropic", "google"]
_SURFACES: dict[Form, Surface] = {"openai": "chat", "anthropic": "messages", "google": "gemini"}


@dataclass(frozen=True, slots=True)
class ListedModel:
    """A name that a client may ask for, and who owns it."""

    id: str
    owned_by: str
    context_tokens: int | None = None


def form_of(exchange: Exchange) -> Form:
    """Which form of list the caller reads: the first sign decides."""
    query = exchange.query
    is_google = (
        exchange.path.startswith("/v1beta/")
        or b"x-goog-api-key" in exchange.fields
        or b"x-goog-api-client" in exchange.fields
        or query.startswith(b"key=")
        or b"&key=" in query
    )
    if is_google:
        return "google"
    return "anthropic" if b"anthropic-version" in exchange.fields else "openai"


def surface_of(exchange: Exchange) -> Surface:
    """The surface whose errors the caller of a path that all programs share understands."""
    return _SURFACES[form_of(exchange)]


def model_list(form: Form, models: Iterable[ListedModel], created: int) -> dict[str, Any]:
    """The whole list. `created`: epoch seconds, of this process: nobody knows the models' own."""
    items = [model_item(form, model, created) for model in models]
    if form == "google":
        return {"models": items}
    if form == "anthropic":
        first, last = (items[0]["id"], items[-1]["id"]) if items else (None, None)
        return {"data": items, "has_more": False, "first_id": first, "last_id": last}
    return {"object": "list", "data": items}


def model_item(form: Form, model: ListedModel, created: int) -> dict[str, Any]:
    """One model."""
    if form == "google":
        limit = {"inputTokenLimit": model.context_tokens} if model.context_tokens else {}
        return {
            "name": f"models/{model.id}",
            "displayName": model.id,
            **limit,
            "supportedGenerationMethods": ["generateContent", "countTokens"],
        }
    if form == "anthropic":
        return {
            "type": "model",
            "id": model.id,
            "display_name": model.id,
            "created_at": datetime.fromtimestamp(created, UTC).strftime("%Y-%m-%dT%H:%M:%SZ"),
        }
    item = {"id": model.id, "object": "model", "created": created, "owned_by": model.owned_by}
    if model.context_tokens:
        item["max_model_len"] = model.context_tokens
    return item
