"""An attention layer: what it reads of a row and gives back. Knows no file format and no run."""

import torch
from torch import Tensor

from worker.kernels.attention import Attention, Rows, Sight
from worker.kernels.product import Product
from worker.kernels.weight import Weight, joined
from worker.models.config import ModelConfig
from worker.models.layers import HeadNorms
from worker.models.placement import Placement
from worker.models.rope import RopeTable
from worker.state.cache import SequenceCache


class AttentionLayer:
    """Grouped-query attention with what its family adds: biases, head norms, an output gate."""

    def __init__(
        self,
        config: ModelConfig,
        place: Placement,
        attention: Attention,
        sight: Sight,
        rope: RopeTable,
    ) -> None:
        self._attention = attention
        self._sight = sight
        self._rope = rope
        self._heads, self._head_dim = config.head_count, config.head_dim
        self._turning = config.head_count + config.kv_head_count
        self._reading = self._turning + config.kv_head_count  # heads of q, k and v
        self._in = _in_product(config, place)
        wide = config.head_count * config.head_dim
        self._out = place.product("o_proj.weight", config.hidden_size, wide)
        self._head_norms = _head_norms(config, place)

    def __call__(self, normed: Tensor, cache: SequenceCache, rows: Rows) -> Tensor:
        """normed: (rows, hidden) float32; out: (rows, hidden) in the layout's dtype."""
        dtype = self._out.dtype
        heads = self._in(normed.to(dtype)).view(rows.count, -1, self._head_dim)
        qk = heads[:, : self._turning].float()
        if self._head_norms is not None:
            qk = self._head_norms(qk)
        qk = self._rope.rotate(qk, rows.positions).to(dtype)
        values = heads[:, self._turning : self._reading]
        cache.kv.write(self._sight.layer, rows.start, qk[:, self._heads :], values)
        out = self._attention.attend(qk[:, : self._heads], self._sight, cache.kv, rows)
        if heads.shape[1] > self._reading:
            out = out * heads[:, self._reading :].sigmoid()
        return self._out(out.reshape(rows.count, -1))


def _in_product(config: ModelConfig, place: Placement) -> Product:
    """Queries, keys, values and gates in one product, head after head."""
    hidden, dim = config.hidden_size, config.head_dim
    wide, narrow = config.head_count * dim, config.kv_head_count * dim
    keys, values = (place.linear(f"{name}_proj.weight", narrow, hidden) for name in "kv")
    if config.family.has_output_gate:
        # Each head's query rows stand before its gate rows.
        both = place.linear("q_proj.weight", 2 * wide, hidden)
        queries, gates = (_every_second(both, dim, first) for first in (0, 1))
        return place.layout.product(joined((queries, keys, values, gates)))
    weight = joined((place.linear("q_proj.weight", wide, hidden), keys, values))
    if not config.family.has_qkv_bias:
        return place.layout.product(weight)
    sizes = (("q", wide), ("k", narrow), ("v", narrow))
    bias = torch.cat([place.weight(f"{name}_proj.bias", size) for name, size in sizes])
    return place.layout.product(weight, bias)


def _every_second(weight: Weight, dim: int, first: int) -> Weight:
    """Every second `dim` rows, from the first or the second on."""
    return weight.arranged(
        lambda rows: rows.view(-1, 2, dim, rows.shape[-1])[:, first].flatten(0, 1)
    )


def _head_norms(config: ModelConfig, place: Placement) -> HeadNorms | None:
    if not config.family.has_head_norms:
        return None
    return HeadNorms(
        place.multiplier("q_norm.weight", config.head_dim),
        place.multiplier("k_norm.weight", config.head_dim),
        heads=config.head_count,
        kv_heads=config.kv_head_count,
        eps=config.rms_norm_eps,
    )
