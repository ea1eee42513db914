"""Compiles the statements of the notebook, and freezes them as text. Serves no request.

`python -m gateway.store.freeze_notebook` writes `notebook_statements.py` anew after a change of
the tables; a test says when that is due.
"""

from pathlib import Path
from typing import Any

from sqlalchemy import (
    JSON,
    Table,
    Text,
    bindparam,
    cast,
    func,
    literal_column,
    select,
    union,
    union_all,
)

from gateway.store.connection import NotebookStatements
from gateway.store.freeze import finding, insert_into, module_of, reading, texts_of
from gateway.store.notebook_tables import notes, sessions

VERSION_TABLE = "store_version"  # of Alembic
SESSION = tuple(column.name for column in sessions.columns if column.name != "id")
NOTE = tuple(column.name for column in notes.columns if column.name != "id")
FIRST_SEEN = frozenset({"scope", "session_key", "opening", "created_ms"})

TARGET = Path(__file__).with_name("notebook_statements.py")
PREFACE = '''\
"""The statements of the notebook, one text for each. Knows no driver.

Made by `gateway.store.freeze_notebook` from the tables: never edited. `SESSION` and `NOTE` name
the parameters of rows in their order; what is found has the same columns.
"""

from gateway.store.connection import NotebookStatements

# fmt: off
'''


def compiled(dialect_name: str) -> NotebookStatements:
    """The statements of one kind of database, as SQLAlchemy compiles them."""
    made: dict[str, tuple[Any, tuple[str, ...]]] = {
        "save_session": (_saving_session(dialect_name), SESSION),
        "find_sessions": (_finding_sessions(), ("scope", "session_key", "most")),
        "save_note": (_saving_note(dialect_name), NOTE),
        "find_notes": (
            _finding_notes(dialect_name), ("scope", "chains", "scope", "messages", "most")
        ),
        "read_size": (_size(), ()),
        "read_oldest": (_oldest(), ("most",)),
        "prune_sessions": (_pruning(sessions), ("last_ms", "most")),
        "prune_notes": (_pruning(notes), ("last_ms", "most")),
        "find_version": (finding(dialect_name, VERSION_TABLE), ()),
        "read_version": (reading(VERSION_TABLE), ()),
    }  # fmt: skip
    return NotebookStatements(**texts_of(dialect_name, made))


def render() -> str:
    """The module `notebook_statements` as it should be."""
    return module_of(PREFACE, compiled, {"SESSION": SESSION, "NOTE": NOTE})


def _saving_session(dialect_name: str) -> Any:
    insert = insert_into(dialect_name, sessions)
    return insert.on_conflict_do_update(
        index_elements=["scope", "session_key", "opening"],
        set_={name: insert.excluded[name] for name in SESSION if name not in FIRST_SEEN},
    )


def _saving_note(dialect_name: str) -> Any:
    """Another text at the same place is another gateway's: the first one stays."""
    insert = insert_into(dialect_name, notes)
    new = insert.excluded
    return insert.on_conflict_do_update(
        index_elements=["place"],
        set_={
            "ids": func.coalesce(new.ids, notes.c.ids),
            "tokenizer_hash": func.coalesce(new.tokenizer_hash, notes.c.tokenizer_hash),
            "used_ms": new.used_ms,
            "size_bytes": new.size_bytes,
        },
        where=notes.c.note_text == new.note_text,
    )


def _finding_sessions() -> Any:
    found = select(*(sessions.c[name] for name in SESSION)).where(
        sessions.c.scope == bindparam("scope"), sessions.c.session_key == bindparam("session_key")
    )
    return _limited(found.order_by(sessions.c.used_ms.desc(), sessions.c.id.desc()))


def _finding_notes(dialect_name: str) -> Any:
    """Each half by an index of its own; what both find comes once."""
    halves = [
        select(*(notes.c[name] for name in NOTE)).where(
            notes.c.scope == bindparam("scope"),
            notes.c[column].in_(_listed(dialect_name, parameter)),
        )
        for column, parameter in (("chain", "chains"), ("message", "messages"))
    ]
    return _limited(union(*halves).order_by(literal_column("created_ms").desc()))


def _listed(dialect_name: str, parameter: str) -> Any:
    """The strings of a parameter that is a JSON list."""
    value = bindparam(parameter, type_=Text())
    if dialect_name == "postgresql":
        rows = func.json_array_elements_text(cast(value, JSON)).table_valued("value")
    else:
        rows = func.json_each(value).table_valued("value")
    return select(rows.c.value)


def _size() -> Any:
    zero: Any = literal_column("0")
    sums = [
        select(func.coalesce(func.sum(table.c.size_bytes), zero)).scalar_subquery()
        for table in (sessions, notes)
    ]
    return select(sums[0] + sums[1])


def _oldest() -> Any:
    both = union_all(*(select(t.c.used_ms, t.c.size_bytes) for t in (sessions, notes)))
    return _limited(both.order_by(literal_column("used_ms")))


def _pruning(table: Table) -> Any:
    old = _limited(select(table.c.id).where(table.c.used_ms <= bindparam("last_ms")))
    return table.delete().where(table.c.id.in_(old))


def _limited(found: Any) -> Any:
    return found.limit(bindparam("most")).offset(literal_column("0"))


if __name__ == "__main__":
    TARGET.write_text(render())
