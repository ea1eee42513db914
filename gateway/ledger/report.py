"""Sums over the ledger, by what one asks. Knows no SQL, no output format and no clock.

One function answers the command line and HTTP. What counts: rows that have an outcome. `requests`,
`intents` and `failed` count requests of clients (rows without a parent); tokens, costs and
percentiles take in every row that has the value.
"""

from dataclasses import dataclass, field
from datetime import tzinfo
from decimal import Decimal
from itertools import islice, product
from typing import Any

from sqlalchemy import Connection, Engine

from gateway.ledger.facts import REPORT_ROWS, SUMS, Facts, Period
from gateway.ledger.period import DAY_MS, HOUR_MS, day_label, hour_label
from gateway.ledger.query import Dimension, Query, ReportFault, check
from gateway.store.tables import ledger

HOURLY_DAYS = 31  # the longest period by the hour


@dataclass(slots=True)
class Line:
    """One line of a report. `key`: a value for each dimension, None where rows have none.

    Percentiles are nearest-rank: always a value that occurred.
    """

    key: tuple[str | None, ...]
    requests: int = 0
    intents: int = 0
    failed: int = 0
    prompt: int = 0
    cached: int = 0
    completion: int = 0
    reasoning: int = 0
    note: int = 0
    hidden: int = 0
    unpriced: int = 0
    cost: dict[str, Decimal] = field(default_factory=dict)
    ttft_p50_ms: int | None = None
    ttft_p95_ms: int | None = None
    decode_tps_p50: float | None = None


@dataclass(frozen=True, slots=True)
class Report:
    """The answer. `lines` are sorted by key; `total` is over all rows, percentiles included."""

    query: Query
    lines: tuple[Line, ...]
    total: Line


def report(engine: Engine, query: Query) -> Report:
    """Answers a query from one snapshot of the database.

    Raises: ReportFault; sqlalchemy.exc.DBAPIError.
    """
    check(query)
    with engine.connect() as connection:
        period = Period.of(connection, query)
        lines = _lines(connection, query, period, query.by)
        (total,) = _lines(connection, query, period, ())
    return Report(query, tuple(lines), total)


def _lines(
    connection: Connection, query: Query, period: Period, by: tuple[Dimension, ...]
) -> list[Line]:
    # One hour more: of 31 local days, one may have had 25 hours.
    if "hour" in by and period.until_ms - period.since_ms > HOURLY_DAYS * DAY_MS + HOUR_MS:
        raise ReportFault(f"by the hour, a report covers {HOURLY_DAYS} days at most")
    facts = Facts(connection, query, period, by)
    lines = {key: Line(key) for key in _dense(list(facts.sums), by, period)}
    for key, sums in facts.sums.items():
        line = lines[key]
        line.requests, repeats, line.failed, line.unpriced = sums[:4]
        line.intents = line.requests - repeats
        for name, value in zip(SUMS, sums[4:], strict=True):
            setattr(line, name, value)
    for key, currency, micros in facts.costs():
        lines[key].cost[currency] = Decimal(micros).scaleb(-6)
    for key, percent, value in facts.percentiles(ledger.c.ttft_ms, (50, 95)):
        setattr(lines[key], f"ttft_p{percent}_ms", value)
    for key, _, value in facts.percentiles(ledger.c.decode_tps, (50,)):
        lines[key].decode_tps_p50 = value
    ordered = sorted(lines.values(), key=lambda line: _order(line.key))
    for line in ordered:
        line.key = _labelled(line.key, by, query.zone)
    return ordered


def _dense(
    found: list[tuple[Any, ...]], by: tuple[Dimension, ...], period: Period
) -> list[tuple[Any, ...]]:
    """Every key of the report: with a day or an hour among them, those without rows as well."""
    place = next((i for i, name in enumerate(by) if name in ("day", "hour")), None)
    if place is None:
        keys = found
    else:
        buckets = list(period.buckets(by[place]))
        others = {(key[:place], key[place + 1 :]) for key in found}
        if len(by) == 1:
            others.add(((), ()))  # a line a day, even if there is no row at all
        keys = list(
            islice(
                ((*before, day, *after) for (before, after), day in product(others, buckets)),
                REPORT_ROWS + 1,
            )
        )
    if len(keys) > REPORT_ROWS:
        raise ReportFault(f"the report would have more than {REPORT_ROWS:,} lines; ask for less")
    return keys


def _order(key: tuple[Any, ...]) -> tuple[tuple[bool, Any], ...]:
    return tuple((value is None, value if value is not None else 0) for value in key)


def _labelled(
    key: tuple[Any, ...], by: tuple[Dimension, ...], zone: tzinfo | None
) -> tuple[str | None, ...]:
    labels: list[str | None] = []
    for name, value in zip(by, key, strict=True):
        if name == "day":
            labels.append(day_label(value))
        else:
            labels.append(hour_label(value, zone) if name == "hour" else value)
    return tuple(labels)
