"""Drafters that know the text to come, as well as they are told to. Knows no model."""

import random
from collections.abc import Callable, Sequence

from torch import Tensor

from bench.gpu.tree_shapes import random_parents
from worker.sampling.chooser import Chooser
from worker.settings import MOST_ROWS
from worker.speculation.tree import DraftTree, Source, ordered

Guess = Callable[[Sequence[int], int], DraftTree | None]

RIGHT_SHARE = 0.7  # of the tokens of a half-right chain


class Scripted:
    """A drafter that guesses what `guess` makes of the ids and the room; None: nothing."""

    source = Source.BLOCK
    tapped = ()

    def __init__(self) -> None:
        self.guess: Guess | None = None

    def start(self, salt: str | None, kept: int = 0) -> None:
        """See `Drafter.start`."""

    def rewind(self, length: int) -> None:
        """See `Drafter.rewind`."""

    def sync(self, ctx: Sequence[int], taps: Tensor | None) -> None:
        """See `Drafter.sync`."""

    def propose(self, ctx: Sequence[int], room: int, chooser: Chooser) -> DraftTree | None:
        """See `Drafter.propose`."""
        return None if self.guess is None else self.guess(ctx, room)

    def freeze(self) -> tuple[Tensor, ...]:
        """See `Drafter.freeze`."""
        return ()

    def thaw(self, ctx: Sequence[int], tensors: tuple[Tensor, ...]) -> None:
        """See `Drafter.thaw`."""


def half_right(text: Sequence[int], vocab_size: int) -> Guess:
    """Chains of 7 tokens, right up to one that a coin decides on."""

    def guess(ctx: Sequence[int], room: int) -> DraftTree:
        coin = random.Random(len(ctx))
        line = text[len(ctx) : len(ctx) + min(7, room)]
        some = [
            token if coin.random() < RIGHT_SHARE else (token + 1) % vocab_size for token in line
        ]
        return _tree([ctx[-1], *some], range(-1, len(some)), coin)

    return guess


def random_trees(text: Sequence[int], vocab_size: int) -> Guess:
    """Trees of every shape and size that hold the right path, or part of it, or nothing of it."""

    def guess(ctx: Sequence[int], room: int) -> DraftTree:
        coin = random.Random(7 * len(ctx))
        parents = random_parents(coin.randint(2, MOST_ROWS), coin)
        tokens, depths = [ctx[-1]], [0]
        taken: set[tuple[int, int]] = set()  # siblings differ
        for parent in parents[1:]:
            depths.append(depths[parent] + 1)
            at = len(ctx) - 1 + depths[-1]
            is_right = coin.random() < RIGHT_SHARE and at < len(text)
            token = text[at] if is_right else coin.randrange(vocab_size)
            while (parent, token) in taken:
                token = coin.randrange(vocab_size)
            taken.add((parent, token))
            tokens.append(token)
        return _tree(tokens, parents, coin).within(room)

    return guess


class Steady:
    """A guess of so many rows of which `tokens_a_round` - 1 are right on average, one more or
    less at a time. `is_forked`: every second row is a wrong sibling of one of the line."""

    def __init__(
        self, text: Sequence[int], tokens_a_round: float, *, rows: int, is_forked: bool = False
    ) -> None:
        self._text = text
        self._right = tokens_a_round - 1
        self._rows = rows
        self._is_forked = is_forked
        self._round = 0

    def __call__(self, ctx: Sequence[int], room: int) -> DraftTree:
        """See `Guess`."""
        before, self._round = int(self._round * self._right), self._round + 1
        right = int(self._round * self._right) - before
        tokens, parents, last = [ctx[-1]], [-1], 0
        for depth in range(self._rows - 1):
            truth = self._text[len(ctx) + depth]
            parents.append(last)
            tokens.append(truth if depth < right else truth + 1)
            line = len(tokens) - 1
            if self._is_forked and len(tokens) < self._rows:
                parents.append(last)
                tokens.append(truth + 2)
            last = line
            if len(tokens) == self._rows:
                break
        return _tree(tokens, parents, random.Random(0))


def _tree(tokens: Sequence[int], parents: Sequence[int], coin: random.Random) -> DraftTree:
    """With scores that fall along each path."""
    scores = [1.0]
    for parent in parents[1:]:
        scores.append(scores[parent] * coin.uniform(0.8, 1.0))
    sources = [Source(0), *[Source.BLOCK] * (len(tokens) - 1)]
    return ordered(tokens, parents, scores, sources)
