"""The one interface of attention, whichever kernel is behind it. Knows no model."""

from dataclasses import dataclass
from typing import Protocol

from torch import Tensor

from worker.kernels.tree import Tree
from worker.state.kv import KvCache


@dataclass(frozen=True, slots=True)
class Prefill:
    """`count` rows at positions `start` on; each sees the prefix, itself and those before it."""

    start: int
    count: int

    @property
    def positions(self) -> slice:
        """Where the rows stand in the sequence."""
        return slice(self.start, self.start + self.count)


@dataclass(frozen=True, slots=True)
class Step:
    """One row at position `start`, which sees the whole prefix and itself."""

    start: int
    count: int = 1

    @property
    def positions(self) -> slice:
        """Where the row stands in the sequence."""
        return slice(self.start, self.start + 1)


Rows = Prefill | Step | Tree


@dataclass(frozen=True, slots=True)
class Sight:
    """How a layer looks at the cache: its number there, the scale of scores, and its window.

    `window`: tokens that a row sees, itself included; 0 = all before it.
    """

    layer: int
    scale: float
    window: int = 0

    def first_key(self, rows: Rows) -> int:
        """The first position that any of the rows sees."""
        return max(0, rows.start + 1 - self.window) if self.window else 0


class Attention(Protocol):
    """A kernel: attends over a slot's cache, in which the rows' own keys are written already."""

    name: str

    def attend(self, q: Tensor, sight: Sight, kv: KvCache, rows: Rows) -> Tensor:
        """q: (rows, heads, head_dim), roped, in the cache's dtype; out the same shape."""
        ...
