"""The statements of the notebook, one text for each. Knows no driver.

Made by `gateway.store.freeze_notebook` from the tables: never edited. `SESSION` and `NOTE` name
the parameters of rows in their order; what is found has the same columns.
"""

from gateway.store.connection import NotebookStatements

# fmt: off
SESSION = (
    "scope", "session_key", "opening", "chain", "profile", "task_class", "packages",
    "memories", "sent_lines", "turns", "config_rev", "created_ms", "used_ms", "size_bytes",
)
NOTE = (
    "place", "scope", "session_key", "chain", "message", "role", "ordinal", "kind", "part",
    "char_offset", "part_hash", "note_text", "ids", "tokenizer_hash", "task_class",
    "version", "created_ms", "used_ms", "size_bytes",
)

SQLITE = NotebookStatements(
    save_session=(
        "INSERT INTO notebook_sessions (scope, session_key, opening, chain, profile, task_class, "
        "packages, memories, sent_lines, turns, config_rev, created_ms, used_ms, size_bytes) "
        "VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?) ON CONFLICT (scope, session_key, "
        "opening) DO UPDATE SET chain = excluded.chain, profile = excluded.profile, task_class = "
        "excluded.task_class, packages = excluded.packages, memories = excluded.memories, "
        "sent_lines = excluded.sent_lines, turns = excluded.turns, config_rev = "
        "excluded.config_rev, used_ms = excluded.used_ms, size_bytes = excluded.size_bytes"
    ),
    find_sessions=(
        "SELECT notebook_sessions.scope, notebook_sessions.session_key, "
        "notebook_sessions.opening, notebook_sessions.chain, notebook_sessions.profile, "
        "notebook_sessions.task_class, notebook_sessions.packages, notebook_sessions.memories, "
        "notebook_sessions.sent_lines, notebook_sessions.turns, notebook_sessions.config_rev, "
        "notebook_sessions.created_ms, notebook_sessions.used_ms, notebook_sessions.size_bytes "
        "FROM notebook_sessions WHERE notebook_sessions.scope = ? AND "
        "notebook_sessions.session_key = ? ORDER BY notebook_sessions.used_ms DESC, "
        "notebook_sessions.id DESC LIMIT ? OFFSET 0"
    ),
    save_note=(
        "INSERT INTO notebook_notes (place, scope, session_key, chain, message, role, ordinal, "
        "kind, part, char_offset, part_hash, note_text, ids, tokenizer_hash, task_class, version, "
        "created_ms, used_ms, size_bytes) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, "
        "?, ?, ?) ON CONFLICT (place) DO UPDATE SET ids = coalesce(excluded.ids, "
        "notebook_notes.ids), tokenizer_hash = coalesce(excluded.tokenizer_hash, "
        "notebook_notes.tokenizer_hash), used_ms = excluded.used_ms, size_bytes = "
        "excluded.size_bytes WHERE notebook_notes.note_text = excluded.note_text"
    ),
    find_notes=(
        "SELECT notebook_notes.place, notebook_notes.scope, notebook_notes.session_key, "
        "notebook_notes.chain, notebook_notes.message, notebook_notes.role, "
        "notebook_notes.ordinal, notebook_notes.kind, notebook_notes.part, "
        "notebook_notes.char_offset, notebook_notes.part_hash, notebook_notes.note_text, "
        "notebook_notes.ids, notebook_notes.tokenizer_hash, notebook_notes.task_class, "
        "notebook_notes.version, notebook_notes.created_ms, notebook_notes.used_ms, "
        "notebook_notes.size_bytes FROM notebook_notes WHERE notebook_notes.scope = ? AND "
        "notebook_notes.chain IN (SELECT anon_1.value FROM json_each(?) AS anon_1) UNION SELECT "
        "notebook_notes.place, notebook_notes.scope, notebook_notes.session_key, "
        "notebook_notes.chain, notebook_notes.message, notebook_notes.role, "
        "notebook_notes.ordinal, notebook_notes.kind, notebook_notes.part, "
        "notebook_notes.char_offset, notebook_notes.part_hash, notebook_notes.note_text, "
        "notebook_notes.ids, notebook_notes.tokenizer_hash, notebook_notes.task_class, "
        "notebook_notes.version, notebook_notes.created_ms, notebook_notes.used_ms, "
        "notebook_notes.size_bytes FROM notebook_notes WHERE notebook_notes.scope = ? AND "
        "notebook_notes.message IN (SELECT anon_2.value FROM json_each(?) AS anon_2) ORDER BY "
        "created_ms DESC LIMIT ? OFFSET 0"
    ),
    read_size=(
        "SELECT (SELECT coalesce(sum(notebook_sessions.size_bytes), 0) AS coalesce_1 FROM "
        "notebook_sessions) + (SELECT coalesce(sum(notebook_notes.size_bytes), 0) AS coalesce_2 "
        "FROM notebook_notes) AS anon_1"
    ),
    read_oldest=(
        "SELECT notebook_sessions.used_ms, notebook_sessions.size_bytes FROM notebook_sessions "
        "UNION ALL SELECT notebook_notes.used_ms, notebook_notes.size_bytes FROM notebook_notes "
        "ORDER BY used_ms LIMIT ? OFFSET 0"
    ),
    prune_sessions=(
        "DELETE FROM notebook_sessions WHERE notebook_sessions.id IN (SELECT notebook_sessions.id "
        "FROM notebook_sessions WHERE notebook_sessions.used_ms <= ? LIMIT ? OFFSET 0)"
    ),
    prune_notes=(
        "DELETE FROM notebook_notes WHERE notebook_notes.id IN (SELECT notebook_notes.id FROM "
        "notebook_notes WHERE notebook_notes.used_ms <= ? LIMIT ? OFFSET 0)"
    ),
    find_version=(
        "SELECT sqlite_master.name FROM sqlite_master WHERE sqlite_master.name = 'store_version'"
    ),
    read_version=(
        "SELECT store_version.version_num FROM store_version"
    ),
)

