"""Guesses that what was written before is written again. Knows no weights and no price.

Free where there is nothing to copy, and worth most where a file is edited or a text quoted.
"""

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from heapq import heappop, heappush
from itertools import count
from typing import Protocol

from torch import Tensor

from worker.draft.ngrams import Ngrams
from worker.sampling.chooser import Chooser
from worker.speculation.tree import DraftTree, Source, ordered

MOST_CHILDREN = 3
USUAL_DEPTH = 16  # tokens; deeper only behind a long match, where a copy is certain to go on
LOCAL_VOTE, STORE_VOTE = 1.0, 0.5

# Match lengths that count as the same, by the least of them, and how often a copy goes on by one
# token behind such a match; start values until this worker has seen its own.
START_RATES = {3: 0.55, 4: 0.62, 5: 0.70, 6: 0.75, 7: 0.80, 8: 0.88, 16: 0.92, 32: 0.95}
CLASSES = tuple(sorted(START_RATES))
PRIOR = 20.0  # tokens that a start value weighs as much as
MOST_COUNTED = 4000.0  # tokens of one kind; then older ones count half


class Store(Protocol):
    """Other sequences that may be copied from."""

    def find(self, tail: Sequence[int], least: int) -> tuple[int, list[Sequence[int]]]:
        """The longest match of the end of `tail`, at least so long, and what followed it."""
        ...


class Stores(Protocol):
    """A store for each salt."""

    def of(self, salt: str) -> Store | None:
        """The one of a salt, where there is any."""
        ...


class CopyRates:
    """How often a copy goes on, by source of the copy and length of the match. One a worker."""

    def __init__(self) -> None:
        self._followed: dict[tuple[str, int], float] = defaultdict(float)
        self._missed: dict[tuple[str, int], float] = defaultdict(float)

    def rate(self, where: str, length: int) -> float:
        """The rate behind a match of `length` ids. `where`: "local" or "store"."""
        key = where, class_of(length)
        followed, missed = self._followed[key], self._missed[key]
        return (PRIOR * START_RATES[key[1]] + followed) / (PRIOR + followed + missed)

    def saw(self, where: str, length: int, *, was_followed: bool) -> None:
        """Learns from one token behind a match."""
        key = where, class_of(length)
        (self._followed if was_followed else self._missed)[key] += 1.0
        if self._followed[key] + self._missed[key] > MOST_COUNTED:
            self._followed[key] /= 2
            self._missed[key] /= 2


def class_of(length: int) -> int:
    """The least length of those that count as the same."""
    return max((least for least in CLASSES if least <= length), default=CLASSES[0])


Line = tuple[Sequence[int], int, float]  # ids, the position to go on from, the votes it counts for
Lines = tuple[Line, ...]


@dataclass(frozen=True, slots=True)
class Copies:
    """Places to copy from that are as good as each other.

    `length`: ids that are the same before the best of them.
    """

    where: str
    length: int
    lines: Lines


