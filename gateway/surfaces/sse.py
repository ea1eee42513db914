"""Server-sent events from bytes, however they are cut. Knows no dialect.

Source: WHATWG HTML, section 9.2.6 (line ends CR, LF, CRLF; one leading BOM; comments; several
`data` lines joined by a newline). Unlike a browser, a last event without its blank line counts.
"""

import re
from typing import NamedTuple

from proto.limits import SSE_RECORD_BYTES

_LINE_END = re.compile(rb"\r\n|\n|\r")
_BOM = b"\xef\xbb\xbf"


class SseEvent(NamedTuple):
    """One event: its `event:` name ("" if none) and its joined `data:` lines."""

    name: bytes
    data: bytes


class RecordTooLarge(Exception):
    """One event is over the limit."""


class SseParser:
    """Feed it pieces of a stream; it returns the events they complete."""

    def __init__(self, limit_bytes: int = SSE_RECORD_BYTES) -> None:
        self._limit_bytes = limit_bytes
        self._rest = b""
        self._pieces: list[bytes] = []  # of a line longer than one read
        self._pieces_bytes = 0
        self._name = b""
        self._data: list[bytes] = []
        self._data_bytes = 0
        self._is_first = True

    @property
    def is_between_events(self) -> bool:
        """Whether the stream so far ends exactly at an event's end (or with comments)."""
        return not (self._rest or self._pieces or self._data or self._name)

    def feed(self, piece: bytes) -> list[SseEvent]:
        """Raises: RecordTooLarge."""
        if b"\n" not in piece and b"\r" not in piece and not self._rest.endswith(b"\r"):
            self._pieces.append(piece)
            self._pieces_bytes += len(piece)
            if self._pieces_bytes + self._data_bytes > self._limit_bytes:
                raise RecordTooLarge
            return []
        data = piece
        if self._rest or self._pieces:
            data = b"".join([self._rest, *self._pieces, piece])
            self._pieces, self._pieces_bytes = [], 0
        if self._is_first and (len(data) >= len(_BOM) or not _BOM.startswith(data)):
            data = data.removeprefix(_BOM)
            self._is_first = False
        if b"\r" not in data:
            lines = data.split(b"\n")
            self._rest = lines.pop()
        else:
            # A CR at the very end may be half of a CRLF: it waits for the next piece.
            held = data.endswith(b"\r")
            *lines, self._rest = _LINE_END.split(data[:-1] if held else data)
            if held:
                self._rest += b"\r"
        events: list[SseEvent] = []
        for line in lines:
            self._take(line, events)
        if len(self._rest) + self._data_bytes > self._limit_bytes:
            raise RecordTooLarge
        return events

    def finish(self) -> list[SseEvent]:
        """The event that the end of the stream leaves unclosed, if there is one."""
        line = b"".join([self._rest, *self._pieces])
        self._rest, self._pieces = b"", []
        if self._is_first:
            line = line.removeprefix(_BOM)
        events: list[SseEvent] = []
        self._take(line.removesuffix(b"\r"), events)
        self._take(b"", events)
        return events

    def _take(self, line: bytes, events: list[SseEvent]) -> None:
        """One line without its end; an empty one completes an event."""
        if not line:
            if self._data:
                data = self._data[0] if len(self._data) == 1 else b"\n".join(self._data)
                events.append(SseEvent(self._name, data))
                self._data, self._data_bytes = [], 0
            self._name = b""
        elif line.startswith(b"data:"):
            self._add(line[6:] if line.startswith(b"data: ") else line[5:])
        elif line.startswith(b"event:"):
            self._name = line[6:].removeprefix(b" ")
        elif line == b"data":
            self._add(b"")

    def _add(self, value: bytes) -> None:
        self._data.append(value)
        self._data_bytes += len(value) + 1
        if self._data_bytes > self._limit_bytes:
            raise RecordTooLarge
