"""Google's generateContent family and models, as a provider answers them. Knows no socket.

Source: ai.google.dev/api (generate-content, tokens, models).
"""

import base64
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
    data,
    objects,
)

SIGNATURE = base64.b64encode(b"signed by the swift").decode()  # of a thought; comes back unchanged
_SCHEMAS = ("parameters", "parametersJsonSchema", "parameters_json_schema")
PAGE = 50  # models, unless the request says how many
_ERRORS = {400: "INVALID_ARGUMENT", 401: "UNAUTHENTICATED", 404: "NOT_FOUND"}


class Gemini:
    """The Gemini dialect. Its key stands in a header of its own."""

    models: tuple[str, ...] = ("swift-small", *(f"swift-{n}" for n in range(PAGE)))

    def key_header(self, key: str) -> tuple[str, str]:
        return "x-goog-api-key", key

    def answer(self, request: Request) -> Reply:
        version, _, path = request.path.strip("/").partition("/")
        if version not in ("v1", "v1beta"):
            raise Refused(404, "Not found")
        if (request.method, path) == ("GET", "models"):
            size = int(dict(parse_qsl(request.query)).get("pageSize", PAGE))
            return Reply(None, None, _models(self.models, size))
        model, _, method = path.removeprefix("models/").partition(":")
        if model not in self.models:
            raise Refused(404, f"models/{model} is not found")
        match request.method, method:
            case "POST", "generateContent":
                return whole(request, model)
            case "POST", "streamGenerateContent" if "alt=sse" in request.query.split("&"):
                return streamed(request, model)
            case "POST", "countTokens":
                return count(request, model)
        raise Refused(404, f"Method {method} is not found")

    def error(self, status: int, message: str) -> dict[str, Any]:
        kind = _ERRORS.get(status, "UNKNOWN")
        return {"error": {"code": status, "message": message, "status": kind}}


def _models(names: tuple[str, ...], size: int) -> dict[str, Any]:
    """The first page of the list."""
    page = {"models": [_model(name) for name in names[:size]]}
    return page if len(names) <= size else {**page, "nextPageToken": "more"}


def _model(name: str) -> dict[str, Any]:
    return {
        "name": f"models/{name}", "version": "001", "displayName": name.title(),
        "inputTokenLimit": 32_768, "outputTokenLimit": 8_192,
        "supportedGenerationMethods": ["generateContent", "countTokens"],
    }  # fmt: skip


def whole(request: Request, model: str) -> Reply:
    """A whole answer."""
    call, usage = _call(request), _counts(request.number)
    parts = [_call_part(call)] if call else [{"text": TEXT}]
    body = _chunk(request, model, parts, "STOP", usage)
    return Reply("gemini", model, body, "STOP", usage, call)


def streamed(request: Request, model: str) -> Reply:
    """The same in chunks, the last one with the reason and the whole usage. Lines end in CRLF."""
    call, usage = _call(request), _counts(request.number)
    parts = [_call_part(call)] if call else [{"text": piece} for piece in PIECES]
    early = Usage(prompt=usage.prompt, cached=usage.cached)
    chunks = [_chunk(request, model, [part], None, early) for part in parts[:-1]]
    chunks.append(_chunk(request, model, parts[-1:], "STOP", usage))
    return Reply("gemini", model, [data(c, end="\r\n\r\n") for c in chunks], "STOP", usage, call)


def count(request: Request, model: str) -> Reply:
    """The tokens of a prompt that is not answered."""
    prompt = counts(request.number).prompt
    usage = Usage(prompt=prompt)
    return Reply("gemini", model, {"totalTokens": prompt}, usage=usage, kind="count")


def _counts(number: int) -> Usage:
    usage = counts(number)
    return Usage(usage.prompt, usage.output, usage.cached, reasoning=usage.reasoning)


def _call(request: Request) -> Call | None:
    tools = objects(request.body.get("tools"))
    declared = [f for tool in tools for f in objects(tool.get("functionDeclarations"))]
    parts = [p for content in request.body["contents"] for p in objects(content.get("parts"))]
    if not declared or any("functionResponse" in part for part in parts):
        return None
    schemas = [declared[0][name] for name in _SCHEMAS if name in declared[0]]
    return call_of(request.number, declared[0]["name"], schemas[0] if schemas else None)


def _call_part(call: Call) -> dict[str, Any]:
    made = {"id": call.id, "name": call.name, "args": call.arguments}
    return {"functionCall": made, "thoughtSignature": SIGNATURE}


def _chunk(
    request: Request, model: str, parts: list[dict[str, Any]], finish: str | None, usage: Usage
) -> dict[str, Any]:
    candidate: dict[str, Any] = {"content": {"role": "model", "parts": parts}, "index": 0}
    if finish:
        candidate["finishReason"] = finish
    return {
        "candidates": [candidate],
        "usageMetadata": _usage(usage),
        "modelVersion": model,
        "responseId": f"swift-{request.number}",
    }


def _usage(usage: Usage) -> dict[str, Any]:
    """Candidates leave out the thoughts; what is not known yet is left out."""
    assert usage.prompt is not None
    said: dict[str, Any] = {
        "promptTokenCount": usage.prompt,
        "cachedContentTokenCount": usage.cached,
        "promptTokensDetails": [{"modality": "TEXT", "tokenCount": usage.prompt}],
        "totalTokenCount": usage.prompt + (usage.output or 0),
    }
    if usage.output is not None and usage.reasoning is not None:
        said["candidatesTokenCount"] = usage.output - usage.reasoning
        said["thoughtsTokenCount"] = usage.reasoning
    return said
