"""Copies of whole sequences in host memory, under one budget of bytes. Knows no slot and no model.

What is found here was compared id by id; a hash only says where to look.
"""

from collections import Counter, OrderedDict
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from itertools import chain
from typing import Literal

from torch import Tensor

from worker.prefill import Plan
from worker.state.lineage import Exactness, Lineage
from worker.state.start import Source, Start, Wanted

Kind = Literal["prefix", "session"]
Key = tuple[str | None, int, int]

SOURCES: dict[Kind, Source] = {"prefix": Source.PREFIX, "session": Source.SESSION}


@dataclass(frozen=True, slots=True, eq=False)
class Snapshot:
    """What the first tokens of a sequence left behind: `ids`, all of them forwarded.

    `salt`: whose it is, None for everybody's. `tensors`: as `SequenceCache.freeze` gives them.
    `drafts`: what each drafter cannot make again. `source`: where it lies now.
    """

    kind: Kind
    salt: str | None
    ids: tuple[int, ...]
    plan: Plan
    lineage: Lineage
    tensors: tuple[Tensor, ...]
    drafts: tuple[tuple[Tensor, ...], ...] = ()
    source: Source = Source.NONE

    @property
    def is_whole_only(self) -> bool:
        """Whether it holds a state of delta layers, which cannot be cut to fewer tokens."""
        return len(self.tensors) > 2

    @property
    def exactness(self) -> Exactness:
        """Of a start behind all of it, for a prompt of the same plan."""
        return self.lineage.at(len(self.ids), self.plan)

    def start_for(self, wanted: Wanted) -> Start:
        """Where a prompt may start from it: every id is compared."""
        same, length = wanted.same(self.ids), len(self.ids)
        if self.is_whole_only:
            return wanted.start_at(length, self.source, self.exactness, self.plan, same)
        return wanted.start_in_rows(self.source, self.lineage, self.plan, same)

    def rows(self, start: int, end: int) -> tuple[Tensor, Tensor]:
        """Copies of some of its keys and values."""
        keys, values = self.tensors[:2]
        return keys[:, :, start:end].clone(), values[:, :, start:end].clone()

    def state_at(self, position: int) -> tuple[Tensor, Tensor]:
        """The delta layers' state, which is that behind all of it."""
        assert position == len(self.ids), "a snapshot has no other state"
        recurrent, conv = self.tensors[2:]
        return recurrent, conv

    @property
    def size_bytes(self) -> int:
        """Bytes of its tensors."""
        parts = (*self.tensors, *chain.from_iterable(self.drafts))
        return sum(part.numel() * part.element_size() for part in parts)


class SnapshotStore:
    """Snapshots by least recent use. `budget_bytes` in all; `most_bytes` one may take.

    `hash_of`: 64 bits of ids.
    """

    def __init__(
        self,
        budget_bytes: int,
        most_bytes: int,
        hash_of: Callable[[tuple[int, ...]], int] = hash,
    ) -> None:
        self.budget_bytes = budget_bytes
        self._most_bytes = most_bytes
        self._hash_of = hash_of
        self._reserved_bytes = 0
        self._entries: OrderedDict[Key, Snapshot] = OrderedDict()  # the oldest first
        self.evictions: Counter[str] = Counter()  # by kind
        self.skipped: Counter[str] = Counter()  # by reason
        self.collisions = 0

    def __len__(self) -> int:
        return len(self._entries)

    def __iter__(self) -> Iterator[Snapshot]:
        return reversed(self._entries.values())

    @property
    def size_bytes(self) -> int:
        """Bytes held, those of others included."""
        held = sum(entry.size_bytes for entry in self._entries.values())
        return self._reserved_bytes + held

    def reserve(self, size_bytes: int) -> None:
        """Counts what others keep in the same memory; less again where that is negative."""
        self._reserved_bytes += size_bytes

    def has_room(self, size_bytes: int) -> bool:
        """Makes room for one of that size; false, and counted, where it is too large for one."""
        if size_bytes > min(self._most_bytes, self.budget_bytes):
            self.skipped["too_large"] += 1
            return False
        while self._entries and self.size_bytes + size_bytes > self.budget_bytes:
            self.drop_oldest()
        if self.size_bytes + size_bytes <= self.budget_bytes:
            return True
        self.skipped["full"] += 1
        return False

    def holds(self, salt: str | None, ids: tuple[int, ...]) -> bool:
        """Whether there is one of exactly these tokens; it counts as used."""
        key = self._key(salt, ids)
        entry = self._entries.get(key)
        if entry is None or entry.ids != ids:
            return False
        self._entries.move_to_end(key)
        return True

    def add(self, snapshot: Snapshot) -> None:
        """Takes one for which room was made before it was copied."""
        key = self._key(snapshot.salt, snapshot.ids)
        before = self._entries.get(key)
        if before is not None and before.ids != snapshot.ids:
            self.collisions += 1
        self._entries[key] = replace(snapshot, source=SOURCES[snapshot.kind])
        self._entries.move_to_end(key)

    def find(self, salt: str, wanted: Wanted) -> tuple[Snapshot, Start] | None:
        """The one that spares most, if any spares anything."""
        best: tuple[Snapshot, Start] | None = None
        for entry in self:
            if entry.salt not in (salt, None):
                continue
            start = entry.start_for(wanted)
            if start.position > (best[1].position if best else 0):
                best = entry, start
        if best is not None:
            self._entries.move_to_end(self._key(best[0].salt, best[0].ids))
        return best

    def drop_oldest(self, kind: Kind | None = None) -> int:
        """Forgets the one not used for longest, of a kind or of any; its bytes, 0 for none."""
        keys = (k for k, entry in self._entries.items() if kind in (None, entry.kind))
        key = next(keys, None)
        if key is None:
            return 0
        entry = self._entries.pop(key)
        self.evictions[entry.kind] += 1
        return entry.size_bytes

    def bytes_of(self, kind: Kind) -> int:
        """Bytes of all of a kind."""
        return sum(entry.size_bytes for entry in self if entry.kind == kind)

    def count_of(self, kind: Kind) -> int:
        """How many there are of a kind."""
        return sum(entry.kind == kind for entry in self)

    def clear(self, kind: Kind) -> int:
        """Forgets all of a kind; their bytes."""
        gone = [key for key, entry in self._entries.items() if entry.kind == kind]
        return sum(self._entries.pop(key).size_bytes for key in gone)

    def _key(self, salt: str | None, ids: tuple[int, ...]) -> Key:
        return salt, len(ids), self._hash_of(ids)
