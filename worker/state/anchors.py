"""Copies of the delta layers' state at some positions of one slot. Knows no tokens and no model.

Keys and values stay where they are; this is what cannot be cut back to an earlier position.
"""

from bisect import insort
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from worker.state.cache import DeltaCache
from worker.state.lineage import Exactness


@dataclass(frozen=True, slots=True, eq=False)
class Anchor:
    """The state behind the first `position` tokens."""

    position: int
    exactness: Exactness
    recurrent: Tensor
    conv: Tensor


class Anchors:
    """The anchors of a slot: some of its starts, by position, and where its last sequence ended.

    `most`: how many are kept beside the end's. `tail`: the newest of them are never given up.
    Buffers are used again, not freed and taken anew.
    """

    def __init__(self, *, most: int, tail: int) -> None:
        self._most = max(most, tail, 1)
        self._tail = tail
        self._kept: list[Anchor] = []
        self._end: Anchor | None = None
        self._spare: list[tuple[Tensor, Tensor]] = []

    def __len__(self) -> int:
        return len(self._all)

    def __iter__(self) -> Iterator[Anchor]:
        return iter(tuple(self._all))

    @property
    def last(self) -> int:
        """The position of the last one; 0 where there is none."""
        # Starts may have been read behind the end of before.
        return max((anchor.position for anchor in self._all), default=0)

    @property
    def size_bytes(self) -> int:
        """Bytes held, spare buffers included."""
        buffers = [(anchor.recurrent, anchor.conv) for anchor in self._all] + self._spare
        return sum(part.numel() * part.element_size() for pair in buffers for part in pair)

    def keep(self, position: int, exactness: Exactness, delta: DeltaCache) -> None:
        """Takes a copy; over the limit, gives up the one whose loss leaves the smallest gap."""
        self.cut(position - 1)
        self._shed(self._most - 1, [position])
        self._kept.append(self._copy(position, exactness, delta))

    def keep_end(self, position: int, exactness: Exactness, delta: DeltaCache) -> None:
        """Takes a copy of where the sequence ends; the end before it becomes one of the others."""
        self.cut(position - 1)
        before, self._end = self._end, None
        if before is not None:
            # Starts that were read behind it may be kept already.
            insort(self._kept, before, key=lambda anchor: anchor.position)
            self._shed(self._most, [])
        self._end = self._copy(position, exactness, delta)

    def at(self, position: int) -> Anchor:
        """The anchor of a position that has one."""
        return next(anchor for anchor in self._all if anchor.position == position)

    def cut(self, position: int) -> None:
        """Forgets those behind `position`."""
        for anchor in self._all:
            if anchor.position > position:
                self._spare.append((anchor.recurrent, anchor.conv))
        self._kept = [anchor for anchor in self._kept if anchor.position <= position]
        if self._end is not None and self._end.position > position:
            self._end = None

    def shrink(self) -> int:
        """Frees a spare buffer, or gives one anchor up that is not protected; the bytes freed."""
        before = self.size_bytes
        if not self._spare:
            victim = _smallest_gap(self._positions, self._tail)
            if victim is not None:
                self._give_up(victim)
        if self._spare:
            self._spare.pop()
        return before - self.size_bytes

    def clear(self) -> None:
        """Forgets all, and frees the buffers."""
        self._kept, self._end = [], None
        self._spare.clear()

    @property
    def _all(self) -> list[Anchor]:
        return self._kept if self._end is None else [*self._kept, self._end]

    def _shed(self, most: int, coming: list[int]) -> None:
        """Gives up anchors until at most so many are left. `coming`: positions behind them all."""
        while len(self._kept) > most:
            victim = _smallest_gap([*self._positions, *coming], self._tail)
            self._give_up(0 if victim is None else victim)

    @property
    def _positions(self) -> list[int]:
        return [anchor.position for anchor in self._kept]

    def _give_up(self, index: int) -> None:
        anchor = self._kept.pop(index)
        self._spare.append((anchor.recurrent, anchor.conv))

    @torch.inference_mode()
    def _copy(self, position: int, exactness: Exactness, delta: DeltaCache) -> Anchor:
        if self._spare:
            recurrent, conv = self._spare.pop()
            recurrent.copy_(delta.recurrent)
            conv.copy_(delta.conv)
        else:
            recurrent, conv = delta.recurrent.clone(), delta.conv.clone()
        return Anchor(position, exactness, recurrent, conv)


def _smallest_gap(positions: Sequence[int], tail: int) -> int | None:
    """The one without which the gap around it is smallest; the last `tail` are left out."""
    before = [0, *positions]
    gaps = {
        index: before[index + 2] - before[index] for index in range(len(positions) - max(tail, 1))
    }
    return min(gaps, key=lambda index: gaps[index], default=None)
