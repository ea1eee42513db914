"""`tandem journal tail|grep`: the journal's lines, filtered. Knows not who writes them."""

import argparse
import json
import re
import sys
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from datetime import UTC, date, datetime, timedelta
from pathlib import Path
from typing import Any, TextIO

from gateway.preflight import CommandFailed
from gateway.settings.types import Settings

ReadSettings = Callable[[argparse.Namespace], Settings]
TAIL_LINES = 20

_AGE = re.compile(r"(\d{1,6})([mhdw])")
_UNITS = {"m": "minutes", "h": "hours", "d": "days", "w": "weeks"}


def add_verbs(parser: argparse.ArgumentParser, settings: ReadSettings) -> None:
    """The verbs below `tandem journal`."""
    verbs = parser.add_subparsers(required=True, metavar="tail|grep")
    tail = verbs.add_parser("tail", help="the last lines")
    tail.add_argument("-n", "--lines", type=int, default=TAIL_LINES)
    grep = verbs.add_parser("grep", help="lines in which a pattern is found")
    grep.add_argument("pattern", help="a regular expression")
    for verb in (tail, grep):
        verb.add_argument("--config", metavar="PATH", help="the tandem.yaml to use")
        verb.add_argument("--task", metavar="ID", help="of one of the monitor's tasks")
        verb.add_argument("--session", metavar="HASH", help="of a session; a beginning will do")
        verb.add_argument("--since", metavar="WHEN", help="a day, a time, or an age such as 3h")
        verb.add_argument("--json", action="store_true", help="the lines as they are")
    tail.set_defaults(verb=lambda args: print_tail(settings(args), args, sys.stdout, _now()))
    grep.set_defaults(verb=lambda args: print_found(settings(args), args, sys.stdout, _now()))


def print_tail(settings: Settings, args: argparse.Namespace, out: TextIO, now: datetime) -> int:
    """`tandem journal tail`. Raises: CommandFailed."""
    for line in deque(_lines(settings, args, now), maxlen=max(0, args.lines)):
        out.write(line)
    return 0


def print_found(settings: Settings, args: argparse.Namespace, out: TextIO, now: datetime) -> int:
    """`tandem journal grep`; 1 where nothing was found. Raises: CommandFailed."""
    try:
        pattern = re.compile(args.pattern)
    except re.error as fault:
        raise CommandFailed(f"{args.pattern!r} is no pattern: {fault}") from fault
    status = 1
    for line in _lines(settings, args, now):
        if pattern.search(line):
            out.write(line)
            status = 0
    return status


def _lines(settings: Settings, args: argparse.Namespace, now: datetime) -> Iterator[str]:
    """The lines that the options leave, oldest first, in the form that was asked for."""
    since = _since(args.since, now) if args.since else None
    for raw, values in _read(settings.journal_dir, since.date() if since else None):
        if since is not None and str(values.get("ts", "")) < _stamp(since):
            continue
        if args.task is not None and values.get("task") != args.task:
            continue
        if args.session and not str(values.get("session", "")).startswith(args.session):
            continue
        yield raw if args.json else _readable(values)


def _read(folder: Path, first: date | None) -> Iterator[tuple[str, Mapping[str, Any]]]:
    from gateway.journal import day_files

    for path, day, _ in day_files(folder):
        if first is not None and day < first:
            continue
        with path.open(encoding="utf-8", errors="replace") as file:
            for raw in file:
                try:
                    values = json.loads(raw)
                except ValueError:
                    continue  # a line that a crash left unfinished
                if isinstance(values, dict):
                    yield raw, values


def _readable(values: Mapping[str, Any]) -> str:
    said = [
        str(values[key])
        for key in ("ts", "request_id", "session", "event", "task", "mode", "reason")
        if key in values
    ]
    numbers = values.get("numbers")
    if isinstance(numbers, dict):
        said += [f"{name}={value}" for name, value in numbers.items()]
    if "ms" in values:
        said.append(f"{values['ms']} ms")
    if "excerpt" in values:
        said.append(json.dumps(values["excerpt"], ensure_ascii=False))
    return " ".join(said) + "\n"


def _since(text: str, now: datetime) -> datetime:
    """Raises: CommandFailed."""
    if age := _AGE.fullmatch(text):
        return now - timedelta(**{_UNITS[age[2]]: int(age[1])})
    try:
        found = datetime.fromisoformat(text)
    except ValueError:
        message = f"--since: {text!r} is neither a day, a time nor an age such as 30m, 3h or 7d"
        raise CommandFailed(message) from None
    return found.astimezone(UTC)  # without a zone it is local time


def _stamp(moment: datetime) -> str:
    return moment.isoformat(timespec="milliseconds").replace("+00:00", "Z")


def _now() -> datetime:
    return datetime.now(UTC)
