"""Attention by torch's scaled_dot_product_attention: the tested path everywhere. Knows no model."""

import torch
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention

from worker.kernels.attention import Prefill, Rows, Sight, Step
from worker.kernels.tree import Tree
from worker.state.kv import KvCache


class SdpaAttention:
    """Grouped-query attention without a copy of the keys for each query head."""

    name = "sdpa"

    def __init__(self) -> None:
        # All layers of a chunk share one mask for each window.
        self._masks: dict[int, tuple[Prefill | Tree, Tensor]] = {}

    def attend(self, q: Tensor, sight: Sight, kv: KvCache, rows: Rows) -> Tensor:
        """See `Attention.attend`."""
        first = sight.first_key(rows)
        keys, values = kv.read(sight.layer, rows.start + rows.count)
        keys, values = keys[:, first:], values[:, first:]  # (kv_heads, length, head_dim)
        match rows:
            # A row that stands alone sees all keys, whatever it is called.
            case Step() | Prefill(count=1):
                return _attend_one(q, keys, values, sight.scale)
            case Prefill() | Tree():
                return self._attend_many(q, keys, values, sight, rows)

    def _attend_many(
        self, q: Tensor, keys: Tensor, values: Tensor, sight: Sight, rows: Prefill | Tree
    ) -> Tensor:
        count, heads, head_dim = q.shape
        kv_heads, length, _ = keys.shape
        group = heads // kv_heads
        grouped = q.view(count, kv_heads, group, head_dim).permute(1, 2, 0, 3)
        shape = (kv_heads, group, length, head_dim)
        is_whole = isinstance(rows, Prefill) and rows.start == 0
        is_plain = is_whole and (not sight.window or count <= sight.window)
        out = scaled_dot_product_attention(
            grouped,
            keys[:, None].expand(shape),
            values[:, None].expand(shape),
            attn_mask=None if is_plain else self._mask_of(rows, sight.window, length, q.device),
            is_causal=is_plain,
            scale=sight.scale,
        )  # (kv_heads, group, count, head_dim)
        return out.permute(2, 0, 1, 3).reshape(count, heads, head_dim)

    def _mask_of(
        self, rows: Prefill | Tree, window: int, length: int, device: torch.device
    ) -> Tensor:
        known = self._masks.get(window)
        if known is None or known[0] != rows:
            mask = (
                _tree_mask(rows, window, length)
                if isinstance(rows, Tree)
                else _line_mask(rows, window, length, device)
            )
            known = self._masks[window] = (rows, mask)
        return known[1]


def _line_mask(rows: Prefill, window: int, length: int, device: torch.device) -> Tensor:
    """(rows, length) bool: which of the last `length` keys each row sees."""
    mask = torch.ones(rows.count, length, dtype=torch.bool, device=device)
    mask = mask.tril(length - rows.count)
    return mask.triu(length - rows.count - window + 1) if window else mask


def _tree_mask(rows: Tree, window: int, length: int) -> Tensor:
    """The same for a tree, whose keys are the last ones, row after row."""
    prefix = length - rows.count
    mask = torch.cat((rows.reach.new_ones(rows.count, prefix), rows.reach), dim=1)
    if not window:
        return mask
    first = rows.start - prefix
    before = torch.arange(first, rows.start, device=rows.positions.device)
    positions = torch.cat((before, rows.positions))
    return mask & (rows.positions[:, None] - positions < window)


def _attend_one(q: Tensor, keys: Tensor, values: Tensor, scale: float) -> Tensor:
    _, heads, head_dim = q.shape
    kv_heads = keys.shape[0]
    # The query heads of one key head stand where rows would: every one sees all keys.
    grouped = q.view(1, kv_heads, heads // kv_heads, head_dim)
    out = scaled_dot_product_attention(grouped, keys[None], values[None], scale=scale)
    return out.reshape(1, heads, head_dim)
