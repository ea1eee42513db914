"""Down a verified tree as far as the target agrees. Knows no model, no cache and no drafter."""

from collections.abc import Callable

from worker.sampling.chooser import Chosen
from worker.speculation.tree import DraftTree

Choose = Callable[[int], Chosen]
Take = Callable[[Chosen], bool]


def walk(tree: DraftTree, choose: Choose, take: Take) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """The path of accepted nodes from the root on, and the token that the target chose at each.

    `choose` gives the target's token behind a node, which is chosen exactly as in plain decoding:
    only rows on the path are looked at, one after the other, so that penalties and grammar have
    seen what is before them and nothing else. `take` hears of each token and says whether the run
    may go on behind it. The last token is no node of the path: it becomes the root.
    """
    path, tokens = [0], []
    while True:
        chosen = choose(path[-1])
        tokens.append(chosen.token)
        child = tree.child(path[-1], chosen.token)
        if not take(chosen) or child is None:
            return tuple(path), tuple(tokens)
        path.append(child)
