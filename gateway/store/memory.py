"""Memory notes in the database: found, added, counted. Knows no prompt and no refusal.

`MemoryTable` blocks, and one thread at a time uses it; `MemoryStore` is it for an event loop.
"""

import asyncio
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

from conductor.memory.notes import (
    DAY_MS,
    MemoryEntry,
    MemoryNote,
    MemoryScope,
    fact_hash,
    ranked,
)
from conductor.ports import PortFault
from gateway.store import memory_statements
from gateway.store.connection import Cursor, MemoryStatements, WriteConnection
from gateway.store.db import Database

NOTES_OF_SCOPE = 500  # beside pinned ones; those used least lately go
BLOCK_MS = 90 * DAY_MS  # for so long a deleted fact is not added again
SEARCH_S = 0.5  # a request waits for its notes no longer
WRITE_S = 30.0  # nobody waits for these

T = TypeVar("T")


class MemoryTable:
    """The table, over a connection of its own. Raises: what the driver says."""

    def __init__(self, writer: WriteConnection, statements: MemoryStatements) -> None:
        self._writer = writer
        self._sql = statements

    @classmethod
    def of(cls, database: Database) -> "MemoryTable":
        """The table in a database, which others use too."""
        is_file = database.path is not None
        statements = memory_statements.SQLITE if is_file else memory_statements.POSTGRESQL
        return cls(database.writer.another(), statements)

    def search(
        self, scope: MemoryScope, words: Sequence[str], limit: int
    ) -> tuple[MemoryNote, ...]:
        """The notes in force of a scope that serve best where these words are said, best first."""
        with self._writer.transaction() as cursor:
            cursor.execute(self._sql.search, (scope.key, scope.project, NOTES_OF_SCOPE))
            rows = cursor.fetchall()
        notes = [
            MemoryNote(int(number), kind, text, int(created_ms), int(uses), bool(pinned))
            for number, kind, text, created_ms, uses, pinned in rows
        ]
        return tuple(ranked(notes, words)[:limit])

    def add(self, entries: Sequence[MemoryEntry]) -> None:
        """Adds notes, none that is there, and none that was deleted in the last 90 days."""
        with self._writer.transaction() as cursor:
            for entry in entries:
                self._add(cursor, entry)
            for scope in dict.fromkeys(entry.scope for entry in entries):
                cursor.execute(self._sql.trim, (scope.key, scope.project, NOTES_OF_SCOPE))

    def note_used(self, scope: MemoryScope, ids: Sequence[int], now_ms: int) -> None:
        """Counts the notes that were placed in a prompt."""
        with self._writer.transaction() as cursor:
            for number in ids:
                cursor.execute(self._sql.use, (now_ms, scope.key, scope.project, number))

    def close(self) -> None:
        """Lets go of the connection."""
        self._writer.close()

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


class MemoryStore:
    """The port `Memory`: a thread of its own does the work, and a request does not wait long."""

    def __init__(self, table: MemoryTable, search_s: float = SEARCH_S) -> None:
        self._table = table
        self._search_s = search_s
        self._thread = ThreadPoolExecutor(max_workers=1, thread_name_prefix="memory-notes")

    async def search(
        self, scope: MemoryScope, words: Sequence[str], limit: int
    ) -> Sequence[MemoryNote]:
        """The best notes. Raises: PortFault."""
        return await self._run(lambda: self._table.search(scope, words, limit), self._search_s)

    async def add(self, entries: Sequence[MemoryEntry]) -> None:
        """Keeps notes. Raises: PortFault."""
        if entries:
            await self._run(lambda: self._table.add(entries), WRITE_S)

    async def note_used(self, scope: MemoryScope, ids: Sequence[int], now_ms: int) -> None:
        """Counts notes as used. Raises: PortFault."""
        if ids:
            await self._run(lambda: self._table.note_used(scope, ids, now_ms), WRITE_S)

    def close(self) -> None:
        """Finishes what runs; what only waits is dropped."""
        self._thread.shutdown(cancel_futures=True)
        self._table.close()

    async def _run(self, work: Callable[[], T], timeout_s: float) -> T:
        loop = asyncio.get_running_loop()
        try:
            async with asyncio.timeout(timeout_s):
                return await loop.run_in_executor(self._thread, work)
        except TimeoutError as fault:
            raise PortFault("timeout") from fault
        except Exception as fault:
            raise PortFault("database") from fault
