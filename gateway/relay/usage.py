"""What a backend's answer says about itself: usage, finish, model, text. One reader a surface.

Knows no bytes and no sockets: it is given parsed JSON and keeps nothing else.
Source of the fields: the API references of OpenAI, Anthropic and Google.
"""

from collections.abc import Callable
from typing import Any

from gateway.settings.types import Surface
from proto.limits import COUNTED_TEXT_BYTES


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

    has_usage = False
    is_without_finish = False  # an answer of a kind that has no finish reason, and it is whole
    has_every_finish = True  # no choice lacks its own; asked once `finish` is there
    finish: str | None = None
    is_failed = False
    model: str | None = None
    cost: str | None = None
    response_id: str | None = None
    sequence_number: int | None = None
    delta_bytes = 0
    delta_count = 0
    tool_calls = 0
    open_choices: set[int] | None = None

    def __init__(self) -> None:
        self.tokens = Tokens()

    def end_choice(self, index: Any, finish: Any) -> None:
        """A choice went by, with its finish reason or none; the answer ends when all have theirs.

        Most answers have one choice: others are kept track of from the first that is not number 0.
        """
        is_finished = type(finish) is str
        if index and self.open_choices is None and type(index) is int and index < MOST_CHOICES:
            self.open_choices = {0} if self.finish is None else set()
        if is_finished:
            self.finish = finish
        if self.open_choices is not None and type(index) is int and index < MOST_CHOICES:
            if is_finished:
                self.open_choices.discard(index)
            else:
                self.open_choices.add(index)
            self.has_every_finish = not self.open_choices

    def text(self, *pieces: Any) -> None:
        """Counts one delta made of these texts (anything but text is ignored)."""
        size_bytes = 0
        for piece in pieces:
            if piece and type(piece) is str:
                is_plain = piece.isascii()
                size_bytes += len(piece) if is_plain else len(piece.encode(errors="replace"))
        if size_bytes:
            self.delta_bytes += size_bytes
            self.delta_count += 1

    def usage(
        self, *, prompt: Any = None, output: Any = None, cached: Any = None,
        cache_write: Any = None, reasoning: Any = None,
    ) -> None:  # fmt: skip
        """Takes over the counts that are there; ignores those that are not numbers."""
        tokens = self.tokens
        if type(prompt) is int and prompt >= 0:
            tokens.prompt, self.has_usage = prompt, True
        if type(output) is int and output >= 0:
            tokens.output, self.has_usage = output, True
        if type(cached) is int and cached >= 0:
            tokens.cached, self.has_usage = cached, True
        if type(cache_write) is int and cache_write >= 0:
            tokens.cache_write, self.has_usage = cache_write, True
        if type(reasoning) is int and reasoning >= 0:
            tokens.reasoning, self.has_usage = reasoning, True


class KeptReading(Reading):
    """A reading that also keeps the texts, for a backend that can count them.

    `texts` None: there were more of them than are held.
    """

    def __init__(self) -> None:
        super().__init__()
        self.texts: list[str] | None = []

    def text(self, *pieces: Any) -> None:
        """Counts one delta and keeps its texts."""
        super().text(*pieces)
        if self.texts is None:
            return
        if self.delta_bytes > COUNTED_TEXT_BYTES:
            self.texts = None
            return
        for piece in pieces:
            if type(piece) is str:
                self.texts.append(piece)


MOST_CHOICES = 1_024  # told apart; nobody asks for more

_PLAIN_USAGE = {"prompt_tokens", "completion_tokens", "total_tokens"}

Reader = Callable[[Reading, dict[str, Any]], bool]


def reader_of(surface: Surface) -> Reader:
    """The function that takes one JSON object of this surface, a whole answer or an event.

    It returns whether the object is a sign of life: pings are not.
    """
    return _READERS[surface]


def _chat(reading: Reading, body: dict[str, Any]) -> bool:
    _model(reading, body)
    choices = body.get("choices")
    for choice in choices if type(choices) is list else ():
        if type(choice) is dict:
            _choice(reading, choice)
    usage = body.get("usage")
    if usage and type(usage) is dict:
        prompt, output = usage.get("prompt_tokens"), usage.get("completion_tokens")
        if type(prompt) is int and prompt >= 0:
            reading.tokens.prompt, reading.has_usage = prompt, True
        if type(output) is int and output >= 0:
            reading.tokens.output, reading.has_usage = output, True
        if not usage.keys() <= _PLAIN_USAGE:
            _chat_details(reading, usage)
    if "error" in body and choices is None:
        reading.is_failed = True
    return True


