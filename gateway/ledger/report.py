"""Sums over the ledger, by what one asks. Knows no SQL, no output format and no clock.

One function answers the command line and HTTP. What counts: rows that have an outcome. `requests`,
`intents` and `failed` count requests of clients (rows without a parent); tokens, costs and
percentiles take in every row that has the value.
"""

from dataclasses import dataclass, field
from datetime import tzinfo
from decimal import Decimal
from itertools import islice, product

from sqlalchemy import Engine

from gateway.ledger.facts import REPORT_ROWS, TOKENS, Facts, Key, Period, Sums
from gateway.ledger.period import DAY_MS, HOUR_MS, day_label, hour_label
from gateway.ledger.query import Dimension, Query, ReportFault, check
from gateway.store.tables import ledger

ADDED = ("requests", "failed", "unpriced", *TOKENS)
HOURLY_DAYS = 31  # the longest period by the hour
HOURLY_MS = HOURLY_DAYS * DAY_MS + HOUR_MS  # of 31 local days, one may have had 25 hours


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

    def add(self, other: "Line") -> None:
        """Adds the sums of another line. Amounts of different currencies stay apart."""
        for name in ("intents", *ADDED):
            setattr(self, name, getattr(self, name) + getattr(other, name))
        for currency, amount in other.cost.items():
            self.cost[currency] = self.cost.get(currency, Decimal(0)) + amount


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
        if "hour" in query.by and period.until_ms - period.since_ms > HOURLY_MS:
            raise ReportFault(f"by the hour, a report covers {HOURLY_DAYS} days at most")
        facts = Facts(connection, query, period)
        lines = _lines(facts, query, period)
        total = Line(())
        for line in lines.values():
            total.add(line)
        _add_percentiles({(): total}, facts, ())
        if query.by:
            _add_percentiles(lines, facts, query.by)
        else:
            lines = {(): total}
    for key, line in lines.items():
        line.key = _labelled(key, query.by, query.zone)
    in_order = sorted(lines, key=lambda key: [(part is None, part) for part in key])
    return Report(query, tuple(lines[key] for key in in_order), total)


def _lines(facts: Facts, query: Query, period: Period) -> dict[Key, Line]:
    found = list(facts.sums(query.by))
    keys = _dense({sums.key for sums in found}, query.by, period)
    lines = {key: Line(key) for key in keys}
    for sums in found:
        lines[sums.key].add(_line(sums))
    return lines


def _line(sums: Sums) -> Line:
    line = Line(sums.key, intents=sums.counts["requests"] - sums.counts["repeats"])
    for name in ADDED:
        setattr(line, name, sums.counts[name])
    if sums.currency is not None and sums.cost_micros is not None:
        line.cost[sums.currency] = Decimal(sums.cost_micros).scaleb(-6)
    return line


def _add_percentiles(lines: dict[Key, Line], facts: Facts, by: tuple[Dimension, ...]) -> None:
    for key, percent, value in facts.percentiles(by, ledger.c.ttft_ms, (50, 95)):
        if percent == 50:
            lines[key].ttft_p50_ms = value
        else:
            lines[key].ttft_p95_ms = value
    for key, _, value in facts.percentiles(by, ledger.c.decode_tps, (50,)):
        lines[key].decode_tps_p50 = value


def _dense(found: set[Key], by: tuple[Dimension, ...], period: Period) -> list[Key]:
    """Every key of the report: with a day or an hour among them, those without rows as well."""
    place = next((i for i, name in enumerate(by) if name in ("day", "hour")), None)
    if place is None:
        keys = list(found) if by else [()]
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


def _labelled(key: Key, by: tuple[Dimension, ...], zone: tzinfo | None) -> tuple[str | None, ...]:
    labels: list[str | None] = []
    for name, value in zip(by, key, strict=True):
        if name == "day":
            labels.append(day_label(value))
        else:
            labels.append(hour_label(value, zone) if name == "hour" else value)
    return tuple(labels)
