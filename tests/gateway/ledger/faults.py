"""Databases and disks that fail when they are told to."""

import errno
import sqlite3
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Literal

from sqlalchemy.exc import OperationalError

from gateway.ledger.spill import SpillFile
from gateway.store.db import Database

Kind = Literal["connect", "statement", "commit", "commit_answer"]
KINDS: tuple[Kind, ...] = ("connect", "statement", "commit", "commit_answer")


def gone(what: str) -> OperationalError:
    """What SQLAlchemy raises when a database is not there."""
    return OperationalError(what, None, sqlite3.OperationalError(f"{what} failed"))


class Trouble:
    """Fails the operations of a database's writer that it is set to fail, and counts all of them.

    `commit_answer`: the commit is done, and its answer lost.
    """

    def __init__(self) -> None:
        self.count = dict.fromkeys(KINDS, 0)
        self.fails_at: tuple[Kind, int] | None = None
        self.is_down = False

    @property
    def has_struck(self) -> bool:
        """Whether the operation that was to fail has come."""
        return self.fails_at is not None and self.count[self.fails_at[0]] >= self.fails_at[1]

    def check(self, kind: Kind) -> None:
        """One more operation of this kind. Raises: OperationalError when it is to fail."""
        self.count[kind] += 1
        if self.is_down or self.fails_at == (kind, self.count[kind]):
            raise gone(kind)


@contextmanager
def trouble(database: Database) -> Iterator[Trouble]:
    """Puts a `Trouble` between the writer and its driver."""
    made = Trouble()
    dialect: Any = database.writer.dialect
    engine: Any = database.writer
    names = ("do_execute", "do_executemany", "do_commit")
    saved = {name: getattr(dialect, name) for name in names}
    connect = engine.raw_connection

    def commit(connection: Any) -> None:
        made.check("commit")
        saved["do_commit"](connection)
        made.check("commit_answer")

    def statement(name: str) -> Any:
        def run(*arguments: Any, **options: Any) -> Any:
            made.check("statement")
            return saved[name](*arguments, **options)

        return run

    def connected() -> Any:
        made.check("connect")
        return connect()

    dialect.do_execute = statement("do_execute")
    dialect.do_executemany = statement("do_executemany")
    dialect.do_commit = commit
    engine.raw_connection = connected
    try:
        yield made
    finally:
        for name, function in saved.items():
            setattr(dialect, name, function)
        engine.raw_connection = connect


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
