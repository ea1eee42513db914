"""What kept states ask of the memory gate, and what they can give back to it. Knows no run."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

from worker.memory_gate import Verdict


class Gate(Protocol):
    """See `memory_gate.MemoryGate`."""

    @property
    def most_bytes(self) -> int: ...
    def ask(self, need_bytes: int) -> Verdict: ...
    def has_room(self, need_bytes: int) -> bool: ...


class OpenGate:
    """Lets everything in: for benches and tests, where nobody else wants the memory."""

    most_bytes = 1 << 62

    def ask(self, need_bytes: int) -> Verdict:
        """See `Gate`."""
        return Verdict("fits", need_bytes, 0, self.most_bytes, self.most_bytes)

    def has_room(self, need_bytes: int) -> bool:
        """See `Gate`."""
        return True


@dataclass(frozen=True, slots=True)
class Sizes:
    """Bytes. `sequence`: of so many tokens in a slot; `work`: what forwards take behind so many;
    `state`: of one anchor, 0 where there are no delta layers. `rows`: tokens of one verify;
    `chunk`: of one chunk of prompt."""

    sequence: Callable[[int], int]
    work: Callable[[int], int] = lambda length: 0
    state: int = 0
    rows: int = 0
    chunk: int = 1


@dataclass(frozen=True, slots=True)
class Shelf:
    """Something kept that the gate may take, a unit at a time. See `memory_gate.Reclaimer`."""

    name: str
    take: Callable[[], int]

    def give_back(self, bytes_wanted: int) -> int:
        """The bytes of the cheapest unit, which is gone then; 0 when nothing is left."""
        return self.take()
