"""Compiles the statements that gateways write with, and freezes them as text. Serves no request.

`python -m gateway.store.freeze` writes `statements.py` anew after a change of the tables; a test
says when that is due. So nothing at run time builds SQL, and writing needs no SQLAlchemy.
"""

from collections.abc import Callable, Mapping
from dataclasses import fields
from pathlib import Path
from textwrap import wrap
from typing import Any

from sqlalchemy import Column, MetaData, Table, Text, bindparam, func, literal_column, or_, select
from sqlalchemy.dialects import postgresql, sqlite
from sqlalchemy.dialects.postgresql.psycopg import PGDialect_psycopg
from sqlalchemy.dialects.sqlite.pysqlite import SQLiteDialect_pysqlite

from gateway.store.connection import Statements
from gateway.store.tables import VERSION_TABLE, ledger, ledger_meta

ROW = tuple(column.name for column in ledger.columns if column.name != "id")
# What a relayed request does not know: no NULL is bound for these, which takes longer than a value.
RARE = frozenset({
    "parent_request_id", "run_id", "conversation_id", "idem_hash", "profile", "task_class",
    "class_source", "side_kind", "note_tokens", "hidden_tokens", "queue_ms", "prompt_ms",
    "classify_ms", "prefill_tps", "blocks", "draft_tokens", "draft_accepted", "cache_source",
    "thinking", "thinking_closed_by", "monitor_acts", "monitor_shadows", "sandbox_cpu_ms",
    "degraded", "memory_used",
})  # fmt: skip
BRIEF = tuple(name for name in ROW if name not in RARE)
# What is known of a request at its admission.
ADMITTED = frozenset({
    "ts_ms", "request_id", "parent_request_id", "run_id", "conversation_id", "kind", "attempt",
    "body_hash", "idem_hash", "client_id", "user_id", "client_kind", "surface", "path", "stream",
    "model", "backend", "upstream_key", "upstream_model", "profile", "config_rev", "session_hash",
    "max_tokens", "billed", "version", "code_sha",
})  # fmt: skip
HEAD = tuple(name for name in ROW if name in ADMITTED)

TARGET = Path(__file__).with_name("statements.py")
LINE_CHARS = 88  # of a string in it
PREFACE = '''\
"""The statements that gateways write with, one text for each. Knows no driver.

Made by `gateway.store.freeze` from the tables: never edited. `ROW`, `BRIEF` and `HEAD` name the
parameters of the rows' statements in their order.
"""

from gateway.store.connection import Statements

# fmt: off
'''

_sqlite_master = Table("sqlite_master", MetaData(), Column("name", Text))


def compiled(dialect_name: str) -> Statements:
    """The statements of one kind of database, as SQLAlchemy compiles them."""
    made: dict[str, tuple[Any, tuple[str, ...]]] = {
        "write_row": (_closing(dialect_name), ROW),
        "write_brief_row": (_closing(dialect_name), BRIEF),
        "write_head": (
            insert_into(dialect_name, ledger).on_conflict_do_nothing(index_elements=["request_id"]),
            HEAD,
        ),
        "mark_lost": (
            ledger.update().where(ledger.c.outcome.is_(None)).values(outcome=literal("lost")),
            (),
        ),
        "prune": (_pruning(), ("oldest_ms", "most")),
        "read_spend": (_spending(), ("client_id", "currency", "since_ms")),
        "read_meta": (
            select(ledger_meta.c.value).where(ledger_meta.c.key == bindparam("key")),
            ("key",),
        ),
        "write_meta": (_meta(dialect_name), ("key", "value")),
        "find_version": (finding(dialect_name, VERSION_TABLE), ()),
        "read_version": (reading(VERSION_TABLE), ()),
    }
    return Statements(**texts_of(dialect_name, made))


def render() -> str:
    """The module `statements` as it should be."""
    return module_of(PREFACE, compiled, {"ROW": ROW, "BRIEF": BRIEF, "HEAD": HEAD})


def _closing(dialect_name: str) -> Any:
    """A closed row replaces an open or a lost one and nothing else: it may be written twice."""
    insert = insert_into(dialect_name, ledger)
    return insert.on_conflict_do_update(
        index_elements=["request_id"],
        set_={name: insert.excluded[name] for name in ROW if name != "request_id"},
        where=or_(ledger.c.outcome.is_(None), ledger.c.outcome == literal("lost")),
    )


