"""The table of memory notes. A migration: never changed once released."""

import sqlalchemy as sa
from alembic import op

revision = "0002"
down_revision = "0001"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Builds the table."""
    op.create_table(
        "memory_notes",
        sa.Column("id", sa.BigInteger().with_variant(sa.Integer, "sqlite"), primary_key=True),
        sa.Column("key_id", sa.Text, nullable=False),
        sa.Column("project", sa.Text, nullable=False),
        sa.Column("kind", sa.Text, nullable=False),
        sa.Column("text", sa.Text, nullable=False),
        sa.Column("fact_hash", sa.Text, nullable=False),
        sa.Column("session_hash", sa.Text, nullable=False),
        sa.Column("created_ms", sa.BigInteger, nullable=False),
        sa.Column("last_used_ms", sa.BigInteger, nullable=False),
        sa.Column("uses", sa.Integer, nullable=False),
        sa.Column("superseded_by", sa.BigInteger),
        sa.Column("pinned", sa.SmallInteger, nullable=False),
        sa.Column("deleted_ms", sa.BigInteger),
        sa.UniqueConstraint("key_id", "project", "fact_hash", name="memory_notes_fact"),
    )


def downgrade() -> None:
    """Takes it away."""
    op.drop_table("memory_notes")
