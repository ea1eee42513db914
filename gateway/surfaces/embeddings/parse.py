"""An embeddings request becomes texts. Knows no tokenizer; every error names its field.

Source: OpenAI API reference, "Create embeddings".
"""

from dataclasses import dataclass
from typing import Any, Literal

from gateway.errors import ApiError
from gateway.surfaces.fields import Disposition, bad_field, check_dispositions, integer
from proto.limits import EMBED_TEXTS

MOST_DIMENSIONS = 2**31 - 1
ENCODINGS = ("float", "base64")

FIELDS: dict[str, Disposition] = {
    "input": "honoured",
    "model": "honoured",
    "dimensions": "honoured",
    "encoding_format": "honoured",
    "user": "neutral",
}


@dataclass(frozen=True, slots=True)
class EmbeddingRequest:
    """What to embed. `is_list`: the client sent a list. `dimensions` None: all there are."""

    model: str
    texts: tuple[str, ...]
    is_list: bool
    dimensions: int | None
    encoding: Literal["float", "base64"]

    def field_of(self, index: int) -> str:
        """What the client calls a text."""
        return f"input[{index}]" if self.is_list else "input"


def parse_embedding(body: dict[str, Any]) -> EmbeddingRequest:
    """Reads the JSON body of a request.

    Raises: ApiError 400 that names the field and what to change.
    """
    check_dispositions(body, FIELDS)
    given = body.get("input")
    encoding = body.get("encoding_format")
    if encoding is not None and encoding not in ENCODINGS:
        raise bad_field("encoding_format", "'encoding_format' must be float or base64.")
    return EmbeddingRequest(
        model=body["model"],
        texts=_texts(given),
        is_list=isinstance(given, list),
        dimensions=integer(body, "dimensions", low=1, high=MOST_DIMENSIONS),
        encoding=encoding or "float",
    )


def _texts(given: Any) -> tuple[str, ...]:
    if isinstance(given, str):
        return (_text(given, "input"),)
    if not isinstance(given, list) or not given:
        raise bad_field("input", "'input' must be text or a list of texts with at least one.")
    if len(given) > EMBED_TEXTS:
        raise bad_field("input", f"'input' holds more than {EMBED_TEXTS} texts; send it in parts.")
    if all(type(item) is int for item in given):
        raise _ids("input")
    return tuple(_text(item, f"input[{index}]") for index, item in enumerate(given))


def _text(item: Any, where: str) -> str:
    if isinstance(item, list):
        raise _ids(where)
    if not isinstance(item, str) or not item:
        raise bad_field(where, f"'{where}' must be text that is not empty.")
    return item


def _ids(where: str) -> ApiError:
    return bad_field(where, f"'{where}' holds token ids, which are not taken here; send text.")
