"""The tables `ledger` and `ledger_meta`. A migration: never changed once it was released."""

import sqlalchemy as sa
from alembic import op

revision = "0001"
down_revision = None
branch_labels = None
depends_on = None

_UTC = "%Y-%m-%dT%H:%M:%SZ"
_UTC_POSTGRES = 'YYYY-MM-DD"T"HH24:MI:SS"Z"'


def upgrade() -> None:
    """Builds both tables."""
    _create_ledger()
    _create_indexes()
    meta = op.create_table(
        "ledger_meta",
        sa.Column("key", sa.Text, primary_key=True),
        sa.Column("value", sa.Text, nullable=False),
    )
    op.execute(meta.insert().values(key="schema_version", value=revision))
    op.execute(meta.insert().values(key="created_at", value=_now()))


def downgrade() -> None:
    """Takes both tables away."""
    op.drop_table("ledger_meta")
    op.drop_table("ledger")


def _now() -> sa.Function[str]:
    if op.get_bind().dialect.name == "postgresql":
        return sa.func.to_char(sa.func.timezone("UTC", sa.func.now()), _UTC_POSTGRES)
    return sa.func.strftime(_UTC, "now")


def _create_indexes() -> None:
    op.create_index("ledger_ts_ms", "ledger", ["ts_ms"])
    op.create_index("ledger_model_client_ts", "ledger", ["model", "client_id", "ts_ms"])
    op.create_index("ledger_parent", "ledger", ["parent_request_id"])
    op.create_index("ledger_body_hash", "ledger", ["body_hash"])
    billed = sa.text("kind = 'generation' AND billed = 1")
    op.create_index(
        "ledger_one_bill_a_run",
        "ledger",
        ["run_id"],
        unique=True,
        sqlite_where=billed,
        postgresql_where=billed,
    )


def _create_ledger() -> None:
    op.create_table(
        "ledger",
        sa.Column("id", sa.BigInteger().with_variant(sa.Integer, "sqlite"), primary_key=True),
        *(sa.Column(name, kind, nullable=name not in _NOT_NULL) for name, kind in _COLUMNS),
        sa.UniqueConstraint("request_id", name="ledger_request_id"),
    )


_NOT_NULL = frozenset({"ts_ms", "request_id", "kind", "attempt", "client_id", "billed"})
_COLUMNS = (
    ("ts_ms", sa.BigInteger),
    ("request_id", sa.Text),
    ("parent_request_id", sa.Text),
    ("run_id", sa.Text),
    ("conversation_id", sa.Text),
    ("kind", sa.Text),
    ("attempt", sa.SmallInteger),
    ("body_hash", sa.Text),
    ("idem_hash", sa.Text),
    ("client_id", sa.Text),
    ("user_id", sa.Text),
    ("client_kind", sa.Text),
    ("surface", sa.Text),
    ("path", sa.Text),
    ("stream", sa.SmallInteger),
    ("model", sa.Text),
    ("backend", sa.Text),
    ("upstream_key", sa.Text),
    ("upstream_model", sa.Text),
    ("served_model", sa.Text),
    ("profile", sa.Text),
    ("config_rev", sa.Text),
    ("task_class", sa.Text),
    ("class_source", sa.Text),
    ("side_kind", sa.Text),
    ("session_hash", sa.Text),
    ("status", sa.SmallInteger),
    ("upstream_status", sa.SmallInteger),
    ("outcome", sa.Text),
    ("finish_reason", sa.Text),
    ("error_type", sa.Text),
    ("prompt_tokens", sa.Integer),
    ("cached_tokens", sa.Integer),
    ("cache_write_tokens", sa.Integer),
    ("completion_tokens", sa.Integer),
    ("reasoning_tokens", sa.Integer),
    ("upstream_input_tokens", sa.Integer),
    ("upstream_cached_tokens", sa.Integer),
    ("upstream_cache_write_tokens", sa.Integer),
    ("upstream_output_tokens", sa.Integer),
    ("upstream_reasoning_tokens", sa.Integer),
    ("note_tokens", sa.Integer),
    ("hidden_tokens", sa.Integer),
    ("usage_source", sa.Text),
    ("adjusted", sa.SmallInteger),
    ("tool_calls", sa.Integer),
    ("max_tokens", sa.Integer),
    ("queue_ms", sa.Integer),
    ("prompt_ms", sa.Integer),
    ("ttft_ms", sa.Integer),
    ("decode_ms", sa.Integer),
    ("total_ms", sa.Integer),
    ("classify_ms", sa.Integer),
    ("decode_tps", sa.Double),
    ("prefill_tps", sa.Double),
    ("blocks", sa.Integer),
    ("draft_tokens", sa.Integer),
    ("draft_accepted", sa.Integer),
    ("cache_source", sa.Text),
    ("thinking", sa.SmallInteger),
    ("thinking_closed_by", sa.Text),
    ("monitor_acts", sa.Integer),
    ("monitor_shadows", sa.Integer),
    ("sandbox_cpu_ms", sa.Integer),
    ("degraded", sa.Text),
    ("memory_used", sa.Text),
    ("currency", sa.CHAR(3)),
    ("cost_micros", sa.BigInteger),
    ("cost_source", sa.Text),
    ("price_id", sa.Text),
    ("price_input", sa.BigInteger),
    ("price_cached", sa.BigInteger),
    ("price_cache_write", sa.BigInteger),
    ("price_output", sa.BigInteger),
    ("price_reasoning", sa.BigInteger),
    ("price_request", sa.BigInteger),
    ("billed", sa.SmallInteger),
    ("version", sa.Text),
    ("code_sha", sa.Text),
)
