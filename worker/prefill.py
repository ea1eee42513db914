"""How a prompt is cut into chunks. Knows no tensors and no run; the loop forwards the chunks."""

import hashlib
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Plan:
    """Where chunks start, in tokens: all multiples of `chunk` from 0, and the cuts.

    The grid is anchored at position 0 whatever a cut does, so that equal prefixes are computed
    equally. `cuts`: starts that are not on the grid, in order.
    """

    family: str
    chunk: int
    cuts: tuple[int, ...] = ()

    def is_start(self, position: int) -> bool:
        """Whether a chunk starts there."""
        return position % self.chunk == 0 or position in self.cuts

    def last_start(self, position: int) -> int:
        """The last start that is not behind `position`."""
        on_grid = position - position % self.chunk
        return max((on_grid, *(cut for cut in self.cuts if cut <= position)))

    def chunk_end(self, start: int, length: int) -> int:
        """The end of the chunk that begins at `start`, in a prompt of `length` tokens."""
        on_grid = start - start % self.chunk + self.chunk
        return min((on_grid, length, *(cut for cut in self.cuts if cut > start)))

    def hash_below(self, length: int) -> str:
        """Hex; equal for plans that compute the same bits of the first `length` tokens."""
        cuts = ",".join(str(cut) for cut in self.cuts if cut < length)
        return hashlib.sha256(f"{self.family}:{self.chunk}:{cuts}".encode()).hexdigest()


def plan(length: int, family: str, chunk: int, cuts: tuple[int, ...] = ()) -> Plan:
    """Cuts a prompt of `length` tokens. `cuts` outside the prompt count for nothing."""
    inside = tuple(sorted(cut for cut in set(cuts) if 0 < cut < length and cut % chunk))
    return Plan(family, chunk, inside)


def agreed_length(one: Plan, other: Plan) -> int | None:
    """Tokens that both plans cut alike: up to the first cut that only one has; None for all."""
    if (one.family, one.chunk) != (other.family, other.chunk):
        return 0
    return min(set(one.cuts) ^ set(other.cuts), default=None)
