"""The shape of a block drafter from its `config.json`, checked against its target. Knows no tensor.

Source: the DFlash checkpoint form (arXiv 2602.06036, github.com/z-lab/dflash).
"""

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from worker.faults import LoadFault
from worker.models.config import Family, GgufForm, ModelConfig
from worker.models.config_json import config_from_json
from worker.models.fields import int_or, need_int

# The layers of a drafter are those of Qwen 3; some of them may have a window.
DRAFTER = Family(
    "block drafter", GgufForm("none"), end_tokens=(), has_head_norms=True, other_layers="window"
)
DEFAULT_BLOCK = 16
SHARED_KEYS = "dflash_config"  # keys of the form stand here, or beside the others
ORIGIN_KEYS = "trained_for"  # ours: which files a drafter was trained on; published ones lack it


@dataclass(frozen=True, slots=True)
class Origin:
    """The target that a drafter belongs to, as far as is known. Both are hex SHA-256."""

    weights_hash: str | None = None
    tokenizer_hash: str | None = None


@dataclass(frozen=True, slots=True)
class BlockConfig:
    """What a block drafter looks like.

    `block_size`: rows of one pass, the root included. `taps`: layers of the target whose output it
    reads, counted from 0. `causal`: of each layer, whether block rows see only earlier ones.
    `target_layers`: how many its target has, None where nothing says so.
    """

    shape: ModelConfig
    block_size: int
    mask_id: int
    taps: tuple[int, ...]
    causal: tuple[bool, ...]
    embedding_scale: float = 1.0
    output_multiplier: float = 1.0
    target_layers: int | None = None
    origin: Origin = Origin()

    def check_target(self, target: ModelConfig, origin: Origin) -> None:
        """Whether it was made for this model. `origin`: of the model's files.

        Raises: LoadFault; a drafter of another model would have no guess accepted.
        """
        layers = len(target.layers)
        found = {
            "hidden size": (self.shape.hidden_size, target.hidden_size),
            "vocabulary": (self.shape.vocab_size, target.vocab_size),
            "layers": (self.target_layers or layers, layers),
            "tokenizer hash": _known(self.origin.tokenizer_hash, origin.tokenizer_hash),
            "weights hash": _known(self.origin.weights_hash, origin.weights_hash),
        }
        for name, (wanted, there) in found.items():
            if wanted != there:
                raise LoadFault(
                    f"The block drafter is for a model with {name} {wanted}, found {there}."
                )
        if not all(0 <= tap < layers for tap in self.taps):
            raise LoadFault(
                f"The block drafter reads the layers {list(self.taps)}, the model has 0 to "
                f"{layers - 1}."
            )
        if not 0 <= self.mask_id < target.vocab_size:
            raise LoadFault(
                f"The block drafter's mask id must be below {target.vocab_size}, found "
                f"{self.mask_id}."
            )


def read_block_config(folder: Path) -> BlockConfig:
    """The config of a drafter's folder. Raises: LoadFault."""
    path = folder / "config.json"
    try:
        fields = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as fault:
        raise LoadFault(f"The block drafter's {str(path)!r} cannot be read: {fault}.") from fault
    if not isinstance(fields, dict):
        raise LoadFault(f"{str(path)!r} is not an object.")
    return block_config_from_json(fields)


