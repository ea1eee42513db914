"""What a backend's answer says about itself: usage, finish, model, text. One reader a surface.

Knows no bytes and no sockets: it is given parsed JSON and keeps nothing else.
Source of the fields: the API references of OpenAI, Anthropic and Google.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from gateway.settings.types import Surface


@dataclass(slots=True)
class Tokens:
    """Counts as the ledger books them: prompt includes cached and written, output reasoning."""

    prompt: int | None = None
    cached: int | None = None
    cache_write: int | None = None
    output: int | None = None
    reasoning: int | None = None


class Reading:
    """Everything learnt from one answer so far. Later values replace earlier ones.

    `delta_bytes`, `delta_count`: UTF-8 bytes and number of deltas with content, reasoning or tool
    text. `cost`: what the provider says the call cost, in its currency. `response_id` and
    `sequence_number`: of a Responses stream, which must end as it began.
    """

    __slots__ = (
        "cost", "delta_bytes", "delta_count", "finish", "has_usage", "is_failed", "model",
        "response_id", "sequence_number", "tokens", "tool_calls",
    )  # fmt: skip

    def __init__(self) -> None:
        self.tokens = Tokens()
        self.has_usage = False
        self.finish: str | None = None
        self.is_failed = False
        self.model: str | None = None
        self.cost: str | None = None
        self.response_id: str | None = None
        self.sequence_number: int | None = None
        self.delta_bytes = 0
        self.delta_count = 0
        self.tool_calls = 0

    def text(self, *pieces: Any) -> None:
        """Counts one delta made of these texts (anything but text is ignored)."""
        size_bytes = sum(len(piece.encode(errors="replace")) for piece in pieces if _is_text(piece))
        if size_bytes:
            self.delta_bytes += size_bytes
            self.delta_count += 1

    def usage(self, **counts: Any) -> None:
        """Takes over the counts that are there; ignores those that are not numbers."""
        for name, value in counts.items():
            if _is_count(value):
                setattr(self.tokens, name, value)
                self.has_usage = True


Reader = Callable[[Reading, dict[str, Any]], bool]


def reader_of(surface: Surface) -> Reader:
    """The function that takes one JSON object of this surface, a whole answer or an event.

    It returns whether the object is a sign of life: pings are not.
    """
    return _READERS[surface]


def _chat(reading: Reading, body: dict[str, Any]) -> bool:
    _model(reading, body)
    for choice in _objects(body.get("choices")):
        delta = _object(choice.get("delta") or choice.get("message"))
        calls = [_object(call.get("function")) for call in _objects(delta.get("tool_calls"))]
        reading.tool_calls += sum(1 for call in calls if call.get("name"))
        reading.text(
            delta.get("content"),
            delta.get("reasoning_content") or delta.get("reasoning"),
            choice.get("text"),
            *(call.get("arguments") for call in calls),
            *(call.get("name") for call in calls),
        )
        if _is_text(choice.get("finish_reason")):
            reading.finish = choice["finish_reason"]
    usage = _object(body.get("usage"))
    prompt = _object(usage.get("prompt_tokens_details"))
    output = _object(usage.get("completion_tokens_details"))
    reading.usage(
        prompt=usage.get("prompt_tokens"),
        cached=_first(prompt.get("cached_tokens"), usage.get("prompt_cache_hit_tokens")),
        cache_write=prompt.get("cache_write_tokens"),
        output=usage.get("completion_tokens"),
        reasoning=output.get("reasoning_tokens"),
    )
    _cost(reading, usage)
    reading.is_failed |= "error" in body and "choices" not in body
    return True


def _responses(reading: Reading, body: dict[str, Any]) -> bool:
    kind = body.get("type")
    if _is_text(kind) and str(kind).endswith(".delta"):
        reading.text(body.get("delta"))
    if _is_count(body.get("sequence_number")):
        reading.sequence_number = body["sequence_number"]
    response = _object(body.get("response")) or body
    if response.get("object") == "response" and _is_text(response.get("id")):
        reading.response_id = response["id"]
    _model(reading, response)
    if response.get("object") == "response" and response.get("status") in _RESPONSES_ENDS:
        reading.finish = response["status"]
        reading.is_failed |= response["status"] == "failed"
    for item in _objects(response.get("output")):
        reading.tool_calls += item.get("type") == "function_call" and reading.finish is not None
        if kind is None:
            reading.text(*(part.get("text") for part in _objects(item.get("content"))))
            reading.text(item.get("arguments"))
    reading.is_failed |= kind == "error"
    usage = _object(response.get("usage"))
    prompt = _object(usage.get("input_tokens_details"))
    reading.usage(
        prompt=usage.get("input_tokens"),
        cached=prompt.get("cached_tokens"),
        cache_write=prompt.get("cache_write_tokens"),
        output=usage.get("output_tokens"),
        reasoning=_object(usage.get("output_tokens_details")).get("reasoning_tokens"),
    )
    _cost(reading, usage)
    return True


def _messages(reading: Reading, body: dict[str, Any]) -> bool:
    kind = body.get("type")
    message = _object(body.get("message")) if kind == "message_start" else body
    _model(reading, message)
    delta = _object(body.get("delta"))
    reading.text(delta.get("text"), delta.get("thinking"), delta.get("partial_json"))
    blocks = _objects(body.get("content")) or [_object(body.get("content_block"))]
    reading.tool_calls += sum(1 for block in blocks if block.get("type") == "tool_use")
    if kind == "message":
        for block in blocks:
            reading.text(block.get("text"), block.get("thinking"))
    stop = delta.get("stop_reason") or (body.get("stop_reason") if kind == "message" else None)
    if _is_text(stop):
        reading.finish = stop
    reading.is_failed |= kind == "error"
    usage = _object(message.get("usage") or body.get("usage"))
    tokens = reading.tokens
    reading.usage(
        cached=usage.get("cache_read_input_tokens"),
        cache_write=usage.get("cache_creation_input_tokens"),
        output=usage.get("output_tokens"),
        reasoning=_object(usage.get("output_tokens_details")).get("thinking_tokens"),
    )
    if _is_count(usage.get("input_tokens")):
        reading.usage(
            prompt=usage["input_tokens"] + (tokens.cached or 0) + (tokens.cache_write or 0)
        )
    return kind != "ping"


def _gemini(reading: Reading, body: dict[str, Any]) -> bool:
    if _is_text(body.get("modelVersion")):
        reading.model = body["modelVersion"]
    for candidate in _objects(body.get("candidates")):
        for part in _objects(_object(candidate.get("content")).get("parts")):
            call = _object(part.get("functionCall"))
            reading.tool_calls += bool(call)
            reading.text(part.get("text"), call.get("name"))
        if _is_text(candidate.get("finishReason")):
            reading.finish = candidate["finishReason"]
    if _object(body.get("promptFeedback")).get("blockReason"):
        reading.finish = "SAFETY"
    usage = _object(body.get("usageMetadata"))
    prompt, tool = usage.get("promptTokenCount"), usage.get("toolUsePromptTokenCount")
    output, thoughts = usage.get("candidatesTokenCount"), usage.get("thoughtsTokenCount")
    reading.usage(
        prompt=_first(_sum(prompt, tool), body.get("totalTokens")),  # countTokens has the latter
        cached=usage.get("cachedContentTokenCount"),
        output=_sum(output, thoughts),
        reasoning=thoughts,
    )
    reading.is_failed |= "error" in body
    return True


def _count(reading: Reading, body: dict[str, Any]) -> bool:
    reading.finish = "stop"
    reading.usage(prompt=_first(body.get("input_tokens"), body.get("totalTokens")))
    return True


def _embeddings(reading: Reading, body: dict[str, Any]) -> bool:
    _model(reading, body)
    reading.finish = "stop"
    reading.usage(prompt=_object(body.get("usage")).get("prompt_tokens"), output=0)
    _cost(reading, _object(body.get("usage")))
    return True


_RESPONSES_ENDS = ("completed", "incomplete", "failed", "cancelled")
_READERS: dict[Surface, Reader] = {
    "chat": _chat,
    "completions": _chat,
    "responses": _responses,
    "embeddings": _embeddings,
    "messages": _messages,
    "count_tokens": _count,
    "gemini": _gemini,
}


def _model(reading: Reading, body: dict[str, Any]) -> None:
    if _is_text(body.get("model")) and body["model"]:
        reading.model = body["model"]


def _cost(reading: Reading, usage: dict[str, Any]) -> None:
    cost = usage.get("cost")
    if isinstance(cost, (int, float)) and not isinstance(cost, bool) and cost >= 0:
        reading.cost = repr(cost)


def _object(value: Any) -> dict[str, Any]:
    return value if isinstance(value, dict) else {}


def _objects(value: Any) -> list[dict[str, Any]]:
    return [item for item in value if isinstance(item, dict)] if isinstance(value, list) else []


def _first(*values: Any) -> Any:
    return next((value for value in values if value is not None), None)


def _sum(*values: Any) -> int | None:
    counts = [value for value in values if _is_count(value)]
    return sum(counts) if counts else None


def _is_count(value: Any) -> bool:
    return type(value) is int and value >= 0


def _is_text(value: Any) -> bool:
    return isinstance(value, str)
