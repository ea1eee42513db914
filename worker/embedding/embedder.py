"""One text to one vector, a chunk at a time, in a cache of its own. Knows no client and no queue.

No slot of a run is touched: what an embedding leaves behind is gone when its question is answered.
"""

import torch
from torch import Tensor

from worker.kernels.attention import Prefill
from worker.loading.pooling import Pooling
from worker.models.decoder import Decoder
from worker.state.cache import SequenceCache


class Embedder:
    """Reads texts with the model of the engine. All its methods are called by one thread."""

    def __init__(self, model: Decoder, pooling: Pooling, chunk: int) -> None:
        self._model = model
        self._pooling = pooling
        self._chunk = chunk
        self._cache: SequenceCache | None = None  # only while a question is being answered
        self._ids: tuple[int, ...] = ()
        self._done = 0  # tokens of the text that are read
        self._pooled: Tensor | None = None  # (hidden,) float64: a row, or the sum of all so far

    def start(self, ids: tuple[int, ...]) -> None:
        """Begins with a text, of which nothing is read yet."""
        assert ids, "a text has at least one token"
        if self._cache is None:
            self._cache = self._model.new_cache(self._chunk)
        self._cache.clear()
        self._ids, self._done, self._pooled = ids, 0, None

    @torch.inference_mode()
    def read_chunk(self) -> tuple[float, ...] | None:
        """Forwards one chunk; behind the last one gives the text's unit vector."""
        assert self._cache is not None, "no text was begun"
        start, end = self._done, min(self._done + self._chunk, len(self._ids))
        self._cache.reserve(end)
        ids = torch.tensor(self._ids[start:end], device=self._model.device)
        hidden = self._model.forward(ids, self._cache, Prefill(start, end - start))
        self._pool(self._model.states(hidden), is_first=start == 0)
        self._done = end
        return self._vector() if end == len(self._ids) else None

    def stop(self) -> None:
        """Gives the cache back."""
        self._cache = self._pooled = None
        self._ids = ()

    def _pool(self, states: Tensor, *, is_first: bool) -> None:
        """states: (rows, hidden) float32, after the final norm."""
        if self._pooling == "last":
            self._pooled = states[-1].double()
        elif self._pooling == "mean":
            # In float64, so that it does not matter where a chunk ends.
            total = states.sum(0, dtype=torch.float64)
            self._pooled = total if self._pooled is None else self._pooled + total
        elif is_first:
            self._pooled = states[0].double()

    def _vector(self) -> tuple[float, ...]:
        assert self._pooled is not None
        length = self._pooled.norm()
        # A sum has the direction of its mean: the count falls out with the length.
        unit = (self._pooled / length).float()
        if not torch.isfinite(unit).all():
            raise ValueError("the pooled state has no direction")
        return tuple(unit.tolist())
