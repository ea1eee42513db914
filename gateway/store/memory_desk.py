"""Memory notes as an operator sees them: all of them, by number. Knows no request and no prompt."""

from dataclasses import dataclass

from sqlalchemy import Engine, select

from gateway.store.notebook_tables import memory_notes

NOTES_LISTED = 10_000

_note = memory_notes.c


@dataclass(frozen=True, slots=True)
class KeptNote:
    """A note with everything that is known of it. Times in epoch ms."""

    id: int
    key_id: str
    project: str
    kind: str
    text: str
    session_hash: str
    created_ms: int
    last_used_ms: int
    uses: int
    superseded_by: int | None
    pinned: int


_COLUMNS = [_note[name] for name in KeptNote.__slots__]
_IS_THERE = _note.deleted_ms.is_(None)


def list_notes(
    engine: Engine, key: str | None = None, project: str | None = None
) -> list[KeptNote]:
    """The notes, of one key and one project where they are given; the newest last."""
    query = select(*_COLUMNS).where(_IS_THERE).order_by(_note.id).limit(NOTES_LISTED)
    if key is not None:
        query = query.where(_note.key_id == key)
    if project is not None:
        query = query.where(_note.project == project)
    with engine.connect() as connection:
        return [KeptNote(*row) for row in connection.execute(query)]


def find_note(engine: Engine, number: int) -> KeptNote | None:
    """One note."""
    with engine.connect() as connection:
        query = select(*_COLUMNS).where(_IS_THERE, _note.id == number)
        row = connection.execute(query).one_or_none()
    return None if row is None else KeptNote(*row)


def delete_note(engine: Engine, number: int, now_ms: int) -> bool:
    """Takes a note's text away and keeps the fact from coming back; whether there was one."""
    change = memory_notes.update().where(_IS_THERE, _note.id == number)
    with engine.begin() as connection:
        done = connection.execute(change.values(text="", pinned=0, deleted_ms=now_ms))
    return done.rowcount > 0


def pin_note(engine: Engine, number: int, *, is_pinned: bool) -> bool:
    """Pins a note or lets it go; whether there was one."""
    change = memory_notes.update().where(_IS_THERE, _note.id == number)
    with engine.begin() as connection:
        done = connection.execute(change.values(pinned=int(is_pinned)))
    return done.rowcount > 0
