"""What a checkpoint says about its shape, from config.json or GGUF keys. Knows no tensors."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

from worker.faults import LoadFault

RopeKind = Literal["default", "linear", "llama3", "yarn"]


@dataclass(frozen=True, slots=True)
class Family:
    """What sets a family apart. `name` is its `model_type` and its GGUF architecture.

    `has_head_norms`: RMS norm of each query and key head before rope. `has_permuted_gguf`: its
    GGUF files hold query and key rows in pairwise order. `end_tokens`: spellings that end a turn,
    for files that do not say so.
    """

    name: str
    has_qkv_bias: bool
    has_head_norms: bool
    has_permuted_gguf: bool
    end_tokens: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class SamplingDefaults:
    """How a model wants to be sampled when the client says nothing. `top_k` 0 = off."""

    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = 0


@dataclass(frozen=True, slots=True)
class RopeConfig:
    """A variant of rotary positions. `original_len`: tokens of context before scaling.

    `divisors`: one per frequency pair, dividing the plain frequencies (GGUF's form of llama3).
    """

    kind: RopeKind = "default"
    base: float = 10_000.0
    factor: float = 1.0
    low_freq_factor: float = 1.0
    high_freq_factor: float = 4.0
    original_len: int = 0
    beta_fast: float = 32.0
    beta_slow: float = 1.0
    attention_factor: float | None = None
    divisors: tuple[float, ...] | None = None


@dataclass(frozen=True, slots=True)
class ModelConfig:
    """The shape of a dense decoder. `max_len`: positions it was trained for, in tokens."""

    family: Family
    vocab_size: int
    hidden_size: int
    intermediate_size: int
    layer_count: int
    head_count: int
    kv_head_count: int
    head_dim: int
    rms_norm_eps: float
    is_tied: bool
    max_len: int
    rope: RopeConfig


def config_from_json(fields: Mapping[str, Any], family: Family) -> ModelConfig:
    """Reads a transformers `config.json`.

    Raises: LoadFault for a missing key or a feature this engine lacks.
    """
    _refuse_unsupported(fields, family)
    heads = _need_int(fields, "num_attention_heads")
    hidden = _need_int(fields, "hidden_size")
    max_len = _need_int(fields, "max_position_embeddings")
    return ModelConfig(
        family=family,
        vocab_size=_need_int(fields, "vocab_size"),
        hidden_size=hidden,
        intermediate_size=_need_int(fields, "intermediate_size"),
        layer_count=_need_int(fields, "num_hidden_layers"),
        head_count=heads,
        kv_head_count=int(fields.get("num_key_value_heads") or heads),
        head_dim=int(fields.get("head_dim") or hidden // heads),
        rms_norm_eps=float(fields.get("rms_norm_eps", 1e-6)),
        is_tied=bool(fields.get("tie_word_embeddings", False)),
        max_len=max_len,
        rope=_rope_from_json(fields, max_len),
    )


def _refuse_unsupported(fields: Mapping[str, Any], family: Family) -> None:
    activation = fields.get("hidden_act", "silu")
    windowed = fields.get("use_sliding_window") or "sliding_attention" in (
        fields.get("layer_types") or ()
    )
    unsupported = {
        "quantization_config": bool(fields.get("quantization_config")),
        "attention_bias": bool(fields.get("attention_bias")) and not family.has_qkv_bias,
        "mlp_bias": bool(fields.get("mlp_bias")),
        f"hidden_act {activation!r}": activation != "silu",
        "sliding window layers": bool(windowed),
        "partial_rotary_factor": fields.get("partial_rotary_factor", 1.0) != 1.0,
    }
    for feature, is_set in unsupported.items():
        if is_set:
            raise LoadFault(f"The model's config.json asks for {feature}, which is not supported.")


def _rope_from_json(fields: Mapping[str, Any], max_len: int) -> RopeConfig:
    # The new form is `rope_parameters`; the old one `rope_theta` beside `rope_scaling`.
    scaling: Mapping[str, Any] = fields.get("rope_parameters") or fields.get("rope_scaling") or {}
    base = float(scaling.get("rope_theta") or fields.get("rope_theta") or 10_000.0)
    kind = scaling.get("rope_type") or scaling.get("type") or "default"
    original = scaling.get("original_max_position_embeddings")
    original_len = int(original or fields.get("original_max_position_embeddings") or max_len)
    match kind:
        case "default":
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


def config_from_gguf(
    keys: Mapping[str, Any], family: Family, *, embedding_rows: int, is_tied: bool
) -> ModelConfig:
    """Reads the metadata of a GGUF file; `keys` without the architecture prefix.

    Raises: LoadFault for a missing key or a feature this engine lacks.
    """
    heads = _need_int(keys, "attention.head_count")
    hidden = _need_int(keys, "embedding_length")
    return ModelConfig(
        family=family,
        vocab_size=embedding_rows,
        hidden_size=hidden,
        intermediate_size=_need_int(keys, "feed_forward_length"),
        layer_count=_need_int(keys, "block_count"),
        head_count=heads,
        kv_head_count=int(keys.get("attention.head_count_kv") or heads),
        head_dim=int(keys.get("attention.key_length") or hidden // heads),
        rms_norm_eps=float(keys.get("attention.layer_norm_rms_epsilon", 1e-6)),
        is_tied=is_tied,
        max_len=_need_int(keys, "context_length"),
        rope=_rope_from_gguf(keys),
    )


def _rope_from_gguf(keys: Mapping[str, Any]) -> RopeConfig:
    base = float(keys.get("rope.freq_base", 10_000.0))
    kind = keys.get("rope.scaling.type", "none")
    factor = float(keys.get("rope.scaling.factor") or keys.get("rope.scale_linear") or 1.0)
    if kind == "yarn":
        return RopeConfig(
            kind="yarn",
            base=base,
            factor=factor,
            original_len=_need_int(keys, "rope.scaling.original_context_length"),
            beta_fast=float(keys.get("rope.scaling.yarn_beta_fast") or 32.0),
            beta_slow=float(keys.get("rope.scaling.yarn_beta_slow") or 1.0),
        )
    if kind in ("none", "linear"):
        return RopeConfig(kind="linear" if factor != 1.0 else "default", base=base, factor=factor)
    raise LoadFault(f"The model scales its positions by {kind!r}, which is not supported.")


def _need_int(fields: Mapping[str, Any], key: str) -> int:
    value = fields.get(key)
    if type(value) is not int or value < 1:
        found = "nothing" if value is None else repr(value)[:64]
        raise LoadFault(f"The model's {key!r} must be a positive integer, found {found}.")
    return value
