"""What every surface's request has in common: its model, its body, whether it streams.

Knows no backend; reads no more of the body than the way through the gateway depends on.
"""

from collections.abc import Iterator
from typing import Any, NamedTuple
from urllib.parse import quote, unquote

from gateway.exchange import Exchange
from gateway.ledger.entry import Kind
from gateway.middleware.auth import not_found
from gateway.settings.types import Surface
from gateway.surfaces.encoding import decoded_body
from gateway.surfaces.envelope import (
    Edit,
    Envelope,
    checked_name,
    edited,
    member_edit,
    model_of,
    read_envelope,
    value_edit,
)

GEMINI_METHODS: dict[str, Kind] = {
    "generateContent": "generation",
    "streamGenerateContent": "generation",
    "countTokens": "count",
}
_KINDS: dict[Surface, Kind] = {"embeddings": "embedding", "count_tokens": "count"}
_PROMPTS = ("messages", "prompt", "input", "contents", "system", "instructions",
            "systemInstruction", "tools")  # fmt: skip
_OUTPUT_LIMITS = ("max_completion_tokens", "max_tokens", "max_output_tokens")


class ModelRequest(NamedTuple):
    """A request for a model. `path` and `body` are what a backend that is relayed gets.

    `is_decoded`: the body was unpacked and goes up without its Content-Encoding. `edits`: what was
    changed in it, by spans of the envelope's text.
    """

    model: str
    kind: Kind
    is_stream: bool
    max_tokens: int | None
    envelope: Envelope
    path: str
    body: bytes
    is_decoded: bool = False
    edits: tuple[Edit, ...] = ()

    def for_model(self, model: str, *, is_in_path: bool) -> "ModelRequest":
        """The same request for another model name; nothing else in it changes."""
        if model == self.model:
            return self
        if is_in_path:
            before, _, method = unquote(self.path).rpartition(":")  # as it was routed
            base = before[: before.index("/models/")]
            return self._replace(path=f"{base}/models/{quote(model, safe='')}:{method}")
        return self._edited(value_edit(self.envelope, "model", model))

    def asking_for_usage(self) -> "ModelRequest":
        """The same request with `stream_options.include_usage` set; itself where nothing is due.

        Nothing is due when the client asked itself, or wrote something there that only the backend
        can judge.
        """
        options = self.envelope.fields.get("stream_options")
        if isinstance(options, dict) and options.get("include_usage") not in (None, False):
            return self
        edit = member_edit(self.envelope, "stream_options", "include_usage", "true")
        return self if edit is None else self._edited(edit)

    def _edited(self, edit: Edit) -> "ModelRequest":
        edits = (*self.edits, edit)
        return self._replace(body=edited(self.envelope.text, edits), edits=edits, is_decoded=True)


def read_request(exchange: Exchange, body: bytes, limit_bytes: int) -> ModelRequest:
    """Finds the model and what else the way through the gateway depends on.

    Raises: ApiError 400, 413, 415; 404 for a Gemini method that does not exist.
    """
    encoding = exchange.fields.get(b"content-encoding")
    envelope = read_envelope(decoded_body(body, encoding, limit_bytes))
    if exchange.surface == "gemini":
        return _gemini(exchange, envelope)
    return ModelRequest(
        model=model_of(envelope),
        kind=_KINDS.get(exchange.surface, "generation"),
        is_stream=envelope.fields.get("stream") is True,
        max_tokens=_max_tokens(envelope.fields),
        envelope=envelope,
        path=exchange.path,
        body=exchange.body,
    )


def _gemini(exchange: Exchange, envelope: Envelope) -> ModelRequest:
    """Google's surface names the model and the method in the path."""
    model, _, method = exchange.rest.rpartition(":")
    if method not in GEMINI_METHODS or any(part in ("", ".", "..") for part in model.split("/")):
        raise not_found(exchange.path)
    config = envelope.fields.get("generationConfig")
    return ModelRequest(
        model=checked_name(model),
        kind=GEMINI_METHODS[method],
        is_stream=method == "streamGenerateContent",
        max_tokens=_count(config.get("maxOutputTokens")) if isinstance(config, dict) else None,
        envelope=envelope,
        path=exchange.raw_path.decode("latin-1"),
        body=exchange.body,
    )


def prompt_bytes(envelope: Envelope) -> int:
    """UTF-8 bytes of the text in a request: what an estimate of its tokens rests on."""
    return sum(len(text.encode(errors="replace")) for text in prompt_texts(envelope))


def prompt_texts(envelope: Envelope) -> Iterator[str]:
    """The texts in a request, in their order."""
    return texts_in([envelope.fields.get(name) for name in _PROMPTS])


def texts_in(value: Any) -> Iterator[str]:
    """Every text in a JSON value, names of fields aside, without recursion."""
    open_values: list[Any] = [value]
    while open_values:
        value = open_values.pop()
        if isinstance(value, str):
            yield value
        elif isinstance(value, dict):
            open_values += reversed(value.values())
        elif isinstance(value, list):
            open_values += reversed(value)


def _max_tokens(fields: dict[str, Any]) -> int | None:
    for name in _OUTPUT_LIMITS:
        if name in fields and (count := _count(fields[name])) is not None:
            return count
    return None


def _count(value: Any) -> int | None:
    return value if type(value) is int and 0 < value < 2**31 else None
