"""The statements about memory notes, one text for each. Knows no driver.

Made by `gateway.store.freeze_memory` from the table: never edited.
"""

from gateway.store.connection import MemoryStatements

# fmt: off

SQLITE = MemoryStatements(
    add=(
        "INSERT INTO memory_notes (key_id, project, kind, text, fact_hash, session_hash, "
        "created_ms, last_used_ms, uses, pinned) VALUES (?, ?, ?, ?, ?, ?, ?, ?, 0, 0) ON "
        "CONFLICT (key_id, project, fact_hash) DO UPDATE SET last_used_ms = "
        "excluded.last_used_ms, superseded_by = NULL WHERE memory_notes.deleted_ms IS NULL"
    ),
    find=(
        "SELECT memory_notes.id FROM memory_notes WHERE memory_notes.key_id = ? AND "
        "memory_notes.project = ? AND memory_notes.fact_hash = ? AND memory_notes.deleted_ms IS "
        "NULL"
    ),
    replace=(
        "UPDATE memory_notes SET superseded_by=? WHERE memory_notes.key_id = ? AND "
        "memory_notes.project = ? AND memory_notes.id = ? AND memory_notes.deleted_ms IS NULL AND "
        "memory_notes.pinned = 0"
    ),
    search=(
        "SELECT memory_notes.id, memory_notes.kind, memory_notes.text, memory_notes.created_ms, "
        "memory_notes.uses, memory_notes.pinned FROM memory_notes WHERE memory_notes.key_id = ? "
        "AND memory_notes.project = ? AND memory_notes.deleted_ms IS NULL AND "
        "memory_notes.superseded_by IS NULL ORDER BY memory_notes.pinned DESC, "
        "memory_notes.last_used_ms DESC, memory_notes.id DESC LIMIT ? OFFSET 0"
    ),
    use=(
        "UPDATE memory_notes SET last_used_ms=?, uses=(memory_notes.uses + 1) WHERE "
        "memory_notes.key_id = ? AND memory_notes.project = ? AND memory_notes.id = ?"
    ),
    expire=(
        "DELETE FROM memory_notes WHERE memory_notes.deleted_ms < ?"
    ),
    trim=(
        "DELETE FROM memory_notes WHERE memory_notes.id IN (SELECT memory_notes.id FROM "
        "memory_notes WHERE memory_notes.key_id = ? AND memory_notes.project = ? AND "
        "memory_notes.deleted_ms IS NULL AND memory_notes.pinned = 0 ORDER BY "
        "memory_notes.last_used_ms DESC, memory_notes.id DESC LIMIT 1000000 OFFSET ?)"
    ),
)

POSTGRESQL = MemoryStatements(
    add=(
        "INSERT INTO memory_notes (key_id, project, kind, text, fact_hash, session_hash, "
        "created_ms, last_used_ms, uses, pinned) VALUES (%s::VARCHAR, %s::VARCHAR, %s::VARCHAR, "
        "%s::VARCHAR, %s::VARCHAR, %s::VARCHAR, %s::BIGINT, %s::BIGINT, 0, 0) ON CONFLICT "
        "(key_id, project, fact_hash) DO UPDATE SET last_used_ms = excluded.last_used_ms, "
        "superseded_by = NULL WHERE memory_notes.deleted_ms IS NULL"
    ),
    find=(
        "SELECT memory_notes.id FROM memory_notes WHERE memory_notes.key_id = %s::VARCHAR AND "
        "memory_notes.project = %s::VARCHAR AND memory_notes.fact_hash = %s::VARCHAR AND "
        "memory_notes.deleted_ms IS NULL"
    ),
    replace=(
        "UPDATE memory_notes SET superseded_by=%s::BIGINT WHERE memory_notes.key_id = %s::VARCHAR "
        "AND memory_notes.project = %s::VARCHAR AND memory_notes.id = %s::BIGINT AND "
        "memory_notes.deleted_ms IS NULL AND memory_notes.pinned = 0"
    ),
    search=(
        "SELECT memory_notes.id, memory_notes.kind, memory_notes.text, memory_notes.created_ms, "
        "memory_notes.uses, memory_notes.pinned FROM memory_notes WHERE memory_notes.key_id = "
        "%s::VARCHAR AND memory_notes.project = %s::VARCHAR AND memory_notes.deleted_ms IS NULL "
        "AND memory_notes.superseded_by IS NULL ORDER BY memory_notes.pinned DESC, "
        "memory_notes.last_used_ms DESC, memory_notes.id DESC LIMIT %s OFFSET 0"
    ),
    use=(
        "UPDATE memory_notes SET last_used_ms=%s::BIGINT, uses=(memory_notes.uses + 1) WHERE "
        "memory_notes.key_id = %s::VARCHAR AND memory_notes.project = %s::VARCHAR AND "
        "memory_notes.id = %s::BIGINT"
    ),
    expire=(
        "DELETE FROM memory_notes WHERE memory_notes.deleted_ms < %s::BIGINT"
    ),
    trim=(
        "DELETE FROM memory_notes WHERE memory_notes.id IN (SELECT memory_notes.id FROM "
        "memory_notes WHERE memory_notes.key_id = %s::VARCHAR AND memory_notes.project = "
        "%s::VARCHAR AND memory_notes.deleted_ms IS NULL AND memory_notes.pinned = 0 ORDER BY "
        "memory_notes.last_used_ms DESC, memory_notes.id DESC LIMIT 1000000 OFFSET %s)"
    ),
)
