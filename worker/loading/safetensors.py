"""Tensors from a folder of safetensors files. Knows no model and no layout.

Headers are checked before a byte of them is trusted; the library maps the files afterwards.
"""

import json
import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from safetensors import SafetensorError, safe_open
from torch import Tensor

from proto.limits import SAFETENSORS_HEADER_BYTES
from worker.faults import LoadFault
from worker.kernels.weight import Codes

# Bytes an element takes, of the dtypes that weights may have.
DTYPE_BYTES = {"F32": 4, "F16": 2, "BF16": 2}
INDEX_NAME = "model.safetensors.index.json"


BODY = "model"  # prefix of all but the head; models saved without a head, to embed, leave it out

# Part of the names of a text model's tensors in multimodal checkpoints.
WRAPPING = "language_model."


class SafetensorsFiles:
    """The tensors of a folder, whole or sharded, by the names they have in a text model alone."""

    has_whole_norms = False

    def __init__(self, shapes: dict[str, tuple[int, ...]], places: dict[str, Path]) -> None:
        self._shapes = shapes
        self._places = places
        self._open: dict[Path, Any] = {}

    @classmethod
    def open(cls, folder: Path) -> "SafetensorsFiles":
        """Checks every header of the folder's files. Raises: LoadFault."""
        shapes: dict[str, tuple[int, ...]] = {}
        places: dict[str, Path] = {}
        for path in _paths(folder):
            for name, shape in read_header(path).items():
                if name in places:
                    raise LoadFault(f"Tensor {name!r} stands in two files of {str(folder)!r}.")
                shapes[name], places[name] = shape, path
        return cls(shapes, places)

    def has(self, name: str) -> bool:
        """Whether there is such a tensor."""
        return self._stored_as(name) is not None

    def headers(self) -> Iterator[tuple[Path, int]]:
        """Each file in name order with the bytes of its header, its length field included."""
        for path in sorted(set(self._places.values())):
            with path.open("rb") as file:
                yield path, 8 + int.from_bytes(file.read(8), "little")

    def read(self, name: str, shape: tuple[int, ...]) -> Tensor:
        """The tensor as stored. Raises: LoadFault when missing or of another shape."""
        stored = self._stored_as(name)
        found = None if stored is None else self._shapes[stored]
        if stored is None or found != shape:
            raise LoadFault(
                f"Tensor {name!r} must have shape {shape}, found {found or 'no such tensor'}."
            )
        path = self._places[stored]
        try:
            if path not in self._open:
                self._open[path] = safe_open(path, framework="pt")
            tensor: Tensor = self._open[path].get_tensor(stored)
        except SafetensorError as fault:
            raise LoadFault(f"{str(path)!r} cannot be read: {fault}.") from fault
        return tensor

    def codes(self, name: str, shape: tuple[int, ...]) -> Codes | None:
        """None: 4-bit codes are not among the dtypes."""
        return None

    def _stored_as(self, name: str) -> str | None:
        head, _, rest = name.partition(".")
        spellings = [name, f"{WRAPPING}{name}", f"{head}.{WRAPPING}{rest}"]
        if head == BODY:
            spellings.append(rest)
        return next((spelling for spelling in spellings if spelling in self._shapes), None)


def _paths(folder: Path) -> list[Path]:
    index = folder / INDEX_NAME
    if not index.is_file():
        paths = sorted(folder.glob("*.safetensors"))
        if not paths:
            raise LoadFault(f"{str(folder)!r} holds no .safetensors file.")
        return paths
    try:
        names = sorted(set(json.loads(index.read_text(encoding="utf-8"))["weight_map"].values()))
    except (ValueError, KeyError, AttributeError) as fault:
        raise LoadFault(f"{str(index)!r} is not a safetensors index.") from fault
    for name in names:
        if Path(name).name != name or not (folder / name).is_file():
            raise LoadFault(f"{str(index)!r} names the file {name!r}, which is not in the folder.")
    return [folder / name for name in names]


def read_header(path: Path) -> dict[str, tuple[int, ...]]:
    """The shapes a file declares, after checking that its header fits its bytes.

    Raises: LoadFault for a header that is too long, names a tensor twice, uses another dtype, or
        whose tensors do not cover the rest of the file exactly.
    Source: https://github.com/huggingface/safetensors (format).
    """
    size = path.stat().st_size
    with path.open("rb") as file:
        length = int.from_bytes(file.read(8), "little")
        if length > SAFETENSORS_HEADER_BYTES or 8 + length > size:
            raise LoadFault(f"{str(path)!r} declares a header of {length} bytes, which is wrong.")
        text = file.read(length)
    try:
        entries = json.loads(text, object_pairs_hook=_unique)
    except (ValueError, RecursionError) as fault:
        raise LoadFault(f"The header of {str(path)!r} is damaged: {fault}.") from fault
    if not isinstance(entries, dict):
        raise LoadFault(f"The header of {str(path)!r} is damaged: it is not an object.")
    entries.pop("__metadata__", None)
    spans = []
    shapes = {}
    for name, entry in entries.items():
        shapes[name], span = _check_entry(path, name, entry)
        spans.append(span)
    _check_cover(path, sorted(spans), size - 8 - length)
    return shapes


def _check_entry(path: Path, name: str, entry: Any) -> tuple[tuple[int, ...], tuple[int, int]]:
    try:
        dtype, shape = entry["dtype"], tuple(entry["shape"])
        start, end = entry["data_offsets"]
        is_sane = all(type(n) is int and n >= 0 for n in (*shape, start, end))
    except (KeyError, TypeError, ValueError) as fault:
        raise LoadFault(f"Tensor {name!r} of {str(path)!r} is declared wrongly.") from fault
    if dtype not in DTYPE_BYTES:
        known = ", ".join(DTYPE_BYTES)
        raise LoadFault(
            f"Tensor {name!r} of {str(path)!r} has dtype {dtype!r}; supported are {known}."
        )
    if not is_sane or end - start != math.prod(shape) * DTYPE_BYTES[dtype]:
        raise LoadFault(f"Tensor {name!r} of {str(path)!r} does not fit its shape {shape}.")
    return shape, (start, end)


def _check_cover(path: Path, spans: list[tuple[int, int]], size_bytes: int) -> None:
    position = 0
    for start, end in spans:
        if start != position:
            raise LoadFault(f"The tensors of {str(path)!r} overlap or leave gaps.")
        position = end
    if position != size_bytes:
        raise LoadFault(
            f"{str(path)!r} holds {size_bytes} bytes of tensors, its header says {position}."
        )


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    fields = dict(pairs)
    if len(fields) != len(pairs):
        raise ValueError("a name stands twice")
    return fields
