"""What drafters are worth: the serving loop again, over text that the target wrote already.

Greedy text is what the target would choose, so that a walk needs no target. Knows no training.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from worker.draft.base import Drafter
from worker.draft.train.recording import Sample
from worker.sampling.chooser import Chooser
from worker.sampling.params import Sampling
from worker.speculation.merge import merge
from worker.speculation.tree import DraftTree, only_root

GREEDY = Sampling(temperature=0.0, top_p=1.0, top_k=0, min_p=0.0, seed=0)


@dataclass(frozen=True, slots=True)
class Yield:
    """What some rounds brought. `rows`: verified in all, roots included."""

    rounds: int = 0
    tokens: int = 0
    rows: int = 0

    def __add__(self, other: "Yield") -> "Yield":
        return Yield(self.rounds + other.rounds, self.tokens + other.tokens, self.rows + other.rows)

    @property
    def tokens_per_round(self) -> float:
        """1 without any draft."""
        return self.tokens / max(self.rounds, 1)

    @property
    def rows_per_round(self) -> float:
        """1 without any draft."""
        return self.rows / max(self.rounds, 1)


def replay(
    sample: Sample, drafters: Sequence[Drafter], *, max_rows: int, is_chain: bool = False
) -> Yield:
    """Draft, verify, walk and commit until the text's end.

    What all drafters guess is one tree, of which the likeliest `max_rows` nodes are verified, root
    included; only its likeliest path where `is_chain`.
    """
    ids, taps = sample.ids.tolist(), sample.taps.float()
    chooser, start, total = Chooser(GREEDY, ()), sample.prompt, Yield()
    for drafter in drafters:
        drafter.start(None)
        drafter.sync(ids[: start + 1], taps[:start] if drafter.tapped else None)
    while start + 1 < len(ids):
        tree = _drafted(drafters, ids[: start + 1], len(ids) - start - 1, chooser)
        tree = likeliest_part(tree.chain() if is_chain else tree, max_rows)
        committed = min(_agreed(tree, ids[start:]) + 1, len(ids) - start - 1)
        for drafter in drafters:
            rows = taps[start : start + committed] if drafter.tapped else None
            drafter.sync(ids[: start + committed + 1], rows)
        start += committed
        total += Yield(1, committed, len(tree))
    return total


def replay_all(
    samples: Sequence[Sample],
    drafters: Sequence[Drafter],
    *,
    max_rows: int,
    is_chain: bool = False,
) -> Yield:
    """The same over several texts."""
    found = (replay(each, drafters, max_rows=max_rows, is_chain=is_chain) for each in samples)
    return sum(found, Yield())


def likeliest_part(tree: DraftTree, max_rows: int) -> DraftTree:
    """The likeliest nodes of a tree, whose scores fall along its paths."""
    order = sorted(range(1, len(tree)), key=lambda node: -tree.scores[node])
    return tree.part([0, *sorted(order[: max_rows - 1])])


def _drafted(
    drafters: Sequence[Drafter], ctx: Sequence[int], room: int, chooser: Chooser
) -> DraftTree:
    tree = only_root(ctx[-1])
    for drafter in drafters:
        guess = drafter.propose(ctx, room, chooser)
        tree = tree if guess is None else merge(tree, guess)
    return tree


def _agreed(tree: DraftTree, text: Sequence[int]) -> int:
    """How many tokens behind the root, which is the text's first, are on one path of the tree."""
    node = 0
    for count, token in enumerate(text[1:]):
        child = tree.child(node, token)
        if child is None:
            return count
        node = child
    return len(text) - 1
