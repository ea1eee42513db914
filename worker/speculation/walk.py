"""Down a verified tree as far as the target agrees. Knows no model, no cache and no drafter."""

from collections.abc import Callable

from worker.sampling.chooser import Chosen
from worker.speculation.tree import DraftTree

Choose = Callable[[int], Chosen]
Take = Callable[[Chosen], bool]


def walk(tree: DraftTree, choose: Choose, take: Take) -> tuple[tuple[int, ...], tuple[Chosen, ...]]:
    """The path of accepted nodes from the root on, and what the target chose behind each.

    `choose` gives the target's token behind a node, which is chosen exactly as in plain decoding:
    only rows on the path are looked at, one after the other, so that penalties and grammar have
    seen what is before them and nothing else. `take` hears of each token and says whether the run
    may go on behind it. The last one is no node of the path: it becomes the root.
    """
    path, made = [0], []
    while True:
        chosen = choose(path[-1])
        made.append(chosen)
        child = tree.child(path[-1], chosen.token)
        if not take(chosen) or child is None:
            return tuple(path), tuple(made)
        path.append(child)
