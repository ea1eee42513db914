"""Tables as SQLAlchemy Core metadata. Knows no engine and nobody who reads or writes them.

The migrations build the same tables; a test compares the two on every database.
"""

from sqlalchemy import (
    CHAR,
    BigInteger,
    Column,
    Double,
    Index,
    Integer,
    MetaData,
    SmallInteger,
    Table,
    Text,
    UniqueConstraint,
    text,
)

VERSION_TABLE = "ledger_version"  # of Alembic; another store in the same database keeps its own

metadata = MetaData()

# SQLite numbers rows by itself only in a column declared INTEGER.
_RowId = BigInteger().with_variant(Integer, "sqlite")

ledger = Table(
    "ledger",
    metadata,
    Column("id", _RowId, primary_key=True),
    Column("ts_ms", BigInteger, nullable=False),
    Column("request_id", Text, nullable=False),
    Column("parent_request_id", Text),
    Column("run_id", Text),
    Column("conversation_id", Text),
    Column("kind", Text, nullable=False),
    Column("attempt", SmallInteger, nullable=False),
    Column("body_hash", Text),
    Column("idem_hash", Text),
    Column("client_id", Text, nullable=False),
    Column("user_id", Text),
    Column("client_kind", Text),
    Column("surface", Text),
    Column("path", Text),
    Column("stream", SmallInteger),
    Column("model", Text),
    Column("backend", Text),
    Column("upstream_key", Text),
    Column("upstream_model", Text),
    Column("served_model", Text),
    Column("profile", Text),
    Column("config_rev", Text),
    Column("task_class", Text),
    Column("class_source", Text),
    Column("side_kind", Text),
    Column("session_hash", Text),
    Column("status", SmallInteger),
    Column("upstream_status", SmallInteger),
    Column("outcome", Text),
    Column("finish_reason", Text),
    Column("error_type", Text),
    Column("prompt_tokens", Integer),
    Column("cached_tokens", Integer),
    Column("cache_write_tokens", Integer),
    Column("completion_tokens", Integer),
    Column("reasoning_tokens", Integer),
    Column("upstream_input_tokens", Integer),
    Column("upstream_cached_tokens", Integer),
    Column("upstream_cache_write_tokens", Integer),
    Column("upstream_output_tokens", Integer),
    Column("upstream_reasoning_tokens", Integer),
    Column("note_tokens", Integer),
    Column("hidden_tokens", Integer),
    Column("usage_source", Text),
    Column("adjusted", SmallInteger),
    Column("tool_calls", Integer),
    Column("max_tokens", Integer),
    Column("queue_ms", Integer),
    Column("prompt_ms", Integer),
    Column("ttft_ms", Integer),
    Column("decode_ms", Integer),
    Column("total_ms", Integer),
    Column("classify_ms", Integer),
    Column("decode_tps", Double),
    Column("prefill_tps", Double),
    Column("blocks", Integer),
    Column("draft_tokens", Integer),
    Column("draft_accepted", Integer),
    Column("cache_source", Text),
    Column("thinking", SmallInteger),
    Column("thinking_closed_by", Text),
    Column("monitor_acts", Integer),
    Column("monitor_shadows", Integer),
    Column("sandbox_cpu_ms", Integer),
    Column("degraded", Text),
    Column("memory_used", Text),
    Column("currency", CHAR(3)),
    Column("cost_micros", BigInteger),
    Column("cost_source", Text),
    Column("price_id", Text),
    Column("price_input", BigInteger),
    Column("price_cached", BigInteger),
    Column("price_cache_write", BigInteger),
    Column("price_output", BigInteger),
    Column("price_reasoning", BigInteger),
    Column("price_request", BigInteger),
    Column("billed", SmallInteger, nullable=False),
    Column("version", Text),
    Column("code_sha", Text),
    UniqueConstraint("request_id", name="ledger_request_id"),
    Index("ledger_ts_ms", "ts_ms"),
    Index("ledger_model_client_ts", "model", "client_id", "ts_ms"),
    Index("ledger_parent", "parent_request_id"),
    Index("ledger_body_hash", "body_hash"),
)

_BILLED_GENERATION = text("kind = 'generation' AND billed = 1")

# A run is billed once, whatever the gateways do.
Index(
    "ledger_one_bill_a_run",
    ledger.c.run_id,
    unique=True,
    sqlite_where=_BILLED_GENERATION,
    postgresql_where=_BILLED_GENERATION,
)

_SPENT = text("billed = 1 AND cost_micros > 0")

# What a key spent since some moment is added up from this index alone. What is free is not in it.
Index(
    "ledger_spend",
    ledger.c.client_id,
    ledger.c.ts_ms,
    ledger.c.currency,
    ledger.c.billed,
    ledger.c.cost_micros,
    sqlite_where=_SPENT,
    postgresql_where=_SPENT,
)

ledger_meta = Table(
    "ledger_meta",
    metadata,
    Column("key", Text, primary_key=True),
    Column("value", Text, nullable=False),
)
