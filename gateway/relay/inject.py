"""Asks a backend for usage that the client did not ask for, and keeps the answer to it to itself.

Only where `stream_usage: inject` says so. Knows bytes and one event of one dialect; the ledger's
copy is read elsewhere, with that event still in it.

A compressed answer passes as it is, with the event: nothing can be taken out of it by span, and
before it comes nobody can know (we ask for `Accept-Encoding: identity`).
"""

import json
import re

import structlog

from gateway.backends.base import Backend
from gateway.exchange import Exchange
from gateway.relay.connection import Connection
from gateway.relay.forward import Passage, Relay, Relayed
from gateway.surfaces.encoding import unpacker
from gateway.surfaces.request import ModelRequest
from proto.limits import USAGE_FRAME_BYTES

log = structlog.get_logger(__name__)

_SURFACES = frozenset({"chat", "completions"})
_BAD_REQUEST = 400
_FIRST_ERROR = 400
_LINE_END = re.compile(rb"\r\n|\n|\r")
_LINE_ENDS = b"\r\n"
_RECORD_ENDS = (b"\n\n", b"\r\n\r\n")
_BOM = b"\xef\xbb\xbf"


class UsageRefused(Exception):
    """The backend answered an injected request with 400; not a byte of it was relayed."""


class AskingRelay:
    """A relay for backends that are asked for usage. `refused_count`: requests sent again."""

    def __init__(self, relay: Relay) -> None:
        self.refused_count = 0
        self._relay = relay

    async def forward(
        self, exchange: Exchange, backend: Backend, request: ModelRequest, routed_via: bytes,
        relayed: Relayed,
    ) -> None:  # fmt: skip
        """As `Relay.forward`; a 400 is tried once more without what we added.

        Raises: ApiError before anything was sent to the client; ClientLeft.
        """
        asking = request
        if request.is_stream and exchange.surface in _SURFACES:
            asking = request.asking_for_usage()
        forward = self._relay.forward
        if asking is request:
            await forward(exchange, backend, request, routed_via, relayed)
            return
        try:
            await forward(exchange, backend, asking, routed_via, relayed, AskedPassage)
            return
        except UsageRefused:
            self.refused_count += 1
        await forward(exchange, backend, request, routed_via, relayed, RepeatedPassage)


class AskedPassage(Passage):
    """The way of an answer whose usage we asked for: the client gets it without that event."""

    __slots__ = ("_remover",)

    def begin(self, connection: Connection) -> None:
        """Raises: UsageRefused, beside what a passage raises."""
        if connection.status == _BAD_REQUEST:
            raise UsageRefused
        super().begin(connection)
        tap = self._tap
        can_remove = tap.is_stream and unpacker(tap.encoding) is None
        self._remover = FrameRemover() if can_remove else None

    def take(self, piece: bytes, *, is_last: bool) -> None:
        """The next piece; the tap sees it as it came."""
        if self._remover is None:
            super().take(piece, is_last=is_last)
            return
        tap = self._tap
        if piece:
            tap.feed(piece)
        passed = self._remover.feed(piece)
        if is_last:
            self._has_ended = True
            self._exchange.finish(passed + self._remover.finish())
            return
        if tap.life != self._life:
            self._life = tap.life
            self._clocks.limit("idle_s", self._backend.settings.idle_s)
        self._exchange.write(passed)

    def rest(self) -> bytes:
        """What is held back of a record that is not whole."""
        return self._remover.finish() if self._remover is not None else b""


class RepeatedPassage(Passage):
    """The way of the answer to a request that was refused when it asked for usage."""

    __slots__ = ()

    def begin(self, connection: Connection) -> None:
        """Notes whether it was our asking: what fails without it too is the client's fault."""
        super().begin(connection)
        if connection.status < _FIRST_ERROR and self._backend.asks_for_usage:
            self._backend.asks_for_usage = False
            log.warning("backend.refused_usage", backend=self._backend.name)


