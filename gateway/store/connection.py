"""The one connection of a database that writes, over its own driver. Knows no table and no row.

Nothing here loads SQLAlchemy: a gateway that only books requests pays for its driver alone.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import lru_cache
from itertools import chain
from typing import Any, Protocol

NEW_LINE = "\n"  # PostgreSQL quotes the row on the lines after the first
REASON_CHARS = 200


@dataclass(frozen=True, slots=True)
class Statements:
    """The texts that one kind of database is written with. `statements` has them, never changed.

    Parameters stand in the order of `ROW`, `BRIEF` and `HEAD`, or as it is said here.
    """

    write_row: str  # a closed row; it replaces an open or a lost one and nothing else
    write_brief_row: str  # the same of a row that knows none but the columns of `BRIEF`
    write_head: str  # an open row, if there is no row of the request
    mark_lost: str  # every open row
    prune: str  # oldest_ms, most
    read_spend: str  # client_id, currency, since_ms: the micros that were billed
    read_meta: str  # key
    write_meta: str  # key, value
    find_version: str  # whether there is a table of versions
    read_version: str


@dataclass(frozen=True, slots=True)
class NotebookStatements:
    """The texts that a notebook is written and read with, of one kind of database.

    Parameters stand in the order of `SESSION` and `NOTE`, or as it is said here.
    """

    save_session: str  # in place of that of the same scope, key and opening
    find_sessions: str  # scope, session_key, most
    save_note: str  # in place of equal text at the same place
    find_notes: str  # scope, chains, scope, messages, most; both lists as JSON
    read_size: str  # bytes of everything
    read_oldest: str  # most: used_ms and size_bytes, of sessions and notes, last used first
    prune_sessions: str  # last_ms, most
    prune_notes: str  # last_ms, most
    find_version: str  # whether there is a table of versions
    read_version: str


@dataclass(frozen=True, slots=True)
class MemoryStatements:
    """The texts about memory notes, of one kind of database. Parameters stand in this order."""

    add: str  # key_id, project, kind, text, fact_hash, session_hash, created_ms, last_used_ms
    find: str  # key_id, project, fact_hash: the number of a note that is not deleted
    replace: str  # by, key_id, project, old: unless it is pinned
    search: str  # key_id, project, most: the notes in force, pinned and last used first
    use: str  # now_ms, key_id, project, which
    expire: str  # before_ms: rows of notes that were deleted then
    trim: str  # key_id, project, kept: the notes beyond, used least lately, none that is pinned


class Cursor(Protocol):
    """A cursor of Python's database interface (PEP 249), as far as we use it."""

    @property
    def rowcount(self) -> int:
        """How many rows the last statement changed."""

    def execute(self, statement: str, values: Sequence[Any] = (), /) -> Any:
        """Runs a statement."""

    def executemany(self, statement: str, values: Iterable[Sequence[Any]], /) -> Any:
        """Runs a statement once for each of these."""

    def fetchone(self) -> Any:
        """The next row that was found, None when there is none."""

    def fetchall(self) -> Any:
        """Every row that was found."""


class WriteConnection:
    """Opened when it is first used, and again after a fault. Used by one thread at a time.

    `connect` makes a connection of `driver`, a module after PEP 249; `begin` starts a transaction
    where the driver does not do so by itself. `rows_at_once`: how many rows one statement inserts.
    SQLite's driver lets go of the interpreter for every statement, and taking it back from a busy
    event loop costs more than the row.
    """

    def __init__(
        self,
        connect: Callable[[], Any],
        driver: Any,
        statements: Statements,
        begin: str | None = None,
        rows_at_once: int = 1,
    ) -> None:
        self.connect = connect
        self.driver = driver
        self.statements = statements
        self._begin = begin
        self._rows_at_once = rows_at_once
        self._connection: Any = None

    @contextmanager
    def transaction(self) -> Iterator[Cursor]:
        """All or nothing. Raises: what the driver says, or what the body raises."""
        if self._connection is None:
            self._connection = self.connect()
        connection = self._connection
        try:
            cursor = connection.cursor()
            if self._begin is not None:
                cursor.execute(self._begin)
            yield cursor
            connection.commit()
        except BaseException as fault:
            self._take_back(connection, fault)
            raise

    def insert(self, cursor: Cursor, statement: str, rows: Sequence[Sequence[Any]]) -> None:
        """Inserts rows, in their order. Raises: what the driver says."""
        count, done = self._rows_at_once, 0
        if count > 1:
            many = of_many_rows(statement, count)
            while len(rows) - done >= count:
                cursor.execute(many, [*chain.from_iterable(rows[done : done + count])])
                done += count
        if done < len(rows):
            cursor.executemany(statement, rows[done:])

    def close(self) -> None:
        """Lets go of the connection; what was not committed is undone. The next use opens one."""
        connection, self._connection = self._connection, None
        if connection is not None:
            with suppress(self.driver.Error):  # it may be broken: that is why it is closed
                connection.close()

    def is_fault(self, fault: Exception) -> bool:
        """Whether the driver says so, and not a mistake of ours."""
        return isinstance(fault, self.driver.Error)

    def is_rows_fault(self, fault: BaseException) -> bool:
        """Whether the rows are to blame, not the database: trying again would change nothing."""
        if isinstance(fault, self.driver.Error):
            return isinstance(fault, (self.driver.DataError, self.driver.IntegrityError))
        return isinstance(fault, (ValueError, TypeError, OverflowError))

    def reason_of(self, fault: Exception) -> str:
        """A fault in a few words for the log. Only what names no value of a row."""
        for name in ("OperationalError", "IntegrityError"):
            if isinstance(fault, getattr(self.driver, name)):
                return f"{name}: {str(fault).partition(NEW_LINE)[0][:REASON_CHARS]}"
        return type(fault).__name__

    def _take_back(self, connection: Any, fault: BaseException) -> None:
        """Once a row was refused, the connection is as good as before; else nobody knows."""
        if self.is_rows_fault(fault):
            with suppress(self.driver.Error):
                connection.rollback()
                return
        self.close()


@lru_cache(maxsize=8)
def of_many_rows(statement: str, count: int) -> str:
    """The statement that inserts `count` rows at once: its parameters as many times."""
    before, _, rest = statement.partition(" VALUES ")
    row, _, behind = rest.partition(" ON CONFLICT ")
    return f"{before} VALUES {', '.join([row] * count)} ON CONFLICT {behind}"
