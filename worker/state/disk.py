"""Prompts that are resumed from again and again, kept on disk chunk by chunk. Knows no run.

What lies here was read by whole chunks of a plan, so that a start from it gives the same bits. A
chunk is named by a hash over all ids up to its end, cut as they were cut: equal names are equal
rows.
"""

import hashlib
import os
import threading
from collections import Counter, OrderedDict
from collections.abc import Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor, wait
from dataclasses import dataclass, field
from typing import Protocol

import numpy as np
import torch
from torch import Tensor

from worker.limits import DISK_DUE, DISK_HITS, DISK_WRITES
from worker.prefill import Plan
from worker.state.lineage import Exactness, Lineage
from worker.state.snapshots import Snapshot
from worker.state.start import NOTHING, Source, Start, Wanted
from worker.state.state_file import FileKind, Head, owner_of
from worker.state.state_folder import DEPTH_S, StateFolder

NICENESS = 10  # of the writer: hashing and writing yield to decoding
PARTS: dict[FileKind, tuple[str, str]] = {
    "rows": ("keys", "values"),
    "state": ("recurrent", "conv"),
}


class Holder(Protocol):
    """What holds the rows of a sequence now: a slot that no run holds, or a snapshot."""

    @property
    def salt(self) -> str | None: ...
    def start_for(self, wanted: Wanted) -> Start: ...
    def rows(self, start: int, end: int) -> tuple[Tensor, Tensor]:
        """Copies of keys and values, in host memory."""
        ...

    def state_at(self, position: int) -> tuple[Tensor, Tensor]:
        """Copies of the delta layers' state at a start that `start_for` gave."""
        ...


@dataclass(frozen=True, slots=True)
class _Link:
    """A chunk of a chain."""

    hash: str
    start: int
    end: int

    def name(self, kind: FileKind) -> str:
        return f"{self.hash}.{kind}"


@dataclass(frozen=True, slots=True)
class Chain:
    """Whole chunks on disk, all that a prompt needs to start behind the last of them."""

    owner: str
    wanted: Wanted
    links: tuple[_Link, ...]

    @property
    def start(self) -> Start:
        """Where a prompt may start from it."""
        return Start(self.links[-1].end, Source.DISK, Exactness.GRID) if self.links else NOTHING


@dataclass(frozen=True, slots=True)
class _Due:
    """The beginning of a prompt that was resumed from often enough. `tried`: names of its files
    that were handed over; one that could not be written, or was too much, is not tried again."""

    salt: str
    plan: Plan
    ids: tuple[int, ...]
    used_s: float
    tried: set[str] = field(default_factory=set)