class FrameRemover:
    """Takes one event out of a stream: the first with `choices: []` and a usage object.

    With it go the lines of its record and the blank one that ends it, but no comments. Everything
    else passes byte for byte: comments between records line by line, a record once it is whole.
    """

    def __init__(self) -> None:
        self._lines: list[bytes] = []  # of the record that has begun, held back
        self._part = b""  # of the line that has begun
        self._held_bytes = 0
        self._is_first = True  # no line has ended yet
        self._is_passing = False  # the record that has begun is too large to be the one
        self._is_inside = False  # and so is its line, of which a part has passed
        self._has_removed = False
        self._line_feed: bytes | None = None  # a CR came last; what an LF behind it becomes

    def feed(self, piece: bytes) -> bytes:
        """Takes the next bytes of the stream and returns those that may pass now."""
        if self._line_feed is None:
            if self._has_removed:
                return piece
            if not self._held_bytes and not self._is_passing and _is_plain(piece):
                self._is_first = False
                return piece
        elif not piece:
            return b""
        out: list[bytes] = []
        if self._line_feed is not None:
            if piece.startswith(b"\n"):
                piece = piece[1:]
                self._end_in_line_feed(out)
            self._line_feed = None
        if self._has_removed:
            return b"".join([*out, piece])
        self._take(self._part + piece if self._part else piece, out)
        return b"".join(out)

    def finish(self) -> bytes:
        """What was held back when the stream ended, unless it is that event without its end."""
        lines, self._lines = [*self._lines, self._part], []
        self._part, self._held_bytes = b"", 0
        if self._has_removed or not self._is_the_frame(lines):
            return b"".join(lines)
        self._has_removed = True
        return b"".join(line for line in lines if line.startswith(b":"))

    def _end_in_line_feed(self, out: list[bytes]) -> None:
        if self._lines:
            self._lines[-1] += b"\n"
            self._held_bytes += 1
        elif self._line_feed:
            out.append(self._line_feed)

    def _take(self, data: bytes, out: list[bytes]) -> None:
        """`data` begins where a line does, or goes on with one that has passed so far."""
        at = 0
        for found in _LINE_END.finditer(data):
            line, at = data[at : found.end()], found.end()
            self._take_line(line, out)
            if self._has_removed:
                break
        if data.endswith(b"\r") and at == len(data):
            self._line_feed = b"" if self._has_removed else b"\n"
        self._part = b""
        if self._has_removed:
            out.append(data[at:])
            return
        if not self._is_passing:
            self._part = data[at:]
            self._held_bytes = sum(map(len, self._lines)) + len(self._part)
            if self._held_bytes <= USAGE_FRAME_BYTES:
                return
            out += self._lines
            self._lines, self._part, self._held_bytes = [], b"", 0
            self._is_passing = True
        out.append(data[at:])
        self._is_inside = at < len(data) or (self._is_inside and not at)

    def _take_line(self, line: bytes, out: list[bytes]) -> None:
        bare = line.rstrip(_LINE_ENDS)
        if self._is_first:
            bare, self._is_first = bare.removeprefix(_BOM), False
        if self._is_passing:
            out.append(line)
            self._is_passing = bool(bare) or self._is_inside
            self._is_inside = False
        elif bare and (self._lines or not bare.startswith(b":")):
            self._lines.append(line)
        else:  # a blank line, or a comment where no record has begun
            lines, self._lines = self._lines, []
            if lines and self._is_the_frame(lines):
                self._has_removed = True
                out += [line for line in lines if line.startswith(b":")]
            else:
                out += [*lines, line]

    def _is_the_frame(self, lines: list[bytes]) -> bool:
        values = []
        for index, line in enumerate(lines):
            bare = line.rstrip(_LINE_ENDS)
            if index == 0:
                bare = bare.removeprefix(_BOM)
            name, _, value = bare.partition(b":")
            if name == b"data":
                values.append(value.removeprefix(b" "))
        data = b"\n".join(values)
        if not _may_name_usage(data):
            return False
        try:
            body = json.loads(data.decode())
        except (ValueError, RecursionError):
            return False
        is_object = isinstance(body, dict) and isinstance(body.get("usage"), dict)
        return is_object and body.get("choices") == []


def _is_plain(piece: bytes) -> bool:
    """Whether these bytes, which begin with a record, are whole records and none of them is it."""
    return piece.endswith(_RECORD_ENDS) and not _may_name_usage(piece)


def _may_name_usage(data: bytes) -> bool:
    return b"usage" in data or b"\\u" in data  # a name may be written in escapes
