"""A report as text: a table for people, CSV for sheets, JSON for programs. Knows no database.

Money is written from its decimal: exactly, and never by way of a float.
"""

import csv
import io
import json
from decimal import Decimal
from typing import Any

from gateway.ledger.report import Line, Report

COUNTS = (
    "requests", "intents", "failed", "prompt", "cached", "completion", "reasoning", "note",
    "hidden",
)  # fmt: skip
SPEEDS = ("ttft_p50_ms", "ttft_p95_ms", "decode_tps_p50")
NOTHING = "–"  # in a table, where there is no value
FORMULA_SIGNS = ("=", "+", "-", "@", "\t", "\r")


def as_table(report: Report) -> str:
    """Aligned columns for a terminal, with the total below."""
    currencies = sorted(report.total.cost)
    names = [*report.query.by, *_columns(report.total, currencies)]
    rows = [[*line.key, *_columns(line, currencies).values()] for line in report.lines]
    if report.query.by:
        blanks = [""] * (len(report.query.by) - 1)
        rows.append(["total", *blanks, *_columns(report.total, currencies).values()])
    texts = [names, *([_for_people(value) for value in row] for row in rows)]
    widths = [max(map(len, column)) for column in zip(*texts, strict=True)]
    key_count = len(report.query.by)
    lines = []
    for row in texts:
        cells = [
            cell.ljust(width) if place < key_count else cell.rjust(width)
            for place, (cell, width) in enumerate(zip(row, widths, strict=True))
        ]
        lines.append("  ".join(cells).rstrip() + "\n")
    return "".join(lines)


def as_csv(report: Report) -> str:
    """One line for each key, no total: sheets add up by themselves."""
    currencies = sorted(report.total.cost)
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow([*report.query.by, *_columns(report.total, currencies)])
    for line in report.lines:
        values = [*line.key, *_columns(line, currencies).values()]
        writer.writerow([csv_cell(value) for value in values])
    return text.getvalue()


def as_json(report: Report) -> str:
    """Amounts are strings, so that no reader makes floats of them."""
    by = report.query.by
    lines = [{**dict(zip(by, line.key, strict=True)), **_members(line)} for line in report.lines]
    body = {
        "by": by,
        "since_ms": report.query.since_ms,
        "until_ms": report.query.until_ms,
        "lines": lines,
        "total": _members(report.total),
    }
    return json.dumps(body, ensure_ascii=False)


def csv_cell(value: Any) -> Any:
    """A value as a sheet may show it. A client chooses its model's name: no formula comes of it."""
    if isinstance(value, str) and value.startswith(FORMULA_SIGNS):
        return f"'{value}"
    return plain(value) if isinstance(value, Decimal) else value


def plain(amount: Decimal) -> str:
    """Every digit of an amount, without an exponent and without zeros behind."""
    return f"{amount.normalize():f}"


def _columns(line: Line, currencies: list[str]) -> dict[str, Any]:
    return {
        **{name: getattr(line, name) for name in COUNTS},
        **{f"cost_{currency}": line.cost.get(currency) for currency in currencies},
        "unpriced": line.unpriced,
        **{name: getattr(line, name) for name in SPEEDS},
    }


def _members(line: Line) -> dict[str, Any]:
    return {
        **{name: getattr(line, name) for name in COUNTS},
        "cost": {currency: plain(line.cost[currency]) for currency in sorted(line.cost)},
        "unpriced": line.unpriced,
        **{name: getattr(line, name) for name in SPEEDS},
    }


def _for_people(value: Any) -> str:
    if value is None:
        return NOTHING
    if isinstance(value, int):
        return f"{value:,}"
    if isinstance(value, float):
        return f"{value:.1f}"
    if isinstance(value, Decimal):
        return plain(value)
    # What came from a client must not move the cursor of a terminal.
    return "".join(sign if sign.isprintable() else "\ufffd" for sign in str(value))
