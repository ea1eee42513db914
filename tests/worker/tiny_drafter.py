"""Random block drafters in their checkpoint form, and the same network in plain torch."""

import json
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from torch import Tensor

MASK = 500
TAPS = (0, 2)
SHAPE: dict[str, Any] = {
    "model_type": "qwen3",
    "vocab_size": 512,
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 24,  # not hidden over heads
    "rms_norm_eps": 1e-6,
    "rope_theta": 1000.0,
    "max_position_embeddings": 512,
    "num_target_layers": 4,
    "block_size": 6,
    "dflash_config": {"mask_token_id": MASK, "target_layer_ids": list(TAPS)},
}


def random_weights(fields: dict[str, Any], seed: int = 0) -> dict[str, Tensor]:
    """Tensors of a drafter by name, float32, none of them near a special value."""
    source = torch.Generator().manual_seed(seed)
    hidden, width = fields["hidden_size"], fields["intermediate_size"]
    wide = fields["num_attention_heads"] * fields["head_dim"]
    narrow = fields["num_key_value_heads"] * fields["head_dim"]
    taps = max(1, len(fields["dflash_config"]["target_layer_ids"]))
    shapes: dict[str, tuple[int, ...]] = {"fc.weight": (hidden, taps * hidden)}
    norms = {"hidden_norm.weight": hidden, "norm.weight": hidden}
    for index in range(fields["num_hidden_layers"]):
        at = f"layers.{index}."
        shapes |= {
            f"{at}self_attn.q_proj.weight": (wide, hidden),
            f"{at}self_attn.k_proj.weight": (narrow, hidden),
            f"{at}self_attn.v_proj.weight": (narrow, hidden),
            f"{at}self_attn.o_proj.weight": (hidden, wide),
            f"{at}mlp.gate_proj.weight": (width, hidden),
            f"{at}mlp.up_proj.weight": (width, hidden),
            f"{at}mlp.down_proj.weight": (hidden, width),
        }
        norms |= {
            f"{at}self_attn.q_norm.weight": fields["head_dim"],
            f"{at}self_attn.k_norm.weight": fields["head_dim"],
            f"{at}input_layernorm.weight": hidden,
            f"{at}post_attention_layernorm.weight": hidden,
        }
    weights = {
        name: torch.randn(shape, generator=source) * (2 / shape[1]) ** 0.5
        for name, shape in shapes.items()
    }
    for name, size in norms.items():
        weights[name] = 1.0 + 0.3 * torch.randn(size, generator=source)
    return weights


def write_drafter(
    folder: Path, extra: dict[str, Tensor] | None = None, **changes: Any
) -> tuple[dict[str, Any], dict[str, Tensor]]:
    """Writes a random drafter; returns its config and its tensors."""
    fields = {**SHAPE, **changes}
    weights = random_weights(fields)
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps(fields))
    save_file({**weights, **(extra or {})}, folder / "model.safetensors")
    return fields, weights


def reference_logits(
    fields: dict[str, Any],
    weights: dict[str, Tensor],
    *,
    embedding: Tensor,
    head: Tensor,
    taps: Tensor,
    root: int,
) -> Tensor:
    """What the network gives, step by step in float64, all rows at once and without any cache.

    embedding, head: the target's, (vocab, hidden). taps: (tokens, taps x hidden) of all tokens
    before the root. Out: (block_size - 1, vocab).
    """
    own = {name: value.double() for name, value in weights.items()}
    nested = {**fields, **fields["dflash_config"]}
    eps, dim, block = fields["rms_norm_eps"], fields["head_dim"], fields["block_size"]
    heads, kv_heads = fields["num_attention_heads"], fields["num_key_value_heads"]
    window = fields.get("sliding_window")
    kinds = fields.get("layer_types") or ["full_attention"] * fields["num_hidden_layers"]
    before = len(taps)

    def norm(x: Tensor, name: str) -> Tensor:
        return x / (x.square().mean(-1, keepdim=True) + eps).sqrt() * own[name]

    def turned(x: Tensor, first: int) -> Tensor:  # (rows, heads, dim), rows from a position on
        out = x.clone()
        for row in range(len(x)):
            for pair in range(dim // 2):
                angle = torch.tensor((first + row) * fields["rope_theta"] ** (-2 * pair / dim))
                one, other = x[row, :, pair], x[row, :, pair + dim // 2]
                out[row, :, pair] = one * angle.cos() - other * angle.sin()
                out[row, :, pair + dim // 2] = other * angle.cos() + one * angle.sin()
        return out

    context = norm(taps.double() @ own["fc.weight"].T, "hidden_norm.weight")
    ids = torch.tensor([root, *[nested["mask_token_id"]] * (block - 1)])
    x = embedding[ids].double() * nested.get("input_embedding_scale", 1.0)
    for index, kind in enumerate(kinds):
        at = f"layers.{index}.self_attn."
        is_local = kind == "sliding_attention"
        is_causal = nested.get("is_causal", is_local)
        y = norm(x, f"layers.{index}.input_layernorm.weight")
        both = torch.cat((context, y))
        q = (y @ own[f"{at}q_proj.weight"].T).view(block, heads, dim)
        k = (both @ own[f"{at}k_proj.weight"].T).view(before + block, kv_heads, dim)
        v = (both @ own[f"{at}v_proj.weight"].T).view(before + block, kv_heads, dim)
        q = turned(norm(q, f"{at}q_norm.weight"), before)
        k = turned(norm(k, f"{at}k_norm.weight"), 0)
        mixed = torch.zeros(block, heads, dim, dtype=torch.float64)
        for row in range(block):
            place = before + row
            seen = [
                key
                for key in range(before + block)
                if not (is_causal and key > place) and not (is_local and abs(place - key) >= window)
            ]
            for head_index in range(heads):
                shared = head_index // (heads // kv_heads)
                scores = k[seen, shared] @ q[row, head_index] / dim**0.5
                mixed[row, head_index] = scores.softmax(0) @ v[seen, shared]
        x = x + mixed.view(block, -1) @ own[f"{at}o_proj.weight"].T
        y = norm(x, f"layers.{index}.post_attention_layernorm.weight")
        gate, up = (y @ own[f"layers.{index}.mlp.{part}_proj.weight"].T for part in ("gate", "up"))
        x = x + (gate * gate.sigmoid() * up) @ own[f"layers.{index}.mlp.down_proj.weight"].T
    logits = norm(x[1:], "norm.weight") @ head.double().T * nested.get("output_multiplier", 1.0)
    cap = fields.get("final_logit_softcapping")
    return logits if cap is None else cap * (logits / cap).tanh()
