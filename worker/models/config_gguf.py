"""The shape of a decoder from the metadata of a GGUF file. Knows no tensors."""

from collections.abc import Mapping
from typing import Any

from worker.faults import LoadFault
from worker.models.config import Family, LayerKind, ModelConfig, RopeConfig
from worker.models.fields import need_int


def config_from_gguf(
    keys: Mapping[str, Any], family: Family, *, embedding_rows: int, is_tied: bool
) -> ModelConfig:
    """Reads the metadata of a GGUF file; `keys` without the architecture prefix.

    Raises: LoadFault for a missing key or a feature this engine lacks.
    """
    heads = need_int(keys, "attention.head_count")
    hidden = need_int(keys, "embedding_length")
    head_dim = int(keys.get("attention.key_length") or hidden // heads)
    full: LayerKind = "full"
    return ModelConfig(
        family=family,
        vocab_size=embedding_rows,
        hidden_size=hidden,
        intermediate_size=need_int(keys, "feed_forward_length"),
        layers=(full,) * need_int(keys, "block_count"),
        head_count=heads,
        kv_head_count=int(keys.get("attention.head_count_kv") or heads),
        head_dim=head_dim,
        rms_norm_eps=float(keys.get("attention.layer_norm_rms_epsilon", 1e-6)),
        is_tied=is_tied,
        max_len=need_int(keys, "context_length"),
        rope=_rope(keys),
        rotary_dim=head_dim,
        score_scale=head_dim**-0.5,
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
