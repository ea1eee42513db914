"""A notebook in a database: SQLite, or PostgreSQL for several gateways. Knows no table by name."""

import json
from collections.abc import Sequence

from conductor.types import NoteRecord, Session
from gateway.notebook.desk import Desk
from gateway.notebook.keeping import FOUND_NOTES, FOUND_SESSIONS, Keeping
from gateway.notebook.rows import note_of, row_of_note, row_of_session, session_of
from gateway.store.connection import Cursor, NotebookStatements
from gateway.store.db import Database
from gateway.store.schema import notebook_statements_of

PRUNE_ROWS = 1_000  # in one transaction: requests have their turn between two of them
PRUNE_ROUNDS = 100  # at a time; the rest goes the next time


class StoredNotebook:
    """What was written is there after a restart, and for every gateway on the same database."""

    def __init__(self, database: Database, keeping: Keeping, desk: Desk | None = None) -> None:
        self._statements = notebook_statements_of(database)
        self._keeping = keeping
        self._desk = desk or Desk(database)
        self.sessions = _Sessions(self._desk, self._statements)
        self.notes = _Notes(self._desk, self._statements)

    async def prune(self, now_ms: int) -> int:
        """Deletes what is too old or too much; how many rows that were. Raises: PortFault."""
        count = 0
        for _ in range(PRUNE_ROUNDS):
            deleted = await self._desk.do(lambda cursor: self._delete(cursor, now_ms))
            count += deleted
            if not deleted:
                break
        return count

    def start(self) -> None:
        """Begins to make the tables, if they are not there."""
        self._desk.start()

    def close(self, wait_s: float) -> None:
        """Writes what waits, for about `wait_s` at most. Blocks: not for an event loop."""
        self._desk.close(wait_s)

    def _delete(self, cursor: Cursor, now_ms: int) -> int:
        last_ms = self._last_ms(cursor, now_ms)
        count = 0
        for statement in (self._statements.prune_notes, self._statements.prune_sessions):
            cursor.execute(statement, (last_ms, PRUNE_ROWS))
            count += cursor.rowcount
        return count

    def _last_ms(self, cursor: Cursor, now_ms: int) -> int:
        """What was last used then, or before, is to go now."""
        expired_ms = self._keeping.expired_ms(now_ms)
        cursor.execute(self._statements.read_size)
        excess = cursor.fetchone()[0] - self._keeping.max_bytes
        if excess <= 0:
            return expired_ms
        cursor.execute(self._statements.read_oldest, (PRUNE_ROWS,))
        last_ms = expired_ms
        for used_ms, size_bytes in cursor.fetchall():
            last_ms = used_ms  # what is expired goes in the next round
            excess -= size_bytes
            if excess <= 0:
                break
        return last_ms


class _Sessions:
    def __init__(self, desk: Desk, statements: NotebookStatements) -> None:
        self._desk = desk
        self._statements = statements

    async def find(self, scope: str, key: str) -> Sequence[Session]:
        """Those stored under a key, last used first: one for each opening. Raises: PortFault."""

        def work(cursor: Cursor) -> list[Session]:
            cursor.execute(self._statements.find_sessions, (scope, key, FOUND_SESSIONS))
            return [session_of(row) for row in cursor.fetchall()]

        return await self._desk.do(work)

    async def save(self, session: Session) -> None:
        """Stores one, in place of that with the same scope, key and opening. Raises: PortFault."""
        row = row_of_session(session)
        await self._desk.do(lambda cursor: cursor.execute(self._statements.save_session, row))


class _Notes:
    def __init__(self, desk: Desk, statements: NotebookStatements) -> None:
        self._desk = desk
        self._statements = statements

    async def find(
        self, scope: str, chains: Sequence[str], messages: Sequence[str]
    ) -> Sequence[NoteRecord]:
        """Records of a scope at any of these chain hashes, or of any of these message hashes.

        Raises: PortFault.
        """
        lists = json.dumps([*dict.fromkeys(chains)]), json.dumps([*dict.fromkeys(messages)])
        values = (scope, lists[0], scope, lists[1], FOUND_NOTES)

        def work(cursor: Cursor) -> list[NoteRecord]:
            cursor.execute(self._statements.find_notes, values)
            return [note_of(row) for row in cursor.fetchall()]

        return await self._desk.do(work)

    async def save(self, records: Sequence[NoteRecord]) -> None:
        """Stores records; one at the same chain and place is replaced only by equal text.

        Raises: PortFault.
        """
        rows = [row_of_note(record) for record in records]
        if rows:
            await self._desk.do(lambda cursor: cursor.executemany(self._statements.save_note, rows))
