"""A row of the ledger as a value, and what its columns can hold. Knows no SQL and no request.

`fitted` takes raw values, of a request or of a line of the spill file, and sees to it that no
database refuses them: what does not fit a column is cut, mended or left out. While a row is
written it is `Columns`, a plain mapping: that takes a third of the time.
"""

import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields
from math import isfinite
from operator import itemgetter
from typing import Annotated, Any

from gateway.lean import msgspec
from gateway.store.statements import BRIEF, HEAD

Columns = dict[str, Any]  # of one row by name; what is not known is None or not there
Bound = tuple[Any, ...]  # a row as a statement takes it: by `COLUMNS`, or by `BRIEF`, or a head

NEEDED = ("ts_ms", "request_id")
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
REQUEST_ID = COLUMNS.index("request_id")  # its place in every `Bound`
SMALL_COLUMNS = frozenset({
    "attempt", "stream", "status", "upstream_status", "adjusted", "thinking", "billed",
})  # fmt: skip
BIG_COLUMNS = frozenset({
    "ts_ms", "cost_micros", "price_input", "price_cached", "price_cache_write", "price_output",
    "price_reasoning", "price_request",
})  # fmt: skip
# What a row says when nobody said otherwise.
UNSAID: Columns = {
    "kind": "generation", "attempt": 1, "client_id": "anon", "usage_source": "none", "adjusted": 0,
}  # fmt: skip
BLANK: Columns = dict.fromkeys(BRIEF) | UNSAID


class NoRow(ValueError):
    """Values that make no row: `column` has none."""

    def __init__(self, column: str) -> None:
        super().__init__(f"no {column}")
        self.column = column


def fitted(values: Mapping[str, Any]) -> Columns:
    """The columns of a closed row; unknown names are ignored, `billed` follows the kind.

    Raises: NoRow when `ts_ms` or `request_id` is missing.
    """
    columns = _plain(values) or _mended(values)
    for name in NEEDED:
        if columns[name] is None:
            raise NoRow(name)
    if columns["outcome"] is None:
        columns["outcome"] = "lost"  # handed over without an end: nobody knows how it went
    columns["billed"] = 0 if columns["kind"] in UNBILLED_KINDS else 1
    return columns


def _plain(values: Mapping[str, Any]) -> Columns | None:
    """The columns, if these are the ones of `BRIEF` and need no mending, as with nearly every row.

    msgspec looks at them in a fraction of the time.
    """
    try:
        msgspec.convert(values, _Plain)
    except msgspec.ValidationError:
        return None
    text = "".join(filter(None, _read_texts(values)))
    return dict(values) if text.isascii() and "\0" not in text else None


def _mended(values: Mapping[str, Any]) -> Columns:
    """Each value made to fit its column, or left out."""
    columns = BLANK.copy()
    for name, value in values.items():
        if value is not None and name in _FITS and (fit := _FITS[name](value)) is not None:
            columns[name] = fit
    return columns


def bound(columns: Columns) -> Bound:
    """What `fitted` made, as a statement takes it: by `BRIEF` if there is nothing beside that."""
    if len(columns) == len(BRIEF):
        return _read_brief(columns)
    return tuple(map(columns.get, COLUMNS))


def is_brief(row: Bound) -> bool:
    """Which of the two."""
    return len(row) == len(BRIEF)


def unbound(row: Bound) -> Columns:
    """The columns of a bound row that are known."""
    known = zip(BRIEF if is_brief(row) else COLUMNS, row, strict=True)
    return {name: value for name, value in known if value is not None}


def head_from(values: Mapping[str, Any]) -> Bound:
    """An open row: what is known at admission. It is billed when it is closed."""
    return tuple(map((fitted(values) | {"billed": 0}).get, HEAD))


def row_from(values: Mapping[str, Any]) -> Row:
    """The closed row of these values. Raises: NoRow."""
    return Row(**fitted(values))


def _text(value: Any) -> str:
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
    if isinstance(value, int):
        return float(value) if -BIG_MAX <= value <= BIG_MAX else None
    return value if isinstance(value, float) and isfinite(value) else None


def _most(name: str) -> int:
    return SMALL_MAX if name in SMALL_COLUMNS else BIG_MAX if name in BIG_COLUMNS else INT_MAX


_TYPES = {field.name: field.type for field in fields(Row)}
_TEXTS = frozenset(name for name, kind in _TYPES.items() if kind in (str, str | None))
_MOST = {name: _most(name) for name, kind in _TYPES.items() if kind in (int, int | None)}
_FITS: dict[str, Callable[[Any], Any]] = {
    **dict.fromkeys(COLUMNS, _real),
    **dict.fromkeys(_TEXTS, _text),
    **{name: _integer(most) for name, most in _MOST.items()},
}

_REAL_MOST = sys.float_info.max
_read_brief: Callable[[Columns], Bound] = itemgetter(*BRIEF)
_read_texts = itemgetter(*(name for name in BRIEF if name in _TEXTS))


def _plain_field(name: str) -> tuple[str, Any]:
    """A column of `BRIEF` for msgspec: what needs no mending."""
    kind: Any = Annotated[float, msgspec.Meta(ge=-_REAL_MOST, le=_REAL_MOST)]
    if name in _TEXTS:
        kind = Annotated[str, msgspec.Meta(max_length=TEXT_CHARS)]
    elif name in _MOST:
        kind = Annotated[int, msgspec.Meta(ge=0, le=_MOST[name])]
    is_known = name in NEEDED or name in UNSAID
    return name, kind if is_known else kind | None


_Plain = msgspec.defstruct("_Plain", map(_plain_field, BRIEF), forbid_unknown_fields=True)