def block_config_from_json(fields: Mapping[str, Any]) -> BlockConfig:
    """Raises: LoadFault for a missing key, or a value that no such drafter can have."""
    nested = fields.get(SHARED_KEYS)
    own = {**fields, **nested} if isinstance(nested, dict) else dict(fields)
    # Windows are those of `layer_types`; this key says nothing more.
    shape = config_from_json({**fields, "use_sliding_window": False}, DRAFTER)
    target_layers = own.get("num_target_layers")
    if target_layers is not None:
        target_layers = need_int(own, "num_target_layers")
    block_size = int_or(own, "block_size", DEFAULT_BLOCK)
    if block_size < 2:
        raise LoadFault("The block drafter's 'block_size' must be 2 or more, found 1.")
    mask_id = own.get("mask_token_id")
    if type(mask_id) is not int:
        raise LoadFault(f"The block drafter's 'mask_token_id' must be an id, found {mask_id!r}.")
    return BlockConfig(
        shape=shape,
        block_size=block_size,
        mask_id=mask_id,
        taps=_taps(own, len(shape.layers), target_layers),
        causal=_causal(own, shape),
        embedding_scale=_factor(own, "input_embedding_scale"),
        output_multiplier=_factor(own, "output_multiplier"),
        target_layers=target_layers,
        origin=_origin(fields.get(ORIGIN_KEYS)),
    )


def block_config_to_json(config: BlockConfig) -> dict[str, Any]:
    """What `block_config_from_json` reads, for a drafter whose layers all see everything."""
    shape = config.shape
    return {
        "architectures": ["DFlashDraftModel"],
        "model_type": "qwen3",
        "vocab_size": shape.vocab_size,
        "hidden_size": shape.hidden_size,
        "intermediate_size": shape.intermediate_size,
        "num_hidden_layers": len(shape.layers),
        "num_attention_heads": shape.head_count,
        "num_key_value_heads": shape.kv_head_count,
        "head_dim": shape.head_dim,
        "rms_norm_eps": shape.rms_norm_eps,
        "rope_theta": shape.rope.base,
        "max_position_embeddings": shape.max_len,
        "hidden_act": "silu",
        "num_target_layers": config.target_layers,
        "block_size": config.block_size,
        SHARED_KEYS: {"mask_token_id": config.mask_id, "target_layer_ids": list(config.taps)},
        ORIGIN_KEYS: {
            "weights_hash": config.origin.weights_hash,
            "tokenizer_hash": config.origin.tokenizer_hash,
        },
    }


def spread_taps(count: int, target_layers: int) -> tuple[int, ...]:
    """`count` layers of a target, evenly spaced: from the second to the third last."""
    if count == 1:
        return (target_layers // 2,)
    last = target_layers - 3
    return tuple(round(1 + index * (last - 1) / (count - 1)) for index in range(count))


def _taps(own: Mapping[str, Any], layers: int, target_layers: int | None) -> tuple[int, ...]:
    named = own.get("target_layer_ids")
    if named is None:
        if target_layers is None:
            raise LoadFault(
                "The block drafter's config names neither 'target_layer_ids' nor "
                "'num_target_layers'."
            )
        return spread_taps(layers, target_layers)
    if not isinstance(named, list) or not named or any(type(tap) is not int for tap in named):
        raise LoadFault(f"The block drafter's 'target_layer_ids' must be layers, found {named!r}.")
    return tuple(named)


def _causal(own: Mapping[str, Any], shape: ModelConfig) -> tuple[bool, ...]:
    said = own.get("is_causal")
    return tuple(kind == "window" if said is None else bool(said) for kind in shape.layers)


def _factor(own: Mapping[str, Any], key: str) -> float:
    value = own.get(key)
    if value is None:
        return 1.0
    if type(value) not in (int, float) or not math.isfinite(value) or value <= 0:
        raise LoadFault(f"The block drafter's {key!r} must be a positive number, found {value!r}.")
    return float(value)


def _origin(fields: Any) -> Origin:
    if not isinstance(fields, dict):
        return Origin()
    hashes: Sequence[Any] = [fields.get(key) for key in ("weights_hash", "tokenizer_hash")]
    weights, tokenizer = (value if isinstance(value, str) else None for value in hashes)
    return Origin(weights, tokenizer)


def _known(wanted: str | None, there: str | None) -> tuple[str | None, str | None]:
    """Both, or twice the one where only one is known."""
    return (wanted, there) if wanted and there else (wanted, wanted)
