"""Rows of a draft tree: what each of them sees, and attention among them. Knows no guess."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True, slots=True, eq=False)
class Tree:
    """Rows of a draft tree; each sees the prefix, its ancestors and itself.

    Their keys lie at `start` plus the row, whatever the position. positions: (rows,) int64, `start`
    plus depth; siblings share one. reach: (rows, rows) bool, whether row i is row j or comes after
    it on one path. windows: (rows, width) int64, what a causal convolution sees for each row, own
    row last, in rows behind the `width - 1` inputs before the tree.
    """

    start: int
    positions: Tensor
    reach: Tensor
    windows: Tensor

    @property
    def count(self) -> int:
        """Rows, the root included."""
        return self.reach.shape[0]

    def to(self, device: torch.device) -> "Tree":
        """The same on a device."""
        parts = (part.to(device) for part in (self.positions, self.reach, self.windows))
        return Tree(self.start, *parts)


def tree_rows(parents: Sequence[int], *, start: int, conv_width: int = 1) -> Tree:
    """The rows of a tree whose root stands at position `start`, on the CPU.

    `parents`: of each row, which stand before their children; -1 for the root. `conv_width`: tokens
    that the model's convolution sees.
    """
    depths: list[int] = []
    reach = torch.eye(len(parents), dtype=torch.bool)
    windows: list[list[int]] = []
    for row, parent in enumerate(parents):
        above = list(range(-1, conv_width - 1)) if parent < 0 else windows[parent]
        windows.append([*above[1:], conv_width - 1 + row])
        depths.append(0 if parent < 0 else depths[parent] + 1)
        if parent >= 0:
            reach[row] |= reach[parent]
    return Tree(start, torch.tensor(depths) + start, reach, torch.tensor(windows))


def attend_among(
    q: Tensor, keys: Tensor, values: Tensor, reach: Tensor, scale: float
) -> tuple[Tensor, Tensor]:
    """Attention of rows over their ancestors and themselves, in float32.

    q: (rows, heads, head_dim); keys, values: (kv_heads, rows, head_dim). Out: (rows, heads,
    head_dim), and the logarithm of the sum of each row's weights, (rows, heads).
    """
    rows, heads, head_dim = q.shape
    kv_heads = keys.shape[0]
    grouped = q.float().view(rows, kv_heads, -1, head_dim).permute(1, 2, 0, 3)
    scores = grouped @ keys.float()[:, None].transpose(2, 3) * scale
    scores = scores.masked_fill(~reach, -torch.inf)  # (kv_heads, group, rows, rows)
    out = scores.softmax(-1) @ values.float()[:, None]
    sums = scores.logsumexp(-1).permute(2, 0, 1).reshape(rows, heads)
    return out.permute(2, 0, 1, 3).reshape(rows, heads, head_dim), sums


def merged(one: Tensor, one_sum: Tensor, other: Tensor, other_sum: Tensor) -> Tensor:
    """Attention over two sets of keys from that over each. one, other: (rows, heads, head_dim)
    float32; sums: (rows, heads), the logarithms of the sums of their weights."""
    most = torch.maximum(one_sum, other_sum)
    weight, other_weight = (one_sum - most).exp()[..., None], (other_sum - most).exp()[..., None]
    return (one * weight + other * other_weight) / (weight + other_weight)
