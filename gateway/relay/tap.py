"""Reads a copy of what is relayed, for the ledger. Never touches or delays the relayed bytes.

Whatever goes wrong in here switches the tap off for this answer; the row then holds estimates.
"""

from collections.abc import Callable
from typing import Any

import structlog

from gateway.exchange import Headers
from gateway.relay.usage import WORDLESS, Reader, Reading, reader_of
from gateway.settings.types import Surface
from gateway.surfaces.encoding import unpacker
from gateway.surfaces.json_text import json_value
from gateway.surfaces.sse import RecordTooLarge, SseEvent, SseParser
from proto.limits import ANSWER_TAP_BYTES

log = structlog.get_logger(__name__)

BYTES_PER_TOKEN = 4  # of a text in UTF-8, where nothing better is known


class Tap:
    """What one relayed answer says. It is fed a copy, and `finish`ed when the answer is over.

    `is_on`: it could read everything so far. `life`: grows with every sign of life, so that a
    watchdog can tell an event from a comment. `first_s`, `last_s`: times of the first and last
    delta with content.
    """

    is_stream = False
    is_on = True
    is_between_events = True
    has_finish = False  # a finish reason went by
    life = 0
    first_s: float | None = None
    last_s: float | None = None
    _is_finished = False
    _is_unreadable = False

    def __init__(self, surface: Surface, encoding: bytes | None) -> None:
        self.reading = Reading()
        self.encoding = encoding
        self._reader: Reader = reader_of(surface)

    def feed(self, piece: bytes) -> None:
        """Takes a copy of relayed bytes. Never raises."""
        raise AssertionError("a tap is one of a kind")

    def finish(self) -> None:
        """The relayed answer is over; the second time nothing is left to do."""
        if not self.is_on or self._is_finished:
            return
        self._is_finished = True
        try:
            self._read_rest()
        except ValueError as fault:
            self._is_unreadable = True
            self._switch_off(fault)
        except Exception as fault:  # noqa: BLE001 - a row with estimates is better than none
            self._switch_off(fault)
            self._guess_all()

    def lacks_its_end(self) -> bool:
        """Whether a finished answer shows that it is not whole."""
        self.finish()
        reading = self.reading
        is_open = (
            not (reading.finish and reading.has_every_finish) and not reading.is_without_finish
        )
        return self._is_unreadable or (self.is_on and is_open)

    def _read_rest(self) -> None:
        """Reads what has not been read yet."""

    def _guess_all(self) -> None:
        """What it could not read counts by its size."""

    def _switch_off(self, fault: Exception) -> None:
        self.is_on = False
        log.warning("tap.failed", fault=type(fault).__name__)


class WholeTap(Tap):
    """Keeps an answer that is not a stream, and reads it at its end."""

    def __init__(self, surface: Surface, encoding: bytes | None) -> None:
        super().__init__(surface, encoding)
        self._pieces: list[bytes] = []
        self._kept_bytes = 0

    def feed(self, piece: bytes) -> None:
        """Takes a copy of relayed bytes. Never raises."""
        self.life += 1
        self._kept_bytes += len(piece)
        if self._kept_bytes <= ANSWER_TAP_BYTES:
            self._pieces.append(piece)
        else:
            self._pieces = []

    def _guess_all(self) -> None:
        if self._reader not in WORDLESS:
            self.reading.delta_count = 1
            self.reading.delta_bytes = self._kept_bytes

    def _read_rest(self) -> None:
        if self._kept_bytes > ANSWER_TAP_BYTES:
            raise RecordTooLarge
        body, self._pieces = b"".join(self._pieces), []
        if (unpack := unpacker(self.encoding)) is not None:
            body = unpack(body)
        if not body:
            return
        answer = json_value(body)
        if type(answer) is dict:
            self._reader(self.reading, answer)
        elif type(answer) is list:  # Gemini's streams without `alt=sse`: what would be events
            for item in answer:
                if type(item) is dict:
                    self._reader(self.reading, item)


class BytesTap(Tap):
    """For an answer that says nothing about itself: a file, sound. It keeps nothing.

    `is_text`: its bytes are the text that was asked for, and count as such.
    """

    def __init__(self, surface: Surface, encoding: bytes | None, *, is_text: bool = False) -> None:
        super().__init__(surface, encoding)
        self._is_text = is_text and encoding is None

    def feed(self, piece: bytes) -> None:
        """Takes note of relayed bytes. Never raises."""
        self.life += 1
        if self._is_text:
            self.reading.delta_bytes += len(piece)
            self.reading.delta_count += 1

    def lacks_its_end(self) -> bool:
        """Nobody can tell: its end is an end."""
        return False


class StreamTap(Tap):
    """Reads a stream of server-sent events while it goes by."""

    is_stream = True
    _has_ended_inside = False  # the stream is over, and its last record was not whole

    def __init__(self, surface: Surface, encoding: bytes | None, now: Callable[[], float]) -> None:
        super().__init__(surface, encoding)
        self._sse = SseParser()
        self._unpack = unpacker(encoding)
        self._now = now

    @property
    def is_between_events(self) -> bool:  # type: ignore[override]
        """Whether the stream could be ended here without cutting a record, as far as is known."""
        return self.is_on and not self._has_ended_inside and self._sse.is_between_events

    def feed(self, piece: bytes) -> None:
        """Takes a copy of relayed bytes. Never raises."""
        if not self.is_on:
            self.life += 1
            self._guess(piece.count(b"data:"))
            return
        try:
            self._read(self._sse.feed(self._unpack(piece) if self._unpack else piece))
        except Exception as fault:  # noqa: BLE001 - the relayed bytes must flow whatever happens
            self._switch_off(fault)
            self._guess(piece.count(b"data:"))

    def _guess(self, record_count: int) -> None:
        """Takes each record that nobody can read for a delta of one token."""
        self.reading.delta_count += record_count
        self.reading.delta_bytes += record_count * BYTES_PER_TOKEN

    def _read_rest(self) -> None:
        self._has_ended_inside = not self._sse.is_between_events
        self._read(self._sse.finish())

    def _read(self, events: list[SseEvent]) -> None:
        for event in events:
            if event.data == b"[DONE]":
                self.life += 1
                continue
            try:
                body = json_value(event.data)
            except ValueError:
                continue  # one malformed event says nothing about the next
            if type(body) is dict:
                self._take(body)

    def _take(self, body: dict[str, Any]) -> None:
        reading = self.reading
        before = reading.delta_count
        if self._reader(reading, body):
            self.life += 1
        if reading.delta_count > before:
            self.last_s = self._now()
            if self.first_s is None:
                self.first_s = self.last_s
        if reading.finish is not None and reading.has_every_finish:
            self.has_finish = True


# Surfaces whose answers need not be JSON or events.
OF_BYTES: frozenset[Surface] = frozenset({"audio", "images", "files", "batches"})


def tap_of_bytes(
    surface: Surface, headers: Headers, encoding: bytes | None, now: Callable[[], float]
) -> Tap:
    """The tap for an answer on one of `OF_BYTES`, by what its headers say that it is."""
    kind = next((value for name, value in headers if name == b"content-type"), b"")
    kind = kind.partition(b";")[0].strip().lower()
    if surface not in ("files", "batches"):
        if kind == b"text/event-stream":
            return StreamTap(surface, encoding, now)
        if kind.endswith((b"/json", b"+json")):
            return WholeTap(surface, encoding)
    return BytesTap(surface, encoding, is_text=surface == "audio" and kind.startswith(b"text/"))
