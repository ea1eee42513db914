"""How many connections each of several processes has, in memory that all of them share.

Whoever has more than a sibling lets it take the next one: a connection stays with the process that
took it for as long as its client likes. Knows no socket.
"""

import mmap
import os
from pathlib import Path

NAME = "connections"
BYTES = 4  # a number; written in one go, so nobody reads half of one
NOBODY = 2**32 - 1  # of a process that is not there
SLACK = 2  # connections more than a sibling that make no difference


class Shares:
    """The numbers of one parent's processes. `number`: ours."""

    def __init__(self, folder: Path, number: int) -> None:
        descriptor = os.open(folder / NAME, os.O_RDWR)
        try:
            self._counts = memoryview(mmap.mmap(descriptor, 0)).cast("I")
        finally:
            os.close(descriptor)
        self._index = number - 1

    @staticmethod
    def make(folder: Path, process_count: int) -> None:
        """Begins: nobody is there. Raises: OSError."""
        path = folder / NAME
        path.unlink(missing_ok=True)  # children of a dead parent may still use theirs
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        try:
            os.write(descriptor, NOBODY.to_bytes(BYTES, "little") * process_count)
        finally:
            os.close(descriptor)

    def is_ours(self, count: int) -> bool:
        """Whether the next connection is ours to take, who have `count` of them."""
        self._counts[self._index] = count
        least = min(self._counts)
        return count <= least + SLACK + least // 8

    def forget(self) -> None:
        """The process is not there: nobody waits for it."""
        self._counts[self._index] = NOBODY
