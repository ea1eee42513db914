"""The network of a block drafter: a few layers that guess a whole block in one pass.

It borrows embedding and head of its target and reads the target's own hidden states, so that it is
small and yet knows what the target thought. Knows no sequence, no tree and no training.

Source: the DFlash form (arXiv 2602.06036).
"""

from pathlib import Path

import torch
from torch import Tensor

from worker.draft.block_config import BlockConfig, Origin, read_block_config
from worker.faults import LoadFault
from worker.kernels.attention import Sight
from worker.kernels.product import Product
from worker.kernels.sdpa import SdpaAttention
from worker.kernels.tree import Tree
from worker.kernels.weight import joined
from worker.loading.safetensors import SafetensorsFiles
from worker.models.attention import AttentionLayer
from worker.models.decoder import Decoder, DecoderLayer
from worker.models.layouts import Layout
from worker.models.placement import Placement, TensorSource
from worker.models.rope import RopeTable
from worker.state.cache import SequenceCache
from worker.state.kv import KvCache

# Parts of a later form of these checkpoints, which this network does not have.
FOREIGN = (
    "layers.0.attention_conv.base_kernel",
    "layers.0.mlp_conv.base_kernel",
    "candidate_selector.hidden_projection.weight",
)


class BlockModel:
    """Guesses a block of tokens behind a root from what the target made of all before it.

    Only the root and the masks are rows of the layers. What is before them stands in the cache as
    keys and values that come straight from the target's hidden states, by position; a block's own
    rows lie behind those while it is computed, and the next tokens are written over them.
    """

    def __init__(
        self, config: BlockConfig, tensors: TensorSource, target: Decoder, *, max_len: int
    ) -> None:
        self.config = config
        self._target = target
        self._dtype, self._device = target.dtype, target.device
        # Drafters are small: packing them below 16 bits would save little and cost guesses.
        layout = Layout("fp32" if self._dtype == torch.float32 else "bf16", self._device)
        place = Placement(tensors, layout, is_centred=False)
        shape = config.shape
        hidden, eps = shape.hidden_size, shape.rms_norm_eps
        self._fuse = place.product("fc.weight", hidden, len(config.taps) * hidden)
        self._fused_norm = place.norm("hidden_norm.weight", hidden, eps)
        self._norm = place.norm("norm.weight", hidden, eps)
        below = [place.below(f"layers.{index}") for index in range(len(shape.layers))]
        self._context = _context_product(config, below)
        self._key_norms = [
            part.norm("self_attn.k_norm.weight", shape.head_dim, eps) for part in below
        ]
        rope = RopeTable(shape.rope, rotary_dim=shape.rotary_dim, positions=max_len)
        self._rope = rope.to(self._device)
        self._layers = self._decoder_layers(below)

    def new_cache(self, step: int) -> SequenceCache:
        """An empty cache for what is before a block, that grows by `step` tokens."""
        shape = self.config.shape
        kv = KvCache(
            layers=len(shape.layers),
            kv_heads=shape.kv_head_count,
            head_dim=shape.head_dim,
            step=step,
            dtype=self._dtype,
            device=self._device,
        )
        return SequenceCache(kv, None)

    def cache_bytes(self, length: int) -> int:
        """Bytes that a cache holds of `length` tokens, in all."""
        shape = self.config.shape
        values = 2 * len(shape.layers) * shape.kv_head_count * shape.head_dim
        return values * self._dtype.itemsize * length

    @torch.inference_mode()
    def read(self, taps: Tensor, cache: SequenceCache, start: int) -> None:
        """Writes what the target made of the tokens at `start` on into the cache.

        taps: (rows, taps x hidden) float32.
        """
        shape, rows = self.config.shape, taps.shape[0]
        cache.reserve(start + rows)
        fused = self._fused_norm(self._fuse(taps.to(self._dtype)).float())
        made = self._context(fused.to(self._dtype))
        made = made.view(rows, len(shape.layers), 2, shape.kv_head_count, shape.head_dim)
        for layer, norm in enumerate(self._key_norms):
            keys = norm(made[:, layer, 0].float())
            keys = self._rope.rotate(keys, slice(start, start + rows)).to(self._dtype)
            cache.kv.write(layer, start, keys, made[:, layer, 1])

    @torch.inference_mode()
    def guess(self, root: int, cache: SequenceCache, start: int) -> Tensor:
        """Logits of the tokens behind the root, which stands at position `start`.

        All tokens before it must be in the cache. Out: (block_size - 1, vocab) float32.
        """
        config = self.config
        cache.reserve(start + config.block_size)
        ids = torch.full((config.block_size,), config.mask_id, device=self._device)
        ids[0] = root
        x = self._target.embed(ids)
        if config.embedding_scale != 1.0:
            x = x * config.embedding_scale
        rows: dict[tuple[bool, str], Tree] = {}
        for layer, kind in zip(self._layers, self._kinds(), strict=True):
            if kind not in rows:
                rows[kind] = self._rows(start, is_causal=kind[0], has_window=kind[1] == "window")
            x = layer(x, cache, rows[kind])
        logits = self._target.plain_logits(self._norm(x[1:])) * config.output_multiplier
        cap = config.shape.logit_cap
        return logits if cap is None else (logits / cap).tanh() * cap

    def _kinds(self) -> list[tuple[bool, str]]:
        return list(zip(self.config.causal, self.config.shape.layers, strict=True))

    def _rows(self, start: int, *, is_causal: bool, has_window: bool) -> Tree:
        """The block as rows that see all before it, and of each other what the layer allows."""
        count = self.config.block_size
        seen = torch.ones(count, count, dtype=torch.bool, device=self._device)
        if has_window:  # looks ahead as far as back; how far back, the kernel sees to
            seen = seen.triu(1 - self.config.shape.window).tril(self.config.shape.window - 1)
        if is_causal:
            seen = seen.tril()
        positions = torch.arange(start, start + count, device=self._device)
        return Tree(start, positions, seen, windows=positions[:, None])

    def _decoder_layers(self, below: list[Placement]) -> list[DecoderLayer]:
        shape, attention = self.config.shape, SdpaAttention()
        layers = []
        for index, (part, kind) in enumerate(zip(below, shape.layers, strict=True)):
            sight = Sight(index, shape.score_scale, shape.window if kind == "window" else 0)
            mixer = AttentionLayer(shape, part.below("self_attn"), attention, sight, self._rope)
            layers.append(DecoderLayer(shape, part, index, mixer))
        return layers


def load_block_model(folder: Path, target: Decoder, origin: Origin, *, max_len: int) -> BlockModel:
    """The drafter in a folder of DFlash form, for a target that is loaded already.

    `origin`: of the target's files. Raises: LoadFault with one sentence where the drafter is
    damaged, of an unknown form or made for another target.
    """
    config = read_block_config(folder)
    config.check_target(target.config, origin)
    tensors = SafetensorsFiles.open(folder)
    for name in FOREIGN:
        if tensors.has(name):
            raise LoadFault(
                f"The block drafter in {str(folder)!r} has the tensor {name!r} of a later form "
                "(convolutions, a selector of candidates), which is not supported."
            )
    return BlockModel(config, tensors, target, max_len=max_len)


def _context_product(config: BlockConfig, below: list[Placement]) -> Product:
    """Keys and values of all layers in one product: they read the same vector."""
    shape = config.shape
    narrow = shape.kv_head_count * shape.head_dim
    parts = [
        part.linear(f"self_attn.{name}_proj.weight", narrow, shape.hidden_size)
        for part in below
        for name in "kv"
    ]
    return below[0].layout.product(joined(parts))
