"""Many sequences decoded side by side, a row of each in one forward: to write a lot of text.

Serving has few streams and never does this; for training the rows of one forward are nearly free.
Knows no prompt, no file and no drafter.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import cast

import torch
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention

from worker.kernels.attention import Prefill, Rows, Sight
from worker.kernels.sdpa import SdpaAttention
from worker.models.decoder import Decoder, Taps
from worker.state.cache import SequenceCache
from worker.state.kv import KvCache

LIKELIEST = 64  # tokens whose log-probabilities are kept; sampling draws among them


@dataclass(frozen=True, slots=True, eq=False)
class LaneRows:
    """One row of each lane. positions: (lanes,) int64, where each row stands in its sequence."""

    positions: Tensor
    start: int = 0

    @property
    def count(self) -> int:
        """Rows, which are lanes."""
        return len(self.positions)


class LanesKv:
    """Keys and values of all lanes: (layers, lanes, kv_heads, capacity, head_dim) each."""

    def __init__(self, model: Decoder, lanes: int, capacity: int) -> None:
        config = model.config
        heads, layers = config.kv_head_count, config.attention_layers
        shape = (layers, lanes, heads, capacity, config.head_dim)
        self.keys = torch.zeros(shape, dtype=model.dtype, device=model.device)
        self.values = torch.zeros_like(self.keys)
        self._lanes = torch.arange(lanes, device=model.device)
        self._places = torch.arange(capacity, device=model.device)
        self.positions = torch.zeros(lanes, dtype=torch.int64, device=model.device)
        self.longest = 0  # keys that the longest lane sees

    def begin(self, positions: Tensor) -> None:
        """The rows that are written next stand here. positions: (lanes,)."""
        self.positions = positions
        self.longest = int(positions.max()) + 1

    def write(self, layer: int, start: int, keys: Tensor, values: Tensor) -> None:
        """Writes a row of each lane. keys, values: (lanes, kv_heads, head_dim)."""
        self.keys[layer, self._lanes, :, self.positions] = keys
        self.values[layer, self._lanes, :, self.positions] = values

    def mask(self, window: int) -> Tensor:
        """(lanes, 1, 1, longest) bool: which keys each lane's row sees."""
        distance = self.positions[:, None] - self._places[: self.longest]
        seen = distance >= 0
        if window:
            seen &= distance < window
        return seen[:, None, None]


class LanesAttention:
    """Attention over the caches of many lanes; over that of one sequence, as everywhere."""

    name = "lanes"

    def __init__(self) -> None:
        self._alone = SdpaAttention()

    def attend(self, q: Tensor, sight: Sight, kv: KvCache | LanesKv, rows: Rows) -> Tensor:
        """See `Attention.attend`."""
        if isinstance(kv, KvCache):
            return self._alone.attend(q, sight, kv, rows)
        lanes, heads, head_dim = q.shape
        keys = kv.keys[sight.layer, :, :, : kv.longest]
        values = kv.values[sight.layer, :, :, : kv.longest]
        kv_heads = keys.shape[1]
        # The query heads of one key head stand where rows would.
        out = scaled_dot_product_attention(
            q.view(lanes, kv_heads, heads // kv_heads, head_dim),
            keys,
            values,
            attn_mask=kv.mask(sight.window),
            scale=sight.scale,
        )
        return out.reshape(lanes, heads, head_dim)


@dataclass(frozen=True, slots=True, eq=False)
class Likeliest:
    """The likeliest next tokens of some rows: ids and log-probabilities, (rows, LIKELIEST) each."""

    ids: Tensor
    logprobs: Tensor


class Lanes:
    """Sequences in lanes. A model for them must be made with `LanesAttention`."""

    def __init__(
        self,
        model: Decoder,
        *,
        lanes: int,
        capacity: int,
        taps: Sequence[int],
        masked: Sequence[int],
    ) -> None:
        self._model = model
        self._kv = LanesKv(model, lanes, capacity)
        self._cache = SequenceCache(cast(KvCache, self._kv), None)
        self._prompt_cache = model.new_cache(capacity)
        self._taps = tuple(taps)
        self._masked = torch.tensor(masked, dtype=torch.int64, device=model.device)
        self.positions = torch.zeros(lanes, dtype=torch.int64, device=model.device)

    @torch.inference_mode()
    def read(self, lane: int, prompt: Sequence[int]) -> tuple[Tensor, Likeliest]:
        """Starts a lane anew with a prompt.

        Out: its taps, (tokens, taps x hidden) float32, and what its last token makes likely.
        """
        count = len(prompt)
        taps, ids = Taps(self._taps), torch.tensor(prompt, device=self._model.device)
        hidden = self._model.forward(ids, self._prompt_cache, Prefill(0, count), taps)
        keys, values = self._prompt_cache.kv.freeze(count)
        self._kv.keys[:, lane, :, :count] = keys
        self._kv.values[:, lane, :, :count] = values
        self.positions[lane] = count
        return taps.joined(), self._likeliest(hidden[-1:])

    @torch.inference_mode()
    def step(self, tokens: Tensor) -> tuple[Tensor, Likeliest]:
        """Forwards one token of every lane. tokens: (lanes,) int64; out: as in `read`, by lane."""
        self._kv.begin(self.positions)
        taps, rows = Taps(self._taps), cast(Rows, LaneRows(self.positions))
        hidden = self._model.forward(tokens, self._cache, rows, taps)
        self.positions = self.positions + 1
        return taps.joined(), self._likeliest(hidden)

    def _likeliest(self, hidden: Tensor) -> Likeliest:
        logits = self._model.logits(hidden)
        logits[:, self._masked] = -torch.inf
        best = logits.topk(min(LIKELIEST, logits.shape[-1]), dim=-1)
        return Likeliest(best.indices, best.values - logits.logsumexp(-1, keepdim=True))
