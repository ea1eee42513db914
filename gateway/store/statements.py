"""The statements that gateways write with, one text for each. Knows no driver.

Made by `gateway.store.freeze` from the tables: never edited. `ROW`, `BRIEF` and `HEAD` name the
parameters of the rows' statements in their order.
"""

from gateway.store.connection import Statements

# fmt: off
ROW = (
    "ts_ms", "request_id", "parent_request_id", "run_id", "conversation_id", "kind",
    "attempt", "body_hash", "idem_hash", "client_id", "user_id", "client_kind", "surface",
    "path", "stream", "model", "backend", "upstream_key", "upstream_model", "served_model",
    "profile", "config_rev", "task_class", "class_source", "side_kind", "session_hash",
    "status", "upstream_status", "outcome", "finish_reason", "error_type", "prompt_tokens",
    "cached_tokens", "cache_write_tokens", "completion_tokens", "reasoning_tokens",
    "upstream_input_tokens", "upstream_cached_tokens", "upstream_cache_write_tokens",
    "upstream_output_tokens", "upstream_reasoning_tokens", "note_tokens", "hidden_tokens",
    "usage_source", "adjusted", "tool_calls", "max_tokens", "queue_ms", "prompt_ms",
    "ttft_ms", "decode_ms", "total_ms", "classify_ms", "decode_tps", "prefill_tps",
    "blocks", "draft_tokens", "draft_accepted", "cache_source", "thinking",
    "thinking_closed_by", "monitor_acts", "monitor_shadows", "sandbox_cpu_ms", "degraded",
    "memory_used", "currency", "cost_micros", "cost_source", "price_id", "price_input",
    "price_cached", "price_cache_write", "price_output", "price_reasoning", "price_request",
    "billed", "version", "code_sha",
)
BRIEF = (
    "ts_ms", "request_id", "kind", "attempt", "body_hash", "client_id", "user_id",
    "client_kind", "surface", "path", "stream", "model", "backend", "upstream_key",
    "upstream_model", "served_model", "config_rev", "session_hash", "status",
    "upstream_status", "outcome", "finish_reason", "error_type", "prompt_tokens",
    "cached_tokens", "cache_write_tokens", "completion_tokens", "reasoning_tokens",
    "upstream_input_tokens", "upstream_cached_tokens", "upstream_cache_write_tokens",
    "upstream_output_tokens", "upstream_reasoning_tokens", "usage_source", "adjusted",
    "tool_calls", "max_tokens", "ttft_ms", "decode_ms", "total_ms", "decode_tps",
    "currency", "cost_micros", "cost_source", "price_id", "price_input", "price_cached",
    "price_cache_write", "price_output", "price_reasoning", "price_request", "billed",
    "version", "code_sha",
)
HEAD = (
    "ts_ms", "request_id", "parent_request_id", "run_id", "conversation_id", "kind",
    "attempt", "body_hash", "idem_hash", "client_id", "user_id", "client_kind", "surface",
    "path", "stream", "model", "backend", "upstream_key", "upstream_model", "profile",
    "config_rev", "session_hash", "max_tokens", "billed", "version", "code_sha",
)

