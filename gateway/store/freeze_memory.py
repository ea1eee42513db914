"""Compiles the statements about memory notes that requests need, and freezes them as text.

`python -m gateway.store.freeze_memory` writes `memory_statements.py` anew after a change of the
table; a test says when that is due. Serves no request.
"""

from pathlib import Path
from typing import Any

from sqlalchemy import ColumnElement, bindparam, literal_column, null, select

from gateway.store.connection import MemoryStatements
from gateway.store.freeze import insert_into, module_of, texts_of
from gateway.store.notebook_tables import memory_notes

EVERY = 1_000_000  # rows: SQLite skips some only where it is told how many it may take

TARGET = Path(__file__).with_name("memory_statements.py")
PREFACE = '''\
"""The statements about memory notes, one text for each. Knows no driver.

Made by `gateway.store.freeze_memory` from the table: never edited.
"""

from gateway.store.connection import MemoryStatements

# fmt: off
'''

ADDED = (
    "key_id", "project", "kind", "text", "fact_hash", "session_hash", "created_ms", "last_used_ms",
)  # fmt: skip
FOUND = ("id", "kind", "text", "created_ms", "uses", "pinned")

_note = memory_notes.c
_NO: ColumnElement[int] = literal_column("0")
_ONE: ColumnElement[int] = literal_column("1")
_SCOPE = (_note.key_id == bindparam("key_id"), _note.project == bindparam("project"))
_IS_THERE = _note.deleted_ms.is_(None)
_IS_FREE = literal_column("memory_notes.pinned") == _NO
_LATEST_USED = (_note.last_used_ms.desc(), _note.id.desc())


def compiled(dialect_name: str) -> MemoryStatements:
    """The statements of one kind of database."""
    return MemoryStatements(**texts_of(dialect_name, _queries(dialect_name)))


def render() -> str:
    """The module `memory_statements` as it should be."""
    return module_of(PREFACE, compiled, {})


def _queries(dialect_name: str) -> dict[str, tuple[Any, tuple[str, ...]]]:
    """Each statement with the names of its parameters in order."""
    return {
        "add": (_adding(dialect_name), ADDED),
        "find": (
            select(_note.id).where(*_SCOPE, _note.fact_hash == bindparam("fact_hash"), _IS_THERE),
            ("key_id", "project", "fact_hash"),
        ),
        "replace": (
            memory_notes.update()
            .values(superseded_by=bindparam("by"))
            .where(*_SCOPE, _note.id == bindparam("old"), _IS_THERE, _IS_FREE),
            ("by", "key_id", "project", "old"),
        ),
        "search": (
            select(*(_note[name] for name in FOUND))
            .where(*_SCOPE, _IS_THERE, _note.superseded_by.is_(None))
            .order_by(_note.pinned.desc(), *_LATEST_USED)
            .limit(bindparam("most"))
            .offset(_NO),
            ("key_id", "project", "most"),
        ),
        "use": (
            memory_notes.update()
            .values(uses=_note.uses + _ONE, last_used_ms=bindparam("now_ms"))
            .where(*_SCOPE, _note.id == bindparam("which")),
            ("now_ms", "key_id", "project", "which"),
        ),
        "expire": (
            memory_notes.delete().where(_note.deleted_ms < bindparam("before_ms")),
            ("before_ms",),
        ),
        "trim": (_trimming(), ("key_id", "project", "kept")),
    }


def _adding(dialect_name: str) -> Any:
    """A fact that is there stays as it is; one that was superseded holds again; one that was
    deleted is not added as long as its row is kept."""
    values: dict[str, ColumnElement[Any]] = {name: bindparam(name) for name in ADDED}
    insert = insert_into(dialect_name, memory_notes).values(values | {"uses": _NO, "pinned": _NO})
    return insert.on_conflict_do_update(
        index_elements=["key_id", "project", "fact_hash"],
        set_={"superseded_by": null(), "last_used_ms": insert.excluded.last_used_ms},
        where=_IS_THERE,
    )


def _trimming() -> Any:
    """Those that were used least lately."""
    too_many = (
        select(_note.id)
        .where(*_SCOPE, _IS_THERE, _IS_FREE)
        .order_by(*_LATEST_USED)
        .limit(literal_column(str(EVERY)))
        .offset(bindparam("kept"))
    )
    return memory_notes.delete().where(_note.id.in_(too_many))


if __name__ == "__main__":
    TARGET.write_text(render())
