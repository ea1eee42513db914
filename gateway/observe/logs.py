"""How the gateway speaks to its operator: structured lines on standard error. Knows no handler.

Facts are keys with units; no line holds text of a prompt or an answer, or a key. The one line that
every request costs is made apart from structlog, which would be a tenth of the whole request.
"""

import atexit
import json
import logging
import os
import sys
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from operator import attrgetter
from select import PIPE_BUF  # a pipe takes so many bytes at once, or none of them
from threading import Event, Lock, Thread
from typing import Any

import structlog

from gateway.lean import msgspec
from gateway.ledger.entry import Entry

log = structlog.get_logger(__name__)

QUEUED_LINES = 10_000  # while standard error takes none; what comes beyond is counted
GATHER_S = 0.02  # lines of so long a time are written with one system call
LAST_WRITE_S = 2.0  # for what waits when the process ends

_ENCODE = json.JSONEncoder(default=repr).encode
_encode_quickly = msgspec.json.Encoder().encode
_LINE_END = "}\n"  # JSON has no other line break
AccessLog = Callable[[Entry], None]


def _no_lines() -> int:
    return 0


@dataclass(frozen=True, slots=True)
class Logs:
    """`access` writes the line of a request; `dropped_count`: lines that nobody took, so far."""

    access: AccessLog
    dropped_count: Callable[[], int] = _no_lines


class LineWriter:
    """A file for log lines that never makes its writer wait: a thread writes them.

    A reader of standard error that hangs costs lines, with a count, and not requests. Every line is
    a JSON object; with the number of a `process` each says it, and none is torn by those of other
    processes that write to the same pipe.
    """

    def __init__(self, descriptor: int, process: int | None = None) -> None:
        self._descriptor = descriptor
        self._process = process
        self._lines: deque[str] = deque()  # at most QUEUED_LINES
        self.dropped_count = 0
        self._dropped_said = 0
        self._wake = Event()
        self._ends = Event()
        self._lock = Lock()  # whoever holds it writes
        Thread(target=self._write_until_the_end, name="log-writer", daemon=True).start()

    def write(self, line: str) -> None:
        """Takes one line."""
        if len(self._lines) >= QUEUED_LINES:
            self.dropped_count += 1
            return
        self._lines.append(line)
        if not self._wake.is_set():
            self._wake.set()

    def flush(self) -> None:
        """Nothing: lines go within GATHER_S."""

    def close(self) -> None:
        """Writes what waits, as far as it is taken."""
        self._ends.set()
        self._wake.set()
        if self._lock.acquire(timeout=LAST_WRITE_S):
            try:
                self._write_all()
            finally:
                self._lock.release()

    def _write_until_the_end(self) -> None:
        while not self._ends.is_set():
            self._wake.wait()
            self._ends.wait(GATHER_S)
            self._wake.clear()
            with self._lock:
                self._write_all()

    def _write_all(self) -> None:
        lines = []
        while self._lines:
            lines.append(self._lines.popleft())
        if dropped := self.dropped_count - self._dropped_said:
            self._dropped_said += dropped
            lines.append(
                _ENCODE({"level": "error", "event": "log.dropped", "lines": dropped}) + "\n"
            )
        try:
            for data in self._writes(lines):
                while data:
                    data = data[os.write(self._descriptor, data) :]
        except OSError:
            self.dropped_count += len(lines)  # standard error is closed: nobody is left to be told

    def _writes(self, lines: list[str]) -> Iterator[bytes]:
        """The lines in as many pieces as system calls are needed."""
        if self._process is None:
            yield "".join(lines).encode(errors="replace")
            return
        piece = b""
        for line in lines:
            data = f'{line.removesuffix(_LINE_END)}, "process": {self._process}{_LINE_END}'.encode(
                errors="replace"
            )
            if len(piece) + len(data) > PIPE_BUF:
                yield piece
                piece = b""
            piece += data
        yield piece


def configure(level: str = "info", process: int | None = None) -> Logs:
    """Sets logging up for this process: JSON lines, or readable ones on a terminal.

    `process`: the number of this process when several serve together; every line then has it.
    """
    stream: Any = sys.stderr
    processors: list[structlog.types.Processor]
    if stream.isatty():
        # The default formatter prints local variables: bodies and keys would be among them.
        renderer = structlog.dev.ConsoleRenderer(
            pad_event_to=24, exception_formatter=structlog.dev.plain_traceback
        )
        processors = [
            structlog.processors.add_log_level,
            structlog.processors.TimeStamper(fmt="iso", utc=False),
            renderer,
        ]
        if process is not None:
            processors.insert(0, lambda _, __, event: {**event, "process": process})
    else:
        stream = LineWriter(sys.stderr.fileno(), process)
        atexit.register(stream.close)
        processors = [
            structlog.processors.add_log_level,
            structlog.processors.TimeStamper(fmt="iso", utc=True),
            structlog.processors.format_exc_info,
            _as_json,
        ]
    structlog.configure(
        processors=processors,
        wrapper_class=structlog.make_filtering_bound_logger(level),
        logger_factory=structlog.WriteLoggerFactory(file=stream),
        cache_logger_on_first_use=True,
    )
    mark = "" if process is None else f"process {process}: "
    form = f"{mark}%(name)s: %(message)s"
    logging.basicConfig(level=logging.WARNING, stream=sys.stderr, format=form)
    if not isinstance(stream, LineWriter):
        return Logs(log_access)
    return Logs(_AccessLines(stream), lambda: stream.dropped_count)


def log_access(entry: Entry) -> None:
    """The line of a closed request, through structlog."""
    log.info("request.finished", **facts_of(entry))


class _AccessLines:
    """The same line as JSON, at a tenth of the cost."""

    def __init__(self, writer: LineWriter) -> None:
        self._write = writer.write
        self._second = 0
        self._stamp = ""

    def __call__(self, entry: Entry) -> None:
        second, ms = divmod(entry.ts_ms + (entry.total_ms or 0), 1000)
        if second != self._second:
            self._second = second
            self._stamp = datetime.fromtimestamp(second, UTC).strftime("%Y-%m-%dT%H:%M:%S")
        facts = facts_of(entry)
        try:
            line = _encode_quickly(facts).decode()
        except UnicodeEncodeError:  # a name with half a character in it
            line = _ENCODE(facts)
        self._write(
            f'{line[:-1]}, "event": "request.finished", "level": "info", '
            f'"timestamp": "{self._stamp}.{ms:03}Z"}}\n'
        )


_FACTS = (
    "request_id", "surface", "model", "backend", "client_id", "client_kind", "status", "outcome",
    "error_type", "finish_reason", "prompt_tokens", "completion_tokens", "usage_source", "ttft_ms",
    "total_ms", "decode_tps",
)  # fmt: skip
_read_facts = attrgetter(*_FACTS)


def facts_of(entry: Entry) -> dict[str, Any]:
    """What is said of a closed request."""
    return dict(zip(_FACTS, _read_facts(entry), strict=True))


def _as_json(_: Any, __: str, event: structlog.types.EventDict) -> str:
    return _ENCODE(event)
