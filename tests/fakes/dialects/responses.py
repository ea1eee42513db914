"""OpenAI's Responses, as a provider answers them: every event of the grammar. Knows no socket.

Source: platform.openai.com/docs/api-reference/responses and …/responses-streaming.
"""

from collections.abc import Iterator
from typing import Any

from tests.fakes.dialects.turn import (
    CREATED_S,
    PIECES,
    TEXT,
    Call,
    Reply,
    Request,
    Usage,
    call_of,
    counts,
    cut,
    event,
    objects,
)


def answer(request: Request) -> Reply:
    """A response, whole or streamed."""
    call, usage = _call(request), counts(request.number)
    item = _call_item(call) if call else _message(request.number)
    done = _response(request, "completed", [item], usage)
    if not request.body.get("stream"):
        return Reply("responses", request.model, done, "completed", usage, call)
    opened = _response(request, "in_progress", [], None)
    bodies = [
        {"type": "response.created", "response": opened},
        {"type": "response.in_progress", "response": opened},
        *(_call_events(item, call) if call else _message_events(item)),
        {"type": "response.completed", "response": done},
    ]
    events = [event({**body, "sequence_number": at}) for at, body in enumerate(bodies)]
    return Reply("responses", request.model, events, "completed", usage, call)


def _call(request: Request) -> Call | None:
    tools = [t for t in objects(request.body.get("tools")) if t["type"] == "function"]
    items = objects(request.body["input"])
    if not tools or any(item.get("type") == "function_call_output" for item in items):
        return None
    return call_of(request.number, tools[0]["name"], tools[0].get("parameters"))


def _message_events(item: dict[str, Any]) -> Iterator[dict[str, Any]]:
    at = {"item_id": item["id"], "output_index": 0, "content_index": 0}
    part = item["content"][0]
    yield _item_event("added", {**item, "status": "in_progress", "content": []})
    yield {"type": "response.content_part.added", **at, "part": {**part, "text": ""}}
    for piece in PIECES:
        yield {"type": "response.output_text.delta", **at, "delta": piece, "logprobs": []}
    yield {"type": "response.output_text.done", **at, "text": part["text"], "logprobs": []}
    yield {"type": "response.content_part.done", **at, "part": part}
    yield _item_event("done", item)


def _call_events(item: dict[str, Any], call: Call) -> Iterator[dict[str, Any]]:
    at = {"item_id": item["id"], "output_index": 0}
    kind = "response.function_call_arguments"
    yield _item_event("added", {**item, "status": "in_progress", "arguments": ""})
    for piece in cut(call.json):
        yield {"type": f"{kind}.delta", **at, "delta": piece}
    yield {"type": f"{kind}.done", **at, "name": call.name, "arguments": call.json}
    yield _item_event("done", item)


def _item_event(what: str, item: dict[str, Any]) -> dict[str, Any]:
    return {"type": f"response.output_item.{what}", "output_index": 0, "item": item}


def _message(number: int) -> dict[str, Any]:
    part = {"type": "output_text", "text": TEXT, "annotations": [], "logprobs": []}
    return {"id": f"msg_{number}", "type": "message", "role": "assistant",
            "status": "completed", "content": [part]}  # fmt: skip


def _call_item(call: Call) -> dict[str, Any]:
    return {"id": f"fc_{call.id}", "type": "function_call", "status": "completed",
            "call_id": call.id, "name": call.name, "arguments": call.json}  # fmt: skip


def _response(
    request: Request, status: str, output: list[dict[str, Any]], usage: Usage | None
) -> dict[str, Any]:
    asked = request.body
    return {
        "id": f"resp_{request.number}", "object": "response", "created_at": CREATED_S,
        "status": status, "background": False, "error": None, "incomplete_details": None,
        "instructions": asked.get("instructions"), "max_output_tokens": None,
        "model": request.model, "output": output, "parallel_tool_calls": True,
        "previous_response_id": None, "reasoning": {"effort": None, "summary": None},
        "service_tier": "default", "store": False, "temperature": 1.0,
        "text": {"format": {"type": "text"}}, "tool_choice": "auto",
        "tools": asked.get("tools", []), "top_p": 1.0, "truncation": "disabled",
        "usage": _usage(usage) if usage else None, "user": None, "metadata": {},
    }  # fmt: skip


def _usage(usage: Usage) -> dict[str, Any]:
    assert usage.prompt is not None and usage.output is not None
    return {
        "input_tokens": usage.prompt,
        "input_tokens_details": {
            "cached_tokens": usage.cached, "cache_write_tokens": usage.written,
        },
        "output_tokens": usage.output,
        "output_tokens_details": {"reasoning_tokens": usage.reasoning},
        "total_tokens": usage.prompt + usage.output,
    }  # fmt: skip
