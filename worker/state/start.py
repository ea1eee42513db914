"""Where the reading of a prompt may start. Knows no tensor and no owner of kept states."""

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum

from worker.prefill import Plan, agreed_length
from worker.prefixes import shared_length
from worker.state.lineage import Exactness, Lineage


class Source(StrEnum):
    """What a prompt was resumed from, as the ledger calls it."""

    NONE = "none"
    RESIDENT = "resident"
    ANCHOR = "anchor"
    SESSION = "session"
    PREFIX = "prefix"
    DISK = "disk"
    SPILL = "spill"


@dataclass(frozen=True, slots=True)
class Start:
    """The first `position` tokens of a prompt need not be forwarded again."""

    position: int = 0
    source: Source = Source.NONE
    exactness: Exactness = Exactness.GRID


NOTHING = Start()


def common_prefix(one: Sequence[int], other: Sequence[int]) -> int:
    """How many ids are the same from the first on."""
    return shared_length(tuple(one), tuple(other))


@dataclass(frozen=True, slots=True)
class Wanted:
    """A prompt that looks for a start. `most`: tokens that may be spared; the last one of a prompt
    is always forwarded, for its logits. `is_exact`: only starts that give the same bits."""

    prompt: tuple[int, ...]
    plan: Plan
    most: int
    is_exact: bool = False

    def same(self, ids: Sequence[int]) -> int:
        """Tokens from the first on that it has in common with what is kept, and may spare."""
        return min(common_prefix(ids, self.prompt), self.most)

    def start_in_rows(self, source: Source, rows: Lineage, before: Plan, same: int) -> Start:
        """In keys and values, which can be cut anywhere. `before`: the plan they were read by."""
        cut = rows.cut(same, self.plan, agreed_length(before, self.plan))
        position = cut.grid if self.is_exact else same
        return Start(position, source, cut.at(position, self.plan)) if position else NOTHING

    def start_at(
        self, position: int, source: Source, exactness: Exactness, before: Plan, same: int
    ) -> Start:
        """Where a state of delta layers is kept, which is good for its own position alone.

        One read on the grid of another plan is not nearly right: it is not used.
        """
        is_grid = exactness is Exactness.GRID
        agreed = agreed_length(before, self.plan)
        is_planned = self.plan.is_start(position) and (agreed is None or position < agreed)
        if not 0 < position <= same or (is_grid and not is_planned):
            return NOTHING
        return Start(position, source, exactness) if is_grid or not self.is_exact else NOTHING
