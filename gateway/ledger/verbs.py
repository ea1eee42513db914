"""`tandem ledger report`, `export`, `reprice`: words to text. Knows no argparse and no clock."""

from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, tzinfo
from decimal import Decimal
from typing import TextIO

from sqlalchemy import Engine

from gateway.ledger.export import ExportFormat, export
from gateway.ledger.period import BadTime, parse_since, parse_until
from gateway.ledger.query import Dimension, Query, ReportFault, dimensions_of
from gateway.ledger.render import as_csv, as_json, as_table, plain
from gateway.ledger.report import report
from gateway.ledger.reprice import reprice
from gateway.ledger.row import Row

FORMATS = {"table": as_table, "csv": as_csv, "json": as_json}


@dataclass(frozen=True, slots=True)
class ReportWords:
    """What was asked, as it was written. None: not narrowed. `by`: names with commas between."""

    by: str = "model"
    form: str = "table"
    since: str | None = None
    until: str | None = None
    utc: bool = False
    model: str | None = None
    client: str | None = None
    backend: str | None = None
    profile: str | None = None
    task_class: str | None = None
    kind: str | None = None


def query_of(words: ReportWords, now_ms: int, zone: tzinfo | None = None) -> Query:
    """The query that the words ask. `zone` None: this machine's local time; `utc` goes before it.

    A period that has a beginning and no end reaches to now.

    Raises: ReportFault.
    """
    if words.utc:
        zone = UTC
    only: dict[Dimension, str | None] = {
        "model": words.model,
        "client": words.client,
        "backend": words.backend,
        "profile": words.profile,
        "class": words.task_class,
        "kind": words.kind,
    }
    try:
        since_ms = None if words.since is None else parse_since(words.since, now_ms, zone)
        until_ms = parse_until(words.until or "now", now_ms, zone)
    except BadTime as fault:
        raise ReportFault(str(fault)) from fault
    if since_ms is not None and since_ms >= until_ms:
        raise ReportFault("the period ends before it begins")
    return Query(
        by=dimensions_of(words.by),
        since_ms=since_ms,
        until_ms=until_ms,
        only={name: value for name, value in only.items() if value is not None},
        zone=zone,
    )


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
    price: Callable[[Row], Row],
    out: TextIO,
    now_ms: int,
    *,
    is_written: bool,
) -> None:
    """Prices rows anew and prints the difference. `engine`: a database's writer.

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
