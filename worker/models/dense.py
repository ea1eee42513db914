"""A dense decoder: Llama, Qwen 2, Qwen 3. Knows no file format, no sampling, no run.

Precision: residual stream, norms, rope and softmax are fp32; inputs of linears and the cache have
the layout's dtype.
"""

from typing import Protocol

import torch
from torch import Tensor
from torch.nn.functional import embedding

from worker.kernels.attention import Attention, Rows
from worker.kernels.product import Product, product_of
from worker.models.config import ModelConfig
from worker.models.layers import GatedMlp, Head, HeadNorms, RmsNorm
from worker.models.rope import RopeTable
from worker.state.kv import KvCache


class TensorSource(Protocol):
    """A checkpoint's tensors by their transformers names, whatever file they come from."""

    def read(self, name: str, shape: tuple[int, ...]) -> Tensor:
        """The tensor, in any float dtype. Raises: LoadFault when missing or of another shape."""
        ...


class DenseModel:
    """The whole decoder: ids in, hidden states and logits out."""

    def __init__(
        self,
        config: ModelConfig,
        tensors: TensorSource,
        attention: Attention,
        *,
        dtype: torch.dtype,
        device: torch.device,
        max_len: int,
    ) -> None:
        self.config = config
        self.dtype = dtype
        self.device = device
        place = _Placement(tensors, dtype, device)
        rope = RopeTable(config.rope, head_dim=config.head_dim, positions=max_len).to(device)
        width = (config.vocab_size, config.hidden_size)
        self._embedding = place.weight("model.embed_tokens.weight", width)
        self._layers = [
            _Layer(config, place, index, attention, rope) for index in range(config.layer_count)
        ]
        self._norm = place.norm("model.norm.weight", config.hidden_size, config.rms_norm_eps)
        tied = config.is_tied
        self._head = Head(self._embedding if tied else place.weight("lm_head.weight", width))

    def forward(self, ids: Tensor, kv: KvCache, rows: Rows) -> Tensor:
        """Forwards rows and writes their keys and values.

        ids: (rows,) int64; out: (rows, hidden) float32, the residual stream after all layers.
        """
        x = embedding(ids, self._embedding).float()
        for layer in self._layers:
            x = layer(x, kv, rows)
        return x

    def logits(self, hidden: Tensor) -> Tensor:
        """hidden: (rows, hidden) from `forward`; out: (rows, vocab) float32."""
        return self._head(self._norm(hidden))


class _Layer:
    def __init__(
        self,
        config: ModelConfig,
        place: "_Placement",
        index: int,
        attention: Attention,
        rope: RopeTable,
    ) -> None:
        prefix, hidden, eps = f"model.layers.{index}", config.hidden_size, config.rms_norm_eps
        wide, inner = config.head_count * config.head_dim, config.intermediate_size
        self._index = index
        self._attention = attention
        self._rope = rope
        self._heads, self._kv_heads = config.head_count, config.kv_head_count
        self._head_dim = config.head_dim
        self._input_norm = place.norm(f"{prefix}.input_layernorm.weight", hidden, eps)
        self._mlp_norm = place.norm(f"{prefix}.post_attention_layernorm.weight", hidden, eps)
        self._qkv = _qkv(config, place, f"{prefix}.self_attn")
        self._out = product_of(place.weight(f"{prefix}.self_attn.o_proj.weight", (hidden, wide)))
        self._head_norms = _head_norms(config, place, f"{prefix}.self_attn")
        gate = place.weight(f"{prefix}.mlp.gate_proj.weight", (inner, hidden))
        up = place.weight(f"{prefix}.mlp.up_proj.weight", (inner, hidden))
        down = place.weight(f"{prefix}.mlp.down_proj.weight", (hidden, inner))
        self._mlp = GatedMlp(product_of(torch.cat((gate, up))), product_of(down))

    def __call__(self, x: Tensor, kv: KvCache, rows: Rows) -> Tensor:
        """x: (rows, hidden) float32, changed in place and returned."""
        x.add_(self._attend(self._input_norm(x), kv, rows))
        return x.add_(self._mlp(self._mlp_norm(x).to(self._out.dtype)))

    def _attend(self, normed: Tensor, kv: KvCache, rows: Rows) -> Tensor:
        dtype = self._out.dtype
        turning = self._heads + self._kv_heads
        qkv = self._qkv(normed.to(dtype)).view(rows.count, -1, self._head_dim)
        qk = qkv[:, :turning].float()  # (rows, heads + kv_heads, head_dim)
        if self._head_norms is not None:
            qk = self._head_norms(qk)
        qk = self._rope.rotate(qk, rows.start).to(dtype)
        kv.write(self._index, rows.start, qk[:, self._heads :], qkv[:, turning:])
        out = self._attention.attend(qk[:, : self._heads], self._index, kv, rows)
        return self._out(out.view(rows.count, -1))


def _qkv(config: ModelConfig, place: "_Placement", prefix: str) -> Product:
    wide = config.head_count * config.head_dim
    narrow = config.kv_head_count * config.head_dim
    parts = (("q", wide), ("k", narrow), ("v", narrow))
    weights = [
        place.weight(f"{prefix}.{name}_proj.weight", (size, config.hidden_size))
        for name, size in parts
    ]
    if not config.family.has_qkv_bias:
        return product_of(torch.cat(weights))
    biases = [place.weight(f"{prefix}.{name}_proj.bias", (size,)) for name, size in parts]
    return product_of(torch.cat(weights), torch.cat(biases))


def _head_norms(config: ModelConfig, place: "_Placement", prefix: str) -> HeadNorms | None:
    if not config.family.has_head_norms:
        return None
    return HeadNorms(
        place.fp32(f"{prefix}.q_norm.weight", (config.head_dim,)),
        place.fp32(f"{prefix}.k_norm.weight", (config.head_dim,)),
        heads=config.head_count,
        kv_heads=config.kv_head_count,
        eps=config.rms_norm_eps,
    )


class _Placement:
    """Where tensors go: the layout's dtype and the device."""

    def __init__(self, source: TensorSource, dtype: torch.dtype, device: torch.device) -> None:
        self._source = source
        self._dtype = dtype
        self._device = device

    def weight(self, name: str, shape: tuple[int, ...]) -> Tensor:
        return self._source.read(name, shape).to(self._device, self._dtype)

    def fp32(self, name: str, shape: tuple[int, ...]) -> Tensor:
        return self._source.read(name, shape).to(self._device, torch.float32)

    def norm(self, name: str, size: int, eps: float) -> RmsNorm:
        return RmsNorm(self.fp32(name, (size,)), eps)
