"""Guesses of how a sequence goes on, as a tree of tokens. Knows no model, no drafter and no cache.

Nodes stand in depth-first pre-order: parents before children, each subtree in one piece. So any
first part of a tree is a tree.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from enum import IntFlag


class Source(IntFlag):
    """Who guessed a node; after a merge it may be several."""

    LOOKUP = 1
    BLOCK = 2
    FORM = 4


@dataclass(frozen=True, slots=True)
class DraftTree:
    """Node 0 is the root: the last token of the sequence, chosen and not forwarded yet.

    `scores`: how likely the whole path down to a node is, by whoever guessed it; falling along
    every path, 1 at the root. Siblings have different tokens.
    """

    tokens: tuple[int, ...]
    parents: tuple[int, ...]  # -1 for the root
    scores: tuple[float, ...]
    sources: tuple[Source, ...]

    def __len__(self) -> int:
        return len(self.tokens)

    @property
    def drafted(self) -> int:
        """Nodes without the root."""
        return len(self.tokens) - 1

    @property
    def is_chain(self) -> bool:
        """Whether no node has two children."""
        return all(parent == node - 1 for node, parent in enumerate(self.parents))

    def depths(self) -> tuple[int, ...]:
        """How far below the root each node is."""
        depths: list[int] = []
        for parent in self.parents:
            depths.append(depths[parent] + 1 if parent >= 0 else 0)
        return tuple(depths)

    def child(self, node: int, token: int) -> int | None:
        """The child of a node that holds a token."""
        for child in self.children(node):
            if self.tokens[child] == token:
                return child
        return None

    def children(self, node: int) -> Iterator[int]:
        """The children of a node, in order."""
        for other in range(node + 1, len(self)):
            if self.parents[other] < node:
                return  # the subtree is over
            if self.parents[other] == node:
                yield other

    def paths(self) -> Iterator[list[int]]:
        """The nodes from below the root down to each leaf."""
        above: list[int] = []
        depths = self.depths()
        for node in range(1, len(self)):
            del above[depths[node] - 1 :]
            above.append(node)
            if node + 1 == len(self) or self.parents[node + 1] != node:
                yield list(above)

    def chain(self) -> "DraftTree":
        """The path that takes the first child at every node: the likeliest token each time."""
        nodes = [0]
        while (child := next(self.children(nodes[-1]), None)) is not None:
            nodes.append(child)
        return self.part(nodes)

    def part(self, nodes: Sequence[int]) -> "DraftTree":
        """Some nodes, in their order. With each node its parent must be among them."""
        place = {node: at for at, node in enumerate(nodes)}
        place[-1] = -1
        return DraftTree(
            tuple(self.tokens[node] for node in nodes),
            tuple(place[self.parents[node]] for node in nodes),
            tuple(self.scores[node] for node in nodes),
            tuple(self.sources[node] for node in nodes),
        )

    def within(self, depth: int) -> "DraftTree":
        """Without the nodes that are farther below the root."""
        depths = self.depths()
        if max(depths) <= depth:
            return self
        return self.part([node for node in range(len(self)) if depths[node] <= depth])


def only_root(token: int) -> DraftTree:
    """A tree without a guess: a plain step."""
    return DraftTree((token,), (-1,), (1.0,), (Source(0),))


def ordered(
    tokens: Sequence[int],
    parents: Sequence[int],
    scores: Sequence[float],
    sources: Sequence[Source],
) -> DraftTree:
    """The tree of nodes that stand in any order with the root first.

    Siblings come likeliest first, equally likely ones in the order in which they stand.
    """
    children: list[list[int]] = [[] for _ in tokens]
    for node, parent in enumerate(parents):
        if parent >= 0:
            children[parent].append(node)
    order: list[int] = []
    waiting = [0]
    while waiting:
        node = waiting.pop()
        order.append(node)
        likeliest = sorted(children[node], key=lambda child: -scores[child])
        waiting += likeliest[::-1]
    return DraftTree(tuple(tokens), tuple(parents), tuple(scores), tuple(sources)).part(order)
