"""A row of the ledger as a value, and what its columns can hold. Knows no SQL and no request.

`row_from` makes one from raw values, of a request or of a line of the spill file, and sees to it
that no database refuses it: what does not fit a column is cut, mended or left out.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields
from math import isfinite
from operator import attrgetter
from typing import Any

UNBILLED_KINDS = frozenset({"replay", "cache", "recovery", "attempt"})
TEXT_CHARS = 4096  # a longer text in a column is a mistake or an attack
SMALL_MAX = 2**15 - 1
INT_MAX = 2**31 - 1
BIG_MAX = 2**63 - 1


@dataclass(frozen=True, slots=True)
class Row:
    """A row of the table `ledger` without `id`: same names, same order. None: not known."""

    ts_ms: int
    request_id: str
    parent_request_id: str | None = None
    run_id: str | None = None
    conversation_id: str | None = None
    kind: str = "generation"
    attempt: int = 1
    body_hash: str | None = None
    idem_hash: str | None = None
    client_id: str = "anon"
    user_id: str | None = None
    client_kind: str | None = None
    surface: str | None = None
    path: str | None = None
    stream: int | None = None
    model: str | None = None
    backend: str | None = None
    upstream_key: str | None = None
    upstream_model: str | None = None
    served_model: str | None = None
    profile: str | None = None
    config_rev: str | None = None
    task_class: str | None = None
    class_source: str | None = None
    side_kind: str | None = None
    session_hash: str | None = None
    status: int | None = None
    upstream_status: int | None = None
    outcome: str | None = None
    finish_reason: str | None = None
    error_type: str | None = None
    prompt_tokens: int | None = None
    cached_tokens: int | None = None
    cache_write_tokens: int | None = None
    completion_tokens: int | None = None
    reasoning_tokens: int | None = None
    upstream_input_tokens: int | None = None
    upstream_cached_tokens: int | None = None
    upstream_cache_write_tokens: int | None = None
    upstream_output_tokens: int | None = None
    upstream_reasoning_tokens: int | None = None
    note_tokens: int | None = None
    hidden_tokens: int | None = None
    usage_source: str | None = None
    adjusted: int | None = None
    tool_calls: int | None = None
    max_tokens: int | None = None
    queue_ms: int | None = None
    prompt_ms: int | None = None
    ttft_ms: int | None = None
    decode_ms: int | None = None
    total_ms: int | None = None
    classify_ms: int | None = None
    decode_tps: float | None = None
    prefill_tps: float | None = None
    blocks: int | None = None
    draft_tokens: int | None = None
    draft_accepted: int | None = None
    cache_source: str | None = None
    thinking: int | None = None
    thinking_closed_by: str | None = None
    monitor_acts: int | None = None
    monitor_shadows: int | None = None
    sandbox_cpu_ms: int | None = None
    degraded: str | None = None
    memory_used: str | None = None
    currency: str | None = None
    cost_micros: int | None = None
    cost_source: str | None = None
    price_id: str | None = None
    price_input: int | None = None
    price_cached: int | None = None
    price_cache_write: int | None = None
    price_output: int | None = None
    price_reasoning: int | None = None
    price_request: int | None = None
    billed: int = 1
    version: str | None = None
    code_sha: str | None = None


COLUMNS = tuple(field.name for field in fields(Row))
HEAD_COLUMNS = (
    "ts_ms", "request_id", "parent_request_id", "run_id", "conversation_id", "kind", "attempt",
    "body_hash", "idem_hash", "client_id", "user_id", "client_kind", "surface", "path", "stream",
    "model", "backend", "upstream_key", "upstream_model", "profile", "config_rev", "session_hash",
    "max_tokens", "version", "code_sha",
)  # fmt: skip
SMALL_COLUMNS = frozenset({
    "attempt", "stream", "status", "upstream_status", "adjusted", "thinking", "billed",
})  # fmt: skip
BIG_COLUMNS = frozenset({
    "ts_ms", "cost_micros", "price_input", "price_cached", "price_cache_write", "price_output",
    "price_reasoning", "price_request",
})  # fmt: skip


_read_columns = attrgetter(*COLUMNS)


def row_from(values: Mapping[str, Any]) -> Row:
    """The closed row of these values; unknown names are ignored, `billed` follows the kind.

    Raises: TypeError when `ts_ms` or `request_id` is missing.
    """
    fitted = {name: _FITS[name](value) for name, value in values.items() if name in _FITS}
    if fitted.get("outcome") is None:
        fitted["outcome"] = "lost"  # handed over without an end: nobody knows how it went
    fitted["billed"] = 0 if fitted.get("kind") in UNBILLED_KINDS else 1
    return Row(**fitted)


def head_from(values: Mapping[str, Any]) -> dict[str, Any]:
    """The columns of an open row: what is known at admission. It is billed when it is closed."""
    head = {name: _FITS[name](values.get(name)) for name in HEAD_COLUMNS}
    head["billed"] = 0
    return head


def values_of(row: Row) -> dict[str, Any]:
    """The columns that are known, by name; `row_from` makes the same row of them."""
    known = zip(COLUMNS, _read_columns(row), strict=True)
    return {name: value for name, value in known if value is not None}


def with_columns(row: Row, changes: Mapping[str, Any]) -> Row:
    """The row with some columns changed."""
    columns = dict(zip(COLUMNS, _read_columns(row), strict=True))
    return Row(**{**columns, **changes})


def _text(value: Any) -> str | None:
    if value is None:
        return None
    text = str(value)
    if not (text.isascii() and text.isprintable()):
        # A lone surrogate is no UTF-8, and PostgreSQL takes no NUL.
        text = text.encode("utf-8", "replace").decode("utf-8").replace("\0", "\ufffd")
    return text[:TEXT_CHARS]


def _integer(most: int) -> Callable[[Any], int | None]:
    def fit(value: Any) -> int | None:
        if not isinstance(value, int) or not -most <= value <= most:
            return None
        return int(value)  # a bool becomes 0 or 1

    return fit


def _real(value: Any) -> float | None:
    return float(value) if isinstance(value, int | float) and isfinite(value) else None


def _fit_of(name: str, annotation: Any) -> Callable[[Any], Any]:
    if annotation in (str, str | None):
        return _text
    if annotation == float | None:
        return _real
    return _integer(
        SMALL_MAX if name in SMALL_COLUMNS else BIG_MAX if name in BIG_COLUMNS else INT_MAX
    )


_FITS = {field.name: _fit_of(field.name, field.type) for field in fields(Row)}
