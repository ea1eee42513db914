"""A tree as the rows of one forward. Knows no weights, cache or price."""

import torch

from worker.kernels.attention import Tree
from worker.speculation.tree import DraftTree


def rows_of(tree: DraftTree, *, start: int, conv_width: int, device: torch.device) -> Tree:
    """The rows of a tree whose root stands at position `start`.

    `conv_width`: tokens that the model's convolution sees; any number where it has none.
    """
    depths = torch.tensor(tree.depths(), device=device)
    reach = torch.from_numpy(tree.reach()).to(device)
    return Tree(start, depths + start, reach, torch.tensor(windows(tree, conv_width)).to(device))


def windows(tree: DraftTree, width: int) -> list[list[int]]:
    """What a causal convolution sees for each node: its nearest ancestors, itself last.

    Numbers count the `width - 1` inputs before the tree first, then its nodes.
    """
    before_root = list(range(-1, width - 1))
    seen: list[list[int]] = []
    for node, parent in enumerate(tree.parents):
        above = seen[parent] if parent >= 0 else before_root
        seen.append([*above[1:], width - 1 + node])
    return seen
