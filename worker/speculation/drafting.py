"""The drafters of one slot and what is made of their guesses. Knows no model and no cache."""

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from functools import reduce

from torch import Tensor

from worker.draft.base import Drafter
from worker.sampling.chooser import Chooser
from worker.speculation.cut import Bounds, Cut, best_part
from worker.speculation.merge import merge
from worker.speculation.odds import Odds
from worker.speculation.prices import RoundPrices
from worker.speculation.tree import DraftTree, Source

MS = 1000.0

MOST_IDLE_COST = 0.03  # of a plain step, for guesses that are not worth their time just now
WEIGHT = 0.3  # of the newest sample, in what a drafter costs and is worth


@dataclass(frozen=True, slots=True)
class Draft:
    """What one drafter guessed for a round."""

    source: Source
    tree: DraftTree


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
        self._seats = tuple(_Seat(drafter) for drafter in drafters)
        self._drafters = tuple(drafters)
        self._end_ids = end_ids
        self._clock = clock
        self._odds = Odds()

    @property
    def is_any(self) -> bool:
        """Whether there is a drafter at all."""
        return bool(self._drafters)

    @property
    def tapped(self) -> tuple[int, ...]:
        """Layers of the target that a drafter wants to see."""
        return tuple(layer for drafter in self._drafters for layer in drafter.tapped)

    def start(self, salt: str | None, kept: int = 0) -> None:
        """See `Drafter.start`."""
        self._odds.clear()
        for seat in self._seats:
            seat.start(salt, kept)

    def rewind(self, length: int) -> None:
        """See `Drafter.rewind`."""
        for drafter in self._drafters:
            drafter.rewind(length)

    def sync(self, ctx: Sequence[int], taps: Tensor | None) -> None:
        """See `Drafter.sync`."""
        for drafter in self._drafters:
            drafter.sync(ctx, taps)

    def propose(
        self, ctx: Sequence[int], room: int, chooser: Chooser, prices: RoundPrices, bounds: Bounds
    ) -> tuple[Draft, ...]:
        """What the drafters guess, at most `room` tokens deep; what can never be chosen is cut.

        In their order, the cheapest first. One whose guesses have not been worth their time lately,
        beside a plain step or what another has guessed, is asked now and then only.
        """
        drafts: list[Draft] = []
        best_other = bounds.margin / prices.plain
        for seat in self._seats if room > 0 else ():
            if not seat.is_worth_asking(best_other, prices.plain):
                seat.rounds_unasked += 1
                continue
            seat.rounds_unasked = 0
            began_s = self._clock()
            tree = seat.drafter.propose(ctx, room, chooser)
            if tree is not None:
                assert tree.tokens[0] == ctx[-1], "a guess must stand on the last token"
                tree = possible(tree.within(room), self._end_ids, chooser)
            seat.saw_cost((self._clock() - began_s) * MS)
            best = None
            if tree is not None and tree.drafted:
                draft = Draft(seat.drafter.source, tree)
                drafts.append(draft)
                best = best_part(self._weighed(draft), prices, bounds)
            seat.saw_worth(best)
            if best is not None:
                best_other = max(best_other, best.value)
        return tuple(drafts)

    def candidates(self, drafts: Sequence[Draft]) -> list[DraftTree]:
        """Trees whose scores are to be believed: each guess, its likeliest line, and all in one."""
        weighed = [self._weighed(draft) for draft in drafts]
        lines = [tree.chain() for tree in weighed if not tree.is_chain]
        whole = [reduce(merge, weighed)] if len(weighed) > 1 else []
        return [*weighed, *lines, *whole]

    def _weighed(self, draft: Draft) -> DraftTree:
        return self._odds.weighed(draft.tree, draft.source)

    def learn(self, drafts: Sequence[Draft], written: Sequence[int]) -> None:
        """Compares the guesses, verified or not, with what was written behind the root."""
        for draft in drafts:
            self._odds.learn(draft.tree, draft.source, written)

    def freeze(self) -> tuple[tuple[Tensor, ...], ...]:
        """See `Drafter.freeze`; one for each."""
        return tuple(drafter.freeze() for drafter in self._drafters)

    def thaw(
        self, ctx: Sequence[int], frozen: tuple[tuple[Tensor, ...], ...], kept: int | None = None
    ) -> None:
        """See `Drafter.thaw`; then only the first `kept` tokens. `frozen` is empty where the ids
        are all there is."""
        frozen = frozen or ((),) * len(self._drafters)
        for drafter, tensors in zip(self._drafters, frozen, strict=True):
            drafter.thaw(ctx, tensors)
            if kept is not None:
                drafter.rewind(kept)


class _Seat:
    """One drafter, and whether it is worth asking."""

    def __init__(self, drafter: Drafter) -> None:
        self.drafter = drafter
        self._cost_ms: float | None = None
        self._worth: float | None = None  # expected tokens a millisecond, its own time included
        self.rounds_unasked = 0

    def start(self, salt: str | None, kept: int) -> None:
        """See `Drafter.start`. What it costs stays."""
        self.drafter.start(salt, kept)
        self._worth = None

    def is_worth_asking(self, best_other: float, plain_ms: float) -> bool:
        """Whether it is asked in this round. `best_other`: tokens a millisecond without it.

        What is never asked could not show that it has become better, so it is at times; so rarely
        that all the asking costs next to nothing.
        """
        if self._worth is None or self._cost_ms is None or self._worth > best_other:
            return True
        return self._cost_ms <= MOST_IDLE_COST * plain_ms * (self.rounds_unasked + 1)

    def saw_cost(self, cost_ms: float) -> None:
        """Learns from one time that it was asked."""
        self._cost_ms = _moved(self._cost_ms, cost_ms)

    def saw_worth(self, best: Cut | None) -> None:
        """Learns from the best that could be made of its answer; None where it had no guess."""
        worth = 0.0
        if best is not None:
            worth = best.value / (1.0 + (self._cost_ms or 0.0) / best.price_ms)
        self._worth = _moved(self._worth, worth)


def _moved(average: float | None, sample: float) -> float:
    return sample if average is None else average + WEIGHT * (sample - average)


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
