"""Prices rows that are in the books anew, after a mistake in the price list. Knows no list.

What a provider stated is left alone. Without being told to write, it only says what would change.
"""

from dataclasses import dataclass, field
from decimal import Decimal

from sqlalchemy import Connection, Engine, bindparam, select

from gateway.ledger.books import PriceRow
from gateway.ledger.query import Query, check
from gateway.ledger.row import COLUMNS, Columns
from gateway.ledger.scope import scope
from gateway.store.tables import ledger

ROWS_AT_A_TIME = 500  # in one transaction: gateways write between two of them
COST_COLUMNS = (
    "currency", "cost_micros", "cost_source", "price_id", "price_input", "price_cached",
    "price_cache_write", "price_output", "price_reasoning", "price_request",
)  # fmt: skip
_NO_COST: Columns = dict.fromkeys(COST_COLUMNS)


@dataclass(slots=True)
class Repricing:
    """What changes: rows, and what those rows cost by currency, `before` and `after`."""

    row_count: int = 0
    before: dict[str, Decimal] = field(default_factory=dict)
    after: dict[str, Decimal] = field(default_factory=dict)


def reprice(engine: Engine, query: Query, price: PriceRow, *, is_written: bool) -> Repricing:
    """Prices the rows of a query with another list. `engine`: a database's editor.

    Raises: ReportFault; sqlalchemy.exc.DBAPIError, with what was done so far in the books.
    """
    check(query)
    found = Repricing()
    last_id = 0
    while True:
        with engine.begin() as connection:
            rows = _page(connection, query, last_id)
            changes = {}
            for row_id, row in rows.items():
                again = row | _NO_COST
                price(again)
                if again != row:
                    changes[row_id] = again
                    _note(found, row, again)
            if is_written and changes:
                _write(connection, changes)
        if len(rows) < ROWS_AT_A_TIME:
            return found
        last_id = max(rows)


def _page(connection: Connection, query: Query, last_id: int) -> dict[int, Columns]:
    source = ledger.c.cost_source
    found = connection.execute(
        select(ledger.c.id, *(ledger.c[name] for name in COLUMNS))
        .where(scope(query), ledger.c.id > last_id, source.is_distinct_from("provider"))
        .order_by(ledger.c.id)
        .limit(ROWS_AT_A_TIME)
    )
    return {row_id: dict(zip(COLUMNS, row, strict=True)) for row_id, *row in found}


def _write(connection: Connection, changes: dict[int, Columns]) -> None:
    update = ledger.update().where(ledger.c.id == bindparam("row_id"))
    connection.execute(
        update.values({name: bindparam(f"new_{name}") for name in COST_COLUMNS}),
        [
            {"row_id": row_id, **{f"new_{name}": row[name] for name in COST_COLUMNS}}
            for row_id, row in changes.items()
        ],
    )


def _note(found: Repricing, before: Columns, after: Columns) -> None:
    found.row_count += 1
    for row, sums in ((before, found.before), (after, found.after)):
        currency, micros = row["currency"], row["cost_micros"]
        if currency is not None and micros is not None:
            sums[currency] = sums.get(currency, Decimal(0)) + Decimal(micros).scaleb(-6)