SQLITE = Statements(
    write_row=(
        "INSERT INTO ledger (ts_ms, request_id, parent_request_id, run_id, conversation_id, kind, "
        "attempt, body_hash, idem_hash, client_id, user_id, client_kind, surface, path, stream, "
        "model, backend, upstream_key, upstream_model, served_model, profile, config_rev, "
        "task_class, class_source, side_kind, session_hash, status, upstream_status, outcome, "
        "finish_reason, error_type, prompt_tokens, cached_tokens, cache_write_tokens, "
        "completion_tokens, reasoning_tokens, upstream_input_tokens, upstream_cached_tokens, "
        "upstream_cache_write_tokens, upstream_output_tokens, upstream_reasoning_tokens, "
        "note_tokens, hidden_tokens, usage_source, adjusted, tool_calls, max_tokens, queue_ms, "
        "prompt_ms, ttft_ms, decode_ms, total_ms, classify_ms, decode_tps, prefill_tps, blocks, "
        "draft_tokens, draft_accepted, cache_source, thinking, thinking_closed_by, monitor_acts, "
        "monitor_shadows, sandbox_cpu_ms, degraded, memory_used, currency, cost_micros, "
        "cost_source, price_id, price_input, price_cached, price_cache_write, price_output, "
        "price_reasoning, price_request, billed, version, code_sha) VALUES (?, ?, ?, ?, ?, ?, ?, "
        "?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, "
        "?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, "
        "?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?) ON CONFLICT (request_id) DO UPDATE SET ts_ms = "
        "excluded.ts_ms, parent_request_id = excluded.parent_request_id, run_id = "
        "excluded.run_id, conversation_id = excluded.conversation_id, kind = excluded.kind, "
        "attempt = excluded.attempt, body_hash = excluded.body_hash, idem_hash = "
        "excluded.idem_hash, client_id = excluded.client_id, user_id = excluded.user_id, "
        "client_kind = excluded.client_kind, surface = excluded.surface, path = excluded.path, "
        "stream = excluded.stream, model = excluded.model, backend = excluded.backend, "
        "upstream_key = excluded.upstream_key, upstream_model = excluded.upstream_model, "
        "served_model = excluded.served_model, profile = excluded.profile, config_rev = "
        "excluded.config_rev, task_class = excluded.task_class, class_source = "
        "excluded.class_source, side_kind = excluded.side_kind, session_hash = "
        "excluded.session_hash, status = excluded.status, upstream_status = "
        "excluded.upstream_status, outcome = excluded.outcome, finish_reason = "
        "excluded.finish_reason, error_type = excluded.error_type, prompt_tokens = "
        "excluded.prompt_tokens, cached_tokens = excluded.cached_tokens, cache_write_tokens = "
        "excluded.cache_write_tokens, completion_tokens = excluded.completion_tokens, "
        "reasoning_tokens = excluded.reasoning_tokens, upstream_input_tokens = "
        "excluded.upstream_input_tokens, upstream_cached_tokens = "
        "excluded.upstream_cached_tokens, upstream_cache_write_tokens = "
        "excluded.upstream_cache_write_tokens, upstream_output_tokens = "
        "excluded.upstream_output_tokens, upstream_reasoning_tokens = "
        "excluded.upstream_reasoning_tokens, note_tokens = excluded.note_tokens, hidden_tokens = "
        "excluded.hidden_tokens, usage_source = excluded.usage_source, adjusted = "
        "excluded.adjusted, tool_calls = excluded.tool_calls, max_tokens = excluded.max_tokens, "
        "queue_ms = excluded.queue_ms, prompt_ms = excluded.prompt_ms, ttft_ms = "
        "excluded.ttft_ms, decode_ms = excluded.decode_ms, total_ms = excluded.total_ms, "
        "classify_ms = excluded.classify_ms, decode_tps = excluded.decode_tps, prefill_tps = "
        "excluded.prefill_tps, blocks = excluded.blocks, draft_tokens = excluded.draft_tokens, "
        "draft_accepted = excluded.draft_accepted, cache_source = excluded.cache_source, thinking "
        "= excluded.thinking, thinking_closed_by = excluded.thinking_closed_by, monitor_acts = "
        "excluded.monitor_acts, monitor_shadows = excluded.monitor_shadows, sandbox_cpu_ms = "
        "excluded.sandbox_cpu_ms, degraded = excluded.degraded, memory_used = "
        "excluded.memory_used, currency = excluded.currency, cost_micros = excluded.cost_micros, "
        "cost_source = excluded.cost_source, price_id = excluded.price_id, price_input = "
        "excluded.price_input, price_cached = excluded.price_cached, price_cache_write = "
        "excluded.price_cache_write, price_output = excluded.price_output, price_reasoning = "
        "excluded.price_reasoning, price_request = excluded.price_request, billed = "
        "excluded.billed, version = excluded.version, code_sha = excluded.code_sha WHERE "
        "ledger.outcome IS NULL OR ledger.outcome = 'lost'"
    ),
    write_brief_row=(
        "INSERT INTO ledger (ts_ms, request_id, kind, attempt, body_hash, client_id, user_id, "
        "client_kind, surface, path, stream, model, backend, upstream_key, upstream_model, "
        "served_model, config_rev, session_hash, status, upstream_status, outcome, finish_reason, "
        "error_type, prompt_tokens, cached_tokens, cache_write_tokens, completion_tokens, "
        "reasoning_tokens, upstream_input_tokens, upstream_cached_tokens, "
        "upstream_cache_write_tokens, upstream_output_tokens, upstream_reasoning_tokens, "
        "usage_source, adjusted, tool_calls, max_tokens, ttft_ms, decode_ms, total_ms, "
        "decode_tps, currency, cost_micros, cost_source, price_id, price_input, price_cached, "
        "price_cache_write, price_output, price_reasoning, price_request, billed, version, "
        "code_sha) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, "
        "?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, "
        "?, ?) ON CONFLICT (request_id) DO UPDATE SET ts_ms = excluded.ts_ms, parent_request_id = "
        "excluded.parent_request_id, run_id = excluded.run_id, conversation_id = "
        "excluded.conversation_id, kind = excluded.kind, attempt = excluded.attempt, body_hash = "
        "excluded.body_hash, idem_hash = excluded.idem_hash, client_id = excluded.client_id, "
        "user_id = excluded.user_id, client_kind = excluded.client_kind, surface = "
        "excluded.surface, path = excluded.path, stream = excluded.stream, model = "
        "excluded.model, backend = excluded.backend, upstream_key = excluded.upstream_key, "
        "upstream_model = excluded.upstream_model, served_model = excluded.served_model, profile "
        "= excluded.profile, config_rev = excluded.config_rev, task_class = excluded.task_class, "
        "class_source = excluded.class_source, side_kind = excluded.side_kind, session_hash = "
        "excluded.session_hash, status = excluded.status, upstream_status = "
        "excluded.upstream_status, outcome = excluded.outcome, finish_reason = "
        "excluded.finish_reason, error_type = excluded.error_type, prompt_tokens = "
        "excluded.prompt_tokens, cached_tokens = excluded.cached_tokens, cache_write_tokens = "
        "excluded.cache_write_tokens, completion_tokens = excluded.completion_tokens, "
        "reasoning_tokens = excluded.reasoning_tokens, upstream_input_tokens = "
        "excluded.upstream_input_tokens, upstream_cached_tokens = "
        "excluded.upstream_cached_tokens, upstream_cache_write_tokens = "
        "excluded.upstream_cache_write_tokens, upstream_output_tokens = "
        "excluded.upstream_output_tokens, upstream_reasoning_tokens = "
        "excluded.upstream_reasoning_tokens, note_tokens = excluded.note_tokens, hidden_tokens = "
        "excluded.hidden_tokens, usage_source = excluded.usage_source, adjusted = "
        "excluded.adjusted, tool_calls = excluded.tool_calls, max_tokens = excluded.max_tokens, "
        "queue_ms = excluded.queue_ms, prompt_ms = excluded.prompt_ms, ttft_ms = "
        "excluded.ttft_ms, decode_ms = excluded.decode_ms, total_ms = excluded.total_ms, "
        "classify_ms = excluded.classify_ms, decode_tps = excluded.decode_tps, prefill_tps = "
        "excluded.prefill_tps, blocks = excluded.blocks, draft_tokens = excluded.draft_tokens, "
        "draft_accepted = excluded.draft_accepted, cache_source = excluded.cache_source, thinking "
        "= excluded.thinking, thinking_closed_by = excluded.thinking_closed_by, monitor_acts = "
        "excluded.monitor_acts, monitor_shadows = excluded.monitor_shadows, sandbox_cpu_ms = "
        "excluded.sandbox_cpu_ms, degraded = excluded.degraded, memory_used = "
        "excluded.memory_used, currency = excluded.currency, cost_micros = excluded.cost_micros, "
        "cost_source = excluded.cost_source, price_id = excluded.price_id, price_input = "
        "excluded.price_input, price_cached = excluded.price_cached, price_cache_write = "
        "excluded.price_cache_write, price_output = excluded.price_output, price_reasoning = "
        "excluded.price_reasoning, price_request = excluded.price_request, billed = "
        "excluded.billed, version = excluded.version, code_sha = excluded.code_sha WHERE "
        "ledger.outcome IS NULL OR ledger.outcome = 'lost'"
    ),
    write_head=(
        "INSERT INTO ledger (ts_ms, request_id, parent_request_id, run_id, conversation_id, kind, "
        "attempt, body_hash, idem_hash, client_id, user_id, client_kind, surface, path, stream, "
        "model, backend, upstream_key, upstream_model, profile, config_rev, session_hash, "
        "max_tokens, billed, version, code_sha) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, "
        "?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?) ON CONFLICT (request_id) DO NOTHING"
    ),
    mark_lost=(
        "UPDATE ledger SET outcome='lost' WHERE ledger.outcome IS NULL"
    ),
    prune=(
        "DELETE FROM ledger WHERE ledger.id IN (SELECT ledger.id FROM ledger WHERE ledger.ts_ms < "
        "? LIMIT ? OFFSET 0)"
    ),
    read_spend=(
        "SELECT coalesce(sum(ledger.cost_micros), 0) AS coalesce_1 FROM ledger WHERE "
        "ledger.client_id = ? AND ledger.currency = ? AND ledger.ts_ms >= ? AND ledger.billed = 1 "
        "AND ledger.cost_micros > 0"
    ),
    read_meta=(
        'SELECT ledger_meta.value FROM ledger_meta WHERE ledger_meta."key" = ?'
    ),
    write_meta=(
        'INSERT INTO ledger_meta ("key", value) VALUES (?, ?) ON CONFLICT ("key") DO UPDATE SET '
        "value = excluded.value"
    ),
    find_version=(
        "SELECT sqlite_master.name FROM sqlite_master WHERE sqlite_master.name = 'ledger_version'"
    ),
    read_version=(
        "SELECT ledger_version.version_num FROM ledger_version"
    ),
)

