"""What one may ask the ledger: dimensions, a period, filters. Knows no sums and no output."""

from dataclasses import dataclass, field
from datetime import tzinfo
from typing import Any, Literal, get_args

from sqlalchemy import ColumnElement, and_

from gateway.store.tables import ledger

Dimension = Literal[
    "model", "client", "client_kind", "user", "profile", "class", "side", "backend", "surface",
    "kind", "outcome", "day", "hour",
]  # fmt: skip
DIMENSIONS: tuple[Dimension, ...] = get_args(Dimension)

COLUMN_OF: dict[str, ColumnElement[Any]] = {
    "model": ledger.c.model,
    "client": ledger.c.client_id,
    "client_kind": ledger.c.client_kind,
    "user": ledger.c.user_id,
    "profile": ledger.c.profile,
    "class": ledger.c.task_class,
    "side": ledger.c.side_kind,
    "backend": ledger.c.backend,
    "surface": ledger.c.surface,
    "kind": ledger.c.kind,
    "outcome": ledger.c.outcome,
}


class ReportFault(ValueError):
    """A report that cannot be made; the message says what to change."""


@dataclass(frozen=True, slots=True)
class Query:
    """What to report. Times in epoch ms, `until_ms` is not part of the period; None: as far as
    rows reach. `only`: values by dimension. `zone` None: local days of this machine."""

    by: tuple[Dimension, ...] = ()
    since_ms: int | None = None
    until_ms: int | None = None
    only: dict[Dimension, str] = field(default_factory=dict)
    zone: tzinfo | None = None


def scope(query: Query) -> ColumnElement[bool]:
    """The rows that a query is about."""
    conditions: list[ColumnElement[bool]] = [ledger.c.outcome.is_not(None)]
    if query.since_ms is not None:
        conditions.append(ledger.c.ts_ms >= query.since_ms)
    if query.until_ms is not None:
        conditions.append(ledger.c.ts_ms < query.until_ms)
    conditions += [COLUMN_OF[name] == value for name, value in query.only.items()]
    return and_(*conditions)


def dimensions_of(text: str) -> tuple[Dimension, ...]:
    """The dimensions named in a text, with commas between them.

    Raises: ReportFault for a name that is none.
    """
    known = {str(name): name for name in DIMENSIONS}
    names = [name.strip() for name in text.split(",") if name.strip()]
    for name in names:
        if name not in known:
            raise ReportFault(f"{name!r} is no dimension; there are {', '.join(DIMENSIONS)}")
    return tuple(known[name] for name in names)


def check(query: Query) -> None:
    """Raises: ReportFault when the query makes no sense."""
    if len(set(query.by)) < len(query.by):
        raise ReportFault("a dimension is named twice")
    if {"day", "hour"} <= set(query.by):
        raise ReportFault("take day or hour, not both")
    if {"day", "hour"} & set(query.only):
        raise ReportFault("narrow the time with since and until")
