"""How a prompt is cut into chunks. Knows no tensors and no run; the loop forwards the chunks."""

import hashlib
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Plan:
    """Where chunks start, in tokens. `cuts`: starts that are not on the grid.

    `hash` (hex) tells apart plans whose chunks compute different bits.
    """

    starts: tuple[int, ...]
    cuts: tuple[int, ...]
    hash: str

    def chunk_end(self, start: int, length: int) -> int:
        """The end of the chunk that begins at `start`, in a prompt of `length` tokens."""
        return min((later for later in self.starts if later > start), default=length)


def plan(length: int, family: str, chunk: int, cuts: tuple[int, ...] = ()) -> Plan:
    """Cuts a prompt of `length` tokens: all multiples of `chunk` from 0, and the cuts.

    The grid is anchored at position 0 whatever a cut does, so that equal prefixes are computed
    equally. `cuts` outside the prompt count for nothing.
    """
    inside = tuple(sorted(cut for cut in set(cuts) if 0 < cut < length and cut % chunk))
    starts = tuple(sorted((*range(0, length, chunk), *inside)))
    identity = f"{family}:{chunk}:{','.join(map(str, inside))}"
    return Plan(starts, inside, hashlib.sha256(identity.encode()).hexdigest())
