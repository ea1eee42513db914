"""Tensors and metadata from a GGUF file. Knows no model code; dequantises, never requantises.

Tensors come out under their transformers names, in [out, in] order, with what the converters did
to the order of rows undone.
"""

import dataclasses
import struct
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from gguf import GGMLQuantizationType, GGUFReader, ReaderTensor
from gguf.quants import dequantize
from torch import Tensor

from proto.limits import GGUF_TENSORS
from worker.faults import LoadFault
from worker.kernels.weight import Codes, joined_codes
from worker.limits import GGUF_KEYS
from worker.loading.gguf_names import gguf_name_of
from worker.loading.quant import codes_of
from worker.models.config import DeltaConfig, ModelConfig

GATE_UP = ".experts.gate_up_proj"
MAGIC = b"GGUF"
K_QUANTS = ("Q2_K", "Q3_K", "Q4_K", "Q5_K", "Q6_K")
SUPPORTED_TYPES = frozenset(
    ("F32", "F16", "BF16", "Q4_0", "Q4_1", "Q5_0", "Q5_1", "Q8_0", *K_QUANTS)
)


class GgufFile:
    """An opened GGUF file: its keys as plain values, its tensors by GGUF name."""

    def __init__(self, path: Path, reader: GGUFReader) -> None:
        self._path = path
        self._tensors = {tensor.name: tensor for tensor in reader.tensors}
        self.keys: Mapping[str, Any] = {
            name: field.contents() for name, field in reader.fields.items()
        }
        self.header_bytes = int(reader.data_offset)

    @classmethod
    def open(cls, path: Path) -> "GgufFile":
        """Checks counts and types, then maps the file. Raises: LoadFault."""
        _check_counts(path)
        try:
            file = cls(path, GGUFReader(path))
        except Exception as fault:  # the reader meets damaged bytes with whatever breaks first
            reason = f"{type(fault).__name__}: {fault}"[:200]
            raise LoadFault(f"{str(path)!r} is damaged or cut short ({reason}).") from fault
        for tensor in file._tensors.values():
            if tensor.tensor_type.name not in SUPPORTED_TYPES:
                raise LoadFault(
                    f"Tensor {tensor.name!r} of {str(path)!r} has type "
                    f"{tensor.tensor_type.name}, which is not supported."
                )
        return file

    @property
    def architecture(self) -> str:
        """The value of `general.architecture`, "" when absent."""
        return str(self.keys.get("general.architecture", ""))

    def architecture_keys(self) -> dict[str, Any]:
        """The keys of the architecture, without its prefix."""
        prefix = f"{self.architecture}."
        return {
            key[len(prefix) :]: value for key, value in self.keys.items() if key.startswith(prefix)
        }

    def has(self, name: str) -> bool:
        """Whether a tensor of this GGUF name is in the file."""
        return name in self._tensors

    def embedding_rows(self) -> int:
        """Rows of the embedding, which is the width of the logits. Raises: LoadFault."""
        if not self.has("token_embd.weight"):
            raise LoadFault(f"{str(self._path)!r} holds no tensor 'token_embd.weight'.")
        return int(self._tensors["token_embd.weight"].shape[1])

    def with_rope_divisors(self, config: ModelConfig) -> ModelConfig:
        """The config with the frequency divisors that the file carries as a tensor, if any."""
        if not self.has("rope_freqs.weight"):
            return config
        divisors = tuple(self.values("rope_freqs.weight").flatten().tolist())
        rope = dataclasses.replace(config.rope, divisors=divisors)
        return dataclasses.replace(config, rope=rope)

    def tensor_source(self, config: ModelConfig) -> "GgufTensors":
        """The tensors under their transformers names."""
        return GgufTensors(self, config)

    def values(self, name: str) -> Tensor:
        """A tensor's exact values in float32, [out, in]. `name` is a GGUF name of the file."""
        tensor = self._tensors[name]
        kind = GGMLQuantizationType(tensor.tensor_type)
        return torch.from_numpy(dequantize(tensor.data, kind).copy()).reshape(_shape_of(tensor))

    def codes(self, name: str) -> Codes | None:
        """A tensor's own 4-bit codes, [out, in]; None if it has none. `name` as in `values`."""
        tensor = self._tensors[name]
        return codes_of(tensor.data, tensor.tensor_type.name, _shape_of(tensor))


