"""The block drafter's network in a form that learns. Knows no file, no cache and no target.

The one that serves (`block_model`) keeps a cache and packs its weights; this one sees whole
sequences, with many blocks on each. Both give the same numbers, which a test holds them to.
"""

from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn.functional import linear, rms_norm, silu

from worker.draft.block_config import BlockConfig
from worker.models.rope import RopeTable

Weights = dict[str, Tensor]  # by their names in a checkpoint, float32

FIRST_SPREAD = 0.02  # standard deviation of fresh weights


@dataclass(frozen=True, slots=True, eq=False)
class Blocks:
    """Some sequences side by side, and blocks that begin at places of them.

    taps: (sequences, tokens, taps x hidden) float32, padded at the end. anchors: (sequences,
    blocks) int64, the position of each block's root. roots: (sequences, blocks, hidden) float32,
    the target's embedding of the tokens there. mask: (hidden,) of the mask.
    """

    taps: Tensor
    anchors: Tensor
    roots: Tensor
    mask: Tensor


def fresh_weights(config: BlockConfig, norm: Tensor, seed: int) -> Weights:
    """Weights of a drafter that has learnt nothing. norm: its final multiplier, (hidden,)."""
    shape, source = config.shape, torch.Generator().manual_seed(seed)
    hidden, width, dim = shape.hidden_size, shape.intermediate_size, shape.head_dim
    wide, narrow = shape.head_count * dim, shape.kv_head_count * dim

    def drawn(rows: int, columns: int, scale: float = 1.0) -> Tensor:
        return torch.randn(rows, columns, generator=source) * FIRST_SPREAD * scale

    # What is added to the residual stream begins smaller, the more often something is added.
    small = (2 * len(shape.layers)) ** -0.5
    weights = {
        "fc.weight": drawn(hidden, len(config.taps) * hidden),
        "hidden_norm.weight": torch.ones(hidden),
        "norm.weight": norm.float().clone(),
    }
    for index in range(len(shape.layers)):
        at = f"layers.{index}"
        weights |= {
            f"{at}.self_attn.q_proj.weight": drawn(wide, hidden),
            f"{at}.self_attn.k_proj.weight": drawn(narrow, hidden),
            f"{at}.self_attn.v_proj.weight": drawn(narrow, hidden),
            f"{at}.self_attn.o_proj.weight": drawn(hidden, wide, small),
            f"{at}.self_attn.q_norm.weight": torch.ones(dim),
            f"{at}.self_attn.k_norm.weight": torch.ones(dim),
            f"{at}.mlp.gate_proj.weight": drawn(width, hidden),
            f"{at}.mlp.up_proj.weight": drawn(width, hidden),
            f"{at}.mlp.down_proj.weight": drawn(hidden, width, small),
            f"{at}.input_layernorm.weight": torch.ones(hidden),
            f"{at}.post_attention_layernorm.weight": torch.ones(hidden),
        }
    return weights


class Network:
    """A drafter whose layers see everything before the block and the whole block."""

    def __init__(self, config: BlockConfig, weights: Weights) -> None:
        assert not any(config.causal), "only drafters without a causal layer are trained"
        self.weights = weights
        self._config = config
        shape = config.shape
        self._rope = RopeTable(shape.rope, rotary_dim=shape.rotary_dim, positions=shape.max_len)

    def states(self, blocks: Blocks) -> Tensor:
        """Behind the final norm, of all slots but the root's.

        Out: (sequences, blocks, block_size - 1, hidden) float32.
        """
        config, weights = self._config, self.weights
        fused = self._norm(linear(blocks.taps, weights["fc.weight"]).float(), "hidden_norm.weight")
        count = config.block_size
        x = blocks.mask.expand(*blocks.anchors.shape, count - 1, -1)
        x = torch.cat((blocks.roots[:, :, None], x), dim=2) * config.embedding_scale
        for index in range(len(config.shape.layers)):
            at = f"layers.{index}"
            normed = self._norm(x, f"{at}.input_layernorm.weight")
            x = x + self._attend(normed, fused, blocks.anchors, f"{at}.self_attn").float()
            normed = self._norm(x, f"{at}.post_attention_layernorm.weight")
            gate, up = (
                linear(normed, weights[f"{at}.mlp.{name}_proj.weight"]) for name in ("gate", "up")
            )
            x = x + linear(silu(gate) * up, weights[f"{at}.mlp.down_proj.weight"]).float()
        return self._norm(x[:, :, 1:], "norm.weight")

    def _attend(self, x: Tensor, fused: Tensor, anchors: Tensor, at: str) -> Tensor:
        """x: (sequences, blocks, block_size, hidden); fused: (sequences, tokens, hidden)."""
        shape = self._config.shape
        sequences, _, count, _ = x.shape
        length, kv_heads = fused.shape[1], shape.kv_head_count
        inside = anchors[:, :, None] + torch.arange(count)  # positions
        before = torch.arange(length).expand(sequences, length)
        q = self._heads(x, f"{at}.q", inside)
        # (sequences, blocks, count, kv_heads, group, dim)
        q = q.view(*q.shape[:3], kv_heads, -1, shape.head_dim)
        own_keys, own_values = self._heads(x, f"{at}.k", inside), self._heads(x, f"{at}.v")
        keys, values = self._heads(fused, f"{at}.k", before), self._heads(fused, f"{at}.v")
        far = torch.einsum("sabkgd,stkd->skgabt", q, keys).float()
        near = torch.einsum("sabkgd,sackd->skgabc", q, own_keys).float()
        hidden = before[:, None] >= anchors[:, :, None]  # (sequences, blocks, tokens)
        far = far.masked_fill(hidden[:, None, None, :, None], -torch.inf)
        chances = (torch.cat((far, near), dim=-1) * shape.score_scale).softmax(-1)
        out = torch.einsum("skgabt,stkd->sabkgd", chances[..., :length], values)
        out = out + torch.einsum("skgabc,sackd->sabkgd", chances[..., length:], own_values)
        return linear(out.flatten(-3), self.weights[f"{at}.o_proj.weight"])

    def _heads(self, x: Tensor, at: str, positions: Tensor | None = None) -> Tensor:
        """Heads of a projection, normed and turned where there are positions, one for each row."""
        heads = linear(x, self.weights[f"{at}_proj.weight"])
        heads = heads.view(*heads.shape[:-1], -1, self._config.shape.head_dim)
        if positions is None:
            return heads
        normed = self._norm(heads.float(), f"{at}_norm.weight")
        turned = self._rope.rotate(normed.flatten(0, -3), positions.flatten())
        return turned.view(normed.shape)

    def _norm(self, x: Tensor, name: str) -> Tensor:
        multiplier = self.weights[name]
        return rms_norm(x, multiplier.shape, multiplier, self._config.shape.rms_norm_eps)


def with_scaled_taps(weights: Mapping[str, Tensor], scale: Tensor) -> Weights:
    """The same drafter for taps that are not divided by `scale` before. scale: (taps x hidden,)."""
    folded = dict(weights)
    folded["fc.weight"] = weights["fc.weight"] / scale
    return folded
