"""What is kept in files, be it a disk tier or a spill: where a prompt finds the longest start.

Knows no slot that runs; without settings for files it holds nothing.
"""

from collections.abc import Callable, Iterable
from functools import partial

from worker.state.disk import DiskTier
from worker.state.residents import LEAST_SAVED
from worker.state.slot import Slot
from worker.state.snapshots import Snapshot
from worker.state.spill import Held, Spill
from worker.state.start import NOTHING, Start, Wanted
from worker.state.state_folder import StateFolder

TRIES = 4  # files that turn out to be damaged cost a prompt time
CLOSE_S = 5.0  # for the chunks that are being written when the worker stops


class KeptFiles:
    """The two tiers behind slots and snapshots, each of which may be absent."""

    def __init__(self, disk: DiskTier | None = None, spill: Spill | None = None) -> None:
        self.disk = disk
        self.spill = spill

    @property
    def folders(self) -> dict[str, StateFolder]:
        """By kind."""
        return {kind: tier.folder for kind, tier in self._tiers.items()}

    def skipped(self) -> dict[str, int]:
        """What was not written, or not used, by kind and reason."""
        return {
            f"{kind}_{reason}": count
            for kind, tier in self._tiers.items()
            for reason, count in (*tier.skipped.items(), *tier.folder.unused().items())
        }

    def clear(self, kinds: frozenset[str]) -> int:
        """Removes all files of these kinds; their bytes."""
        return sum(tier.clear() for kind, tier in self._tiers.items() if kind in kinds)

    @property
    def _tiers(self) -> dict[str, DiskTier | Spill]:
        tiers = {"disk": self.disk, "spill": self.spill}
        return {kind: tier for kind, tier in tiers.items() if tier is not None}

    def find(
        self, salt: str, wanted: Wanted, known: int, has_room: Callable[[int], bool]
    ) -> tuple[Snapshot, Start] | None:
        """What spares more than the `known` tokens, read from its files. `has_room`: for a copy of
        so many tokens.

        Where these turn out to be damaged, the next best; after a few of them, nothing.
        """
        least = max(known + 1, LEAST_SAVED)
        for _ in range(TRIES):
            chain = None if self.disk is None else self.disk.find(salt, wanted)
            on_disk = NOTHING if chain is None else chain.start
            name, spilled = ("", NOTHING) if self.spill is None else self.spill.find(salt, wanted)
            if max(on_disk.position, spilled.position) < least:
                return None
            snapshot, start = None, on_disk
            if on_disk.position >= spilled.position:
                assert self.disk is not None and chain is not None
                if not has_room(on_disk.position):
                    self.disk.skipped["memory"] += 1
                    return None
                snapshot = self.disk.load(chain)
            else:
                assert self.spill is not None
                if not has_room(self.spill.length_of(name)):
                    self.spill.skipped["memory"] += 1
                    return None
                snapshot, start = self.spill.load(name), spilled
            if snapshot is not None:
                return snapshot, start
        return None

    def saw_resume(self, salt: str, wanted: Wanted, start: Start) -> None:
        """A prompt was started somewhere: what it started from is worth more now."""
        if self.disk is not None and start.position:
            self.disk.saw_resume(salt, wanted.plan, wanted.prompt[: start.position])

    def stop(
        self,
        slots: Iterable[Slot],
        sessions: Iterable[Snapshot],
        size_of: Callable[[int], int],
        has_room: Callable[[int], bool],
    ) -> None:
        """Writes the conversations that are held, each by latest use. Nothing runs any more.

        `size_of`: bytes of so many tokens. `has_room`: for a copy of so many bytes.
        """
        if self.disk is not None:
            self.disk.close(CLOSE_S)
        if self.spill is None:
            return
        held: list[Held] = []
        for slot in slots:
            if slot.salt is None or slot.kv_len < LEAST_SAVED:
                continue
            size_bytes, copy = size_of(slot.kv_len), partial(_copy_of, slot, slot.salt)
            if has_room(size_bytes):
                held.append(Held(slot.salt, slot.held, size_bytes, copy))
            else:
                self.spill.skipped["memory"] += 1
        held += [
            Held(one.salt, one.ids, one.size_bytes, partial(_itself, one))
            for one in sessions
            if one.salt is not None
        ]
        self.spill.write(held)


def _copy_of(slot: Slot, salt: str) -> Snapshot:
    return slot.snapshot("session", salt)


def _itself(snapshot: Snapshot) -> Snapshot:
    return snapshot
