"""Anthropic's messages, token counting and models, as a provider answers them. Knows no socket.

Source: docs.anthropic.com/en/api (messages, messages-streaming, count tokens, models).
"""

from collections.abc import Iterator
from typing import Any
from urllib.parse import parse_qsl

from tests.fakes.dialects.turn import (
    PIECES,
    TEXT,
    Call,
    Refused,
    Reply,
    Request,
    Usage,
    call_of,
    counts,
    cut,
    event,
    objects,
)

PAGE = 20  # models, unless the request says how many
_ERRORS = {400: "invalid_request_error", 401: "authentication_error", 404: "not_found_error"}


class Anthropic:
    """The Anthropic dialect. Its key stands in a header of its own."""

    models: tuple[str, ...] = ("heron-medium", *(f"heron-{n}" for n in range(PAGE)))

    def key_header(self, key: str) -> tuple[str, str]:
        return "x-api-key", key

    def answer(self, request: Request) -> Reply:
        if "anthropic-version" not in request.headers:
            raise Refused(400, "anthropic-version: header is required")
        match request.method, request.path:
            case "GET", "/v1/models":
                size = int(dict(parse_qsl(request.query)).get("limit", PAGE))
                return Reply(None, None, _models(self.models, size))
            case "POST", "/v1/messages":
                return message(self._known(request))
            case "POST", "/v1/messages/count_tokens":
                return count(self._known(request))
        raise Refused(404, "Not found")

    def error(self, status: int, message: str) -> dict[str, Any]:
        kind = _ERRORS.get(status, "api_error")
        return {"type": "error", "error": {"type": kind, "message": message}}

    def _known(self, request: Request) -> Request:
        if request.model not in self.models:
            raise Refused(404, f"model: {request.model}")
        return request


def _models(names: tuple[str, ...], size: int) -> dict[str, Any]:
    """The first page of the list."""
    items = [{"type": "model", "id": name, "display_name": name.title(),
              "created_at": "2026-02-03T00:00:00Z", "max_input_tokens": 200_000}
             for name in names[:size]]  # fmt: skip
    has_more = len(names) > size
    return {"data": items, "has_more": has_more, "first_id": names[0], "last_id": items[-1]["id"]}


def message(request: Request) -> Reply:
    """A message, whole or streamed."""
    call, usage = _call(request), counts(request.number)
    reason = "tool_use" if call else "end_turn"
    block = _call_block(call) if call else {"type": "text", "text": TEXT}
    if request.body.get("stream"):
        deltas = _json_deltas(call) if call else _text_deltas()
        opened = {**block, "input": {}} if call else {**block, "text": ""}
        events = [event(body) for body in _events(request, opened, deltas, reason, usage)]
        return Reply("messages", request.model, events, reason, usage, call)
    body = {**_head(request, usage), "content": [block], "stop_reason": reason}
    body["usage"] = {**_input_usage(usage), **_output_usage(usage)}
    return Reply("messages", request.model, body, reason, usage, call)


def count(request: Request) -> Reply:
    """The tokens of a prompt that is not answered."""
    prompt = counts(request.number).prompt
    body, usage = {"input_tokens": prompt}, Usage(prompt=prompt)
    return Reply("count_tokens", request.model, body, usage=usage, kind="count")


def _call(request: Request) -> Call | None:
    tools = objects(request.body.get("tools"))
    blocks = [b for m in request.body["messages"] for b in objects(m["content"])]
    if not tools or any(block["type"] == "tool_result" for block in blocks):
        return None
    first = next(iter(tools))
    return call_of(request.number, first["name"], first.get("input_schema"))


def _events(
    request: Request, opened: dict[str, Any], deltas: list[dict[str, Any]], reason: str,
    usage: Usage,
) -> Iterator[dict[str, Any]]:  # fmt: skip
    yield {"type": "message_start", "message": _head(request, usage)}
    yield {"type": "content_block_start", "index": 0, "content_block": opened}
    yield {"type": "ping"}
    for delta in deltas:
        yield {"type": "content_block_delta", "index": 0, "delta": delta}
    yield {"type": "content_block_stop", "index": 0}
    end = {"stop_reason": reason, "stop_sequence": None}
    yield {"type": "message_delta", "delta": end, "usage": _output_usage(usage)}
    yield {"type": "message_stop"}


def _text_deltas() -> list[dict[str, Any]]:
    return [{"type": "text_delta", "text": piece} for piece in PIECES]


def _json_deltas(call: Call) -> list[dict[str, Any]]:
    return [{"type": "input_json_delta", "partial_json": piece} for piece in ["", *cut(call.json)]]


def _call_block(call: Call) -> dict[str, Any]:
    return {"type": "tool_use", "id": f"toolu_{call.id}", "name": call.name,
            "input": call.arguments}  # fmt: skip


def _head(request: Request, usage: Usage) -> dict[str, Any]:
    return {
        "id": f"msg_{request.number}", "type": "message", "role": "assistant",
        "model": request.model, "content": [], "stop_reason": None, "stop_sequence": None,
        "usage": {**_input_usage(usage), "output_tokens": 1},
    }  # fmt: skip


def _input_usage(usage: Usage) -> dict[str, Any]:
    """Input tokens leave out those that were read from the cache or written to it."""
    assert usage.prompt is not None and usage.cached is not None and usage.written is not None
    return {
        "input_tokens": usage.prompt - usage.cached - usage.written,
        "cache_read_input_tokens": usage.cached,
        "cache_creation_input_tokens": usage.written,
        "cache_creation": {
            "ephemeral_5m_input_tokens": usage.written, "ephemeral_1h_input_tokens": 0,
        },
        "service_tier": "standard",
    }  # fmt: skip


def _output_usage(usage: Usage) -> dict[str, Any]:
    return {
        "output_tokens": usage.output,
        "output_tokens_details": {"thinking_tokens": usage.reasoning},
    }
