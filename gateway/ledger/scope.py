"""The rows that a query is about, and what they are sorted by, as SQL. Knows no sums."""

from typing import Any

from sqlalchemy import ColumnElement, and_

from gateway.ledger.query import Query
from gateway.store.tables import ledger

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


def scope(query: Query) -> ColumnElement[bool]:
    """The rows that a query is about."""
    conditions: list[ColumnElement[bool]] = [ledger.c.outcome.is_not(None)]
    if query.since_ms is not None:
        conditions.append(ledger.c.ts_ms >= query.since_ms)
    if query.until_ms is not None:
        conditions.append(ledger.c.ts_ms < query.until_ms)
    conditions += [COLUMN_OF[name] == value for name, value in query.only.items()]
    return and_(*conditions)
