"""The shape of a decoder from the metadata of a GGUF file. Knows no tensors."""

from collections.abc import Mapping
from typing import Any

from worker.faults import LoadFault
from worker.models.config import (
    WINDOW_BASE,
    DeltaConfig,
    ExpertConfig,
    Family,
    LayerKind,
    ModelConfig,
    RopeConfig,
)
from worker.models.fields import int_or, need_int


def config_from_gguf(
    keys: Mapping[str, Any], family: Family, *, embedding_rows: int, is_tied: bool
) -> ModelConfig:
    """Reads the metadata of a GGUF file; `keys` without the architecture prefix.

    Raises: LoadFault for a missing key or a feature this engine lacks.
    """
    heads = need_int(keys, "attention.head_count")
    hidden = need_int(keys, "embedding_length")
    head_dim = int_or(keys, "attention.key_length", hidden // heads)
    layers = _layers(keys, family)
    experts = _experts(keys, len(layers))
    scored = hidden / heads if len(layers) == family.gguf.wide_score_layers else head_dim
    return ModelConfig(
        family=family,
        vocab_size=embedding_rows,
        hidden_size=hidden,
        intermediate_size=0 if experts else need_int(keys, "feed_forward_length"),
        layers=layers,
        head_count=heads,
        kv_head_count=_kv_heads(keys, heads),
        head_dim=head_dim,
        rms_norm_eps=float(keys.get("attention.layer_norm_rms_epsilon", 1e-6)),
        is_tied=is_tied,
        max_len=need_int(keys, "context_length"),
        rope=_rope(keys),
        rotary_dim=int_or(keys, "rope.dimension_count", head_dim),
        score_scale=scored**-0.5,
        window=need_int(keys, "attention.sliding_window") if "window" in layers else 0,
        window_rope=RopeConfig(base=WINDOW_BASE) if "window" in layers else None,
        logit_cap=keys.get("final_logit_softcapping"),
        delta=_delta(keys) if "delta" in layers else None,
        experts=experts,
    )


def _layers(keys: Mapping[str, Any], family: Family) -> tuple[LayerKind, ...]:
    # Blocks behind the layers belong to the head that guesses further tokens.
    count = need_int(keys, "block_count") - int(keys.get("nextn_predict_layers") or 0)
    interval = int_or(keys, "full_attention_interval", family.full_interval)
    return tuple(
        "full" if (index + 1) % interval == 0 else family.other_layers for index in range(count)
    )


def _kv_heads(keys: Mapping[str, Any], heads: int) -> int:
    """Of a layer. Hybrid files may say it for each layer, 0 where there is no attention."""
    said = keys.get("attention.head_count_kv")
    if isinstance(said, list):
        return max(said, default=heads) or heads
    return int(said or heads)


def _delta(keys: Mapping[str, Any]) -> DeltaConfig:
    value_heads = need_int(keys, "ssm.time_step_rank")
    return DeltaConfig(
        key_heads=need_int(keys, "ssm.group_count"),
        value_heads=value_heads,
        key_dim=need_int(keys, "ssm.state_size"),
        value_dim=need_int(keys, "ssm.inner_size") // value_heads,
        conv_width=need_int(keys, "ssm.conv_kernel"),
    )


def _experts(keys: Mapping[str, Any], layer_count: int) -> ExpertConfig | None:
    if not keys.get("expert_count"):
        return None
    width = need_int(keys, "expert_feed_forward_length")
    return ExpertConfig(
        count=need_int(keys, "expert_count"),
        chosen=need_int(keys, "expert_used_count"),
        width=width,
        shared_width=int_or(keys, "expert_shared_feed_forward_length", width),
        is_summed_to_one=bool(keys.get("expert_weights_norm", True)),
        layers=frozenset(range(layer_count)),
    )


def _rope(keys: Mapping[str, Any]) -> RopeConfig:
    base = float(keys.get("rope.freq_base", 10_000.0))
    kind = keys.get("rope.scaling.type", "none")
    factor = float(keys.get("rope.scaling.factor") or keys.get("rope.scale_linear") or 1.0)
    if kind == "yarn":
        return RopeConfig(
            kind="yarn",
            base=base,
            factor=factor,
            original_len=need_int(keys, "rope.scaling.original_context_length"),
            beta_fast=float(keys.get("rope.scaling.yarn_beta_fast") or 32.0),
            beta_slow=float(keys.get("rope.scaling.yarn_beta_slow") or 1.0),
        )
    if kind in ("none", "linear"):
        return RopeConfig(kind="linear" if factor != 1.0 else "default", base=base, factor=factor)
    raise LoadFault(f"The model scales its positions by {kind!r}, which is not supported.")
