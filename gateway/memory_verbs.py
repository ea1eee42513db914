"""`tandem memory list|show|rm|pin|export`. Knows no table: it asks the desk and prints."""

import argparse
import json
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict
from datetime import UTC, datetime
from typing import TYPE_CHECKING, TextIO

from gateway.preflight import CommandFailed
from gateway.settings.types import Settings

if TYPE_CHECKING:
    from gateway.store.db import Database
    from gateway.store.memory_desk import KeptNote

ReadSettings = Callable[[argparse.Namespace], Settings]
LISTED_CHARS = 100  # of a note's text, on its line


def add_verbs(parser: argparse.ArgumentParser, settings: ReadSettings) -> None:
    """The verbs below `tandem memory`."""
    verbs = parser.add_subparsers(required=True, metavar="list|show|rm|pin|export")

    every = verbs.add_parser("list", help="the notes, one a line")
    every.add_argument("--json", action="store_true")
    every.set_defaults(verb=lambda args: print_list(settings(args), args, sys.stdout))

    show = verbs.add_parser("show", help="one note with everything that is known of it")
    show.add_argument("id", type=int)
    show.add_argument("--json", action="store_true")
    show.set_defaults(verb=lambda args: print_note(settings(args), args, sys.stdout))

    remove = verbs.add_parser("rm", help="delete notes; the same facts stay away for 90 days")
    remove.add_argument("id", type=int, nargs="+")
    remove.set_defaults(verb=lambda args: remove_notes(settings(args), args))

    pin = verbs.add_parser("pin", help="place a note first, and keep it")
    pin.add_argument("id", type=int)
    pin.add_argument("--off", action="store_true", help="let it go again")
    pin.set_defaults(verb=lambda args: pin_note(settings(args), args))

    export = verbs.add_parser("export", help="the notes as JSON lines")
    export.set_defaults(verb=lambda args: export_notes(settings(args), args, sys.stdout))

    for verb in (every, show, remove, pin, export):
        verb.add_argument("--config", metavar="PATH", help="the tandem.yaml to use")
    for verb in (every, export):
        verb.add_argument("--key", metavar="LABEL", help="of one client key")
        verb.add_argument("--project", metavar="NAME", help="of one project")


def print_list(settings: Settings, args: argparse.Namespace, out: TextIO) -> int:
    """`tandem memory list`."""
    notes = _listed(settings, args)
    if args.json:
        out.write(json.dumps([asdict(note) for note in notes], indent=2) + "\n")
        return 0
    for note in notes:
        mark = "*" if note.pinned else "-" if note.superseded_by else " "
        text = note.text if len(note.text) <= LISTED_CHARS else note.text[: LISTED_CHARS - 1] + "…"
        project = note.project or "(none)"
        out.write(f"{note.id:>6} {mark} {note.key_id}  {project}  {note.kind}: {text}\n")
    return 0


def print_note(settings: Settings, args: argparse.Namespace, out: TextIO) -> int:
    """`tandem memory show`. Raises: CommandFailed where there is none."""
    from gateway.store.memory_desk import find_note

    with _opened(settings) as database:
        note = find_note(database.reader, args.id)
    if note is None:
        raise CommandFailed(f"there is no memory note {args.id}")
    if args.json:
        out.write(json.dumps(asdict(note), indent=2) + "\n")
        return 0
    for name, value in asdict(note).items():
        if value is None:
            continue
        if name.endswith("_ms"):
            name, value = name.removesuffix("_ms"), _time(value)
        out.write(f"{name:<13} {value}\n")
    return 0


def remove_notes(settings: Settings, args: argparse.Namespace) -> int:
    """`tandem memory rm`. Raises: CommandFailed for the ones that are not there."""
    from gateway.ledger.command import now_ms
    from gateway.store.memory_desk import delete_note

    with _opened(settings) as database:
        absent = [
            number for number in args.id if not delete_note(database.editor, number, now_ms())
        ]
    if absent:
        raise CommandFailed(f"there is no memory note {', '.join(map(str, absent))}")
    return 0


def pin_note(settings: Settings, args: argparse.Namespace) -> int:
    """`tandem memory pin`. Raises: CommandFailed where there is none."""
    from gateway.store import memory_desk

    with _opened(settings) as database:
        if not memory_desk.pin_note(database.editor, args.id, is_pinned=not args.off):
            raise CommandFailed(f"there is no memory note {args.id}")
    return 0


def export_notes(settings: Settings, args: argparse.Namespace, out: TextIO) -> int:
    """`tandem memory export`."""
    for note in _listed(settings, args):
        out.write(json.dumps(asdict(note), ensure_ascii=False) + "\n")
    return 0


def _listed(settings: Settings, args: argparse.Namespace) -> "list[KeptNote]":
    from gateway.store.memory_desk import list_notes

    with _opened(settings) as database:
        return list_notes(database.reader, args.key, args.project)


@contextmanager
def _opened(settings: Settings) -> "Iterator[Database]":
    """The database with its newest tables. Raises: CommandFailed."""
    from gateway.notebook.command import open_existing_store
    from gateway.store.db import StoreFault
    from gateway.store.schema import STORE, bring_up_to_date

    database = open_existing_store(settings)
    try:
        bring_up_to_date(database, STORE)
        yield database
    except StoreFault as fault:
        raise CommandFailed(str(fault)) from fault
    finally:
        database.close()


def _time(epoch_ms: int) -> str:
    return datetime.fromtimestamp(epoch_ms / 1000, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
