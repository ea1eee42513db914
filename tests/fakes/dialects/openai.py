"""OpenAI's chat, completions, embeddings and models, as a provider answers them. Knows no socket.

Source: platform.openai.com/docs/api-reference (chat, completions, embeddings, models).
"""

from typing import Any

from tests.fakes.dialects import responses
from tests.fakes.dialects.turn import (
    CREATED_S,
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
    data,
    objects,
)

DONE = b"data: [DONE]\n\n"
VECTOR = [0.25, -0.5, 1.0]


class OpenAi:
    """The OpenAI dialect. Its key is a Bearer token."""

    models: tuple[str, ...] = ("kestrel-large", "kestrel-embed")

    def key_header(self, key: str) -> tuple[str, str]:
        return "authorization", f"Bearer {key}"

    def answer(self, request: Request) -> Reply:
        match request.method, request.path:
            case "GET", "/v1/models":
                return Reply(None, None, _models(self.models))
            case "POST", "/v1/chat/completions":
                return self._known(request, chat)
            case "POST", "/v1/responses":
                return self._known(request, responses.answer)
            case "POST", "/v1/completions":
                return self._known(request, completion)
            case "POST", "/v1/embeddings":
                return self._known(request, embedding)
        raise Refused(404, f"Invalid URL ({request.method} {request.path})")

    def error(self, status: int, message: str) -> dict[str, Any]:
        kind = {401: "authentication_error", 404: "not_found_error"}.get(status, "server_error")
        return {"error": {"message": message, "type": kind, "param": None, "code": None}}

    def _known(self, request: Request, answer: Any) -> Reply:
        if request.model not in self.models:
            raise Refused(404, f"The model '{request.model}' does not exist")
        reply: Reply = answer(request)
        return reply


def _models(names: tuple[str, ...]) -> dict[str, Any]:
    items = [{"id": name, "object": "model", "created": CREATED_S, "owned_by": "kestrel"}
             for name in names]  # fmt: skip
    return {"object": "list", "data": items}


def chat(request: Request) -> Reply:
    """A chat completion, whole or streamed."""
    call = _chat_call(request)
    finish = "tool_calls" if call else "stop"
    usage = counts(request.number)
    if not request.body.get("stream"):
        message: dict[str, Any] = {"role": "assistant", "content": None if call else TEXT,
                                   "refusal": None, "annotations": []}  # fmt: skip
        if call:
            message["tool_calls"] = [_chat_tool_call(call)]
        choice = {"index": 0, "message": message, "logprobs": None, "finish_reason": finish}
        body = {**_head(request, "chat.completion"), "choices": [choice], "usage": _usage(usage)}
        return Reply("chat", request.model, body, finish, usage, call)
    has_usage = bool((request.body.get("stream_options") or {}).get("include_usage"))
    deltas = _call_deltas(call) if call else _text_deltas()
    choices = [_chat_choice(delta, None) for delta in deltas] + [_chat_choice({}, finish)]
    chunks = _stream(request, "chat.completion.chunk", choices, usage if has_usage else None)
    return Reply("chat", request.model, chunks, finish, usage if has_usage else None, call)


def completion(request: Request) -> Reply:
    """A completion of a raw prompt, whole or streamed."""
    usage = counts(request.number)
    if not request.body.get("stream"):
        choice = {"text": TEXT, "index": 0, "logprobs": None, "finish_reason": "stop"}
        body = {**_head(request, "text_completion"), "choices": [choice], "usage": _usage(usage)}
        return Reply("completions", request.model, body, "stop", usage)
    has_usage = bool((request.body.get("stream_options") or {}).get("include_usage"))
    choices = [
        {"text": piece, "index": 0, "logprobs": None, "finish_reason": finish}
        for piece, finish in [*((piece, None) for piece in PIECES), ("", "stop")]
    ]
    chunks = _stream(request, "text_completion", choices, usage if has_usage else None)
    return Reply("completions", request.model, chunks, "stop", usage if has_usage else None)


def embedding(request: Request) -> Reply:
    """One vector for each input."""
    inputs = request.body["input"]
    texts = inputs if isinstance(inputs, list) else [inputs]
    prompt = counts(request.number).prompt
    body = {
        "object": "list",
        "data": [{"object": "embedding", "index": at, "embedding": VECTOR}
                 for at in range(len(texts))],
        "model": request.model,
        "usage": {"prompt_tokens": prompt, "total_tokens": prompt},
    }  # fmt: skip
    usage = Usage(prompt=prompt, output=0)
    return Reply("embeddings", request.model, body, usage=usage, kind="embedding")


def _chat_call(request: Request) -> Call | None:
    tools = [tool["function"] for tool in objects(request.body.get("tools"))]
    has_result = any(message["role"] == "tool" for message in request.body["messages"])
    if not tools or has_result:
        return None
    return call_of(request.number, tools[0]["name"], tools[0].get("parameters"))


def _head(request: Request, kind: str) -> dict[str, Any]:
    return {
        "id": f"chatcmpl-{request.number}", "object": kind, "created": CREATED_S,
        "model": request.model, "service_tier": "default", "system_fingerprint": "fp_kestrel",
    }  # fmt: skip


def _stream(
    request: Request, kind: str, choices: list[dict[str, Any]], usage: Usage | None
) -> list[bytes]:
    """Chunks of one choice each; with usage asked for, it is null in all and told in one more."""
    head = _head(request, kind)
    empty = {"usage": None} if usage else {}
    chunks = [data({**head, "choices": [choice], **empty}) for choice in choices]
    if usage:
        chunks.append(data({**head, "choices": [], "usage": _usage(usage)}))
    return [*chunks, DONE]


def _text_deltas() -> list[dict[str, Any]]:
    first = {"role": "assistant", "content": "", "refusal": None}
    return [first, *({"content": piece} for piece in PIECES)]


def _call_deltas(call: Call) -> list[dict[str, Any]]:
    opened = {"index": 0, **_chat_tool_call(call)}
    opened["function"] = {"name": call.name, "arguments": ""}
    first = {"role": "assistant", "content": None, "refusal": None, "tool_calls": [opened]}
    pieces = [{"index": 0, "function": {"arguments": piece}} for piece in cut(call.json)]
    return [first, *({"tool_calls": [piece]} for piece in pieces)]


def _chat_choice(delta: dict[str, Any], finish: str | None) -> dict[str, Any]:
    return {"index": 0, "delta": delta, "logprobs": None, "finish_reason": finish}


def _chat_tool_call(call: Call) -> dict[str, Any]:
    function = {"name": call.name, "arguments": call.json}
    return {"id": call.id, "type": "function", "function": function}


def _usage(usage: Usage) -> dict[str, Any]:
    assert usage.prompt is not None and usage.output is not None
    return {
        "prompt_tokens": usage.prompt,
        "completion_tokens": usage.output,
        "total_tokens": usage.prompt + usage.output,
        "prompt_tokens_details": {
            "cached_tokens": usage.cached, "cache_write_tokens": usage.written, "audio_tokens": 0,
        },
        "completion_tokens_details": {
            "reasoning_tokens": usage.reasoning, "audio_tokens": 0,
            "accepted_prediction_tokens": 0, "rejected_prediction_tokens": 0,
        },
    }  # fmt: skip
