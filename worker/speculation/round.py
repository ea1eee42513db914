"""What one decode round was: counts and times. Knows no model, no run and no metric."""

from collections.abc import Callable
from dataclasses import dataclass

from worker.speculation.tree import DraftTree, Source

MS = 1000.0


@dataclass(frozen=True, slots=True)
class Round:
    """`tree`: what was verified; of the root alone in a plain step. `path`: the nodes of it that
    the target agreed with, root first. `tokens`: what it chose behind each of them; `near_ties`:
    how many of them, in greedy text, another token was as good as but for rounding.

    Times in milliseconds; `price_ms`: what verify and commit were expected to take.
    """

    tree: DraftTree
    path: tuple[int, ...]
    tokens: tuple[int, ...]
    draft_ms: float
    verify_ms: float
    walk_ms: float
    commit_ms: float
    price_ms: float
    near_ties: int = 0

    @property
    def accepted(self) -> int:
        """Drafted nodes that the target agreed with."""
        return len(self.path) - 1

    @property
    def is_missed(self) -> bool:
        """Whether the walk ended at a node all of whose children the target refused."""
        last, tree = self.path[-1], self.tree
        is_leaf = next(tree.children(last), None) is None
        return not is_leaf and tree.child(last, self.tokens[-1]) is None

    @property
    def kind(self) -> str:
        """Who guessed what was verified: plain, lookup, block, form or merged."""
        sources = Source(0)
        for source in self.tree.sources:
            sources |= source
        if not sources:
            return "plain"
        return str(sources.name).lower() if len(sources) == 1 else "merged"


class Stopwatch:
    """Milliseconds from one call to the next. `clock`: seconds, read when the device is done."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._last_s = clock()

    def lap_ms(self) -> float:
        """Since the last lap."""
        before_s, self._last_s = self._last_s, self._clock()
        return (self._last_s - before_s) * MS