def _chat_details(reading: Reading, usage: dict[str, Any]) -> None:
    prompt = _object(usage.get("prompt_tokens_details"))
    output = _object(usage.get("completion_tokens_details"))
    reading.usage(
        cached=_first(prompt.get("cached_tokens"), usage.get("prompt_cache_hit_tokens")),
        cache_write=prompt.get("cache_write_tokens"),
        reasoning=output.get("reasoning_tokens"),
    )
    _cost(reading, usage)


def _choice(reading: Reading, choice: dict[str, Any]) -> None:
    delta = choice.get("delta") or choice.get("message")
    if type(delta) is not dict:
        reading.text(choice.get("text"))
    elif calls := delta.get("tool_calls"):
        functions = [_object(call.get("function")) for call in _objects(calls)]
        reading.tool_calls += sum(1 for function in functions if function.get("name"))
        reading.text(
            delta.get("content"),
            delta.get("reasoning_content") or delta.get("reasoning"),
            *(function.get("arguments") for function in functions),
            *(function.get("name") for function in functions),
        )
    else:
        reading.text(delta.get("content"), delta.get("reasoning_content") or delta.get("reasoning"))
    finish = choice.get("finish_reason")
    if finish is not None or choice.get("index") or reading.open_choices is not None:
        reading.end_choice(choice.get("index"), finish)


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
        reading.end_choice(candidate.get("index", 0), candidate.get("finishReason"))
    if _object(body.get("promptFeedback")).get("blockReason"):
        reading.finish = "SAFETY"
    if "totalTokens" in body:  # the answer to countTokens
        reading.is_without_finish = True
        reading.usage(prompt=body["totalTokens"])
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
    reading.is_without_finish = True
    reading.usage(prompt=_first(body.get("input_tokens"), body.get("totalTokens")))
    return True


def _embeddings(reading: Reading, body: dict[str, Any]) -> bool:
    _model(reading, body)
    reading.is_without_finish = True
    reading.usage(prompt=_object(body.get("usage")).get("prompt_tokens"), output=0)
    _cost(reading, _object(body.get("usage")))
    return True


def _media(reading: Reading, body: dict[str, Any]) -> bool:
    """Audio and images: whole answers have no finish; each stream ends with an event of its own."""
    _model(reading, body)
    kind = body.get("type")
    if type(kind) is not str:
        reading.is_without_finish = True
        reading.text(body.get("text"))
    elif kind.endswith(".delta"):
        reading.text(body.get("delta"))  # of a transcript; sound and pictures are no text
    elif kind.endswith((".done", ".completed")):
        reading.finish = kind.rpartition(".")[2]
    usage = _object(body.get("usage"))
    reading.usage(
        prompt=usage.get("input_tokens"),
        cached=_object(usage.get("input_tokens_details")).get("cached_tokens"),
        output=usage.get("output_tokens"),
    )
    _cost(reading, usage)
    reading.is_failed |= "error" in body or kind == "error"
    return True


def _pictures(reading: Reading, body: dict[str, Any]) -> bool:
    """As with sound."""
    return _media(reading, body)


def _verdict(reading: Reading, body: dict[str, Any]) -> bool:
    """Moderations: no tokens are counted."""
    _model(reading, body)
    reading.is_without_finish = True
    return True


def _unread(reading: Reading, body: dict[str, Any]) -> bool:
    """Files and batches are nobody's business but the client's."""
    return True


_RESPONSES_ENDS = ("completed", "incomplete", "failed", "cancelled")
_READERS: dict[Surface, Reader] = {
    "chat": _chat,
    "completions": _chat,
    "responses": _responses,
    "embeddings": _embeddings,
    "audio": _media,
    "images": _pictures,
    "moderations": _verdict,
    "files": _unread,
    "batches": _unread,
    "messages": _messages,
    "count_tokens": _count,
    "gemini": _gemini,
}


# Their answers have no words, however large they are.
WORDLESS = frozenset({_embeddings, _count, _pictures, _verdict, _unread})


def _model(reading: Reading, body: dict[str, Any]) -> None:
    model = body.get("model")
    if model and type(model) is str:
        reading.model = model


def _cost(reading: Reading, usage: dict[str, Any]) -> None:
    cost = usage.get("cost")
    if (type(cost) is int or type(cost) is float) and cost >= 0:
        reading.cost = repr(cost)


def _object(value: Any) -> dict[str, Any]:
    return value if type(value) is dict else {}


def _objects(value: Any) -> list[dict[str, Any]]:
    return [item for item in value if isinstance(item, dict)] if isinstance(value, list) else []


def _first(value: Any, other: Any) -> Any:
    return other if value is None else value


def _sum(*values: Any) -> int | None:
    counts = [value for value in values if _is_count(value)]
    return sum(counts) if counts else None


def _is_count(value: Any) -> bool:
    return type(value) is int and value >= 0


def _is_text(value: Any) -> bool:
    return type(value) is str