def _pruning() -> Any:
    old = select(ledger.c.id).where(ledger.c.ts_ms < bindparam("oldest_ms"))
    old = old.limit(bindparam("most")).offset(literal_column("0"))
    return ledger.delete().where(ledger.c.id.in_(old))


def _spending() -> Any:
    """In the words of the index `ledger_spend`, or it would not be used."""
    spent = select(func.coalesce(func.sum(ledger.c.cost_micros), literal_column("0")))
    return spent.where(
        ledger.c.client_id == bindparam("client_id"),
        ledger.c.currency == bindparam("currency"),
        ledger.c.ts_ms >= bindparam("since_ms"),
        literal_column("ledger.billed") == literal_column("1"),
        literal_column("ledger.cost_micros") > literal_column("0"),
    )


def _meta(dialect_name: str) -> Any:
    insert = insert_into(dialect_name, ledger_meta)
    return insert.on_conflict_do_update(
        index_elements=["key"], set_={"value": insert.excluded.value}
    )


def finding(dialect_name: str, version_table: str) -> Any:
    """Gives one row with the table's name, or with NULL, or no row."""
    if dialect_name == "postgresql":
        return select(func.to_regclass(literal(version_table)))
    name = _sqlite_master.c.name
    return select(name).where(name == literal(version_table))


def reading(version_table: str) -> Any:
    """Gives the version that Alembic noted."""
    return select(Table(version_table, MetaData(), Column("version_num", Text)).c.version_num)


def insert_into(dialect_name: str, table: Table) -> Any:
    """An insert of that kind of database."""
    dialect: Any = postgresql if dialect_name == "postgresql" else sqlite
    return dialect.insert(table).inline()  # nobody asks for the number of the row


def literal(text: str) -> Any:
    """A string that stands in the statement itself."""
    return literal_column(f"'{text}'")


def texts_of(dialect_name: str, made: Mapping[str, tuple[Any, tuple[str, ...]]]) -> dict[str, str]:
    """Statements as texts, each from what made it and the names of its parameters in order."""
    return {name: _text_of(dialect_name, *statement) for name, statement in made.items()}


def module_of(
    preface: str, compiled: Callable[[str], Any], columns: Mapping[str, tuple[str, ...]]
) -> str:
    """A module of frozen statements: names of `columns`, and what each dialect is `compiled` to."""
    lines = [preface]
    for name, listed in columns.items():
        names = " ".join(f'"{column}",' for column in listed)
        lines.append(
            f"{name} = (\n" + "".join(f"    {line}\n" for line in _lines_of(names)) + ")\n"
        )
    for name, dialect_name in (("SQLITE", "sqlite"), ("POSTGRESQL", "postgresql")):
        texts = compiled(dialect_name)
        lines.append(f"\n{name} = {type(texts).__name__}(\n")
        for field in fields(texts):
            lines.append(f"    {field.name}={_string(getattr(texts, field.name))},\n")
        lines.append(")\n")
    return "".join(lines)


def _text_of(dialect_name: str, statement: Any, names: tuple[str, ...]) -> str:
    dialect: Any
    if dialect_name == "postgresql":
        dialect = PGDialect_psycopg(paramstyle="format")  # type: ignore[no-untyped-call]
    else:
        dialect = SQLiteDialect_pysqlite(paramstyle="qmark")
    columns = list(names) if statement.is_insert else None  # elsewhere they are conditions too
    result = statement.compile(dialect=dialect, column_keys=columns)
    assert tuple(result.positiontup) == names
    return " ".join(str(result).split())


def _string(text: str) -> str:
    """A string as the source of a keyword's value, over as many lines as it takes."""
    *pieces, last = _lines_of(text)
    spaced = [f"{piece} " for piece in pieces] + [last]
    return "(\n" + "".join(f"        {_quoted(piece)}\n" for piece in spaced) + "    )"


def _lines_of(text: str) -> list[str]:
    return wrap(text, LINE_CHARS, break_on_hyphens=False, break_long_words=False)


def _quoted(text: str) -> str:
    return f"'{text}'" if '"' in text else f'"{text}"'


if __name__ == "__main__":
    TARGET.write_text(render())
