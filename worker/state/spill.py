"""Conversations that a planned stop writes to disk, for the next start. Knows no run."""

import hashlib
from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from itertools import chain

import structlog
import torch
from torch import Tensor

from worker.state.snapshots import Snapshot
from worker.state.start import NOTHING, Source, Start, Wanted
from worker.state.state_file import Head, owner_of
from worker.state.state_folder import DEPTH_S, StateFolder

log = structlog.get_logger()

SPILL_WRITTEN = "spill.written"

MB = 1_000_000
PARTS = ("keys", "values", "recurrent", "conv")


@dataclass(frozen=True, slots=True)
class Held:
    """A conversation that may be written. `copy`: makes the copy of `size_bytes`."""

    salt: str
    ids: tuple[int, ...]
    size_bytes: int
    copy: Callable[[], Snapshot]


class Spill:
    """Whole conversations, a file each; of those that are there only the ids are in memory.

    `time_s`: for writing, in all. `has_states`: whether the model has delta layers. `drafter`: what
    drafters' rows are made by; those made by another are left where they are.
    """

    def __init__(
        self, folder: StateFolder, *, time_s: float, has_states: bool, drafter: str
    ) -> None:
        self.folder = folder
        self._time_s = time_s
        self._has_states = has_states
        self._drafter = drafter
        self.skipped: Counter[str] = Counter()  # by reason
        self._heads: dict[str, Head] = {}
        for name in folder:
            head = folder.read_head(name)
            if head is not None:
                self._heads[name] = head

    def __len__(self) -> int:
        return len(self._heads)

    def find(self, salt: str, wanted: Wanted) -> tuple[str, Start]:
        """The conversation that a prompt goes on with, by its ids; `NOTHING` for none.

        One that only begins alike is left to the prompt that goes on with it.
        """
        self.folder.look_through()
        owner, best, best_name = owner_of(salt), NOTHING, ""
        for name, head in self._heads.items():
            if head.owner != owner or name not in self.folder:
                continue
            if 2 * wanted.same(head.ids) < len(head.ids):
                continue
            start = self._snapshot(head, None).start_for(wanted)
            if start.position > best.position:
                best, best_name = start, name
        return best_name, best

    def length_of(self, name: str) -> int:
        """Tokens of a conversation that `find` named."""
        return len(self._heads[name].ids)

    def load(self, name: str) -> Snapshot | None:
        """A conversation; its file is gone then. None where it was no good."""
        head, found = self._heads.pop(name), self.folder.read(name)
        if found is None:
            return None
        if found[0] != head:
            self.folder.refuse(name, "other")
            return None
        snapshot = self._snapshot(*found)
        self.folder.remove(name, "loaded")
        return snapshot

    def write(self, held: Iterable[Held]) -> None:
        """Writes as many as time and room allow, the first first."""
        folder, began_s, written_bytes = self.folder, self.folder.now_s, 0
        seen: list[Held] = []
        for one in held:
            spent_s = folder.now_s - began_s
            expected_s = spent_s / written_bytes * one.size_bytes if written_bytes else 0.0
            if any(self._covers(other, one) for other in seen):
                continue
            if written_bytes + one.size_bytes > folder.max_bytes:
                self.skipped["room"] += 1
            elif spent_s + expected_s >= self._time_s:
                self.skipped["time"] += 1
            else:
                written_bytes += self._write(one, began_s - len(seen) * DEPTH_S)
                seen.append(one)
        folder.trim()
        log.info(
            SPILL_WRITTEN,
            conversations=folder.written,
            size_mb=round(written_bytes / MB, 1),
            skipped=sum(self.skipped.values()),
        )

    def clear(self) -> int:
        """Removes all; their bytes."""
        self._heads.clear()
        return self.folder.clear()

    def _covers(self, one: Held, other: Held) -> bool:
        """Whether a conversation needs no file beside that of another, of which it is a part."""
        if one.salt != other.salt:
            return False
        same = one.ids[: len(other.ids)] == other.ids
        return same and (len(one.ids) == len(other.ids) or not self._has_states)

    def _write(self, held: Held, used_s: float) -> int:
        snapshot = held.copy()
        head = Head(
            "session",
            owner_of(held.salt),
            0,
            snapshot.ids,
            snapshot.plan,
            snapshot.lineage,
            self._drafter,
            tuple(len(one) for one in snapshot.drafts),
        )
        parts = dict(zip(PARTS, snapshot.tensors, strict=False))
        for index, part in enumerate(chain.from_iterable(snapshot.drafts)):
            parts[_draft_name(index)] = part
        digest = hashlib.sha256(torch.tensor(snapshot.ids, dtype=torch.int32).numpy().tobytes())
        name = f"{head.owner[:16]}-{digest.hexdigest()[:32]}"
        size_bytes = self.folder.write(name, head, parts, used_s)
        self.folder.add(name, size_bytes, used_s)
        return size_bytes

    def _snapshot(self, head: Head, parts: dict[str, Tensor] | None) -> Snapshot:
        """Without `parts` it is one that can only be asked where a prompt may start."""
        names = PARTS if self._has_states else PARTS[:2]
        drafts: list[tuple[Tensor, ...]] = []
        tensors: tuple[Tensor, ...] = (torch.empty(0),) * len(names)
        if parts is not None:
            tensors = tuple(parts[name].clone() for name in names)
            rest = (parts[_draft_name(index)].clone() for index in range(sum(head.drafts)))
            if head.drafter == self._drafter:
                drafts = [tuple(next(rest) for _ in range(count)) for count in head.drafts]
        lineage, source = head.lineage, Source.SPILL
        return Snapshot(
            "session", None, head.ids, head.plan, lineage, tensors, tuple(drafts), source
        )


def _draft_name(index: int) -> str:
    return f"draft.{index}"
