"""`tandem ledger report`, `export`, `reprice`: words to text. Knows no argparse and no clock."""

from decimal import Decimal
from typing import TextIO

from sqlalchemy import Engine

from gateway.ledger.books import PriceRow
from gateway.ledger.export import ExportFormat, export
from gateway.ledger.query import ReportFault
from gateway.ledger.render import as_csv, as_json, as_table, plain
from gateway.ledger.report import report
from gateway.ledger.reprice import reprice
from gateway.ledger.words import ReportWords, query_of

FORMATS = {"table": as_table, "csv": as_csv, "json": as_json}


def run_report(words: ReportWords, engine: Engine, out: TextIO, now_ms: int) -> None:
    """Prints a report. `words.form`: table, csv or json; `engine`: a database's reader.

    Raises: ReportFault; sqlalchemy.exc.DBAPIError.
    """
    if words.form not in FORMATS:
        raise ReportFault(f"a report is printed as {', '.join(FORMATS)}, not as {words.form!r}")
    text = FORMATS[words.form](report(engine, query_of(words, now_ms)))
    out.write(text if text.endswith("\n") else text + "\n")


def run_export(words: ReportWords, engine: Engine, out: TextIO, now_ms: int) -> None:
    """Prints the rows. `words.form`: csv or jsonl.

    Raises: ReportFault; sqlalchemy.exc.DBAPIError.
    """
    forms: dict[str, ExportFormat] = {"csv": "csv", "jsonl": "jsonl"}
    if words.form not in forms:
        raise ReportFault(f"rows are exported as csv or jsonl, not as {words.form!r}")
    for piece in export(engine, query_of(words, now_ms), forms[words.form]):
        out.write(piece)


def run_reprice(
    words: ReportWords,
    engine: Engine,
    price: PriceRow,
    out: TextIO,
    now_ms: int,
    *,
    is_written: bool,
) -> None:
    """Prices rows anew and prints the difference. `engine`: a database's editor.

    Raises: ReportFault; sqlalchemy.exc.DBAPIError.
    """
    found = reprice(engine, query_of(words, now_ms), price, is_written=is_written)
    for currency in sorted(found.before.keys() | found.after.keys()):
        before = found.before.get(currency, Decimal(0))
        after = found.after.get(currency, Decimal(0))
        difference = plain(after - before)
        sign = "" if difference.startswith("-") else "+"
        out.write(f"{currency}  {plain(before)} -> {plain(after)}  ({sign}{difference})\n")
    done = "were changed" if is_written else "would change; nothing was written without --yes"
    out.write(f"{found.row_count:,} rows {done}\n")
