"""How the rows of a sequence came to be, which says what a kept state of them is good for.

Knows no tensor and no token.
"""

from dataclasses import dataclass
from enum import IntEnum

from worker.prefill import Plan


class Exactness(IntEnum):
    """What a start from a kept state promises beside reading the prompt from its first token.

    `GRID`: the same bits. `TOKEN`: rows read in chunks of another shape. `SESSION`: some rows were
    written one by one, by a decode. The last two promise the same tokens, but for near ties.
    """

    GRID = 0
    TOKEN = 1
    SESSION = 2


@dataclass(frozen=True, slots=True)
class Lineage:
    """Rows up to `grid` were read in whole chunks of the plan, those up to `read` in some chunk;
    what is behind was written by a decode, or read on top of such rows."""

    grid: int = 0
    read: int = 0

    def at(self, position: int, plan: Plan) -> Exactness:
        """What a start at `position` promises a prompt of this plan."""
        if position <= self.grid and plan.is_start(position):
            return Exactness.GRID
        return Exactness.TOKEN if position <= self.read else Exactness.SESSION

    def cut(self, position: int, plan: Plan, agreed: int | None) -> "Lineage":
        """Of the first `position` rows, for a prompt of this plan.

        `agreed`: the first cut that only one has of this plan and the one of before; None for
        none. A chunk of one of them goes on behind it, so that only starts before it are the same.
        """
        exact = min(position, self.grid)
        if agreed is not None:
            exact = min(exact, max(0, agreed - 1))
        return Lineage(plan.last_start(exact), min(position, self.read))

    def with_chunk(self, start: int, end: int, plan: Plan) -> "Lineage":
        """With the rows of a chunk of prompt."""
        if start > self.read:
            return self
        is_whole = start == self.grid and plan.is_start(end)
        return Lineage(end if is_whole else self.grid, end)
