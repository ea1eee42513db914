"""The sums of a report, made by the database: the same statements on SQLite and PostgreSQL.

Knows no labels and no output; days and hours are numbers here.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from sqlalchemy import ColumnElement, Connection, Select, Subquery, and_, case, func, or_, select

from gateway.ledger.period import DAY_MS, HOUR_MS, Offsets, days_of, hours_of, offsets_of
from gateway.ledger.query import Dimension, Query, ReportFault
from gateway.ledger.scope import COLUMN_OF, scope
from gateway.store.tables import ledger

PERIOD_DAYS = 36_525  # a century
REPORT_ROWS = 100_000  # more than anybody reads
REPEAT_MS = 600_000  # a client gives up trying again within ten minutes
DOUBLE_MS = 2_000  # the same body again within so short a time is one wish, whatever came of it

Key = tuple[Any, ...]

TOKENS = ("prompt", "cached", "completion", "reasoning", "note", "hidden")
COUNTS = ("requests", "repeats", "failed", "unpriced", *TOKENS)
_REQUEST = ledger.c.parent_request_id.is_(None)
# A call was made, and what it cost is not known.
_UNPRICED = and_(
    ledger.c.cost_micros.is_(None),
    or_(
        ledger.c.outcome == "succeeded",
        ledger.c.upstream_input_tokens.is_not(None),
        ledger.c.upstream_output_tokens.is_not(None),
    ),
)


@dataclass(frozen=True, slots=True)
class Period:
    """The time that lines are made for, and how local clocks ran in it."""

    since_ms: int
    until_ms: int
    offsets: Offsets

    @classmethod
    def of(cls, connection: Connection, query: Query) -> "Period":
        """The period that was asked for, or that the rows cover.

        Raises: ReportFault.
        """
        since_ms, until_ms = query.since_ms, query.until_ms
        if since_ms is None or until_ms is None:
            first, last = connection.execute(
                select(func.min(ledger.c.ts_ms), func.max(ledger.c.ts_ms)).where(scope(query))
            ).one()
            if last is None:  # no rows: a period without an end of its own is empty
                first, last = until_ms or 0, (since_ms or until_ms or 0) - 1
            since_ms = first if since_ms is None else since_ms
            until_ms = last + 1 if until_ms is None else until_ms
        if until_ms - since_ms > PERIOD_DAYS * DAY_MS:
            raise ReportFault(f"a report covers {PERIOD_DAYS:,} days at most; ask for less time")
        return cls(since_ms, until_ms, offsets_of(since_ms, until_ms, query.zone))

    def local(self) -> ColumnElement[int]:
        """The arrival as local clocks showed it, in ms."""
        (_, first), *others = self.offsets.pieces
        if not others:
            return ledger.c.ts_ms + first
        starts = [start for start, _ in others]
        known = [offset for _, offset in self.offsets.pieces]
        steps = [
            (ledger.c.ts_ms < start, ledger.c.ts_ms + offset)
            for start, offset in zip(starts, known, strict=False)
        ]
        return case(*steps, else_=ledger.c.ts_ms + known[-1])

    def expression(self, name: Dimension) -> ColumnElement[Any]:
        """What rows of one line have in common."""
        if name == "day":
            return self.local() // DAY_MS
        if name == "hour":
            return ledger.c.ts_ms - self.local() % HOUR_MS
        return COLUMN_OF[name]

    def buckets(self, name: Dimension) -> Iterator[int]:
        """Every day, or every hour."""
        every = days_of if name == "day" else hours_of
        return every(self.since_ms, self.until_ms, self.offsets)


@dataclass(frozen=True, slots=True)
class Sums:
    """Rows of one key and one currency. `counts` by the names of `COUNTS`; a cost of None: no row
    has one."""

    key: Key
    currency: str | None
    cost_micros: int | None
    counts: dict[str, int]


class Facts:
    """The rows of a query, summed up by the database. Keys hold days and hours as numbers."""

    def __init__(self, connection: Connection, query: Query, period: Period) -> None:
        self._connection = connection
        self._query = query
        self._period = period
        self._scope = scope(query)

    def sums(self, by: tuple[Dimension, ...]) -> Iterator[Sums]:
        """The sums by key and currency."""
        rows, keys = self._rows(
            by,
            ledger.c.currency,
            _one_if(_REQUEST).label("requests"),
            _one_if(ledger.c.id.in_(_repeats(self._query))).label("repeats"),
            _one_if(and_(_REQUEST, ledger.c.outcome == "failed")).label("failed"),
            _one_if(_UNPRICED).label("unpriced"),
            *(ledger.c[f"{name}_tokens"].label(name) for name in TOKENS),
            ledger.c.cost_micros.label("cost"),
        )
        groups = [*keys, rows.c.currency]
        sums = [func.coalesce(func.sum(rows.c[name]), 0) for name in COUNTS]
        found = self._connection.execute(
            select(*groups, func.sum(rows.c.cost), *sums).group_by(*groups).limit(REPORT_ROWS + 1)
        )
        for row in found:
            currency, micros, *values = row[len(by) :]
            yield Sums(
                key=tuple(row[: len(by)]),
                currency=currency,
                cost_micros=None if micros is None else int(micros),
                counts={name: int(value) for name, value in zip(COUNTS, values, strict=True)},
            )

    def percentiles(
        self, by: tuple[Dimension, ...], column: ColumnElement[Any], percents: tuple[int, ...]
    ) -> Iterator[tuple[Key, int, Any]]:
        """Nearest-rank: of n values in order, the one at ceil(percent / 100 * n)."""
        rows, keys = self._rows(by, column.label("value"), condition=column.is_not(None))
        groups = keys or None
        ranked = select(
            *keys,
            rows.c.value,
            func.row_number().over(partition_by=groups, order_by=rows.c.value).label("rank"),
            func.count().over(partition_by=groups).label("count"),
        ).subquery()
        wanted = [ranked.c.rank == _rank(ranked.c.count, percent) for percent in percents]
        names = [ranked.c[key.name] for key in keys]
        found = self._connection.execute(
            select(*names, ranked.c.rank, ranked.c.count, ranked.c.value).where(or_(*wanted))
        )
        for *key, rank, count, value in found:
            for percent in percents:
                if rank == _rank(count, percent):
                    yield tuple(key), percent, value

    def _rows(
        self,
        by: tuple[Dimension, ...],
        *columns: ColumnElement[Any],
        condition: ColumnElement[bool] | None = None,
    ) -> tuple[Subquery, list[ColumnElement[Any]]]:
        """What is summed up, as a subquery: PostgreSQL takes two equal expressions with parameters
        for different ones, so they are named here and grouped by name."""
        keys = [self._period.expression(name).label(f"key{i}") for i, name in enumerate(by)]
        chosen = select(*keys, *columns).where(self._scope)
        if condition is not None:
            chosen = chosen.where(condition)
        rows = chosen.subquery()
        return rows, [rows.c[key.name] for key in keys]


def _rank(count: Any, percent: int) -> Any:
    return (count * percent + 99) // 100


def _one_if(condition: ColumnElement[bool]) -> ColumnElement[int]:
    return case((condition, 1), else_=0)


def _repeats(query: Query) -> Select[tuple[int]]:
    """Ids of requests that say again what the one before them said.

    The one before: of the same client, session and body. It came at most ten minutes earlier and
    did not succeed, or at most two seconds earlier, whatever came of it. It need not be among the
    rows that the query is about.
    """
    alike = [ledger.c.client_id, ledger.c.session_hash, ledger.c.body_hash]
    age = [ledger.c.ts_ms, ledger.c.id]
    since = func.lag(ledger.c.ts_ms).over(partition_by=alike, order_by=age)
    outcome = func.lag(ledger.c.outcome).over(partition_by=alike, order_by=age)
    conditions: list[ColumnElement[bool]] = [
        _REQUEST,
        ledger.c.body_hash.is_not(None),
        ledger.c.outcome.is_not(None),
    ]
    if query.since_ms is not None:
        conditions.append(ledger.c.ts_ms >= query.since_ms - REPEAT_MS)
    if query.until_ms is not None:
        conditions.append(ledger.c.ts_ms < query.until_ms)
    chain = (
        select(
            ledger.c.id,
            (ledger.c.ts_ms - since).label("gap_ms"),
            outcome.label("outcome_before"),
        )
        .where(*conditions)
        .subquery()
    )
    is_repeat = or_(
        chain.c.gap_ms <= DOUBLE_MS,
        and_(chain.c.gap_ms <= REPEAT_MS, chain.c.outcome_before != "succeeded"),
    )
    return select(chain.c.id).where(is_repeat)
