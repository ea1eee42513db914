"""Tensors and metadata from a GGUF file. Knows no model code; dequantises, never requantises.

Tensors come out under their transformers names, in [out, in] order, with the pairwise row order
of the llama converter undone.
"""

import dataclasses
import struct
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from gguf import GGMLQuantizationType, GGUFReader
from gguf.quants import dequantize
from torch import Tensor

from proto.limits import GGUF_TENSORS
from worker.faults import LoadFault
from worker.limits import GGUF_KEYS
from worker.models.config import ModelConfig

MAGIC = b"GGUF"
K_QUANTS = ("Q2_K", "Q3_K", "Q4_K", "Q5_K", "Q6_K")
SUPPORTED_TYPES = frozenset(
    ("F32", "F16", "BF16", "Q4_0", "Q4_1", "Q5_0", "Q5_1", "Q8_0", *K_QUANTS)
)

# GGUF names below `blk.N.`, by their transformers names below `model.layers.N.`.
LAYER_NAMES = {
    "input_layernorm": "attn_norm",
    "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output",
    "self_attn.q_norm": "attn_q_norm",
    "self_attn.k_norm": "attn_k_norm",
    "post_attention_layernorm": "ffn_norm",
    "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down",
}
TOP_NAMES = {
    "model.embed_tokens.weight": "token_embd.weight",
    "model.norm.weight": "output_norm.weight",
    "lm_head.weight": "output.weight",
}


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
        shape = tuple(int(size) for size in reversed(tensor.shape))
        kind = GGMLQuantizationType(tensor.tensor_type)
        return torch.from_numpy(dequantize(tensor.data, kind).copy()).reshape(shape)


class GgufTensors:
    """A GGUF file seen as a checkpoint with transformers names."""

    has_whole_norms = True

    def __init__(self, file: GgufFile, config: ModelConfig) -> None:
        self._file = file
        self._is_permuted = config.family.has_permuted_gguf
        self._heads = {"attn_q": config.head_count, "attn_k": config.kv_head_count}

    def has(self, name: str) -> bool:
        """Whether there is such a tensor."""
        return self._file.has(gguf_name_of(name))

    def read(self, name: str, shape: tuple[int, ...]) -> Tensor:
        """The tensor in float32. Raises: LoadFault when missing or of another shape."""
        gguf_name = gguf_name_of(name)
        if not self._file.has(gguf_name):
            raise LoadFault(f"Tensor {gguf_name!r} must have shape {shape}, found no such tensor.")
        values = self._file.values(gguf_name)
        if values.shape != shape:
            found = tuple(values.shape)
            raise LoadFault(f"Tensor {gguf_name!r} must have shape {shape}, found {found}.")
        heads = self._heads.get(gguf_name.split(".")[-2])
        return _unpermuted(values, heads) if heads and self._is_permuted else values


def gguf_name_of(name: str) -> str:
    """The GGUF name of a tensor with this transformers name."""
    if name in TOP_NAMES:
        return TOP_NAMES[name]
    index, _, rest = name.removeprefix("model.layers.").partition(".")
    stem, _, kind = rest.rpartition(".")
    return f"blk.{index}.{LAYER_NAMES[stem]}.{kind}"


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
