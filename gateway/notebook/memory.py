"""A notebook in the memory of one process, gone with it. Knows no database."""

from collections.abc import Sequence
from dataclasses import replace

from conductor.types import NoteRecord, Session
from gateway.notebook.keeping import FOUND_NOTES, FOUND_SESSIONS, Keeping
from gateway.notebook.rows import place_of, row_of_note, row_of_session

ROOM = 0.9  # of the limit, once it was reached: not every row looks for the oldest

_SessionName = tuple[str, str, str]  # scope, key, opening


class MemoryNotebook:
    """Keeps the same as a database does, and never more than its limit."""

    def __init__(self, keeping: Keeping) -> None:
        self.sessions = _Sessions(self)
        self.notes = _Notes(self)
        self.session_rows: dict[_SessionName, Session] = {}
        self.note_rows: dict[str, NoteRecord] = {}
        self._keeping = keeping
        self._sizes: dict[_SessionName | str, int] = {}
        self._size_bytes = 0

    async def prune(self, now_ms: int) -> int:
        """Deletes what is too old or too much; how many rows that were."""
        return self._delete(self._keeping.expired_ms(now_ms), self._keeping.max_bytes)

    def start(self) -> None:
        """Nothing to begin."""

    def close(self, wait_s: float) -> None:
        """Forgets everything."""
        self.session_rows.clear()
        self.note_rows.clear()

    def put(self, name: _SessionName | str, size_bytes: int) -> None:
        """Counts a row that was stored; makes room when there is none."""
        self._size_bytes += size_bytes - self._sizes.get(name, 0)
        self._sizes[name] = size_bytes
        if self._size_bytes > self._keeping.max_bytes:
            self._delete(-1, int(self._keeping.max_bytes * ROOM))

    def _delete(self, last_ms: int, max_bytes: int) -> int:
        rows: list[tuple[int, _SessionName | str]] = []
        rows += [(session.used_ms, name) for name, session in self.session_rows.items()]
        rows += [(record.used_ms, place) for place, record in self.note_rows.items()]
        count = 0
        for used_ms, name in sorted(rows, key=lambda row: row[0]):
            if used_ms > last_ms and self._size_bytes <= max_bytes:
                break
            if isinstance(name, str):
                del self.note_rows[name]
            else:
                del self.session_rows[name]
            self._size_bytes -= self._sizes.pop(name)
            count += 1
        return count


class _Sessions:
    def __init__(self, notebook: MemoryNotebook) -> None:
        self._notebook = notebook

    async def find(self, scope: str, key: str) -> Sequence[Session]:
        """Those stored under a key, last used first: one for each opening."""
        rows = self._notebook.session_rows.values()
        found = [session for session in rows if (session.scope, session.key) == (scope, key)]
        found.sort(key=lambda session: session.used_ms, reverse=True)
        return found[:FOUND_SESSIONS]

    async def save(self, session: Session) -> None:
        """Stores one, in place of that with the same scope, key and opening."""
        name = (session.scope, session.key, session.opening)
        before = self._notebook.session_rows.get(name)
        if before is not None:
            session = replace(session, created_ms=before.created_ms)
        self._notebook.session_rows[name] = session
        self._notebook.put(name, row_of_session(session)[-1])


class _Notes:
    def __init__(self, notebook: MemoryNotebook) -> None:
        self._notebook = notebook

    async def find(
        self, scope: str, chains: Sequence[str], messages: Sequence[str]
    ) -> Sequence[NoteRecord]:
        """Records of a scope at any of these chain hashes, or of any of these message hashes."""
        wanted, alike = set(chains), set(messages)
        found = [
            record
            for record in self._notebook.note_rows.values()
            if record.scope == scope and (record.chain in wanted or record.message in alike)
        ]
        found.sort(key=lambda record: record.created_ms, reverse=True)
        return found[:FOUND_NOTES]

    async def save(self, records: Sequence[NoteRecord]) -> None:
        """Stores records; one at the same chain and place is replaced only by equal text."""
        for record in records:
            place = place_of(record)
            before = self._notebook.note_rows.get(place)
            if before is not None:
                if before.text != record.text:
                    continue
                has_ids = record.ids is not None
                record = replace(
                    before,
                    ids=record.ids if has_ids else before.ids,
                    tokenizer_hash=record.tokenizer_hash or before.tokenizer_hash,
                    used_ms=record.used_ms,
                )
            self._notebook.note_rows[place] = record
            self._notebook.put(place, row_of_note(record)[-1])
