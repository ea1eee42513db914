"""Which gateway processes of this installation live. Knows no database and no row.

Each holds a shared lock on one file of the state folder for as long as it lives; the system takes
it back however the process ends. Whoever gets the lock for itself alone knows that no other lives.
"""

import fcntl
import os
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import Protocol

LOCK_NAME = "living.lock"


class Living(Protocol):
    """Tells whether we are alone, and counts us among the living."""

    def joining(self) -> AbstractContextManager[bool]:
        """A block in which it is known whether we are alone: nobody joins meanwhile if we are."""


class Alone:
    """Knows of no other process: for a ledger that nobody shares."""

    @contextmanager
    def joining(self) -> Iterator[bool]:
        """We are alone."""
        yield True


class LivingProcesses:
    """The processes with one state folder. Whoever has left `joining` counts until it ends."""

    def __init__(self, folder: Path) -> None:
        self._descriptor = os.open(folder / LOCK_NAME, os.O_RDWR | os.O_CREAT, 0o600)

    @contextmanager
    def joining(self) -> Iterator[bool]:
        """Yields whether no other process lives; none can join before the block ends.

        Between the block and the shared lock another one may come and find itself alone, too: do
        nothing before the end of the block that it could take for a dead process's.
        """
        is_alone = self._take_alone()
        if not is_alone:
            fcntl.flock(self._descriptor, fcntl.LOCK_SH)  # waits while another is in its block
        try:
            yield is_alone
        except BaseException:
            fcntl.flock(self._descriptor, fcntl.LOCK_UN)  # it will come again
            raise
        fcntl.flock(self._descriptor, fcntl.LOCK_SH)

    def leave(self) -> None:
        """Counts as dead from now on, as the end of the process does by itself."""
        os.close(self._descriptor)

    def _take_alone(self) -> bool:
        try:
            fcntl.flock(self._descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
        return True
