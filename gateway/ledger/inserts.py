"""Rows and heads into one transaction. Knows no queue, no file and no price.

Writing a row twice changes nothing: a closed row replaces an open or a lost one and nothing else,
so a batch, the spill file or a crashed run may be replayed.
"""

from collections.abc import Sequence

from gateway.ledger.row import Bound, is_brief
from gateway.store.connection import WriteConnection


def write(writer: WriteConnection, heads: Sequence[Bound], rows: Sequence[Bound]) -> None:
    """Writes open and closed rows, all of them or none. Raises: what the driver says."""
    statements = writer.statements
    brief = [row for row in rows if is_brief(row)]
    with writer.transaction() as cursor:
        if heads:
            cursor.executemany(statements.write_head, heads)
        if brief:
            cursor.executemany(statements.write_brief_row, brief)
        if len(brief) < len(rows):
            others = [row for row in rows if not is_brief(row)]
            cursor.executemany(statements.write_row, others)


def mark_lost(writer: WriteConnection) -> int:
    """Closes every open row as lost; how many there were. Their own close still replaces them."""
    with writer.transaction() as cursor:
        cursor.execute(writer.statements.mark_lost)
        return cursor.rowcount
