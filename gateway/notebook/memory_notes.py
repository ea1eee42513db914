"""Memory notes in a database: found, added, counted. Knows no prompt and no refusal.

There is nothing to prune beside this: whoever adds makes the room.
"""

from collections.abc import Sequence

from conductor.memory.notes import (
    DAY_MS,
    MemoryEntry,
    MemoryNote,
    MemoryScope,
    fact_hash,
    ranked,
)
from gateway.notebook.desk import Desk
from gateway.store import memory_statements
from gateway.store.connection import Cursor
from gateway.store.db import Database

NOTES_OF_SCOPE = 500  # beside pinned ones; those used least lately go
BLOCK_MS = 90 * DAY_MS  # for so long a deleted fact is not added again
SEARCH_S = 0.5  # a request waits for its notes no longer
WRITE_S = 30.0  # nobody waits for these


class MemoryStore:
    """The port `Memory`, over the desk of the database: who made that starts and closes it."""

    def __init__(self, database: Database, desk: Desk, *, search_s: float = SEARCH_S) -> None:
        is_file = database.path is not None
        self._sql = memory_statements.SQLITE if is_file else memory_statements.POSTGRESQL
        self._desk = desk
        self._search_s = search_s

    async def search(
        self, scope: MemoryScope, words: Sequence[str], limit: int
    ) -> Sequence[MemoryNote]:
        """The notes in force of a scope that serve best where these words are said, best first.

        Raises: PortFault.
        """

        def work(cursor: Cursor) -> list[MemoryNote]:
            cursor.execute(self._sql.search, (scope.key, scope.project, NOTES_OF_SCOPE))
            notes = [
                MemoryNote(int(number), kind, text, int(created_ms), int(uses), bool(pinned))
                for number, kind, text, created_ms, uses, pinned in cursor.fetchall()
            ]
            return ranked(notes, words)[:limit]

        return await self._desk.do(work, self._search_s)

    async def add(self, entries: Sequence[MemoryEntry]) -> None:
        """Adds notes, none that is there, and none that was deleted in the last 90 days.

        Raises: PortFault.
        """

        def work(cursor: Cursor) -> None:
            for entry in entries:
                self._add(cursor, entry)
            for scope in dict.fromkeys(entry.scope for entry in entries):
                cursor.execute(self._sql.trim, (scope.key, scope.project, NOTES_OF_SCOPE))

        if entries:
            await self._desk.do(work, WRITE_S)

    async def note_used(self, scope: MemoryScope, ids: Sequence[int], now_ms: int) -> None:
        """Counts the notes that were placed in a prompt. Raises: PortFault."""
        rows = [(now_ms, scope.key, scope.project, number) for number in ids]
        if rows:
            await self._desk.do(lambda cursor: cursor.executemany(self._sql.use, rows), WRITE_S)

    def _add(self, cursor: Cursor, entry: MemoryEntry) -> None:
        scope, draft, now_ms = entry.scope, entry.draft, entry.created_ms
        fact = fact_hash(draft.text)
        cursor.execute(self._sql.expire, (now_ms - BLOCK_MS,))
        cursor.execute(
            self._sql.add,
            (
                scope.key, scope.project, draft.kind, draft.text, fact, entry.session, now_ms,
                now_ms,
            ),
        )  # fmt: skip
        cursor.execute(self._sql.find, (scope.key, scope.project, fact))
        found = cursor.fetchone()
        if draft.replaces is not None and found is not None and found[0] != draft.replaces:
            cursor.execute(self._sql.replace, (found[0], scope.key, scope.project, draft.replaces))
