"""From the logits of a block to a tree of its likeliest paths. Knows no network and no cache."""

import heapq
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from worker.sampling.chooser import Chooser
from worker.sampling.sampler import gumbel_noise
from worker.speculation.tree import DraftTree, Source, ordered

WIDTH = 8  # tokens looked at in each slot
# A guess at a distance is less sure than its logits say.
SOFTENING = 1.4
NOISY_WIDTH = 64  # tokens among which noise may change the order; more are hardly ever drawn


@dataclass(frozen=True, slots=True)
class Lattice:
    """For each slot of a block, its likeliest tokens with their chances, likeliest first."""

    tokens: tuple[tuple[int, ...], ...]
    chances: tuple[tuple[float, ...], ...]


def lattice_of(logits: Tensor, chooser: Chooser) -> Lattice:
    """logits: (slots, vocab) float32, of the tokens behind the root.

    Greedy text wants the best token of each slot. Sampled text wants the best one under the noise
    of its number, which is known: what the logits are then compared with is moved by that noise.
    """
    sampling = chooser.sampling
    is_noisy = sampling.temperature > 0.0
    best = logits.topk(min(NOISY_WIDTH if is_noisy else WIDTH, logits.shape[-1]), dim=-1)
    ids, values = best.indices.cpu().numpy(), best.values.double().cpu().numpy()
    if is_noisy:
        for slot, row in enumerate(values):
            noise = gumbel_noise(sampling, chooser.number + slot, ids[slot])
            row += sampling.temperature * noise
        soft = values / SOFTENING
        most = soft.max(axis=1, keepdims=True)
        total = most + np.log(np.exp(soft - most).sum(axis=1, keepdims=True))
    else:
        soft = values / SOFTENING
        total = torch.logsumexp(logits / SOFTENING, dim=-1, keepdim=True).double().cpu().numpy()
    chances = np.minimum(np.exp(soft - total), 1.0)
    order = np.argsort(-values, axis=1, kind="stable")[:, :WIDTH]
    return Lattice(
        tuple(tuple(row) for row in np.take_along_axis(ids, order, axis=1).tolist()),
        tuple(tuple(row) for row in np.take_along_axis(chances, order, axis=1).tolist()),
    )


def tree_of(root: int, lattice: Lattice, budget: int) -> DraftTree:
    """The greedy chain, and beside it the likeliest other paths, up to `budget` nodes in all.

    The likeliest whole block would be a worse seed than the greedy chain: a block is worth nothing
    once its first token is wrong.
    """
    nodes = _Nodes(root, lattice)
    end, slots = 0, len(lattice.tokens)
    for slot in range(min(slots, budget)):
        end = nodes.add(end, slot, 0)
    while len(nodes.tokens) <= budget and nodes.waiting:
        _, _, parent, slot, rank = heapq.heappop(nodes.waiting)
        node = nodes.add(parent, slot, rank)
        if slot + 1 < slots:
            nodes.offer(node, slot + 1, 0)
    sources = [Source(0), *(Source.BLOCK for _ in nodes.tokens[1:])]
    return ordered(nodes.tokens, nodes.parents, nodes.chances, sources)


class _Nodes:
    """The nodes so far, and those that may come next: of each family its likeliest that is left."""

    def __init__(self, root: int, lattice: Lattice) -> None:
        self._lattice = lattice
        self.tokens, self.parents, self.chances = [root], [-1], [1.0]
        self.waiting: list[tuple[float, int, int, int, int]] = []
        self._offered = 0

    def add(self, parent: int, slot: int, rank: int) -> int:
        """Makes a node and lets its next likeliest sibling wait."""
        self.tokens.append(self._lattice.tokens[slot][rank])
        self.parents.append(parent)
        self.chances.append(self.chances[parent] * self._lattice.chances[slot][rank])
        if rank + 1 < len(self._lattice.tokens[slot]):
            self.offer(parent, slot, rank + 1)
        return len(self.tokens) - 1

    def offer(self, parent: int, slot: int, rank: int) -> None:
        """Lets a node wait for its turn; of equally likely ones the first offered is first."""
        chance = self.chances[parent] * self._lattice.chances[slot][rank]
        heapq.heappush(self.waiting, (-chance, self._offered, parent, slot, rank))
        self._offered += 1
