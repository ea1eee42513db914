"""The conductor's journal: JSON lines in a file a day, written behind everyone's back.

Knows no request's text but the excerpts that an operator asked for, and no database.
"""

import json
import os
import re
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, date, datetime, timedelta
from pathlib import Path

import structlog

from conductor.types import JournalLine
from gateway.background import Background
from gateway.settings.types import JournalSettings
from proto.chat import Json

log = structlog.get_logger(__name__)

EXCERPT_CHARS = 80
MIB = 1024**2
PARTS = 10_000  # files of one day
NAME = re.compile(r"journal-(\d{4}-\d\d-\d\d)(?:\.(\d{1,4}))?\.jsonl")
SAID_EVERY_MS = 60_000  # for a disk that takes nothing

NowMs = Callable[[], int]


@dataclass(frozen=True, slots=True)
class JournalHead:
    """What every line of one request says. `session`: a hash."""

    request_id: str
    session: str = ""
    profile: str = ""
    config_rev: str = ""


class Journal:
    """The files. Days are of UTC. Several processes may write to one folder."""

    def __init__(
        self, folder: Path, settings: JournalSettings, background: Background, now_ms: NowMs
    ) -> None:
        self._files = DayFiles(folder, settings.rotate_mb * MIB, settings.days)
        self._shows_content = settings.log_content
        self._background = background
        self._now_ms = now_ms
        self._said_ms: int | None = None

    def of(self, head: JournalHead) -> "RequestJournal":
        """The port `Journal` for one request."""
        return RequestJournal(self, head)

    def emit(self, head: JournalHead, line: JournalLine, excerpt: str | None = None) -> None:
        """Takes a line. Never waits and never fails. `excerpt`: text that the line is about; it is
        written, its beginning, only where `journal.log_content` says so."""
        shown = excerpt if self._shows_content else None
        now_ms = self._now_ms()
        self._background.put(lambda: self._write(now_ms, head, line, shown))

    def _write(
        self, now_ms: int, head: JournalHead, line: JournalLine, excerpt: str | None
    ) -> None:
        try:
            self._files.append(now_ms, encoded(now_ms, head, line, excerpt))
        except OSError as fault:
            if self._said_ms is None or now_ms - self._said_ms >= SAID_EVERY_MS:
                self._said_ms = now_ms
                log.error("journal.not_written", errno=fault.errno, reason=fault.strerror)


class RequestJournal:
    """Lines of one request. Its head is replaced when session and profile are known."""

    def __init__(self, journal: Journal, head: JournalHead) -> None:
        self._journal = journal
        self.head = head

    def emit(self, line: JournalLine, excerpt: str | None = None) -> None:
        """Takes a line. Never waits and never fails."""
        self._journal.emit(self.head, line, excerpt)


class DayFiles:
    """Appends whole lines to the newest file of the day. One thread uses it.

    `rotate_bytes`: a larger file is followed by the next one; `days`: older files are deleted.
    """

    def __init__(self, folder: Path, rotate_bytes: int, days: int) -> None:
        self._folder = folder
        self._rotate_bytes = rotate_bytes
        self._days = days
        self._day: date | None = None
        self._part = 0
        self._descriptor: int | None = None

    def append(self, now_ms: int, data: bytes) -> None:
        """Writes a line. Raises: OSError."""
        day = datetime.fromtimestamp(now_ms / 1000, UTC).date()
        if day != self._day:
            self._begin(day)
        if self._descriptor is None or not self._is_there(self._descriptor):
            self._descriptor = self._open(day)
        # In one call, behind whatever others wrote: lines of several processes do not mix.
        os.write(self._descriptor, data)

    def close(self) -> None:
        """Closes the file; the next line opens one."""
        if self._descriptor is not None:
            os.close(self._descriptor)
            self._descriptor = None

    def _begin(self, day: date) -> None:
        self.close()
        for path, of_day, _ in day_files(self._folder):
            if of_day <= day - timedelta(days=self._days):
                path.unlink(missing_ok=True)
        self._day, self._part = day, 0

    def _is_there(self, descriptor: int) -> bool:
        """Whether the file has room, and nobody deleted it."""
        found = os.fstat(descriptor)
        if found.st_size < self._rotate_bytes and found.st_nlink:
            return True
        self.close()
        return False

    def _open(self, day: date) -> int:
        self._folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        flags = os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC
        while True:
            part = f".{self._part}" if self._part else ""
            descriptor = os.open(self._folder / f"journal-{day}{part}.jsonl", flags, 0o600)
            if os.fstat(descriptor).st_size < self._rotate_bytes or self._part >= PARTS - 1:
                return descriptor
            os.close(descriptor)
            self._part += 1


def day_files(folder: Path) -> list[tuple[Path, date, int]]:
    """The journal's files with their day and number, oldest first."""
    found = []
    for path in folder.iterdir() if folder.is_dir() else ():
        name = NAME.fullmatch(path.name)
        day = _day_of(name[1]) if name else None
        if name and day:
            found.append((path, day, int(name[2] or 0)))
    return sorted(found, key=lambda file: file[1:])


def encoded(now_ms: int, head: JournalHead, line: JournalLine, excerpt: str | None) -> bytes:
    """A line of the file. What is not known is left out."""
    time = datetime.fromtimestamp(now_ms / 1000, UTC).isoformat(timespec="milliseconds")
    keys: dict[str, Json] = {
        "ts": time.replace("+00:00", "Z"),
        "request_id": head.request_id,
        "session": head.session or None,
        "profile": head.profile or None,
        "config_rev": head.config_rev or None,
        "event": line.event,
        "task": line.task,
        "mode": line.mode,
        "reason": line.reason or None,
        "numbers": dict(line.numbers) or None,
        "ms": line.ms,
        "excerpt": excerpt[:EXCERPT_CHARS] if excerpt else None,
    }
    known = {key: value for key, value in keys.items() if value is not None}
    return json.dumps(known, separators=(",", ":"), default=str).encode() + b"\n"


def _day_of(text: str) -> date | None:
    try:
        return date.fromisoformat(text)
    except ValueError:
        return None
