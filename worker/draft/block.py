"""A drafter that guesses a block at once from the target's hidden states. Knows no price."""

from collections.abc import Sequence

from torch import Tensor

from worker.draft.block_model import BlockModel
from worker.draft.lattice import lattice_of, tree_of
from worker.sampling.chooser import Chooser
from worker.speculation.tree import DraftTree, Source


class BlockDrafter:
    """The drafter of one slot. The model is shared by all; the cache is the slot's own.

    `max_rows`: nodes of a tree, the root included. `step`: tokens by which the cache grows.
    """

    source = Source.BLOCK

    def __init__(self, model: BlockModel, *, max_len: int, max_rows: int, step: int) -> None:
        self.tapped: Sequence[int] = model.config.taps
        self._model = model
        self._max_len = max_len
        self._budget = max_rows - 1
        self._cache = model.new_cache(step)
        self._length = 0  # tokens whose hidden states were read
        self._is_whole = True  # false where those of the first tokens were never seen

    def start(self, salt: str | None, kept: int = 0) -> None:
        """See `Drafter`."""
        self._is_whole = self._length >= kept
        self.rewind(kept)

    def rewind(self, length: int) -> None:
        """See `Drafter`."""
        self._length = min(self._length, length)

    def sync(self, ctx: Sequence[int], taps: Tensor | None) -> None:
        """See `Drafter`."""
        assert taps is not None, "a drafter that reads hidden states was given none"
        if not self._is_whole:
            return
        self._model.read(taps, self._cache, self._length)
        self._length += taps.shape[0]
        assert self._length <= len(ctx), "hidden states of more tokens than there are"

    def propose(self, ctx: Sequence[int], room: int, chooser: Chooser) -> DraftTree | None:
        """See `Drafter`. None where hidden states are missing, the block passes the context, or its
        logits are no numbers."""
        if not self._is_whole:
            return None
        start = len(ctx) - 1
        slots = min(room, self._model.config.block_size - 1)
        is_past_end = start + self._model.config.block_size > self._max_len
        if self._length != start or is_past_end or slots < 1 or self._budget < 1:
            return None
        logits = self._model.guess(ctx[-1], self._cache, start)[:slots]
        if not logits.amax(-1).isfinite().all():  # nor NaN: a small network may overflow
            return None
        return tree_of(ctx[-1], lattice_of(logits, chooser), self._budget)

    def freeze(self) -> tuple[Tensor, ...]:
        """See `Drafter`: keys and values of the tokens read."""
        return self._cache.freeze(self._length) if self._is_whole else ()

    def thaw(self, ctx: Sequence[int], tensors: tuple[Tensor, ...]) -> None:
        """See `Drafter`."""
        self._is_whole = bool(tensors)
        self._length = tensors[0].shape[2] if tensors else 0
        if tensors:
            self._cache.thaw(tensors)
