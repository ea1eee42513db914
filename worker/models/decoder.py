"""The whole decoder: ids in, hidden states and logits out. Knows no file format, sampling or run.

Precision: residual stream, norms, rope, softmax and the delta rule are fp32; inputs of linears and
the cache of keys and values have the layout's dtype.
"""

from collections.abc import Callable, Sequence

import torch
from torch import Tensor
from torch.nn.functional import embedding

from worker.kernels.attention import Attention, Rows, Sight
from worker.models.attention import AttentionLayer
from worker.models.config import ModelConfig, RopeConfig
from worker.models.delta import DeltaLayer
from worker.models.experts import ExpertMlp
from worker.models.layers import Head, RmsNorm
from worker.models.layouts import Layout
from worker.models.placement import Placement, TensorSource
from worker.models.rope import RopeTable
from worker.models.sizes import kv_bytes, state_bytes
from worker.state.cache import DeltaCache, SequenceCache, empty_delta
from worker.state.kv import KvCache

Mixer = Callable[[Tensor, SequenceCache, Rows], Tensor]


class Decoder:
    """A model of any family on one device."""

    def __init__(
        self,
        config: ModelConfig,
        tensors: TensorSource,
        attention: Attention,
        *,
        layout: Layout,
        max_len: int,
    ) -> None:
        self.config = config
        self.layout = layout
        self.dtype = layout.dtype
        self.device = layout.device
        is_centred = config.family.has_centred_norms and not tensors.has_whole_norms
        top = Placement(tensors, layout, is_centred=is_centred)
        place = top.below("model")
        width = (config.vocab_size, config.hidden_size)
        self._embedding = place.weight("embed_tokens.weight", *width)
        self._scale = _embedding_scale(config, layout.dtype)
        self._layers = _layers(config, place, attention, max_len)
        self._norm = place.norm("norm.weight", config.hidden_size, config.rms_norm_eps)
        tied = self._embedding if config.is_tied else top.weight("lm_head.weight", *width)
        self._head = Head(tied, config.logit_cap)

    def forward(
        self, ids: Tensor, cache: SequenceCache, rows: Rows, taps: "Taps | None" = None
    ) -> Tensor:
        """Forwards rows and writes what later rows need of them.

        ids: (rows,) int64; out: (rows, hidden) float32, the residual stream after all layers.
        Rows of a tree leave the state that they started from as it is, until `cache.commit`.
        """
        x = embedding(ids, self._embedding).float()
        if self._scale != 1.0:
            x *= self._scale
        for index, layer in enumerate(self._layers):
            x = layer(x, cache, rows)
            if taps is not None and index in taps.layers:
                taps.rows[index] = x.clone()
        return x

    @property
    def conv_width(self) -> int:
        """Tokens that the convolution of delta layers sees; 1 where there is none."""
        return 1 if self.config.delta is None else self.config.delta.conv_width

    def states(self, hidden: Tensor) -> Tensor:
        """hidden: (rows, hidden) from `forward`; out: the same behind the final norm."""
        return self._norm(hidden)

    def logits(self, hidden: Tensor) -> Tensor:
        """hidden: (rows, hidden) from `forward`; out: (rows, vocab) float32."""
        return self._head(self.states(hidden))

    def embed(self, ids: Tensor) -> Tensor:
        """The embedding's own rows, for drafters. ids: (rows,) int64; out: (rows, hidden) float32.

        A family's factor is not in them.
        """
        return embedding(ids, self._embedding).float()

    def plain_logits(self, states: Tensor) -> Tensor:
        """The head's product alone, for drafters: neither capped nor exact enough to choose by.

        states: (rows, hidden) float32 behind a final norm; out: (rows, vocab) float32.
        """
        return self._head.plain(states)

    @torch.inference_mode()
    def is_row_invariant(self) -> bool:
        """Whether a row's result is bit-equal whatever rows stand beside it (linears only)."""
        rows = torch.randn(16, self.config.hidden_size, generator=torch.Generator().manual_seed(0))
        rows = rows.to(self.device)
        alone = torch.cat([self.logits(rows[i : i + 1]) for i in range(16)])
        return self.layout.is_row_invariant() and all(
            torch.equal(self.logits(rows[:count]), alone[:count]) for count in (2, 3, 8, 16)
        )

    def new_cache(self, step: int) -> SequenceCache:
        """An empty cache of the model's shape that grows by `step` tokens."""
        config = self.config
        kv = KvCache(
            layers=config.attention_layers,
            kv_heads=config.kv_head_count,
            head_dim=config.head_dim,
            step=step,
            dtype=self.dtype,
            device=self.device,
        )
        return SequenceCache(kv, self._new_delta())

    @property
    def state_bytes(self) -> int:
        """Bytes of the state of its delta layers, and so of a copy; 0 where there are none."""
        return state_bytes(self.config, self.dtype)

    def cache_bytes(self, length: int) -> int:
        """Bytes that a cache holds of `length` tokens, in all."""
        return kv_bytes(self.config, self.dtype, length) + self.state_bytes

    def _new_delta(self) -> DeltaCache | None:
        if (shape := self.config.delta) is None:
            return None
        return empty_delta(
            layers=self.config.delta_layers,
            state=(shape.value_heads, shape.key_dim, shape.value_dim),
            conv=(shape.conv_width - 1, shape.conv_channels),
            dtype=self.dtype,
            device=self.device,
        )


