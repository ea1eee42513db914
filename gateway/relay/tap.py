"""Reads a copy of what is relayed, for the ledger. Never touches or delays the relayed bytes.

Whatever goes wrong in here switches the tap off for this answer; the row then holds estimates.
"""

import json
from collections.abc import Callable, Iterable
from typing import Any

import structlog

from gateway.relay.usage import Reader, Reading, reader_of
from gateway.settings.types import Surface
from gateway.surfaces.encoding import unpacker
from gateway.surfaces.sse import RecordTooLarge, SseEvent, SseParser
from proto.limits import ANSWER_TAP_BYTES

log = structlog.get_logger(__name__)

_scan = json.JSONDecoder().scan_once

BYTES_PER_TOKEN = 4  # of a text in UTF-8, where nothing better is known


class Tap:
    """What one relayed answer says, and when it said it.

    `first_s`, `last_s`: times of the first and last delta with content. `life`: grows with every
    sign of life, so that a watchdog can tell an event from a comment.
    """

    def __init__(
        self,
        surface: Surface,
        *,
        is_stream: bool,
        content_encoding: bytes | None,
        now: Callable[[], float],
    ) -> None:
        self.reading = Reading()
        self.is_on = True
        self.is_stream = is_stream
        self.is_encoded = content_encoding is not None
        self._is_unreadable = False
        self._is_finished = False
        self.life = 0
        self.first_s: float | None = None
        self.last_s: float | None = None
        self._reader: Reader = reader_of(surface)
        self._now = now
        self._sse = SseParser() if is_stream else None
        self._whole: list[bytes] = []
        self._whole_bytes = 0
        self._unpack = unpacker(content_encoding)

    @property
    def is_between_events(self) -> bool:
        """Whether a stream could be ended here without cutting a record, as far as is known."""
        return self._sse is None or (self.is_on and self._sse.is_between_events)

    def lacks_its_end(self) -> bool:
        """Whether a finished answer shows that it is not whole."""
        self.finish()
        return self._is_unreadable or (self.is_on and self.reading.finish is None)

    def feed(self, piece: bytes) -> None:
        """Takes a copy of relayed bytes. A whole answer is kept and read by `finish`."""
        if self._sse is None:
            self.life += 1
            self._whole_bytes += len(piece)
            if self._whole_bytes <= ANSWER_TAP_BYTES:
                self._whole.append(piece)
            else:
                self._whole = []
            return
        if not self.is_on:
            self.life += 1
            return
        try:
            self._events(self._sse.feed(self._unpack(piece) if self._unpack else piece))
        except Exception as fault:  # noqa: BLE001 - the relayed bytes must flow whatever happens
            self._switch_off(fault)

    def finish(self) -> None:
        """The relayed answer is over; the second time nothing is left to do."""
        if not self.is_on or self._is_finished:
            return
        self._is_finished = True
        try:
            if self._sse is not None:
                self._events(self._sse.finish())
            else:
                self._read_whole()
        except ValueError as fault:
            self._is_unreadable = True
            self._switch_off(fault)
        except Exception as fault:  # noqa: BLE001 - as in feed
            self._switch_off(fault)

    def _read_whole(self) -> None:
        if self._whole_bytes > ANSWER_TAP_BYTES:
            raise RecordTooLarge
        body, self._whole = b"".join(self._whole), []
        if self._unpack is not None:
            body = self._unpack(body)
        if body:
            self._take(_parse(body))

    def _events(self, events: Iterable[SseEvent]) -> None:
        for event in events:
            if event.data == b"[DONE]":
                self.life += 1
                continue
            try:
                body = _parse(event.data)
            except ValueError:
                continue  # one malformed event says nothing about the next
            self._take(body)

    def _take(self, body: Any) -> None:
        if type(body) is dict:
            reading = self.reading
            before = reading.delta_count
            if self._reader(reading, body):
                self.life += 1
            if reading.delta_count > before:
                self.last_s = self._now()
                if self.first_s is None:
                    self.first_s = self.last_s
        elif type(body) is list:
            # Gemini streams without `alt=sse` are one JSON list of what would be events.
            for item in body:
                if type(item) is dict:
                    self._take(item)

    def _switch_off(self, fault: Exception) -> None:
        self.is_on = False
        self._whole = []
        log.warning("tap.failed", fault=type(fault).__name__)


def _parse(data: bytes) -> Any:
    """What `json.loads` returns, without its detours. Raises: ValueError."""
    text = data.decode()
    try:
        value, end = _scan(text, 0)
    except StopIteration:
        return json.loads(text)
    return value if end == len(text) else json.loads(text)
