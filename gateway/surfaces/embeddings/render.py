"""Vectors in the form that OpenAI clients read. Knows no engine.

Source: OpenAI API reference, "Create embeddings". base64 is little-endian float32.
"""

import base64
import json
import math
import struct
from collections.abc import Sequence

from gateway.errors import ApiError
from gateway.lean import msgspec
from gateway.surfaces.embeddings.parse import EmbeddingRequest
from gateway.surfaces.fields import bad_field

_encode = msgspec.json.Encoder().encode  # at 4,096 numbers a text, the json module holds others up


def item(request: EmbeddingRequest, index: int, vector: Sequence[float]) -> bytes:
    """One text's entry of `data`. Raises: ApiError 400 where there are fewer dimensions."""
    if request.dimensions is not None:
        vector = _cut(vector, request.dimensions)
    shown: object = vector
    if request.encoding == "base64":
        shown = base64.b64encode(struct.pack(f"<{len(vector)}f", *vector)).decode()
    encoded: bytes = _encode({"object": "embedding", "index": index, "embedding": shown})
    return encoded


def whole(model: str, items: Sequence[bytes], prompt_tokens: int) -> bytes:
    """The JSON body of an answer."""
    usage = {"prompt_tokens": prompt_tokens, "total_tokens": prompt_tokens}
    name = json.dumps(model, ensure_ascii=False).encode()
    return b'{"object":"list","data":[%b],"model":%b,"usage":%b}' % (
        b",".join(items), name, _encode(usage),
    )  # fmt: skip


def _cut(vector: Sequence[float], dimensions: int) -> Sequence[float]:
    """The first ones, at unit length again."""
    if dimensions > len(vector):
        raise _too_many(len(vector))
    kept = vector[:dimensions]
    length = math.hypot(*kept)
    return [number / length for number in kept] if length > 0.0 else kept


def _too_many(most: int) -> ApiError:
    return bad_field("dimensions", f"'dimensions' must be at most {most} for this model.")