class Taps:
    """What a drafter reads of a forward: the residual stream after some layers, in this order."""

    def __init__(self, layers: Sequence[int]) -> None:
        self.layers = tuple(layers)
        self.rows: dict[int, Tensor] = {}  # by layer: (rows, hidden) float32

    def joined(self) -> Tensor:
        """(rows, layers x hidden) float32."""
        return torch.cat([self.rows[layer] for layer in self.layers], dim=-1)


class DecoderLayer:
    """`x += mixer(norm(x))`, then `x += mlp(norm(x))`, each normed again where the family does."""

    def __init__(self, config: ModelConfig, place: Placement, index: int, mixer: Mixer) -> None:
        def norm(name: str) -> RmsNorm:
            return place.norm(f"{name}.weight", config.hidden_size, config.rms_norm_eps)

        is_normed_twice = config.family.has_output_norms
        self._dtype = place.layout.dtype
        self._mixer = mixer
        self._mlp = _mlp(config, place.below("mlp"), index)
        self._input_norm = norm("input_layernorm")
        self._mlp_norm = norm(
            "pre_feedforward_layernorm" if is_normed_twice else "post_attention_layernorm"
        )
        self._mixed_norm = norm("post_attention_layernorm") if is_normed_twice else None
        self._output_norm = norm("post_feedforward_layernorm") if is_normed_twice else None

    def __call__(self, x: Tensor, cache: SequenceCache, rows: Rows) -> Tensor:
        """x: (rows, hidden) float32, changed in place and returned."""
        mixed = self._mixer(self._input_norm(x), cache, rows)
        x.add_(mixed if self._mixed_norm is None else self._mixed_norm(mixed.float()))
        out = self._mlp(self._mlp_norm(x).to(self._dtype))
        return x.add_(out if self._output_norm is None else self._output_norm(out.float()))


def _layers(
    config: ModelConfig, place: Placement, attention: Attention, max_len: int
) -> list[DecoderLayer]:
    def table(rope: RopeConfig) -> RopeTable:
        table = RopeTable(rope, rotary_dim=config.rotary_dim, positions=max_len)
        return table.to(place.layout.device)

    full_rope = table(config.rope)
    window_rope = full_rope if config.window_rope is None else table(config.window_rope)
    layers = []
    kept = recurrent = 0  # layers so far that keep keys and values, or a recurrent state
    for index, kind in enumerate(config.layers):
        below = place.below(f"layers.{index}")
        mixer: Mixer
        if kind == "delta":
            mixer = DeltaLayer(config, below.below("linear_attn"), recurrent)
            recurrent += 1
        else:
            is_local = kind == "window"
            sight = Sight(kept, config.score_scale, config.window if is_local else 0)
            rope = window_rope if is_local else full_rope
            mixer = AttentionLayer(config, below.below("self_attn"), attention, sight, rope)
            kept += 1
        layers.append(DecoderLayer(config, below, index, mixer))
    return layers


def _mlp(config: ModelConfig, place: Placement, index: int) -> Callable[[Tensor], Tensor]:
    if config.experts is not None and index in config.experts.layers:
        return ExpertMlp(config, config.experts, place)
    return place.mlp(config.hidden_size, config.intermediate_size, config.family.activation)


def _embedding_scale(config: ModelConfig, dtype: torch.dtype) -> float:
    if not config.family.has_scaled_embedding:
        return 1.0
    return float(torch.tensor(config.hidden_size**0.5, dtype=torch.float32).to(dtype))
