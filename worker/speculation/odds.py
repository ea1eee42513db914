"""How far the scores of each source are to be believed, learned within a request."""

from collections.abc import Sequence
from dataclasses import replace

from worker.speculation.tree import DraftTree, Source

WEIGHT = 0.15  # of the newest round
LEAST, MOST = 0.05, 2.0
LEAST_EXPECTED = 0.05  # tokens; a tree that promised less says nothing


class Odds:
    """Factors by source: what came true of the scores over what they promised. One a slot."""

    def __init__(self) -> None:
        self._factors: dict[Source, float] = {}

    def factor(self, source: Source) -> float:
        """What the source's scores are multiplied with."""
        return self._factors.get(source, 1.0)

    def weighed(self, tree: DraftTree, source: Source) -> DraftTree:
        """A tree of one source with the scores that are to be believed.

        They fall along every path, whatever the drafter said: a cut of them must be a tree.
        """
        factor, believed = self.factor(source), [1.0]
        for parent, score in zip(tree.parents[1:], tree.scores[1:], strict=True):
            # In this order of arguments a score that is no number is believed the least.
            believed.append(max(0.0, min(score * factor, believed[parent])))
        return replace(tree, scores=tuple(believed))

    def learn(self, tree: DraftTree, source: Source, written: Sequence[int]) -> None:
        """Compares a tree as it was drafted, submitted or not, with what was written then.

        So a source that was not chosen for a while can come back.
        """
        depths = tree.depths()
        seen = [node for node in range(1, len(tree)) if depths[node] <= len(written)]
        expected = sum(tree.scores[node] for node in seen)
        if expected < LEAST_EXPECTED:
            return
        ratio = matched(tree, written) / expected
        moved = self.factor(source) + WEIGHT * (ratio - self.factor(source))
        self._factors[source] = min(MOST, max(LEAST, moved))

    def clear(self) -> None:
        """For another request."""
        self._factors.clear()


def matched(tree: DraftTree, written: Sequence[int]) -> int:
    """How many nodes of a tree lie on what was written behind its root."""
    node, count = 0, 0
    for token in written:
        child = tree.child(node, token)
        if child is None:
            break
        node, count = child, count + 1
    return count
