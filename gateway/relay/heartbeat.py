"""Signs of life in a relayed stream whose backend is silent. Knows no backend and no JSON.

They go between records only, and they are not the backend's: no clock of ours hears them. Which
bytes are safe on which surface, real SDKs decide: a comment breaks Google's, and behind an `id:`
line a blank one breaks OpenAI's.
"""

import re
from collections.abc import Callable
from typing import Protocol

from gateway.exchange import Exchange, Flow
from gateway.relay.connection import Connection, Receiver
from gateway.relay.tap import Tap
from gateway.settings.types import Surface

BLANK = b"\n\n"
PING = b'event: ping\ndata: {"type": "ping"}\n\n'
GLUED = b": ka\n"  # without a blank line: it becomes a part of the next record

_ID_LINE = re.compile(rb"[\r\n]id[:\r\n]")
_TAIL_BYTES = 4  # holds two line ends, and an `id:` that was cut


class Passage(Receiver, Flow, Protocol):
    """What carries the answer."""


class Tapped(Protocol):
    """What knows the answer's tap once it has begun."""

    tap: Tap | None


class Heartbeat:
    """Stands before a passage and writes beside it. `now`: the clock that `look` is given."""

    __slots__ = (
        "_exchange", "_has_id", "_is_beating", "_is_held", "_last_s", "_now", "_passage",
        "_period_s", "_relayed", "_tail",
    )  # fmt: skip

    def __init__(
        self, passage: Passage, exchange: Exchange, relayed: Tapped, period_s: float,
        now: Callable[[], float],
    ) -> None:  # fmt: skip
        self._passage = passage
        self._exchange = exchange
        self._relayed = relayed
        self._period_s = period_s
        self._now = now
        self._last_s = 0.0
        self._tail = BLANK  # as if behind a record
        self._has_id = self._is_held = self._is_beating = False

    def begin(self, connection: Connection) -> None:
        """Status and headers: they tell whether it is a stream that one can write into."""
        self._passage.begin(connection)
        tap = self._relayed.tap
        self._is_beating = tap is not None and tap.is_stream and tap.encoding is None
        self._last_s = self._now()
        self._exchange.use_flow(self)

    def take(self, piece: bytes, *, is_last: bool) -> None:
        """The next piece, as it came."""
        if is_last:
            self._is_beating = False
        elif self._is_beating and piece:
            seen = self._tail + piece
            self._has_id = self._has_id or _ID_LINE.search(seen) is not None
            self._tail = seen[-_TAIL_BYTES:]
            self._last_s = self._now()
        self._passage.take(piece, is_last=is_last)

    def pause(self) -> None:
        """The client is slow: it has enough to read."""
        self._is_held = True
        self._passage.pause()

    def resume(self) -> None:
        """The client takes bytes again."""
        self._is_held = False
        self._passage.resume()

    def look(self, now_s: float) -> None:
        """Writes a sign of life when one is due and there is room for it."""
        if not self._is_beating or self._is_held or now_s - self._last_s < self._period_s:
            return
        if ends_a_record(self._tail):
            self._last_s = now_s
            self._exchange.write(form_of(self._exchange.surface, has_id=self._has_id))


def form_of(surface: Surface, *, has_id: bool) -> bytes:
    """The bytes for a surface; b"" where none are safe. `has_id`: an `id:` line went by."""
    if surface == "messages":
        return PING
    if not has_id:
        return BLANK
    return b"" if surface == "gemini" else GLUED


def ends_a_record(tail: bytes) -> bool:
    """Whether the last line is blank, with line ends of any kind."""
    for end in (b"\r\n", b"\n", b"\r"):
        if tail.endswith(end):
            return tail[: -len(end)].endswith((b"\r", b"\n"))
    return False
