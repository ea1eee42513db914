"""The rows themselves, as CSV or JSON lines, a few at a time. Knows no sums."""

import csv
import io
import json
from collections.abc import Iterable, Iterator
from typing import Any, Literal

from sqlalchemy import Engine, select

from gateway.ledger.query import Query, check
from gateway.ledger.render import csv_cell
from gateway.ledger.row import COLUMNS
from gateway.ledger.scope import scope
from gateway.store.tables import ledger

ExportFormat = Literal["csv", "jsonl"]
ROWS_AT_A_TIME = 500


def export(engine: Engine, query: Query, form: ExportFormat) -> Iterator[str]:
    """The closed rows of a query, oldest first, in pieces of some lines.

    CSV has a line of names first; in JSON lines what is not known is left out.

    Raises: ReportFault; sqlalchemy.exc.DBAPIError.
    """
    check(query)
    rows = (
        select(*(ledger.c[name] for name in COLUMNS))
        .where(scope(query))
        .order_by(ledger.c.ts_ms, ledger.c.id)
    )
    if form == "csv":
        yield _csv_lines([COLUMNS])
    with engine.connect() as connection:
        found = connection.execution_options(yield_per=ROWS_AT_A_TIME).execute(rows)
        for some in found.partitions():
            yield _csv_lines(some) if form == "csv" else _json_lines(some)


def _csv_lines(rows: Iterable[Iterable[Any]]) -> str:
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerows([csv_cell(value) for value in row] for row in rows)
    return text.getvalue()


def _json_lines(rows: Iterable[Iterable[Any]]) -> str:
    lines = []
    for row in rows:
        known = zip(COLUMNS, row, strict=True)
        columns = {name: value for name, value in known if value is not None}
        lines.append(json.dumps(columns, ensure_ascii=False) + "\n")
    return "".join(lines)
