"""Drafters that know, or refuse to know, what comes next; and prices that take every guess."""

import random
from collections.abc import Callable, Sequence

from torch import Tensor

from worker.sampling.chooser import Chooser
from worker.speculation.prices import Prices
from worker.speculation.tree import DraftTree, Source, ordered

# More rows cost nothing, so that whole trees are verified.
ALL_FREE = Prices(
    {256: 1.0}, {256: {"chain": {1: 1e-6}, "tree": {1: 1e-6}}}, {"chain": 0.0, "tree": 0.0}
)


def staircase(step_ms: float, *, plain_ms: float = 10.0) -> Prices:
    """A verify costs as much as a plain step, and `step_ms` more for every 8 rows."""
    rows = {n: plain_ms + step_ms * ((n - 1) // 8) for n in range(1, 65)}
    return Prices(
        {256: plain_ms}, {256: {"chain": rows, "tree": rows}}, {"chain": 0.0, "tree": 0.1}
    )


Guess = Callable[[Sequence[int], int], DraftTree | None]


class Guessing:
    """A drafter made of a function of ids and room. `synced`: ids it was told of, `taps`: rows."""

    source = Source.BLOCK

    def __init__(self, guess: Guess, tapped: tuple[int, ...] = ()) -> None:
        self.tapped = tapped
        self.synced: list[int] = []
        self.taps: list[Tensor] = []
        self._guess = guess

    def start(self, salt: str | None, kept: int = 0) -> None:
        self.salt = salt
        self.rewind(kept)

    def rewind(self, length: int) -> None:
        del self.synced[length:]
        self.taps.clear()

    def sync(self, ctx: Sequence[int], taps: Tensor | None) -> None:
        self.synced = list(ctx)
        if taps is not None:
            self.taps.append(taps)

    def propose(self, ctx: Sequence[int], room: int, chooser: Chooser) -> DraftTree | None:
        return self._guess(ctx, room)

    def freeze(self) -> tuple[Tensor, ...]:
        return ()

    def thaw(self, ctx: Sequence[int], tensors: tuple[Tensor, ...]) -> None:
        self.synced = list(ctx)


def line(ids: Sequence[int], *, score: float = 0.9) -> DraftTree:
    """A chain of these ids, root first; each goes on as probably."""
    count = len(ids)
    scores = tuple(score**depth for depth in range(count))
    sources = (Source(0), *[Source.BLOCK] * (count - 1))
    return DraftTree(tuple(ids), tuple(range(-1, count - 1)), scores, sources)


def oracle(text: Sequence[int], count: int = 7) -> Guess:
    """Knows the whole text, prompt included."""
    return lambda ctx, room: line([ctx[-1], *text[len(ctx) : len(ctx) + min(count, room)]])


def adversary(text: Sequence[int], count: int = 7) -> Guess:
    """Knows it too, and is wrong at every token."""

    def guess(ctx: Sequence[int], room: int) -> DraftTree:
        at = len(ctx)
        return line([ctx[-1], *((token + 1) % 500 for token in text[at : at + min(count, room)])])

    return guess


def half_right(text: Sequence[int], count: int = 7) -> Guess:
    """Right up to a token that a coin decides on."""

    def guess(ctx: Sequence[int], room: int) -> DraftTree:
        coin, at = random.Random(len(ctx)), len(ctx)
        some = [
            token if coin.random() < 0.7 else (token + 1) % 500
            for token in text[at : at + min(count, room)]
        ]
        return line([ctx[-1], *some])

    return guess


def random_trees(text: Sequence[int], most_nodes: int = 32) -> Guess:
    """Trees of every shape that hold the right path, or part of it, or nothing of it."""

    def guess(ctx: Sequence[int], room: int) -> DraftTree:
        coin = random.Random(7 * len(ctx))
        some = [ctx[-1], *text[len(ctx) :]]
        return random_tree(coin, some, coin.randint(1, most_nodes), room)

    return guess


def random_tree(
    coin: random.Random, text: Sequence[int], nodes: int, room: int, *, vocab: int = 500
) -> DraftTree:
    """A tree of at most so many nodes, on the first id of the text, which some paths follow."""
    tokens, parents, depths, scores = [text[0]], [-1], [0], [1.0]
    taken: dict[int, set[int]] = {0: set()}
    bushy = coin.random()  # between a chain and a star
    for _ in range(nodes - 1):
        parent = len(tokens) - 1 if coin.random() > bushy else coin.randrange(len(tokens))
        if depths[parent] >= room:
            continue
        at = depths[parent] + 1
        is_right = coin.random() < 0.5 and at < len(text)
        token = text[at] if is_right else coin.randrange(vocab)
        if token in taken[parent]:
            continue
        taken[parent].add(token)
        taken[len(tokens)] = set()
        tokens.append(token)
        parents.append(parent)
        depths.append(at)
        scores.append(scores[parent] * coin.uniform(0.3, 1.0))
    sources = [Source(0), *[Source.BLOCK] * (len(tokens) - 1)]
    return ordered(tokens, parents, scores, sources)
