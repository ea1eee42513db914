"""The drafters of one slot and what is made of their guesses. Knows no model and no price."""

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass

from torch import Tensor

from worker.draft.base import Drafter
from worker.sampling.chooser import Chooser
from worker.speculation.cut import Candidate
from worker.speculation.merge import merge
from worker.speculation.odds import Odds
from worker.speculation.tree import DraftTree, Source

MS = 1000.0


@dataclass(frozen=True, slots=True)
class Draft:
    """What one drafter guessed for a round, and how long that took."""

    source: Source
    tree: DraftTree
    draft_ms: float


class Drafting:
    """Asks the drafters, and remembers how far each is to be believed in this request.

    `end_ids`: tokens behind which nothing comes, so that guessing them wins nothing.
    """

    def __init__(
        self,
        drafters: Sequence[Drafter],
        end_ids: Collection[int],
        clock: Callable[[], float],
    ) -> None:
        self._drafters = tuple(drafters)
        self._end_ids = end_ids
        self._clock = clock
        self._odds = Odds()

    @property
    def tapped(self) -> tuple[int, ...]:
        """Layers of the target that a drafter wants to see."""
        return tuple(layer for drafter in self._drafters for layer in drafter.tapped)

    def reset(self) -> None:
        """For a new sequence."""
        self._odds.clear()
        for drafter in self._drafters:
            drafter.rewind(0)

    def sync(self, ctx: Sequence[int], taps: Tensor | None) -> None:
        """See `Drafter.sync`."""
        for drafter in self._drafters:
            drafter.sync(ctx, taps)

    def propose(self, ctx: Sequence[int], room: int, chooser: Chooser) -> tuple[Draft, ...]:
        """What the drafters guess, at most `room` tokens deep; what can never be chosen is cut."""
        drafts: list[Draft] = []
        for drafter in self._drafters if room > 0 else ():
            began_s = self._clock()
            tree = drafter.propose(ctx, room, chooser)
            if tree is not None:
                assert tree.tokens[0] == ctx[-1], "a guess must stand on the last token"
                tree = possible(tree.within(room), self._end_ids, chooser)
            if tree is not None and tree.drafted:
                drafts.append(Draft(drafter.source, tree, (self._clock() - began_s) * MS))
        return tuple(drafts)

    def candidates(self, drafts: Sequence[Draft]) -> list[Candidate]:
        """The guesses with scores that are to be believed: each alone, and all in one."""
        found = [
            Candidate(self._odds.weighed(draft.tree, draft.source), draft.draft_ms)
            for draft in drafts
        ]
        if len(found) > 1:
            whole = found[0]
            for other in found[1:]:
                together_ms = whole.draft_ms + other.draft_ms
                whole = Candidate(merge(whole.tree, other.tree), together_ms)
            found.append(whole)
        return found

    def learn(self, drafts: Sequence[Draft], written: Sequence[int]) -> None:
        """Compares the guesses, verified or not, with what was written behind the root."""
        for draft in drafts:
            self._odds.learn(draft.tree, draft.source, written)

    def freeze(self) -> tuple[tuple[Tensor, ...], ...]:
        """See `Drafter.freeze`; one for each."""
        return tuple(drafter.freeze() for drafter in self._drafters)

    def thaw(self, ctx: Sequence[int], frozen: tuple[tuple[Tensor, ...], ...]) -> None:
        """See `Drafter.thaw`."""
        for drafter, tensors in zip(self._drafters, frozen, strict=True):
            drafter.thaw(ctx, tensors)


def possible(tree: DraftTree, end_ids: Collection[int], chooser: Chooser) -> DraftTree:
    """Without the nodes that end the answer or that its grammar forbids, and all below them."""
    kept: set[int] = {0}
    for node in range(1, len(tree)):
        if tree.parents[node] in kept and tree.tokens[node] not in end_ids:
            kept.add(node)
    if len(kept) < len(tree):
        tree = tree.part(sorted(kept))
    matcher = chooser.matcher
    if matcher is None or chooser.is_free:
        return tree
    allowed = {0}
    for path in tree.paths():
        count = matcher.valid_count([tree.tokens[node] for node in path])
        allowed.update(path[:count])
    return tree if len(allowed) == len(tree) else tree.part(sorted(allowed))
