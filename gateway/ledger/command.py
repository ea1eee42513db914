"""The ledger as `serve`, the command line and HTTP open it. Knows no table and no query.

What reports are made with is imported with the first of them: `serve` need not load it to book.
"""

import argparse
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import TextIO
from urllib.parse import parse_qsl

from gateway.errors import ApiError
from gateway.ledger.books import Books, NoLedger
from gateway.ledger.budget import Budgets
from gateway.ledger.clock import Clock
from gateway.ledger.living import LivingProcesses
from gateway.ledger.prices import PriceList
from gateway.ledger.query import ReportFault
from gateway.ledger.words import ReportWords, query_of
from gateway.ledger.writer import Ledger
from gateway.preflight import CommandFailed
from gateway.settings.installation import make_state_dir
from gateway.settings.types import Settings
from gateway.store.db import Database, StoreFault

CLOCK = Clock(lambda: time.time_ns() // 1_000_000, time.monotonic)
FILTERS = ("model", "client", "backend", "profile", "class", "kind")


@dataclass(frozen=True, slots=True)
class OpenLedger:
    """The books of a running gateway, and their database (None: nothing is kept)."""

    books: Books
    database: Database | None = None
    budgets: Budgets = field(default_factory=lambda: Budgets(CLOCK))


def open_books(settings: Settings, option: str | None) -> OpenLedger:
    """What `serve` books in. `option`: `none`, another file, or None for the configured place.

    Raises: CommandFailed.
    """
    if option == "none":
        return OpenLedger(NoLedger())
    database = open_database(settings, option)
    budgets = Budgets(CLOCK)
    state_dir = make_state_dir(settings.state_dir)
    books = Ledger(
        database,
        settings.ledger,
        state_dir=state_dir,
        price=PriceList(settings.prices).price,
        clock=CLOCK,
        budgets=budgets,
        living=LivingProcesses(state_dir),
    )
    return OpenLedger(books, database, budgets)


def open_database(settings: Settings, option: str | None = None) -> Database:
    """The ledger's database: the file of the option, else what the configuration names.

    Raises: CommandFailed.
    """
    url = settings.ledger.url
    target = _file(settings, option) if option or url is None else url.value
    try:
        return Database.open(target)
    except ModuleNotFoundError as fault:
        raise CommandFailed(
            f"the ledger's database needs {fault.name}: pip install 'tandem-llm[postgres]'"
        ) from fault
    except (StoreFault, OSError) as fault:
        raise CommandFailed(f"the ledger cannot be opened: {fault}") from fault


def open_existing(settings: Settings, option: str | None) -> Database:
    """The same, where `serve` has been: no verb that only reads makes a file.

    Raises: CommandFailed.
    """
    if option is not None or settings.ledger.url is None:
        file = _file(settings, option)
        if not file.is_file():
            raise CommandFailed(f"there is no ledger at {file}; 'tandem serve' makes it")
    return open_database(settings, option)


def print_report(settings: Settings, args: argparse.Namespace, out: TextIO) -> int:
    """`tandem ledger report`."""
    from gateway.ledger.verbs import run_report

    words = _words(args, by=args.by)
    return _print(settings, args, lambda db: run_report(words, db.reader, out, now_ms()))


def print_export(settings: Settings, args: argparse.Namespace, out: TextIO) -> int:
    """`tandem ledger export`."""
    from gateway.ledger.verbs import run_export

    words = _words(args)
    return _print(settings, args, lambda db: run_export(words, db.reader, out, now_ms()))


def reprice_rows(settings: Settings, args: argparse.Namespace, out: TextIO) -> int:
    """`tandem ledger reprice`."""
    from gateway.ledger.verbs import run_reprice

    words, price = _words(args), PriceList(settings.prices).price

    def run(database: Database) -> None:
        run_reprice(words, database.editor, price, out, now_ms(), is_written=args.yes)

    return _print(settings, args, run)


def usage_body(database: Database, query_string: str) -> bytes:
    """The body of `GET /v1/dashboard/usage`: the report of `?by=model,day&since=7d` as JSON.

    Blocks: not for an event loop. Raises: ApiError 400 that says what to change.
    """
    from gateway.ledger.render import as_json
    from gateway.ledger.report import report

    fields = dict(parse_qsl(query_string))
    known = {"by", "since", "until", "utc", *FILTERS}
    if unknown := fields.keys() - known:
        name = min(unknown)
        message = f"'{name}' is not known here; known: {', '.join(sorted(known))}."
        raise ApiError(400, "invalid_request", message, param=name)
    words = ReportWords(
        by=fields.get("by", "model"),
        since=fields.get("since"),
        until=fields.get("until"),
        utc=fields.get("utc", "") in ("1", "true", "yes"),
        model=fields.get("model"),
        client=fields.get("client"),
        backend=fields.get("backend"),
        profile=fields.get("profile"),
        task_class=fields.get("class"),
        kind=fields.get("kind"),
    )
    try:
        return as_json(report(database.reader, query_of(words, now_ms()))).encode()
    except ReportFault as fault:
        raise ApiError(400, "invalid_request", f"{fault}.") from fault


def now_ms() -> int:
    """Epoch milliseconds."""
    return CLOCK.now_ms()


def _print(settings: Settings, args: argparse.Namespace, run: Callable[[Database], None]) -> int:
    database = open_existing(settings, args.ledger)
    try:
        run(database)
    except ReportFault as fault:
        raise CommandFailed(str(fault)) from fault
    finally:
        database.close()
    return 0


def _words(args: argparse.Namespace, by: str = "model") -> ReportWords:
    return ReportWords(
        by=by,
        form=getattr(args, "format", "table"),
        since=args.since,
        until=args.until,
        utc=args.utc,
        model=args.only_model,
        client=args.only_client,
        backend=args.only_backend,
        profile=args.only_profile,
        task_class=args.only_class,
        kind=args.only_kind,
    )


def _file(settings: Settings, option: str | None) -> Path:
    if option is not None:
        return Path(option).expanduser()
    return (settings.ledger.path or settings.state_dir / "ledger.sqlite").expanduser()