class LookupDrafter:
    """Copies from the sequence itself, and from a store of others where there is one.

    `least_match`: ids that must be the same before a place to copy from, in the sequence;
    `least_store_match`: in the store. `least_expected`: tokens below which it declines.
    """

    source = Source.LOOKUP
    tapped: tuple[int, ...] = ()

    def __init__(
        self,
        rates: CopyRates,
        *,
        most_rows: int,
        least_match: int,
        least_expected: float,
        stores: Stores | None = None,
        least_store_match: int = 7,
    ) -> None:
        self._rates = rates
        self._most_rows = most_rows
        self._least_match = least_match
        self._least_expected = least_expected
        self._stores = stores
        self._store: Store | None = None
        self._least_store_match = least_store_match
        self._index = Ngrams()
        self._guess: tuple[Copies, DraftTree] | None = None  # not compared with the truth yet

    def start(self, salt: str | None, kept: int = 0) -> None:
        """See `Drafter.start`."""
        self.rewind(kept)
        self._store = None
        if self._stores is not None and salt is not None:
            self._store = self._stores.of(salt)

    def rewind(self, length: int) -> None:
        """See `Drafter.rewind`."""
        self._guess = None
        self._index.rewind(length)

    def sync(self, ctx: Sequence[int], taps: Tensor | None) -> None:
        """See `Drafter.sync`."""
        written = ctx[len(self._index.ids) :]
        if self._guess is not None:
            learn(self._rates, *self._guess, written)
            self._guess = None
        self._index.extend(written)

    def propose(self, ctx: Sequence[int], room: int, chooser: Chooser) -> DraftTree | None:
        """See `Drafter.propose`."""
        copies = self._copies()
        if copies is None:
            return None
        most = self._most_rows - 1
        depth = min(room, USUAL_DEPTH if copies.length < CLASSES[-1] else most)
        tree = grown(ctx[-1], copies, self._rates, depth=depth, nodes=most)
        self._guess = copies, tree
        return tree if sum(tree.scores[1:]) >= self._least_expected else None

    def freeze(self) -> tuple[Tensor, ...]:
        """See `Drafter.freeze`: the ids say all."""
        return ()

    def thaw(self, ctx: Sequence[int], tensors: tuple[Tensor, ...]) -> None:
        """See `Drafter.thaw`."""
        self.rewind(0)
        self._index.extend(ctx)

    def _copies(self) -> Copies | None:
        ids = self._index.ids
        places = [(place, same) for place, same in self._index.places()]
        longest = max((same for _, same in places), default=0)
        longest = longest if longest >= self._least_match else 0
        lines: list[Line] = []
        where = "local"
        if self._store is not None:
            same, found = self._store.find(ids, self._least_store_match)
            if found and class_of(same) >= class_of(longest):
                lines = [(line, 0, STORE_VOTE) for line in found]
                if class_of(same) > class_of(longest) or not longest:
                    return Copies("store", same, tuple(lines))
        if not longest:
            return None
        best = class_of(longest)
        local = [(ids, place, LOCAL_VOTE) for place, same in places if class_of(same) == best]
        return Copies(where, longest, (*local, *lines))


def grown(root: int, copies: Copies, rates: CopyRates, *, depth: int, nodes: int) -> DraftTree:
    """The likeliest `nodes` nodes of the prefix tree of what may be copied, to a `depth`."""
    tokens, parents, scores = [root], [-1], [1.0]
    waiting: list[tuple[float, int, int, int, tuple[int, Lines]]] = []
    number = count()  # of equal scores the one that was found first
    at, below, lines = 0, 1, copies.lines
    while True:
        if below <= depth:
            go_on = scores[at] * rates.rate(copies.where, copies.length + below - 1)
            for share, token, some in _branches(lines):
                heappush(waiting, (-go_on * share, next(number), at, below, (token, some)))
        if not waiting or len(tokens) > nodes:
            break
        score, _, parent, below, (token, lines) = heappop(waiting)
        at = len(tokens)
        tokens.append(token)
        parents.append(parent)
        scores.append(-score)
        below += 1
    return ordered(tokens, parents, scores, [Source.LOOKUP] * len(tokens))


def _branches(lines: Lines) -> list[tuple[float, int, Lines]]:
    """The tokens that the lines go on with, likeliest first: share of votes, token, those lines."""
    groups: dict[int, list[Line]] = {}
    for ids, place, vote in lines:
        if place < len(ids):
            groups.setdefault(ids[place], []).append((ids, place + 1, vote))
    votes = {token: sum(vote for _, _, vote in some) for token, some in groups.items()}
    total = sum(votes.values())
    best = sorted(votes, key=lambda token: -votes[token])[:MOST_CHILDREN]
    return [(votes[token] / total, token, tuple(groups[token])) for token in best]


def learn(rates: CopyRates, copies: Copies, tree: DraftTree, written: Sequence[int]) -> None:
    """Compares a guess with what was written. Where the guess ended nothing is learned."""
    node = 0
    for step, token in enumerate(written):
        if next(tree.children(node), None) is None:
            return
        child = tree.child(node, token)
        rates.saw(copies.where, copies.length + step, was_followed=child is not None)
        if child is None:
            return
        node = child
