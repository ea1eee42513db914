"""The shape of a decoder from a transformers `config.json`. Knows no tensors."""

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

LAYER_KINDS: dict[str, LayerKind] = {
    "full_attention": "full", "sliding_attention": "window", "linear_attention": "delta",
}  # fmt: skip
ACTIVATIONS = {"silu": "silu", "gelu_pytorch_tanh": "gelu_tanh"}
# Every how-many-th layer has full attention, by what the others are.
INTERVAL_KEYS: dict[LayerKind, str] = {
    "full": "full_attention_interval",
    "delta": "full_attention_interval",
    "window": "sliding_window_pattern",
}


def text_fields(fields: Mapping[str, Any]) -> Mapping[str, Any]:
    """Those of the text model, which stand one level down in multimodal checkpoints."""
    nested = fields.get("text_config")
    return nested if isinstance(nested, dict) else fields


def config_from_json(fields: Mapping[str, Any], family: Family) -> ModelConfig:
    """Reads the fields of the text model.

    Raises: LoadFault for a missing key or a feature this engine lacks.
    """
    layers = _layers(fields, family)
    _refuse_unsupported(fields, family, layers)
    heads = need_int(fields, "num_attention_heads")
    hidden = need_int(fields, "hidden_size")
    head_dim = int_or(fields, "head_dim", hidden // heads)
    max_len = need_int(fields, "max_position_embeddings")
    ropes = _ropes(fields, max_len)
    experts = _experts(fields, len(layers))
    is_sparse_everywhere = experts is not None and len(experts.layers) == len(layers)
    return ModelConfig(
        family=family,
        vocab_size=need_int(fields, "vocab_size"),
        hidden_size=hidden,
        intermediate_size=0 if is_sparse_everywhere else need_int(fields, "intermediate_size"),
        layers=layers,
        head_count=heads,
        kv_head_count=int_or(fields, "num_key_value_heads", heads),
        head_dim=head_dim,
        rms_norm_eps=float(fields.get("rms_norm_eps", 1e-6)),
        is_tied=bool(fields.get("tie_word_embeddings", False)),
        max_len=max_len,
        rope=ropes["full"],
        rotary_dim=int(head_dim * _rotary_share(fields, family)),
        score_scale=float(fields.get("query_pre_attn_scalar") or head_dim) ** -0.5,
        window=need_int(fields, "sliding_window") if "window" in layers else 0,
        window_rope=ropes.get("window") if "window" in layers else None,
        logit_cap=fields.get("final_logit_softcapping"),
        delta=_delta(fields) if "delta" in layers else None,
        experts=experts,
    )


def _layers(fields: Mapping[str, Any], family: Family) -> tuple[LayerKind, ...]:
    count = need_int(fields, "num_hidden_layers")
    named = fields.get("layer_types")
    if named is None:
        key = (
            "full_attention_interval"
            if family.other_layers == "delta"
            else "sliding_window_pattern"
        )
        interval = int_or(fields, key, family.full_interval)
        return tuple(
            "full" if (index + 1) % interval == 0 else family.other_layers for index in range(count)
        )
    if len(named) != count or not set(named) <= LAYER_KINDS.keys():
        raise LoadFault(
            f"The model's 'layer_types' must name {count} layers of the kinds "
            f"{', '.join(LAYER_KINDS)}; found {len(named)} of {', '.join(sorted(set(named)))}."
        )
    return tuple(LAYER_KINDS[name] for name in named)


def _refuse_unsupported(
    fields: Mapping[str, Any], family: Family, layers: tuple[LayerKind, ...]
) -> None:
    activation = fields.get("hidden_activation") or fields.get("hidden_act", "silu")
    foreign = set(layers) - {"full", family.other_layers}
    is_turned_in_part = _rotary_share(fields, family) != 1.0
    unsupported = {
        "quantization_config": bool(fields.get("quantization_config")),
        "attention_bias": bool(fields.get("attention_bias")) and not family.has_qkv_bias,
        "mlp_bias": bool(fields.get("mlp_bias")),
        f"hidden_act {activation!r}": ACTIVATIONS.get(activation) != family.activation,
        "sliding window layers": "window" in foreign or bool(fields.get("use_sliding_window")),
        "linear attention layers": "delta" in foreign,
        "attn_logit_softcapping": fields.get("attn_logit_softcapping") is not None,
        "use_bidirectional_attention": bool(fields.get("use_bidirectional_attention")),
        "partial_rotary_factor": family.rotary_share == 1.0 and is_turned_in_part,
    }
    for feature, is_set in unsupported.items():
        if is_set:
            raise LoadFault(f"The model's config.json asks for {feature}, which is not supported.")


def _rotary_share(fields: Mapping[str, Any], family: Family) -> float:
    rope = fields.get("rope_parameters") or {}
    share = rope.get("partial_rotary_factor") or fields.get("partial_rotary_factor")
    return float(share or family.rotary_share)


def _ropes(fields: Mapping[str, Any], max_len: int) -> dict[LayerKind, RopeConfig]:
    # New form: `rope_parameters`, one or one for each kind of layer. Old form: `rope_theta` beside
    # `rope_scaling`, and `rope_local_base_freq` for layers with a window.
    new = fields.get("rope_parameters") or {}
    if any(name in new for name in LAYER_KINDS):
        return {
            LAYER_KINDS[name]: _rope(scaling, fields, max_len)
            for name, scaling in new.items()
            if name in LAYER_KINDS
        }
    local = RopeConfig(base=float(fields.get("rope_local_base_freq") or WINDOW_BASE))
    full = _rope(new or fields.get("rope_scaling") or {}, fields, max_len)
    return {"full": full, "window": local}


def _rope(scaling: Mapping[str, Any], fields: Mapping[str, Any], max_len: int) -> RopeConfig:
    base = float(scaling.get("rope_theta") or fields.get("rope_theta") or 10_000.0)
    kind = scaling.get("rope_type") or scaling.get("type") or "default"
    original = scaling.get("original_max_position_embeddings")
    original_len = int(original or fields.get("original_max_position_embeddings") or max_len)
    match kind:
        case "default" | "mrope":
            return RopeConfig(base=base)
        case "linear":
            return RopeConfig(kind="linear", base=base, factor=float(scaling["factor"]))
        case "llama3":
            return RopeConfig(
                kind="llama3",
                base=base,
                factor=float(scaling["factor"]),
                low_freq_factor=float(scaling["low_freq_factor"]),
                high_freq_factor=float(scaling["high_freq_factor"]),
                original_len=original_len,
            )
        case "yarn":
            return RopeConfig(
                kind="yarn",
                base=base,
                factor=float(scaling.get("factor") or max_len / original_len),
                original_len=original_len,
                beta_fast=float(scaling.get("beta_fast") or 32.0),
                beta_slow=float(scaling.get("beta_slow") or 1.0),
                attention_factor=scaling.get("attention_factor"),
            )
    raise LoadFault(f"The model scales its positions by {kind!r}, which is not supported.")


def _delta(fields: Mapping[str, Any]) -> DeltaConfig:
    return DeltaConfig(
        key_heads=int_or(fields, "linear_num_key_heads", 16),
        value_heads=int_or(fields, "linear_num_value_heads", 32),
        key_dim=int_or(fields, "linear_key_head_dim", 128),
        value_dim=int_or(fields, "linear_value_head_dim", 128),
        conv_width=int_or(fields, "linear_conv_kernel_dim", 4),
    )


def _experts(fields: Mapping[str, Any], layer_count: int) -> ExpertConfig | None:
    if not fields.get("num_experts"):
        return None
    step = int_or(fields, "decoder_sparse_step", 1)
    plain = set(fields.get("mlp_only_layers") or ())
    return ExpertConfig(
        count=need_int(fields, "num_experts"),
        chosen=need_int(fields, "num_experts_per_tok"),
        width=need_int(fields, "moe_intermediate_size"),
        shared_width=need_int(fields, "shared_expert_intermediate_size"),
        is_summed_to_one=bool(fields.get("norm_topk_prob", True)),
        layers=frozenset(
            index for index in range(layer_count) if index not in plain and (index + 1) % step == 0
        ),
    )
