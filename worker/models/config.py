"""What the shape of a decoder is, whatever file says it. Knows no file format and no tensors."""

from dataclasses import dataclass
from typing import Literal

from worker.faults import LoadFault

LayerKind = Literal["full", "window", "delta"]
RopeKind = Literal["default", "linear", "llama3", "yarn"]
Activation = Literal["silu", "gelu_tanh"]

WINDOW_BASE = 10_000.0  # of rope in layers with a window, where the files do not say


@dataclass(frozen=True, slots=True)
class GgufForm:
    """How GGUF files hold a family. `architecture`: their `general.architecture`.

    `has_pairwise_rows`: query and key rows are ordered for pairwise rope. `has_tiled_values`: value
    heads stand key heads in turn. `has_post_attention_norm`: the name is not `ffn_norm`.
    `wide_score_layers`: so many layers has the one size whose scores are scaled by hidden size over
    heads and not by head dim, which the files do not say.
    """

    architecture: str
    has_pairwise_rows: bool = False
    has_tiled_values: bool = False
    has_post_attention_norm: bool = False
    wide_score_layers: int = 0


@dataclass(frozen=True, slots=True)
class Family:
    """What sets a family apart, beyond what its files say of a model.

    `name`: its `model_type`. `end_tokens`: spellings that end a turn, for files that do not say so.

    `has_head_norms`: RMS norm of each query and key head before rope. `has_output_norms`: what
    attention and MLP give is normed before it is added. `has_output_gate`: queries come with a gate
    for what attention gives. `has_centred_norms`: safetensors hold norms as multiplier minus 1.
    `other_layers`: what layers are between full attention, every `full_interval`th layer.
    `rotary_share`: of a head's dims, where the config does not say.
    """

    name: str
    gguf: GgufForm
    end_tokens: tuple[str, ...]
    has_qkv_bias: bool = False
    has_head_norms: bool = False
    has_output_norms: bool = False
    has_output_gate: bool = False
    has_centred_norms: bool = False
    has_scaled_embedding: bool = False
    activation: Activation = "silu"
    other_layers: LayerKind = "full"
    full_interval: int = 1
    rotary_share: float = 1.0


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
class DeltaConfig:
    """The shape of gated delta layers. `conv_width`: tokens that the convolution sees.

    Raises: LoadFault for a shape that no such layer can have.
    """

    key_heads: int
    value_heads: int
    key_dim: int
    value_dim: int
    conv_width: int

    def __post_init__(self) -> None:
        if self.value_heads % self.key_heads or self.conv_width < 2:
            raise LoadFault(
                f"The model's delta layers cannot have {self.value_heads} value heads for "
                f"{self.key_heads} key heads and a convolution over {self.conv_width} tokens."
            )

    @property
    def keys_width(self) -> int:
        """Values of all key heads of a token, which queries have as well."""
        return self.key_heads * self.key_dim

    @property
    def values_width(self) -> int:
        """Values of all value heads of a token."""
        return self.value_heads * self.value_dim

    @property
    def conv_channels(self) -> int:
        """Queries, keys and values of a token together."""
        return 2 * self.keys_width + self.values_width


@dataclass(frozen=True, slots=True)
class ExpertConfig:
    """A mixture of experts. `chosen`: of `count`, for a token; `is_summed_to_one`: their weights.

    `layers`: which layers have one; the others have a plain MLP.
    """

    count: int
    chosen: int
    width: int
    shared_width: int
    is_summed_to_one: bool
    layers: frozenset[int]


@dataclass(frozen=True, slots=True)
class ModelConfig:
    """The shape of a decoder. `max_len`: positions it was trained for, in tokens.

    `window`: tokens that a layer of kind `window` sees, itself included; such layers turn by
    `window_rope`. `rotary_dim`: the first dims of a head, which turn; the rest pass. `score_scale`:
    of attention scores. `logit_cap`: logits are squeezed between plus and minus it.
    """

    family: Family
    vocab_size: int
    hidden_size: int
    intermediate_size: int
    layers: tuple[LayerKind, ...]
    head_count: int
    kv_head_count: int
    head_dim: int
    rms_norm_eps: float
    is_tied: bool
    max_len: int
    rope: RopeConfig
    rotary_dim: int
    score_scale: float
    window: int = 0
    window_rope: RopeConfig | None = None
    logit_cap: float | None = None
    delta: DeltaConfig | None = None
    experts: ExpertConfig | None = None

    @property
    def attention_layers(self) -> int:
        """How many layers keep keys and values."""
        return sum(kind != "delta" for kind in self.layers)

    @property
    def delta_layers(self) -> int:
        """How many layers keep a recurrent state."""
        return self.layers.count("delta")
