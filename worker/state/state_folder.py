"""A folder of kept states in files: what lies there, for how long, and what is thrown away.

Knows neither which states are worth a file nor what one is used for.
"""

import contextlib
import os
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import structlog
from torch import Tensor

from worker.state.fingerprint import Fingerprint
from worker.state.state_file import Head, StateFault, read_head, read_state, write_state

log = structlog.get_logger()

KEPT_FILES_REFUSED = "kept_files.refused"
KEPT_FILES_NOT_WRITTEN = "kept_files.not_written"

SUFFIX = ".safetensors"
MARK_CHARS = 16  # of the fingerprint, at the front of each name
LOOK_S = 600.0  # how often files are looked through for old ones
DEPTH_S = 0.001  # by so much later files of one chain count as less recently used

ORDERLY = ("old", "room", "loaded", "cleared")  # reasons for which a good file goes

Tier = Literal["disk", "spill"]


@dataclass(frozen=True, slots=True)
class FolderBounds:
    """How much lies in a folder, and for how long after its last use."""

    max_bytes: int
    ttl_s: float


@dataclass(frozen=True, slots=True)
class Entry:
    """A file. `used_s`: when it was last used, which is the time of the file."""

    size_bytes: int
    used_s: float


class StateFolder:
    """The files of one fingerprint in a folder, which is made when it is needed.

    One thread uses it; `write` may be called by another. No fault of a file is an error: it is
    counted, and what cannot be used is removed. `clock`: seconds since 1970.
    """

    def __init__(
        self,
        path: Path,
        fingerprint: Fingerprint,
        tier: Tier,
        bounds: FolderBounds,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self._path = path
        self._fingerprint = fingerprint.hash
        self._mark = f"{self._fingerprint[:MARK_CHARS]}-"
        self._tier = tier
        self._bounds = bounds
        self._clock = clock
        self._entries: dict[str, Entry] = {}
        self._has_told = False
        self._looked_s = clock()
        self.written = 0
        self.not_written = 0
        self.removed: Counter[str] = Counter()  # by reason
        self._look_around()
        self.trim()

    def __contains__(self, name: str) -> bool:
        return name in self._entries

    def __len__(self) -> int:
        return len(self._entries)

    def __iter__(self) -> Iterator[str]:
        """Names, the one used last first."""
        return iter(sorted(self._entries, key=lambda name: -self._entries[name].used_s))

    @property
    def now_s(self) -> float:
        """By the folder's clock."""
        return self._clock()

    @property
    def fingerprint(self) -> str:
        """As it stands in the files."""
        return self._fingerprint

    @property
    def max_bytes(self) -> int:
        """Of all files together."""
        return self._bounds.max_bytes

    @property
    def size_bytes(self) -> int:
        """Bytes of all files."""
        return sum(entry.size_bytes for entry in self._entries.values())

    @property
    def evicted(self) -> int:
        """Files that were removed for their age, or for want of room."""
        return self.removed["old"] + self.removed["room"]

    def unused(self) -> dict[str, int]:
        """Files that could not be used or written, by reason."""
        reasons = {key: count for key, count in self.removed.items() if key not in ORDERLY}
        return {**reasons, "not_written": self.not_written}

    def read(self, name: str) -> tuple[Head, dict[str, Tensor]] | None:
        """A file's content, mapped; None where it cannot be used, which removes it."""
        try:
            return read_state(self._path_of(name), self._fingerprint)
        except StateFault as fault:
            self.refuse(name, fault.reason)
            return None

    def read_head(self, name: str) -> Head | None:
        """What a file says of itself, its payload unread; None where it cannot be used."""
        try:
            return read_head(self._path_of(name), self._fingerprint)
        except StateFault as fault:
            self.refuse(name, fault.reason)
            return None

    def write(self, name: str, head: Head, tensors: Mapping[str, Tensor], used_s: float) -> int:
        """Writes a file, to be added when that is done; its bytes, 0 where it was not possible."""
        try:
            self._path.mkdir(mode=0o700, parents=True, exist_ok=True)
            self._path.chmod(0o700)
            return write_state(self._path_of(name), self._fingerprint, head, tensors, used_s)
        except OSError as fault:
            if not self._has_told:
                log.warning(KEPT_FILES_NOT_WRITTEN, tier=self._tier, reason=str(fault))
            self._has_told = True  # a disk that is full stays so for a while
            return 0

    def add(self, name: str, size_bytes: int, used_s: float) -> None:
        """Notes what became of a write."""
        if size_bytes == 0:
            self.not_written += 1
            return
        self.written += 1
        self._has_told = False
        self._entries[name] = Entry(size_bytes, used_s)

    def touch(self, name: str, depth: int = 0) -> None:
        """Counts a file as used. Of a chain, what is behind goes before what it stands on."""
        used_s = self._clock() - depth * DEPTH_S
        self._entries[name] = Entry(self._entries[name].size_bytes, used_s)
        with contextlib.suppress(OSError):
            os.utime(self._path_of(name), (used_s, used_s))

    def refuse(self, name: str, reason: str) -> None:
        """Removes a file that cannot be used."""
        log.warning(KEPT_FILES_REFUSED, tier=self._tier, reason=reason, files=1)
        self.remove(name, reason)

    def remove(self, name: str, reason: str) -> None:
        """Removes a file, whatever it is."""
        self._entries.pop(name, None)
        self.removed[reason] += 1
        with contextlib.suppress(OSError):
            self._path_of(name).unlink(missing_ok=True)

    def clear(self) -> int:
        """Removes all; their bytes."""
        size_bytes = self.size_bytes
        for name in tuple(self._entries):
            self.remove(name, "cleared")
        return size_bytes

    def look_through(self) -> None:
        """Removes old files, once in a while."""
        if self._clock() - self._looked_s >= LOOK_S:
            self.trim()

    def trim(self) -> None:
        """Removes what was not used for too long, and what is too much, the oldest first."""
        self._looked_s = now_s = self._clock()
        size_bytes = self.size_bytes
        for name in reversed(tuple(self)):
            entry = self._entries[name]
            is_old = now_s - entry.used_s > self._bounds.ttl_s
            if not is_old and size_bytes <= self._bounds.max_bytes:
                return
            size_bytes -= entry.size_bytes
            self.remove(name, "old" if is_old else "room")

    def _look_around(self) -> None:
        """Finds what is there; half-written files and those of others are removed."""
        others = 0
        for path in self._paths():
            name = path.name
            with contextlib.suppress(OSError):
                if name.endswith(".new") or name.startswith(".tmp"):  # ours, the library's
                    path.unlink()
                elif name.endswith(SUFFIX) and name.startswith(self._mark):
                    found = path.stat()
                    key = name.removeprefix(self._mark).removesuffix(SUFFIX)
                    self._entries[key] = Entry(found.st_size, found.st_mtime)
                elif name.endswith(SUFFIX):
                    path.unlink()
                    others += 1
        if others:
            self.removed["fingerprint"] += others
            log.info(KEPT_FILES_REFUSED, tier=self._tier, reason="fingerprint", files=others)

    def _paths(self) -> list[Path]:
        try:
            return [path for path in self._path.iterdir() if path.is_file()]
        except OSError:  # mostly: it is not there yet
            return []

    def _path_of(self, name: str) -> Path:
        return self._path / f"{self._mark}{name}{SUFFIX}"