class GgufTensors:
    """A GGUF file seen as a checkpoint with transformers names."""

    has_whole_norms = True

    def __init__(self, file: GgufFile, config: ModelConfig) -> None:
        self._file = file
        self._config = config
        self._form = config.family.gguf

    def has(self, name: str) -> bool:
        """Whether there is such a tensor."""
        return self._file.has(self._named(name)) or self._is_apart(name)

    def read(self, name: str, shape: tuple[int, ...]) -> Tensor:
        """The tensor in float32. Raises: LoadFault when missing or of another shape."""
        if self._is_apart(name):
            experts, both, hidden = shape
            sides = [self._values(side, (experts, both // 2, hidden)) for side in _sides(name)]
            return torch.cat(sides, dim=1)
        return self._arranged(name, self._values(self._named(name), shape))

    def codes(self, name: str, shape: tuple[int, ...]) -> Codes | None:
        """The file's own codes of a tensor that `read` gives, in the same order; else None."""
        if self._is_apart(name):
            gate, up = (self._file.codes(side) for side in _sides(name))
            return None if gate is None or up is None else joined_codes((gate, up))
        codes = self._file.codes(self._named(name))
        if codes is None or self._cuts_groups(name, codes.group):
            return None
        return codes.arranged(
            lambda part: self._arranged(name, part.reshape(*shape[:-1], part.shape[-1]))
        )

    def _arranged(self, name: str, stored: Tensor) -> Tensor:
        """What the converters did to the order of rows, and of heads in columns, undone."""
        part = name.rpartition("self_attn.")[2].partition(".")[0]
        if self._form.has_pairwise_rows and part in ("q_proj", "k_proj"):
            is_query = part == "q_proj"
            heads = self._config.head_count if is_query else self._config.kv_head_count
            return _unpermuted(stored, heads)
        if self._form.has_tiled_values and self._config.delta is not None:
            return _untiled(stored, name.rpartition("linear_attn.")[2], self._config.delta)
        return stored

    def _cuts_groups(self, name: str, group: int) -> bool:
        """Whether heads that stand in another order in columns begin within groups of codes."""
        delta = self._config.delta
        is_reordered = self._form.has_tiled_values and name.endswith("linear_attn.out_proj.weight")
        return is_reordered and delta is not None and delta.value_dim % group != 0

    def _is_apart(self, name: str) -> bool:
        """Whether the gate and up rows of experts are asked for and stand in two tensors."""
        return name.endswith(GATE_UP) and self._file.has(_sides(name)[0])

    def _named(self, name: str) -> str:
        return gguf_name_of(name, self._config.family) or name

    def _values(self, gguf_name: str, shape: tuple[int, ...]) -> Tensor:
        if not self._file.has(gguf_name):
            raise LoadFault(f"Tensor {gguf_name!r} must have shape {shape}, found no such tensor.")
        values = self._file.values(gguf_name)
        if _squeezed(values.shape) != _squeezed(shape):  # converters drop dims of one
            found = tuple(values.shape)
            raise LoadFault(f"Tensor {gguf_name!r} must have shape {shape}, found {found}.")
        return values.reshape(shape)


def _shape_of(tensor: ReaderTensor) -> tuple[int, ...]:
    return tuple(int(size) for size in reversed(tensor.shape))  # dims are listed fastest first


def _squeezed(shape: tuple[int, ...]) -> tuple[int, ...]:
    return tuple(size for size in shape if size != 1)


def _sides(name: str) -> list[str]:
    """The GGUF names of the gate and up rows of experts."""
    index = name.removeprefix("model.layers.").partition(".")[0]
    return [f"blk.{index}.ffn_{side}_exps.weight" for side in ("gate", "up")]


def _untiled(values: Tensor, name: str, shape: DeltaConfig) -> Tensor:
    """Value heads side by side for each key head: the converter wrote them key heads in turn."""
    match name:
        case "in_proj_qkv.weight" | "conv1d.weight":
            keys = 2 * shape.keys_width
            heads = _untiled_rows(values[keys:], shape)
            return torch.cat((values[:keys], heads))
        case "in_proj_z.weight" | "in_proj_a.weight" | "in_proj_b.weight" | "rate" | "dt_bias":
            return _untiled_rows(values, shape)
        case "out_proj.weight":
            return _untiled_rows(values.T, shape).T
        case _:
            return values


def _untiled_rows(values: Tensor, shape: DeltaConfig) -> Tensor:
    group = shape.value_heads // shape.key_heads
    rows = values.reshape(group, shape.key_heads, -1, *values.shape[1:])
    return rows.transpose(0, 1).reshape(values.shape)


def _unpermuted(values: Tensor, heads: int) -> Tensor:
    # The converter wrote each head's rows for pairwise rope: (half, 2) instead of (2, half).
    half = values.shape[0] // heads // 2
    return values.reshape(heads, half, 2, -1).transpose(1, 2).reshape(values.shape)


def _check_counts(path: Path) -> None:
    with path.open("rb") as file:
        head = file.read(24)
    if len(head) < 24 or head[:4] != MAGIC:
        raise LoadFault(f"{str(path)!r} is not a GGUF file.")
    _, tensors, keys = struct.unpack("<IQQ", head[4:])
    if tensors > GGUF_TENSORS or keys > GGUF_KEYS:
        raise LoadFault(f"{str(path)!r} declares {tensors} tensors and {keys} keys: too many.")