POSTGRESQL = NotebookStatements(
    save_session=(
        "INSERT INTO notebook_sessions (scope, session_key, opening, chain, profile, task_class, "
        "packages, memories, sent_lines, turns, config_rev, created_ms, used_ms, size_bytes) "
        "VALUES (%s::VARCHAR, %s::VARCHAR, %s::VARCHAR, %s::VARCHAR, %s::VARCHAR, %s::VARCHAR, "
        "%s::VARCHAR, %s::VARCHAR, %s::VARCHAR, %s::INTEGER, %s::VARCHAR, %s::BIGINT, %s::BIGINT, "
        "%s::INTEGER) ON CONFLICT (scope, session_key, opening) DO UPDATE SET chain = "
        "excluded.chain, profile = excluded.profile, task_class = excluded.task_class, packages = "
        "excluded.packages, memories = excluded.memories, sent_lines = excluded.sent_lines, turns "
        "= excluded.turns, config_rev = excluded.config_rev, used_ms = excluded.used_ms, "
        "size_bytes = excluded.size_bytes"
    ),
    find_sessions=(
        "SELECT notebook_sessions.scope, notebook_sessions.session_key, "
        "notebook_sessions.opening, notebook_sessions.chain, notebook_sessions.profile, "
        "notebook_sessions.task_class, notebook_sessions.packages, notebook_sessions.memories, "
        "notebook_sessions.sent_lines, notebook_sessions.turns, notebook_sessions.config_rev, "
        "notebook_sessions.created_ms, notebook_sessions.used_ms, notebook_sessions.size_bytes "
        "FROM notebook_sessions WHERE notebook_sessions.scope = %s::VARCHAR AND "
        "notebook_sessions.session_key = %s::VARCHAR ORDER BY notebook_sessions.used_ms DESC, "
        "notebook_sessions.id DESC LIMIT %s OFFSET 0"
    ),
    save_note=(
        "INSERT INTO notebook_notes (place, scope, session_key, chain, message, role, ordinal, "
        "kind, part, char_offset, part_hash, note_text, ids, tokenizer_hash, task_class, version, "
        "created_ms, used_ms, size_bytes) VALUES (%s::VARCHAR, %s::VARCHAR, %s::VARCHAR, "
        "%s::VARCHAR, %s::VARCHAR, %s::VARCHAR, %s::INTEGER, %s::VARCHAR, %s::INTEGER, "
        "%s::INTEGER, %s::VARCHAR, %s::VARCHAR, %s::VARCHAR, %s::VARCHAR, %s::VARCHAR, "
        "%s::SMALLINT, %s::BIGINT, %s::BIGINT, %s::INTEGER) ON CONFLICT (place) DO UPDATE SET ids "
        "= coalesce(excluded.ids, notebook_notes.ids), tokenizer_hash = "
        "coalesce(excluded.tokenizer_hash, notebook_notes.tokenizer_hash), used_ms = "
        "excluded.used_ms, size_bytes = excluded.size_bytes WHERE notebook_notes.note_text = "
        "excluded.note_text"
    ),
    find_notes=(
        "SELECT notebook_notes.place, notebook_notes.scope, notebook_notes.session_key, "
        "notebook_notes.chain, notebook_notes.message, notebook_notes.role, "
        "notebook_notes.ordinal, notebook_notes.kind, notebook_notes.part, "
        "notebook_notes.char_offset, notebook_notes.part_hash, notebook_notes.note_text, "
        "notebook_notes.ids, notebook_notes.tokenizer_hash, notebook_notes.task_class, "
        "notebook_notes.version, notebook_notes.created_ms, notebook_notes.used_ms, "
        "notebook_notes.size_bytes FROM notebook_notes WHERE notebook_notes.scope = %s::VARCHAR "
        "AND notebook_notes.chain IN (SELECT anon_1.value FROM "
        "json_array_elements_text(CAST(%s::VARCHAR AS JSON)) AS anon_1) UNION SELECT "
        "notebook_notes.place, notebook_notes.scope, notebook_notes.session_key, "
        "notebook_notes.chain, notebook_notes.message, notebook_notes.role, "
        "notebook_notes.ordinal, notebook_notes.kind, notebook_notes.part, "
        "notebook_notes.char_offset, notebook_notes.part_hash, notebook_notes.note_text, "
        "notebook_notes.ids, notebook_notes.tokenizer_hash, notebook_notes.task_class, "
        "notebook_notes.version, notebook_notes.created_ms, notebook_notes.used_ms, "
        "notebook_notes.size_bytes FROM notebook_notes WHERE notebook_notes.scope = %s::VARCHAR "
        "AND notebook_notes.message IN (SELECT anon_2.value FROM "
        "json_array_elements_text(CAST(%s::VARCHAR AS JSON)) AS anon_2) ORDER BY created_ms DESC "
        "LIMIT %s OFFSET 0"
    ),
    read_size=(
        "SELECT (SELECT coalesce(sum(notebook_sessions.size_bytes), 0) AS coalesce_1 FROM "
        "notebook_sessions) + (SELECT coalesce(sum(notebook_notes.size_bytes), 0) AS coalesce_2 "
        "FROM notebook_notes) AS anon_1"
    ),
    read_oldest=(
        "SELECT notebook_sessions.used_ms, notebook_sessions.size_bytes FROM notebook_sessions "
        "UNION ALL SELECT notebook_notes.used_ms, notebook_notes.size_bytes FROM notebook_notes "
        "ORDER BY used_ms LIMIT %s OFFSET 0"
    ),
    prune_sessions=(
        "DELETE FROM notebook_sessions WHERE notebook_sessions.id IN (SELECT notebook_sessions.id "
        "FROM notebook_sessions WHERE notebook_sessions.used_ms <= %s::BIGINT LIMIT %s OFFSET 0)"
    ),
    prune_notes=(
        "DELETE FROM notebook_notes WHERE notebook_notes.id IN (SELECT notebook_notes.id FROM "
        "notebook_notes WHERE notebook_notes.used_ms <= %s::BIGINT LIMIT %s OFFSET 0)"
    ),
    find_version=(
        "SELECT to_regclass('store_version') AS to_regclass_1"
    ),
    read_version=(
        "SELECT store_version.version_num FROM store_version"
    ),
)
