"""How much of which guess is worth its price. Knows no drafter, no model and no clock.

Every number of nodes is tried: the price of rows is a staircase, on which nothing that looks only
at the next step finds the best one.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from worker.speculation.prices import RoundPrices
from worker.speculation.tree import DraftTree


@dataclass(frozen=True, slots=True)
class Bounds:
    """What a cut keeps to. `most_rows`: root included; `snap`: the only row counts that may be
    verified, but for a whole tree, none = all; `margin`: times the plain step's value that a
    draft must be worth."""

    most_rows: int
    snap: tuple[int, ...] = ()
    margin: float = 1.02


@dataclass(frozen=True, slots=True)
class Cut:
    """A part of a tree. `value`: expected tokens a millisecond; `price_ms`: of its verify."""

    tree: DraftTree
    value: float
    price_ms: float


def cut(trees: Sequence[DraftTree], prices: RoundPrices, bounds: Bounds) -> Cut | None:
    """The part of a tree with the most expected tokens a millisecond; None = a plain step.

    What it took to guess is spent already and counts for nothing here.
    """
    found = [best for tree in trees if (best := best_part(tree, prices, bounds))]
    best = max(found, key=lambda one: one.value, default=None)
    if best is None or best.value <= bounds.margin / prices.plain:
        return None
    return best


def best_part(tree: DraftTree, prices: RoundPrices, bounds: Bounds) -> Cut | None:
    """The best part of one tree, whatever a plain step is worth. Its scores fall along its paths.

    Nodes are admitted by falling score. Parents score at least as much and stand first, so that
    each number of nodes gets the likeliest tree of that size.
    """
    order = sorted(range(1, len(tree)), key=lambda node: -tree.scores[node])  # stable
    best: tuple[float, float, int] | None = None  # value, price, nodes
    expected, is_chain, last = 1.0, True, 0
    for count, node in enumerate(order[: bounds.most_rows - 1], start=1):
        expected += tree.scores[node]
        is_chain = is_chain and tree.parents[node] == last
        last = node
        if bounds.snap and count + 1 not in bounds.snap and count != tree.drafted:
            continue
        price_ms = prices.verify_ms(count + 1, is_chain=is_chain)
        value = expected / price_ms
        if best is None or value > best[0]:
            best = (value, price_ms, count)
    if best is None:
        return None
    value, price_ms, count = best
    return Cut(tree.part([0, *sorted(order[:count])]), value, price_ms)
