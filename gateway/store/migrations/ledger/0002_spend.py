"""The index that a key's spending is added up with. A migration: never changed once released."""

import sqlalchemy as sa
from alembic import op

revision = "0002"
down_revision = "0001"
branch_labels = None
depends_on = None

_META = sa.table("ledger_meta", sa.column("key"), sa.column("value"))


def upgrade() -> None:
    """Builds the index."""
    spent = sa.text("billed = 1 AND cost_micros > 0")
    op.create_index(
        "ledger_spend",
        "ledger",
        ["client_id", "ts_ms", "currency", "billed", "cost_micros"],
        sqlite_where=spent,
        postgresql_where=spent,
    )
    _note_version(revision)


def downgrade() -> None:
    """Takes it away."""
    op.drop_index("ledger_spend", "ledger")
    _note_version(down_revision)


def _note_version(version: str) -> None:
    op.execute(_META.update().where(_META.c.key == "schema_version").values(value=version))
