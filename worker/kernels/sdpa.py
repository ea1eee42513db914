"""Attention by torch's scaled_dot_product_attention: the tested path everywhere. Knows no model."""

import torch
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention

from worker.kernels.attention import Prefill, Rows, Step
from worker.state.kv import KvCache


class SdpaAttention:
    """Grouped-query attention without a copy of the keys for each query head."""

    name = "sdpa"

    def __init__(self) -> None:
        # All layers of a chunk share one mask.
        self._mask: tuple[Prefill, Tensor] | None = None

    def attend(self, q: Tensor, layer: int, kv: KvCache, rows: Rows) -> Tensor:
        """See `Attention.attend`."""
        keys, values = kv.read(layer, rows.start + rows.count)  # (kv_heads, length, head_dim)
        match rows:
            case Step():
                return _attend_one(q, keys, values)
            case Prefill():
                return self._attend_many(q, keys, values, rows)

    def _attend_many(self, q: Tensor, keys: Tensor, values: Tensor, rows: Prefill) -> Tensor:
        count, heads, head_dim = q.shape
        kv_heads, length, _ = keys.shape
        group = heads // kv_heads
        grouped = q.view(count, kv_heads, group, head_dim).permute(1, 2, 0, 3)
        shape = (kv_heads, group, length, head_dim)
        out = scaled_dot_product_attention(
            grouped,
            keys[:, None].expand(shape),
            values[:, None].expand(shape),
            attn_mask=None if rows.start == 0 else self._mask_of(rows, q.device),
            is_causal=rows.start == 0,
        )  # (kv_heads, group, count, head_dim)
        return out.permute(2, 0, 1, 3).reshape(count, heads, head_dim)

    def _mask_of(self, rows: Prefill, device: torch.device) -> Tensor:
        if self._mask is None or self._mask[0] != rows:
            length = rows.start + rows.count
            mask = torch.ones(rows.count, length, dtype=torch.bool, device=device)
            self._mask = (rows, mask.tril(rows.start))
        return self._mask[1]


def _attend_one(q: Tensor, keys: Tensor, values: Tensor) -> Tensor:
    _, heads, head_dim = q.shape
    kv_heads = keys.shape[0]
    # The query heads of one key head stand where rows would: every one sees all keys.
    grouped = q.view(1, kv_heads, heads // kv_heads, head_dim)
    out = scaled_dot_product_attention(grouped, keys[None], values[None])
    return out.reshape(1, heads, head_dim)