class DiskTier:
    """Chains of chunks in a folder. One thread uses it; files are written by another.

    `min_hits`: resumes from a chunk before it is written. `has_states`: whether the model has delta
    layers, whose state at the end of a chain is a file beside its chunks.
    """

    def __init__(self, folder: StateFolder, *, min_hits: int, has_states: bool) -> None:
        self.folder = folder
        self._min_hits = min_hits
        self._has_states = has_states
        self._hits: OrderedDict[str, int] = OrderedDict()  # by chunk, the one hit last at the end
        self._due: OrderedDict[str, _Due] = OrderedDict()
        self._writer = ThreadPoolExecutor(1, "state writer", initializer=_be_nice)
        self._writing: dict[str, tuple[Future[int], float]] = {}
        self.skipped: Counter[str] = Counter()  # by reason

    def find(self, salt: str, wanted: Wanted) -> Chain:
        """The longest chain of which all is there, by names alone."""
        owner, links, whole = owner_of(salt), [], 0
        for link in self._links(owner, wanted.plan, wanted.prompt, wanted.most):
            if link.name("rows") not in self.folder:
                break
            links.append(link)
            if not self._has_states or link.name("state") in self.folder:
                whole = len(links)
        return Chain(owner, wanted, tuple(links[:whole]))

    def load(self, chain: Chain) -> Snapshot | None:
        """What a chain holds, every id of it compared; None where a file of it was no good."""
        keys, values = [], []
        for link in chain.links:
            parts = self._read(chain, link, "rows")
            if parts is None:
                return None
            keys.append(parts[0])
            values.append(parts[1])
        state: tuple[Tensor, ...] = ()
        if self._has_states:
            parts = self._read(chain, chain.links[-1], "state")
            if parts is None:
                return None
            state = tuple(part.clone() for part in parts)
        for depth, link in enumerate(chain.links):
            self.folder.touch(link.name("rows"), depth)
        if self._has_states:
            self.folder.touch(chain.links[-1].name("state"), len(chain.links))
        wanted, end = chain.wanted, chain.links[-1].end
        tensors = (torch.cat(keys, dim=2), torch.cat(values, dim=2), *state)
        lineage = Lineage(end, end)
        ids, source = wanted.prompt[:end], Source.DISK
        return Snapshot("prefix", None, ids, wanted.plan, lineage, tensors, (), source)

    def saw_resume(self, salt: str, plan: Plan, ids: tuple[int, ...]) -> None:
        """A prompt that begins with these ids was started behind them, from whatever held them."""
        end = 0
        key = ""
        for link in self._links(owner_of(salt), plan, ids, len(ids)):
            hits = self._hits[link.hash] = self._hits.pop(link.hash, 0) + 1
            if hits >= self._min_hits:
                end, key = link.end, link.hash
        while len(self._hits) > DISK_HITS:
            self._hits.popitem(last=False)
        if end:
            self._due.pop(key, None)
            self._due[key] = _Due(salt, plan, ids[:end], self.folder.now_s)
        while len(self._due) > DISK_DUE:
            self._due.popitem(last=False)
            self.skipped["behind"] += 1

    def step(self, holders: Iterable[Holder]) -> bool:
        """Hands one chunk or state to the writer; whether there was one. For idle moments."""
        self._settle()
        held = tuple(holders)
        while self._due and len(self._writing) < DISK_WRITES:
            key = next(iter(self._due))
            if self._hand_over(self._due[key], held):
                return True
            del self._due[key]
        self.folder.look_through()
        return False

    def wait(self, timeout_s: float) -> None:
        """Until all that was handed over is written."""
        wait([future for future, _ in self._writing.values()], timeout_s)
        self._settle()

    def close(self, timeout_s: float) -> None:
        """Writes what was handed over, and no more."""
        self.wait(timeout_s)
        self._writer.shutdown(wait=False, cancel_futures=True)

    def clear(self) -> int:
        """Removes all files; their bytes."""
        self._due.clear()
        self._hits.clear()
        return self.folder.clear()

    def _links(self, owner: str, plan: Plan, ids: tuple[int, ...], most: int) -> Iterator[_Link]:
        """The whole chunks of the first `most` tokens."""
        words = np.asarray(ids[:most], dtype="<u4")
        digest = hashlib.sha256(f"{self.folder.fingerprint}:{owner}".encode()).digest()
        start, end = 0, plan.chunk_end(0, most)
        while start < end and plan.is_start(end):
            digest = hashlib.sha256(digest + words[start:end].tobytes()).digest()
            yield _Link(digest.hex(), start, end)
            start, end = end, plan.chunk_end(end, most)

    def _read(self, chain: Chain, link: _Link, kind: FileKind) -> tuple[Tensor, Tensor] | None:
        name = link.name(kind)
        found = self.folder.read(name)
        if found is None:
            return None
        head, parts = found
        if head != _head(chain.owner, chain.wanted.plan, chain.wanted.prompt, link, kind):
            self.folder.refuse(name, "other")
            return None
        first, second = PARTS[kind]
        return parts[first], parts[second]

    def _hand_over(self, due: _Due, holders: Iterable[Holder]) -> bool:
        """The next of its files that is neither there nor being written; false for none."""
        wanted = Wanted(due.ids, due.plan, len(due.ids), is_exact=True)
        holder, start = None, NOTHING
        for one in holders:
            if one.salt in (due.salt, None):
                found = one.start_for(wanted)
                if found.position > start.position:
                    holder, start = one, found
        if holder is None:
            return False
        owner = owner_of(due.salt)
        links = tuple(self._links(owner, due.plan, due.ids, start.position))
        wishes: list[tuple[int, _Link, FileKind]] = [
            (depth, link, "rows") for depth, link in enumerate(links)
        ]
        if self._has_states:
            wishes.append((len(links), links[-1], "state"))
        for depth, link, kind in wishes:
            name = link.name(kind)
            if name in self.folder or name in self._writing or name in due.tried:
                continue
            is_rows = kind == "rows"
            copies = holder.rows(link.start, link.end) if is_rows else holder.state_at(link.end)
            due.tried.add(name)
            if (depth + 1) * sum(part.nbytes for part in copies) > self.folder.max_bytes:
                self.skipped["too_large"] += 1
                return False
            head = _head(owner, due.plan, due.ids, link, kind)
            used_s = due.used_s - depth * DEPTH_S
            parts = dict(zip(PARTS[kind], copies, strict=True))
            future = self._writer.submit(self.folder.write, name, head, parts, used_s)
            self._writing[name] = future, used_s
            return True
        return False

    def _settle(self) -> None:
        """Takes note of files that are written."""
        done = [name for name, (future, _) in self._writing.items() if future.done()]
        for name in done:
            future, used_s = self._writing.pop(name)
            self.folder.add(name, future.result(), used_s)
        if done:
            self.folder.trim()


def _head(owner: str, plan: Plan, ids: tuple[int, ...], link: _Link, kind: FileKind) -> Head:
    """What the file of a link must say: a state depends on all ids before it."""
    start = link.start if kind == "rows" else 0
    below = Plan(plan.family, plan.chunk, tuple(cut for cut in plan.cuts if cut < link.end))
    return Head(kind, owner, start, ids[start : link.end], below, Lineage(link.end, link.end))


def _be_nice() -> None:
    os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), NICENESS)
