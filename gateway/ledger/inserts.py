"""The statements that write the ledger. Knows no queue, no file and no price.

Writing a row twice changes nothing: a closed row replaces an open or a lost one and nothing else,
so a batch, the spill file or a crashed run may be replayed.
"""

from collections.abc import Mapping, Sequence
from operator import attrgetter, itemgetter
from typing import Any

from sqlalchemy import Connection, literal_column, or_
from sqlalchemy.dialects import postgresql, sqlite
from sqlalchemy.dialects.postgresql.psycopg import PGDialect_psycopg
from sqlalchemy.dialects.sqlite.pysqlite import SQLiteDialect_pysqlite
from sqlalchemy.exc import DataError, IntegrityError, OperationalError, StatementError

from gateway.ledger.row import COLUMNS, HEAD_COLUMNS, Row
from gateway.store.tables import ledger

NEW_LINE = "\n"  # PostgreSQL quotes the row on the lines after the first
REASON_CHARS = 200

# As the compiled statements name them: in the order of the table.
_HEAD = tuple(name for name in COLUMNS if name in (*HEAD_COLUMNS, "billed"))
_row_values = attrgetter(*COLUMNS)
_head_values = itemgetter(*_HEAD)


class Inserts:
    """SQL text for one kind of database, compiled once: the driver gets it with plain tuples."""

    def __init__(self, dialect_name: str) -> None:
        dialect: Any
        insert: Any
        if dialect_name == "postgresql":
            dialect = PGDialect_psycopg(paramstyle="format")  # type: ignore[no-untyped-call]
            insert = postgresql.insert(ledger)
        else:
            dialect = SQLiteDialect_pysqlite(paramstyle="qmark")
            insert = sqlite.insert(ledger)
        row = insert.on_conflict_do_update(
            index_elements=["request_id"],
            set_={name: insert.excluded[name] for name in COLUMNS if name != "request_id"},
            where=or_(ledger.c.outcome.is_(None), ledger.c.outcome == literal_column("'lost'")),
        )
        head = insert.on_conflict_do_nothing(index_elements=["request_id"])
        self._row = str(row.compile(dialect=dialect, column_keys=list(COLUMNS)))
        self._head = str(head.compile(dialect=dialect, column_keys=list(_HEAD)))

    def write_rows(self, connection: Connection, rows: Sequence[Row]) -> None:
        """Writes closed rows. Raises: sqlalchemy.exc.DBAPIError."""
        connection.exec_driver_sql(self._row, [_row_values(row) for row in rows])

    def write_heads(self, connection: Connection, heads: Sequence[Mapping[str, Any]]) -> None:
        """Writes open rows of requests that are not there yet."""
        connection.exec_driver_sql(self._head, [_head_values(head) for head in heads])


def mark_lost(connection: Connection) -> int:
    """Closes every open row as lost; how many there were. Their own close still replaces them."""
    found = connection.execute(
        ledger.update().where(ledger.c.outcome.is_(None)).values(outcome="lost")
    )
    return found.rowcount


def is_rows_fault(fault: Exception) -> bool:
    """Whether the rows are to blame and not the database: trying again would change nothing."""
    if isinstance(fault, StatementError):
        return isinstance(fault, (DataError, IntegrityError))
    return isinstance(fault, (ValueError, TypeError, OverflowError))


def reason_of(fault: Exception) -> str:
    """A fault in a few words for the log. Only what names no value of a row."""
    name = type(fault).__name__
    if isinstance(fault, (OperationalError, IntegrityError)):
        return f"{name}: {str(fault.orig).partition(NEW_LINE)[0][:REASON_CHARS]}"
    return name
