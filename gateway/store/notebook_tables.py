"""The tables of conversations and notes as SQLAlchemy Core metadata. Knows nobody who uses them.

The migrations build the same tables; a test compares the two on every database.
"""

from sqlalchemy import (
    BigInteger,
    Column,
    Index,
    Integer,
    MetaData,
    SmallInteger,
    Table,
    Text,
    UniqueConstraint,
)

metadata = MetaData()

# SQLite numbers rows by itself only in a column declared INTEGER.
_RowId = BigInteger().with_variant(Integer, "sqlite")

# Lists are kept as JSON: nobody asks for a row by what is in them.
sessions = Table(
    "notebook_sessions",
    metadata,
    Column("id", _RowId, primary_key=True),
    Column("scope", Text, nullable=False),
    Column("session_key", Text, nullable=False),
    Column("opening", Text, nullable=False),
    Column("chain", Text, nullable=False),
    Column("profile", Text, nullable=False),
    Column("task_class", Text),
    Column("packages", Text, nullable=False),
    Column("memories", Text, nullable=False),
    Column("sent_lines", Text, nullable=False),
    Column("turns", Integer, nullable=False),
    Column("config_rev", Text, nullable=False),
    Column("created_ms", BigInteger, nullable=False),
    Column("used_ms", BigInteger, nullable=False),
    Column("size_bytes", Integer, nullable=False),
    UniqueConstraint("scope", "session_key", "opening", name="notebook_sessions_one"),
    Index("notebook_sessions_used_ms", "used_ms"),
)

# `place`: hash of everything that says where a note stands. Some of that may be NULL, and to a
# unique constraint no two of those are equal.
notes = Table(
    "notebook_notes",
    metadata,
    Column("id", _RowId, primary_key=True),
    Column("place", Text, nullable=False),
    Column("scope", Text, nullable=False),
    Column("session_key", Text, nullable=False),
    Column("chain", Text, nullable=False),
    Column("message", Text, nullable=False),
    Column("role", Text, nullable=False),
    Column("ordinal", Integer, nullable=False),
    Column("kind", Text, nullable=False),
    Column("part", Integer),
    Column("char_offset", Integer),
    Column("part_hash", Text),
    Column("note_text", Text, nullable=False),
    Column("ids", Text),
    Column("tokenizer_hash", Text),
    Column("task_class", Text),
    Column("version", SmallInteger, nullable=False),
    Column("created_ms", BigInteger, nullable=False),
    Column("used_ms", BigInteger, nullable=False),
    Column("size_bytes", Integer, nullable=False),
    UniqueConstraint("place", name="notebook_notes_place"),
    Index("notebook_notes_chain", "scope", "chain"),
    Index("notebook_notes_message", "scope", "message"),
    Index("notebook_notes_used_ms", "used_ms"),
)

memory_notes = Table(
    "memory_notes",
    metadata,
    Column("id", _RowId, primary_key=True),
    Column("key_id", Text, nullable=False),
    Column("project", Text, nullable=False),  # empty: of none
    Column("kind", Text, nullable=False),
    Column("text", Text, nullable=False),  # empty once it was deleted
    Column("fact_hash", Text, nullable=False),
    Column("session_hash", Text, nullable=False),
    Column("created_ms", BigInteger, nullable=False),
    Column("last_used_ms", BigInteger, nullable=False),
    Column("uses", Integer, nullable=False),
    Column("superseded_by", BigInteger),
    Column("pinned", SmallInteger, nullable=False),
    Column("deleted_ms", BigInteger),  # the row stays for a while, so that the fact stays away
    UniqueConstraint("key_id", "project", "fact_hash", name="memory_notes_fact"),
)
