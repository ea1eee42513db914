"""Databases and disks that fail when they are told to."""

import errno
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Literal

from gateway.ledger.spill import SpillFile
from gateway.store.db import Database

Kind = Literal["connect", "statement", "commit", "commit_answer"]
KINDS: tuple[Kind, ...] = ("connect", "statement", "commit", "commit_answer")


class Trouble:
    """Fails the operations of a database's writer that it is set to fail, and counts all of them.

    `commit_answer`: the commit is done, and its answer lost. `hangs_up`: a connection is good for
    one commit; who uses it again finds out.
    """

    def __init__(self, driver: Any) -> None:
        self.driver = driver
        self.count = dict.fromkeys(KINDS, 0)
        self.fails_at: tuple[Kind, int] | None = None
        self.is_down = False
        self.hangs_up = False

    @property
    def has_struck(self) -> bool:
        """Whether the operation that was to fail has come."""
        return self.fails_at is not None and self.count[self.fails_at[0]] >= self.fails_at[1]

    def check(self, kind: Kind) -> None:
        """One more operation of this kind. Raises: the driver's fault when it is to fail."""
        self.count[kind] += 1
        if self.is_down or self.fails_at == (kind, self.count[kind]):
            raise self.driver.OperationalError(f"{kind} failed")


class TroubledCursor:
    """A driver's cursor whose statements are checked before they run."""

    def __init__(self, cursor: Any, trouble: Trouble) -> None:
        self._cursor = cursor
        self._trouble = trouble

    @property
    def rowcount(self) -> int:
        return int(self._cursor.rowcount)

    def execute(self, *arguments: Any) -> Any:
        self._trouble.check("statement")
        return self._cursor.execute(*arguments)

    def executemany(self, *arguments: Any) -> Any:
        self._trouble.check("statement")
        return self._cursor.executemany(*arguments)

    def fetchone(self) -> Any:
        return self._cursor.fetchone()


class TroubledConnection:
    """A driver's connection whose statements and commits may fail."""

    def __init__(self, connection: Any, trouble: Trouble) -> None:
        self._connection = connection
        self._trouble = trouble
        self._is_over = False

    def cursor(self) -> TroubledCursor:
        if self._is_over:
            raise self._trouble.driver.OperationalError("the connection is closed")
        return TroubledCursor(self._connection.cursor(), self._trouble)

    def commit(self) -> None:
        self._trouble.check("commit")
        self._connection.commit()
        self._is_over = self._trouble.hangs_up
        self._trouble.check("commit_answer")

    def rollback(self) -> None:
        self._connection.rollback()

    def close(self) -> None:
        self._connection.close()


@contextmanager
def trouble(database: Database) -> Iterator[Trouble]:
    """Puts a `Trouble` between the writer and its driver."""
    writer = database.writer
    made = Trouble(writer.driver)
    connect = writer.connect

    def connected() -> Any:
        made.check("connect")
        return TroubledConnection(connect(), made)

    writer.close()  # the next connection is a troubled one
    writer.connect = connected
    try:
        yield made
    finally:
        writer.close()
        writer.connect = connect


class WornDisk(SpillFile):
    """A spill file on a disk that can be full, or fail at its Nth operation."""

    def __init__(self, path: Path, descriptor: int, most_bytes: int) -> None:
        self.is_full = False
        self.count = 0
        self.fails_at = 0
        super().__init__(path, descriptor, most_bytes)

    def append(self, data: bytes) -> None:
        if self.is_full:
            raise OSError(errno.ENOSPC, "No space left on device")
        self._tick()
        super().append(data)

    def read(self, offset: int) -> list[bytes]:
        self._tick()
        return super().read(offset)

    def clear(self) -> None:
        self._tick()
        super().clear()

    def _tick(self) -> None:
        self.count += 1
        if self.count == self.fails_at:
            raise OSError(errno.EIO, "Input/output error")
