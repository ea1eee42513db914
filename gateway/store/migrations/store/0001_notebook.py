"""The tables of conversations and notes. A migration: never changed once it was released."""

import sqlalchemy as sa
from alembic import op

revision = "0001"
down_revision = None
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Builds both tables."""
    _create("notebook_sessions", _SESSIONS, _SESSIONS_NULL)
    _create("notebook_notes", _NOTES, _NOTES_NULL)
    op.create_index("notebook_sessions_used_ms", "notebook_sessions", ["used_ms"])
    op.create_index("notebook_notes_used_ms", "notebook_notes", ["used_ms"])
    op.create_index("notebook_notes_chain", "notebook_notes", ["scope", "chain"])
    op.create_index("notebook_notes_message", "notebook_notes", ["scope", "message"])


def downgrade() -> None:
    """Takes both tables away."""
    op.drop_table("notebook_notes")
    op.drop_table("notebook_sessions")


def _create(name: str, columns: tuple[tuple[str, type], ...], nullable: frozenset[str]) -> None:
    op.create_table(
        name,
        sa.Column("id", sa.BigInteger().with_variant(sa.Integer, "sqlite"), primary_key=True),
        *(sa.Column(column, kind, nullable=column in nullable) for column, kind in columns),
        _UNIQUE[name],
    )


_UNIQUE = {
    "notebook_sessions": sa.UniqueConstraint(
        "scope", "session_key", "opening", name="notebook_sessions_one"
    ),
    "notebook_notes": sa.UniqueConstraint("place", name="notebook_notes_place"),
}
_SESSIONS_NULL = frozenset({"task_class"})
_SESSIONS = (
    ("scope", sa.Text),
    ("session_key", sa.Text),
    ("opening", sa.Text),
    ("chain", sa.Text),
    ("profile", sa.Text),
    ("task_class", sa.Text),
    ("packages", sa.Text),
    ("memories", sa.Text),
    ("sent_lines", sa.Text),
    ("turns", sa.Integer),
    ("config_rev", sa.Text),
    ("created_ms", sa.BigInteger),
    ("used_ms", sa.BigInteger),
    ("size_bytes", sa.Integer),
)
_NOTES_NULL = frozenset({"part", "char_offset", "part_hash", "ids", "tokenizer_hash", "task_class"})
_NOTES = (
    ("place", sa.Text),
    ("scope", sa.Text),
    ("session_key", sa.Text),
    ("chain", sa.Text),
    ("message", sa.Text),
    ("role", sa.Text),
    ("ordinal", sa.Integer),
    ("kind", sa.Text),
    ("part", sa.Integer),
    ("char_offset", sa.Integer),
    ("part_hash", sa.Text),
    ("note_text", sa.Text),
    ("ids", sa.Text),
    ("tokenizer_hash", sa.Text),
    ("task_class", sa.Text),
    ("version", sa.SmallInteger),
    ("created_ms", sa.BigInteger),
    ("used_ms", sa.BigInteger),
    ("size_bytes", sa.Integer),
)
