"""What every surface's request has in common: its model, its body, whether it streams.

Knows no backend; reads no more of the body than the way through the gateway depends on.
"""

from collections.abc import Callable, Iterator
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
from gateway.surfaces.form import Form, read_form

GEMINI_METHODS: dict[str, Kind] = {
    "generateContent": "generation",
    "streamGenerateContent": "generation",
    "countTokens": "count",
}
_KINDS: dict[Surface, Kind] = {
    "embeddings": "embedding", "count_tokens": "count", "moderations": "other",
}  # fmt: skip
_NOTHING = Envelope("", {}, {}, frozenset())
_PROMPTS = ("messages", "prompt", "input", "contents", "system", "instructions",
            "systemInstruction", "tools")  # fmt: skip
_OUTPUT_LIMITS = ("max_completion_tokens", "max_tokens", "max_output_tokens")


class ModelRequest(NamedTuple):
    """A request for a model. `path` and `body` are what a backend that is relayed gets.

    `model` is "" when the request names none. `is_decoded`: the body was unpacked and goes up
    without its Content-Encoding. `edits`: what was changed in it, by spans of the envelope's text.
    `form`: where the model stands in a body that is no JSON.
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
    form: Form | None = None

    def for_model(self, model: str, *, is_in_path: bool) -> "ModelRequest":
        """The same request for another model name; nothing else in it changes."""
        if model == self.model:
            return self
        if is_in_path:
            before, _, method = unquote(self.path).rpartition(":")  # as it was routed
            base = before[: before.index("/models/")]
            return self._replace(path=f"{base}/models/{quote(model, safe='')}:{method}")
        if self.form is not None:
            return self._replace(body=self.form.with_model(model), is_decoded=True)
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

    Raises: ApiError 400, 413, 415; 404 for a path that does not exist.
    """
    if (read := _READERS.get(exchange.surface)) is not None:
        return read(exchange, body, limit_bytes)
    encoding = exchange.fields.get(b"content-encoding")
    envelope = read_envelope(decoded_body(body, encoding, limit_bytes))
    return ModelRequest(
        model=model_of(envelope),
        kind=_KINDS.get(exchange.surface, "generation"),
        is_stream=envelope.fields.get("stream") is True,
        max_tokens=_max_tokens(envelope.fields),
        envelope=envelope,
        path=exchange.path,
        body=exchange.body,
    )


def _gemini(exchange: Exchange, body: bytes, limit_bytes: int) -> ModelRequest:
    """Google's surface names the model and the method in the path."""
    encoding = exchange.fields.get(b"content-encoding")
    envelope = read_envelope(decoded_body(body, encoding, limit_bytes))
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


def _media(exchange: Exchange, body: bytes, limit_bytes: int) -> ModelRequest:
    """Audio and images: a form where the headers say so, else JSON."""
    plain = decoded_body(body, exchange.fields.get(b"content-encoding"), limit_bytes)
    form = None
    if exchange.fields.get(b"content-type", b"")[:10].lower() == b"multipart/":
        types = [value for name, value in exchange.headers if name == b"content-type"]
        form, envelope = read_form(plain, types)
    else:
        envelope = read_envelope(plain)
    fields = envelope.fields
    return ModelRequest(
        model=model_of(envelope),
        kind="generation",
        is_stream=_is_true(fields.get("stream")) or fields.get("stream_format") == "sse",
        max_tokens=None,
        envelope=envelope,
        path=exchange.path,
        body=exchange.body,
        form=form,
    )


def _is_true(value: Any) -> bool:
    """In JSON, or as the SDKs write it into a form."""
    return value is True or (type(value) is str and value.lower() in ("true", "1"))


def _modelless(exchange: Exchange, body: bytes, limit_bytes: int) -> ModelRequest:
    """Files and batches: path and body are the backend's to read, and go up as they came.

    Raises: ApiError 404 for a path that another reader than we could take for another one.
    """
    path, base = exchange.raw_path.decode("latin-1"), f"/v1/{exchange.surface}"
    steps = exchange.rest.replace("\\", "/").split("/") if exchange.rest else []
    may_climb = any(step.partition(";")[0] in ("", ".", "..") for step in steps)
    if may_climb or (path != base and not path.startswith(f"{base}/")):
        raise not_found(exchange.path)
    return ModelRequest(
        model="",
        kind="other",
        is_stream=False,
        max_tokens=None,
        envelope=_NOTHING,
        path=path,
        body=exchange.body,
    )


_READERS: dict[Surface, Callable[[Exchange, bytes, int], ModelRequest]] = {
    "gemini": _gemini, "audio": _media, "images": _media,
    "files": _modelless, "batches": _modelless,
}  # fmt: skip


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