POSTGRESQL = Statements(
    write_row=(
        "INSERT INTO ledger (ts_ms, request_id, parent_request_id, run_id, conversation_id, kind, "
        "attempt, body_hash, idem_hash, client_id, user_id, client_kind, surface, path, stream, "
        "model, backend, upstream_key, upstream_model, served_model, profile, config_rev, "
        "task_class, class_source, side_kind, session_hash, status, upstream_status, outcome, "
        "finish_reason, error_type, prompt_tokens, cached_tokens, cache_write_tokens, "
        "completion_tokens, reasoning_tokens, upstream_input_tokens, upstream_cached_tokens, "
        "upstream_cache_write_tokens, upstream_output_tokens, upstream_reasoning_tokens, "
        "note_tokens, hidden_tokens, usage_source, adjusted, tool_calls, max_tokens, queue_ms, "
        "prompt_ms, ttft_ms, decode_ms, total_ms, classify_ms, decode_tps, prefill_tps, blocks, "
        "draft_tokens, draft_accepted, cache_source, thinking, thinking_closed_by, monitor_acts, "
        "monitor_shadows, sandbox_cpu_ms, degraded, memory_used, currency, cost_micros, "
        "cost_source, price_id, price_input, price_cached, price_cache_write, price_output, "
        "price_reasoning, price_request, billed, version, code_sha) VALUES (%s::BIGINT, "
        "%s::VARCHAR, %s::VARCHAR, %s::VARCHAR, %s::VARCHAR, %s::VARCHAR, %s::SMALLINT, "
        "%s::VARCHAR, %s::VARCHAR, %s::VARCHAR, %s::VARCHAR, %s::VARCHAR, %s::VARCHAR, "
        "%s::VARCHAR, %s::SMALLINT, %s::VARCHAR, %s::VARCHAR, %s::VARCHAR, %s::VARCHAR, "
        "%s::VARCHAR, %s::VARCHAR, %s::VARCHAR, %s::VARCHAR, %s::VARCHAR, %s::VARCHAR, "
        "%s::VARCHAR, %s::SMALLINT, %s::SMALLINT, %s::VARCHAR, %s::VARCHAR, %s::VARCHAR, "
        "%s::INTEGER, %s::INTEGER, %s::INTEGER, %s::INTEGER, %s::INTEGER, %s::INTEGER, "
        "%s::INTEGER, %s::INTEGER, %s::INTEGER, %s::INTEGER, %s::INTEGER, %s::INTEGER, "
        "%s::VARCHAR, %s::SMALLINT, %s::INTEGER, %s::INTEGER, %s::INTEGER, %s::INTEGER, "
        "%s::INTEGER, %s::INTEGER, %s::INTEGER, %s::INTEGER, %s, %s, %s::INTEGER, %s::INTEGER, "
        "%s::INTEGER, %s::VARCHAR, %s::SMALLINT, %s::VARCHAR, %s::INTEGER, %s::INTEGER, "
        "%s::INTEGER, %s::VARCHAR, %s::VARCHAR, %s::VARCHAR, %s::BIGINT, %s::VARCHAR, "
        "%s::VARCHAR, %s::BIGINT, %s::BIGINT, %s::BIGINT, %s::BIGINT, %s::BIGINT, %s::BIGINT, "
        "%s::SMALLINT, %s::VARCHAR, %s::VARCHAR) ON CONFLICT (request_id) DO UPDATE SET ts_ms = "
        "excluded.ts_ms, parent_request_id = excluded.parent_request_id, run_id = "
        "excluded.run_id, conversation_id = excluded.conversation_id, kind = excluded.kind, "
        "attempt = excluded.attempt, body_hash = excluded.body_hash, idem_hash = "
        "excluded.idem_hash, client_id = excluded.client_id, user_id = excluded.user_id, "
        "client_kind = excluded.client_kind, surface = excluded.surface, path = excluded.path, "
        "stream = excluded.stream, model = excluded.model, backend = excluded.backend, "
        "upstream_key = excluded.upstream_key, upstream_model = excluded.upstream_model, "
        "served_model = excluded.served_model, profile = excluded.profile, config_rev = "
        "excluded.config_rev, task_class = excluded.task_class, class_source = "
        "excluded.class_source, side_kind = excluded.side_kind, session_hash = "
        "excluded.session_hash, status = excluded.status, upstream_status = "
        "excluded.upstream_status, outcome = excluded.outcome, finish_reason = "
        "excluded.finish_reason, error_type = excluded.error_type, prompt_tokens = "
        "excluded.prompt_tokens, cached_tokens = excluded.cached_tokens, cache_write_tokens = "
        "excluded.cache_write_tokens, completion_tokens = excluded.completion_tokens, "
        "reasoning_tokens = excluded.reasoning_tokens, upstream_input_tokens = "
        "excluded.upstream_input_tokens, upstream_cached_tokens = "
        "excluded.upstream_cached_tokens, upstream_cache_write_tokens = "
        "excluded.upstream_cache_write_tokens, upstream_output_tokens = "
        "excluded.upstream_output_tokens, upstream_reasoning_tokens = "
        "excluded.upstream_reasoning_tokens, note_tokens = excluded.note_tokens, hidden_tokens = "
        "excluded.hidden_tokens, usage_source = excluded.usage_source, adjusted = "
        "excluded.adjusted, tool_calls = excluded.tool_calls, max_tokens = excluded.max_tokens, "
        "queue_ms = excluded.queue_ms, prompt_ms = excluded.prompt_ms, ttft_ms = "
        "excluded.ttft_ms, decode_ms = excluded.decode_ms, total_ms = excluded.total_ms, "
        "classify_ms = excluded.classify_ms, decode_tps = excluded.decode_tps, prefill_tps = "
        "excluded.prefill_tps, blocks = excluded.blocks, draft_tokens = excluded.draft_tokens, "
        "draft_accepted = excluded.draft_accepted, cache_source = excluded.cache_source, thinking "
        "= excluded.thinking, thinking_closed_by = excluded.thinking_closed_by, monitor_acts = "
        "excluded.monitor_acts, monitor_shadows = excluded.monitor_shadows, sandbox_cpu_ms = "
        "excluded.sandbox_cpu_ms, degraded = excluded.degraded, memory_used = "
        "excluded.memory_used, currency = excluded.currency, cost_micros = excluded.cost_micros, "
        "cost_source = excluded.cost_source, price_id = excluded.price_id, price_input = "
        "excluded.price_input, price_cached = excluded.price_cached, price_cache_write = "
        "excluded.price_cache_write, price_output = excluded.price_output, price_reasoning = "
        "excluded.price_reasoning, price_request = excluded.price_request, billed = "
        "excluded.billed, version = excluded.version, code_sha = excluded.code_sha WHERE "
        "ledger.outcome IS NULL OR ledger.outcome = 'lost'"
    ),
    write_brief_row=(
        "INSERT INTO ledger (ts_ms, request_id, kind, attempt, body_hash, client_id, user_id, "
        "client_kind, surface, path, stream, model, backend, upstream_key, upstream_model, "
        "served_model, config_rev, session_hash, status, upstream_status, outcome, finish_reason, "
        "error_type, prompt_tokens, cached_tokens, cache_write_tokens, completion_tokens, "
        "reasoning_tokens, upstream_input_tokens, upstream_cached_tokens, "
        "upstream_cache_write_tokens, upstream_output_tokens, upstream_reasoning_tokens, "
        "usage_source, adjusted, tool_calls, max_tokens, ttft_ms, decode_ms, total_ms, "
        "decode_tps, currency, cost_micros, cost_source, price_id, price_input, price_cached, "
        "price_cache_write, price_output, price_reasoning, price_request, billed, version, "
        "code_sha) VALUES (%s::BIGINT, %s::VARCHAR, %s::VARCHAR, %s::SMALLINT, %s::VARCHAR, "
        "%s::VARCHAR, %s::VARCHAR, %s::VARCHAR, %s::VARCHAR, %s::VARCHAR, %s::SMALLINT, "
        "%s::VARCHAR, %s::VARCHAR, %s::VARCHAR, %s::VARCHAR, %s::VARCHAR, %s::VARCHAR, "
        "%s::VARCHAR, %s::SMALLINT, %s::SMALLINT, %s::VARCHAR, %s::VARCHAR, %s::VARCHAR, "
        "%s::INTEGER, %s::INTEGER, %s::INTEGER, %s::INTEGER, %s::INTEGER, %s::INTEGER, "
        "%s::INTEGER, %s::INTEGER, %s::INTEGER, %s::INTEGER, %s::VARCHAR, %s::SMALLINT, "
        "%s::INTEGER, %s::INTEGER, %s::INTEGER, %s::INTEGER, %s::INTEGER, %s, %s::VARCHAR, "
        "%s::BIGINT, %s::VARCHAR, %s::VARCHAR, %s::BIGINT, %s::BIGINT, %s::BIGINT, %s::BIGINT, "
        "%s::BIGINT, %s::BIGINT, %s::SMALLINT, %s::VARCHAR, %s::VARCHAR) ON CONFLICT (request_id) "
        "DO UPDATE SET ts_ms = excluded.ts_ms, parent_request_id = excluded.parent_request_id, "
        "run_id = excluded.run_id, conversation_id = excluded.conversation_id, kind = "
        "excluded.kind, attempt = excluded.attempt, body_hash = excluded.body_hash, idem_hash = "
        "excluded.idem_hash, client_id = excluded.client_id, user_id = excluded.user_id, "
        "client_kind = excluded.client_kind, surface = excluded.surface, path = excluded.path, "
        "stream = excluded.stream, model = excluded.model, backend = excluded.backend, "
        "upstream_key = excluded.upstream_key, upstream_model = excluded.upstream_model, "
        "served_model = excluded.served_model, profile = excluded.profile, config_rev = "
        "excluded.config_rev, task_class = excluded.task_class, class_source = "
        "excluded.class_source, side_kind = excluded.side_kind, session_hash = "
        "excluded.session_hash, status = excluded.status, upstream_status = "
        "excluded.upstream_status, outcome = excluded.outcome, finish_reason = "
        "excluded.finish_reason, error_type = excluded.error_type, prompt_tokens = "
        "excluded.prompt_tokens, cached_tokens = excluded.cached_tokens, cache_write_tokens = "
        "excluded.cache_write_tokens, completion_tokens = excluded.completion_tokens, "
        "reasoning_tokens = excluded.reasoning_tokens, upstream_input_tokens = "
        "excluded.upstream_input_tokens, upstream_cached_tokens = "
        "excluded.upstream_cached_tokens, upstream_cache_write_tokens = "
        "excluded.upstream_cache_write_tokens, upstream_output_tokens = "
        "excluded.upstream_output_tokens, upstream_reasoning_tokens = "
        "excluded.upstream_reasoning_tokens, note_tokens = excluded.note_tokens, hidden_tokens = "
        "excluded.hidden_tokens, usage_source = excluded.usage_source, adjusted = "
        "excluded.adjusted, tool_calls = excluded.tool_calls, max_tokens = excluded.max_tokens, "
        "queue_ms = excluded.queue_ms, prompt_ms = excluded.prompt_ms, ttft_ms = "
        "excluded.ttft_ms, decode_ms = excluded.decode_ms, total_ms = excluded.total_ms, "
        "classify_ms = excluded.classify_ms, decode_tps = excluded.decode_tps, prefill_tps = "
        "excluded.prefill_tps, blocks = excluded.blocks, draft_tokens = excluded.draft_tokens, "
        "draft_accepted = excluded.draft_accepted, cache_source = excluded.cache_source, thinking "
        "= excluded.thinking, thinking_closed_by = excluded.thinking_closed_by, monitor_acts = "
        "excluded.monitor_acts, monitor_shadows = excluded.monitor_shadows, sandbox_cpu_ms = "
        "excluded.sandbox_cpu_ms, degraded = excluded.degraded, memory_used = "
        "excluded.memory_used, currency = excluded.currency, cost_micros = excluded.cost_micros, "
        "cost_source = excluded.cost_source, price_id = excluded.price_id, price_input = "
        "excluded.price_input, price_cached = excluded.price_cached, price_cache_write = "
        "excluded.price_cache_write, price_output = excluded.price_output, price_reasoning = "
        "excluded.price_reasoning, price_request = excluded.price_request, billed = "
        "excluded.billed, version = excluded.version, code_sha = excluded.code_sha WHERE "
        "ledger.outcome IS NULL OR ledger.outcome = 'lost'"
    ),
    write_head=(
        "INSERT INTO ledger (ts_ms, request_id, parent_request_id, run_id, conversation_id, kind, "
        "attempt, body_hash, idem_hash, client_id, user_id, client_kind, surface, path, stream, "
        "model, backend, upstream_key, upstream_model, profile, config_rev, session_hash, "
        "max_tokens, billed, version, code_sha) VALUES (%s::BIGINT, %s::VARCHAR, %s::VARCHAR, "
        "%s::VARCHAR, %s::VARCHAR, %s::VARCHAR, %s::SMALLINT, %s::VARCHAR, %s::VARCHAR, "
        "%s::VARCHAR, %s::VARCHAR, %s::VARCHAR, %s::VARCHAR, %s::VARCHAR, %s::SMALLINT, "
        "%s::VARCHAR, %s::VARCHAR, %s::VARCHAR, %s::VARCHAR, %s::VARCHAR, %s::VARCHAR, "
        "%s::VARCHAR, %s::INTEGER, %s::SMALLINT, %s::VARCHAR, %s::VARCHAR) ON CONFLICT "
        "(request_id) DO NOTHING"
    ),
    mark_lost=(
        "UPDATE ledger SET outcome='lost' WHERE ledger.outcome IS NULL"
    ),
    prune=(
        "DELETE FROM ledger WHERE ledger.id IN (SELECT ledger.id FROM ledger WHERE ledger.ts_ms < "
        "%s::BIGINT LIMIT %s OFFSET 0)"
    ),
    read_spend=(
        "SELECT coalesce(sum(ledger.cost_micros), 0) AS coalesce_1 FROM ledger WHERE "
        "ledger.client_id = %s::VARCHAR AND ledger.currency = %s::VARCHAR AND ledger.ts_ms >= "
        "%s::BIGINT AND ledger.billed = 1 AND ledger.cost_micros > 0"
    ),
    read_meta=(
        "SELECT ledger_meta.value FROM ledger_meta WHERE ledger_meta.key = %s::VARCHAR"
    ),
    write_meta=(
        "INSERT INTO ledger_meta (key, value) VALUES (%s::VARCHAR, %s::VARCHAR) ON CONFLICT (key) "
        "DO UPDATE SET value = excluded.value"
    ),
    find_version=(
        "SELECT to_regclass('ledger_version') AS to_regclass_1"
    ),
    read_version=(
        "SELECT ledger_version.version_num FROM ledger_version"
    ),
)
