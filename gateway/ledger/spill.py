"""Rows that wait in a file because the queue was full. Knows no database and no request.

`SpillFile` is the bytes: one JSON line a row, claimed by one process, torn ends cut off. `Spill`
is the account: lines go from memory to the file to whoever writes them to the database.
"""

import fcntl
import json
import os
from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from threading import Lock
from typing import Any

SPILL_NAME = "ledger.spill"
SPILL_BYTES = 64 * 1024 * 1024  # about 90,000 rows
CLOSED = -1  # no descriptor: the system refuses it
PROCESSES = 64  # gateways in one state folder; each has a file of its own
BATCH_LINES = 1_000  # lines that move at a time
LINE_BYTES = 1024 * 1024  # no row is longer; so much is read at a time


def encode(values: Mapping[str, Any]) -> bytes:
    """A row as a line of the file."""
    return json.dumps(values, separators=(",", ":"), default=str).encode() + b"\n"


def decode(line: bytes) -> dict[str, Any] | None:
    """The row of a line, None when it is not one."""
    try:
        values = json.loads(line)
    except ValueError:
        return None
    return values if isinstance(values, dict) else None


class SpillFile:
    """The file. `size_bytes`: up to here every line is whole. One process at a time holds it."""

    def __init__(self, path: Path, descriptor: int, most_bytes: int = SPILL_BYTES) -> None:
        self.path = path
        self.most_bytes = most_bytes
        self._descriptor = descriptor
        self.row_count = 0
        self.torn_count = 0
        self.size_bytes = 0
        self._recover()

    @classmethod
    def claim(cls, folder: Path, most_bytes: int = SPILL_BYTES) -> "SpillFile":
        """Takes the first file of this folder that no living process holds.

        What dead processes left in the others is moved into it.

        Raises: OSError.
        """
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        names = [SPILL_NAME, *(f"{SPILL_NAME}.{number}" for number in range(1, PROCESSES))]
        claimed: SpillFile | None = None
        for name in names:
            if claimed is not None and not (folder / name).exists():
                continue
            descriptor = _open_and_lock(folder / name)
            if descriptor is None:
                continue
            if claimed is None:
                claimed = cls(folder / name, descriptor, most_bytes)
            else:
                claimed._adopt(cls(folder / name, descriptor))
        if claimed is None:
            raise OSError(f"{PROCESSES} processes hold every spill file of {folder}")
        return claimed

    def append(self, data: bytes) -> None:
        """Writes whole lines behind the others. A write that fails leaves no trace.

        Raises: OSError.
        """
        written = 0
        while written < len(data):
            written += os.pwrite(self._descriptor, data[written:], self.size_bytes + written)
        self.size_bytes += written

    def read(self, offset: int) -> list[bytes]:
        """Some whole lines from `offset` on; empty at the end.

        A stretch without an end of line (a damaged file) comes in pieces that are no lines.

        Raises: OSError.
        """
        data = os.pread(self._descriptor, min(LINE_BYTES, self.size_bytes - offset), offset)
        *lines, rest = data.split(b"\n")
        return [line + b"\n" for line in lines[:BATCH_LINES]] or ([rest] if rest else [])

    def clear(self) -> None:
        """Empties the file: every row has found its place.

        Raises: OSError.
        """
        os.ftruncate(self._descriptor, 0)
        self.size_bytes = 0

    def close(self) -> None:
        """Lets go of the file; another process may claim it."""
        os.close(self._descriptor)
        self._descriptor = CLOSED

    def _recover(self) -> None:
        """Counts the rows that are there and cuts off a line that a crash left unfinished."""
        end_bytes = os.fstat(self._descriptor).st_size
        offset = 0
        while offset < end_bytes:
            data = os.pread(self._descriptor, LINE_BYTES, offset)
            self.row_count += data.count(b"\n")
            last = data.rfind(b"\n")
            if last >= 0:
                self.size_bytes = offset + last + 1
            offset += len(data)
        if self.size_bytes < end_bytes:
            self.torn_count = 1
            os.ftruncate(self._descriptor, self.size_bytes)

    def _adopt(self, other: "SpillFile") -> None:
        if self.size_bytes + other.size_bytes <= self.most_bytes:
            offset = 0
            while lines := other.read(offset):
                self.append(b"".join(lines))
                offset += sum(map(len, lines))
            self.row_count += other.row_count
            self.torn_count += other.torn_count
            other.clear()
        other.close()


