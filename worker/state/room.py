"""What kept states ask of the memory gate, and what they can give back to it. Knows no run."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Protocol

from worker.memory_gate import Verdict
from worker.state.ask import Ask
from worker.state.slot import Slot
from worker.state.start import Start

ANSWER_AHEAD = 512  # tokens of an answer for which there is room from its start
GROWTH = 8  # a sequence that grows gets an eighth more, so that a long one is copied rarely


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


class Room:
    """Memory for slots and copies, counted before it is taken. One thread uses it, the engine's.

    `has_host_room`: whether a copy of so many bytes may be made, in whichever memory those are.
    """

    def __init__(self, sizes: Sizes) -> None:
        self.sizes = sizes
        self.gate: Gate = OpenGate()
        self.has_host_room: Callable[[int], bool] = lambda size_bytes: True

    def use_gate(
        self, gate: Gate, work: Callable[[int], int], has_host_room: Callable[[int], bool]
    ) -> None:
        """Asks this from now on. `work`: see `Sizes`."""
        self.gate, self.has_host_room = gate, has_host_room
        self.sizes = replace(self.sizes, work=work)

    def length_of(self, ask: Ask) -> int:
        """Tokens for which room is made before a prompt is read: it, and how its answer begins."""
        return len(ask.prompt) + min(ask.output, ANSWER_AHEAD) + self.sizes.rows

    def work_bytes(self, ask: Ask) -> int:
        """What reading a prompt takes beside its rows. Anchors at most: those where chunks start,
        where the answer begins, its end and another's."""
        anchors = len(ask.prompt) // self.sizes.chunk + 3
        return self.sizes.work(self.length_of(ask)) + self.sizes.state * anchors

    def new_bytes(self, slot: Slot | None, length: int) -> int:
        """What a slot must take to be `length` tokens long; while it grows it has both."""
        if slot is None:
            return self.sizes.sequence(length)
        if slot.cache.kv.capacity >= length:
            return 0
        return self.sizes.sequence(slot.cache.kv.capacity_for(length))

    def fit(self, slot: Slot, ask: Ask, start: Start) -> None:
        """Takes what was asked for. A slot that starts from nothing never holds both."""
        length = self.length_of(ask)
        if start.position == 0 and slot.cache.kv.capacity < length:
            slot.cache.kv.release()
        slot.cache.reserve(length)

    def grow(self, slot: Slot, length: int) -> bool:
        """Makes room for a sequence to be `length` tokens long, if there is memory for it."""
        kv = slot.cache.kv
        if length <= kv.capacity:
            return True
        capacity = kv.capacity_for(length + length // GROWTH)
        # What is there is held until it is copied.
        if not self.gate.ask(self.sizes.sequence(capacity)).fits:
            return False
        slot.cache.reserve(capacity)
        return True


@dataclass(frozen=True, slots=True)
class Shelf:
    """Something kept that the gate may take, a unit at a time. See `memory_gate.Reclaimer`."""

    name: str
    take: Callable[[], int]

    def give_back(self, bytes_wanted: int) -> int:
        """The bytes of the cheapest unit, which is gone then; 0 when nothing is left."""
        return self.take()