@dataclass(frozen=True, slots=True)
class Chunk:
    """Lines taken out for writing; from the file up to `end_bytes`, or from memory (None)."""

    lines: list[bytes]
    end_bytes: int | None


class Spill:
    """Lines that wait, in order of age. `row_count`: all of them, in the file and on the way to it.

    `lock` guards the counts and belongs to whoever counts rows with them; no file is touched while
    it is held. Nobody but `flush` waits for the disk.
    """

    def __init__(self, file: SpillFile, lock: Lock) -> None:
        self._file = file
        self._lock = lock
        self._disk = Lock()  # one thread at a time moves lines into or out of the file
        self._arrived: deque[bytes] = deque()
        self._arrived_bytes = 0
        self._taken_bytes = 0  # of the file: written to the database already
        self.row_count = file.row_count

    @property
    def has_arrivals(self) -> bool:
        """Whether lines wait in memory for the file."""
        return bool(self._arrived)

    def accept(self, line: bytes) -> bool:
        """Takes a line in, into memory; False when file and memory hold all they may.

        The caller holds the lock.
        """
        size_bytes = self._file.size_bytes + self._arrived_bytes + len(line)
        if size_bytes > self._file.most_bytes or len(line) > LINE_BYTES:
            return False
        self._arrived.append(line)
        self._arrived_bytes += len(line)
        self.row_count += 1
        return True

    def flush(self, wait_s: float = -1) -> None:
        """Moves what is in memory to the file; after a fault it stays in memory.

        Raises: OSError.
        """
        if not self._disk.acquire(timeout=wait_s):
            return
        try:
            while lines := self._oldest():
                data = b"".join(lines)
                self._file.append(data)
                self._forget(len(lines), len(data))
        finally:
            self._disk.release()

    def take(self) -> Chunk | None:
        """The oldest lines, for writing; None when there are none, or the disk is busy.

        They count as waiting until `settle`, and stay in the file until `release`.

        Raises: OSError.
        """
        if not self._disk.acquire(blocking=False):
            return None
        try:
            self._clear_if_read()
            if lines := self._file.read(self._taken_bytes):
                return Chunk(lines, self._taken_bytes + sum(map(len, lines)))
            lines = self._oldest()  # the disk takes nothing: straight to the database
            self._forget(len(lines), sum(map(len, lines)))
            return Chunk(lines, None) if lines else None
        finally:
            self._disk.release()

    def settle(self, row_count: int) -> None:
        """So many rows of a chunk wait no longer. The caller holds the lock."""
        self.row_count -= row_count

    def release(self, chunk: Chunk) -> None:
        """Every row of the chunk is settled: it need not be read again.

        Raises: OSError.
        """
        if chunk.end_bytes is None:
            return
        self._taken_bytes = chunk.end_bytes
        if self._disk.acquire(blocking=False):
            try:
                self._clear_if_read()
            finally:
                self._disk.release()

    def give_up(self) -> int:
        """Drops what never reached the file; how many rows. The caller holds the lock."""
        count = len(self._arrived)
        self._arrived.clear()
        self._arrived_bytes = 0
        self.row_count -= count
        return count

    def close(self, wait_s: float) -> None:
        """Lets go of the file, unless a thread is stuck in it for so long."""
        if self._disk.acquire(timeout=wait_s):
            try:
                self._file.close()
            finally:
                self._disk.release()

    def _clear_if_read(self) -> None:
        if 0 < self._taken_bytes == self._file.size_bytes:
            self._file.clear()
            self._taken_bytes = 0

    def _oldest(self) -> list[bytes]:
        with self._lock:
            return list(islice(self._arrived, BATCH_LINES))

    def _forget(self, line_count: int, size_bytes: int) -> None:
        with self._lock:
            if self._arrived:  # or all was given up meanwhile
                for _ in range(line_count):
                    self._arrived.popleft()
                self._arrived_bytes -= size_bytes


def _open_and_lock(path: Path) -> int | None:
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(descriptor)
        return None
    return descriptor
