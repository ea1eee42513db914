"""What a backend may send us: `gateway.relay.connection`, by hand, against a second reader of HTTP.

The first byte of an input says how the answer is taken, the next four how it is cut, the rest is
what the backend sends.
"""

import asyncio
from collections.abc import Iterator
from dataclasses import dataclass

from gateway.outbox import Outbox
from gateway.relay.connection import Connection, UpstreamBroken, UpstreamFault
from tests.fuzz import rfc9112
from tests.fuzz.wire import WAITS, ManualLoop, Transport, cuts, kept_bytes, run_now

LIMITS = {
    "gateway.relay.connection.HEADER_BLOCK_BYTES": 512,
    "gateway.relay.connection.HEADER_COUNT": 12,
    "gateway.relay.connection.RELAY_BUFFER_BYTES": 1024,
}
MOST_BYTES = 4096
READS, TO_HEAD, ENDS_BADLY, RECEIVER_FAILS, ASKS_AGAIN, FLOODS = 1, 2, 4, 8, 16, 32
_SLACK_BYTES = 4096  # for the objects themselves
_FLOOD = b"a" * 2048
_loop = ManualLoop()
_outbox = Outbox(_loop)


class Refused(Exception):
    """The receiver's own fault."""


@dataclass(slots=True)
class Got:
    """How an exchange with a backend went."""

    status: int = 0
    headers: tuple[tuple[bytes, bytes], ...] = ()
    body: bytes = b""
    end: str = "waits"
    is_kept: bool = False


class _Receiver:
    def __init__(self, fails_at: int | None) -> None:
        self.got = Got()
        self.has_begun = self.is_over = False
        self._left = fails_at

    def begin(self, connection: Connection) -> None:
        assert not self.has_begun
        self.has_begun = True
        self.got.status, self.got.headers = connection.status, tuple(connection.headers)
        self._step()

    def take(self, piece: bytes, *, is_last: bool) -> None:
        assert self.has_begun and not self.is_over
        self.is_over = is_last
        self.got.body += piece
        self._step()

    def _step(self) -> None:
        if self._left is not None:
            self._left -= 1
            if self._left < 0:
                raise Refused


def check(data: bytes) -> None:
    """One input. Raises: AssertionError, or whatever the gateway must not raise."""
    if len(data) < 5:
        return
    way, lengths, sent = data[0], data[1:5], data[5:]
    whole = _exchange(way, sent, b"")
    cut = _exchange(way, sent, lengths)
    if not _is_limit(whole) and not _is_limit(cut):
        _agree(whole, cut, way, sent)
    if not way & (RECEIVER_FAILS | ASKS_AGAIN):
        _compare(whole, way, sent)
    if way & FLOODS:
        _flood(way & ~RECEIVER_FAILS, sent)


def _exchange(way: int, sent: bytes, lengths: bytes) -> Got:
    connection, transport = Connection(_loop, _outbox), Transport()
    connection.connection_made(transport)
    got = _one(connection, transport, way, sent, lengths)
    if got.is_kept:
        if way & ASKS_AGAIN:
            got = _one(connection, transport, way, sent, lengths)
        else:
            _close(connection, way)
    return got


def _one(
    connection: Connection, transport: Transport, way: int, sent: bytes, lengths: bytes
) -> Got:
    receiver = None if way & READS else _Receiver(1 if way & RECEIVER_FAILS else None)
    method = b"HEAD" if way & TO_HEAD else b"POST"
    ended = connection.start(method + b" / HTTP/1.1\r\n\r\n", b"", receiver)
    got = receiver.got if receiver is not None else Got()
    for piece in cuts(sent, lengths):
        if transport.is_over:
            break
        connection.data_received(piece)
        _check_memory(connection, len(piece))
        if receiver is None:
            _read(connection, got)
        assert not transport.is_paused or receiver is not None
    if connection.is_complete and connection._fault is None and got.end == "waits":
        got.end = "complete"
        got.is_kept = connection.rest() and not transport.is_over
        return got
    _close(connection, way)
    if receiver is None:
        _read(connection, got)
    if got.end == "waits":
        got.end = _outcome(connection, ended, receiver)
    return got


def _close(connection: Connection, way: int) -> None:
    connection.connection_lost(ConnectionResetError() if way & ENDS_BADLY else None)


def _read(connection: Connection, got: Got) -> None:
    """Reads what is there, as the list of models does."""
    try:
        if run_now(connection.has_head()) is WAITS:
            return
        got.status, got.headers = connection.status, tuple(connection.headers)
        while (piece := run_now(connection.read())) is not WAITS and piece:
            got.body += piece
    except UpstreamFault as fault:  # it is told once
        got.end = _named(fault) if got.end == "waits" else got.end


def _outcome(
    connection: Connection, ended: asyncio.Future[None], receiver: _Receiver | None
) -> str:
    try:
        if receiver is not None:
            if not ended.done():
                return "waits"
            ended.result()
        elif run_now(connection.has_head()) is WAITS or run_now(connection.read()) is WAITS:
            return "waits"
    except UpstreamFault as fault:
        return _named(fault)
    except Refused:
        return "refused"
    return "complete"


def _named(fault: UpstreamFault) -> str:
    assert isinstance(fault, UpstreamBroken), fault
    return "too large" if "too large" in str(fault) else f"broken {fault.before_answer}"


def _check_memory(connection: Connection, piece_bytes: int) -> None:
    """Beside what waits to be read, a connection keeps no more than a head."""
    kept = kept_bytes(connection, apart_from=(asyncio.BaseTransport, asyncio.AbstractEventLoop,
                                              asyncio.Future, _Receiver))  # fmt: skip
    assert kept <= 64 * piece_bytes + 2 * 512 + 12 * 256 + _SLACK_BYTES, kept


def _flood(way: int, sent: bytes) -> None:
    """Whatever came before: what belongs to no body is not taken for ever."""
    connection, transport = Connection(_loop, _outbox), Transport()
    connection.connection_made(transport)
    receiver = None if way & READS else _Receiver(None)
    connection.start(b"POST / HTTP/1.1\r\n\r\n", b"", receiver)
    got = receiver.got if receiver is not None else Got()
    for piece in (sent, *[_FLOOD] * 4):
        before_bytes = len(got.body)
        if transport.is_over:
            break
        connection.data_received(piece)
        if receiver is None:
            _read(connection, got)
        if piece is _FLOOD and len(got.body) > before_bytes:
            break  # it is a body, and that may be long
    else:
        assert transport.is_over, "bytes that belong to no body are taken without end"
    connection.connection_lost(None)


def _is_limit(got: Got) -> bool:
    return got.end == "too large"


def _agree(whole: Got, cut: Got, way: int, sent: bytes) -> None:
    """However the bytes are cut, they say the same."""
    if way & READS and whole.end.startswith("broken") and cut.end.startswith("broken"):
        return  # who reads is told of a fault at once: what came before it is of no use
    facts = ("status", "end") if way & RECEIVER_FAILS else ("status", "headers", "body", "end")
    for name in facts:
        assert getattr(whole, name) == getattr(cut, name), (name, whole, cut)
    # A stray line end behind an answer is seen only when it comes alone.
    assert whole.is_kept == cut.is_kept or sent.endswith((b"\r", b"\n")), (whole, cut)


def _compare(got: Got, way: int, sent: bytes) -> None:
    """What a strict reading of the RFC makes of the same bytes."""
    try:
        strict, end = rfc9112.read_answer(sent, 0, to_head=bool(way & TO_HEAD))
    except rfc9112.Malformed:
        return  # the gateway may repair some of it: no client is led astray by an answer alone
    except rfc9112.NotWhole as part:
        assert got.end in ("broken False", "broken True", "too large"), got
        if part.head is not None and got.end != "too large" and not way & READS:
            assert got.body == part.head.body, (got, part.head)
        return
    if got.end == "too large":
        return
    assert got.status == int(strict.first[1]), (got, strict)
    assert got.body == strict.body, (got, strict)
    headers = [(name, value.rstrip(b" \t")) for name, value in got.headers]
    assert headers == strict.fields, (got, strict)
    ends_well = not strict.ends_by_close or not way & ENDS_BADLY
    assert (got.end == "complete") is ends_well, (got, strict)
    if got.is_kept:
        assert not strict.ends_by_close and not sent[end:].strip(b"\r\n"), (got, sent[end:])


def _seeds() -> Iterator[bytes]:
    ok = b"HTTP/1.1 200 OK\r\n"
    chunked = ok + b"Content-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n"
    length = ok + b"content-length: 5\r\n\r\nhello"
    bodies = [
        length,
        length + length,
        chunked + b"5\r\nhello\r\n6;a=b\r\n world\r\n0\r\n\r\n",
        chunked + b"1\r\na\r\n0\r\nX-Trailer: 1\r\nTransfer-Encoding: chunked\r\n\r\n",
        chunked + b"5\r\nhel",
        chunked + b"ffffffffffffffff\r\n",
        chunked + b"0\r\n\r\n\r\n",
        chunked + b"1\r\na\r\n0\r\nX-Trailer: ",
        chunked + b"1\r\na\r\n5;extension=",
        b"HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 103 Early\r\nLink: a\r\n\r\n" + length,
        b"HTTP/1.1 101 Switching Protocols\r\nUpgrade: h2c\r\nConnection: upgrade\r\n\r\nx",
        ok + b"connection: close\r\n\r\nuntil the end",
        b"HTTP/1.0 200 OK\r\n\r\nold",
        b"HTTP/1.1 204 No Content\r\n\r\n",
        b"HTTP/1.1 304 Not Modified\r\ncontent-length: 7\r\n\r\n",
        b"HTTP/1.1 503 Busy\r\nretry-after: 1\r\nconnection: close\r\ncontent-length: 2\r\n\r\n{}",
        ok + b"content-length: 5\r\ntransfer-encoding: chunked\r\n\r\n0\r\n\r\n",
        ok + b"content-length: 5\r\ncontent-length: 6\r\n\r\nhello!",
        ok + b"x: " + b"y" * 600 + b"\r\n\r\n",
        ok + b"a: b\r\n" * 13 + b"\r\n",
        b"HTTP/1.1 999 Odd\r\n\r\n",
        b"\r\nHTTP/1.1 200\r\ncontent-length: 0\r\n\r\n",
        b"<html>no HTTP</html>",
    ]
    for number, body in enumerate(bodies):
        for way in (0, READS, TO_HEAD, ENDS_BADLY, ASKS_AGAIN, RECEIVER_FAILS, FLOODS):
            yield bytes([way, 1 + number % 7, 3, 0, 9]) + body
        yield bytes([READS | ENDS_BADLY, 1, 1, 1, 1]) + body


_OK = b"HTTP/1.1 200 OK\r\n"
_CHUNKED = _OK + b"Transfer-Encoding: chunked\r\n\r\n1\r\na\r\n"
FINDS: dict[str, bytes] = {
    "an answer with something behind it is whole": b"\0\0\0\0\0" + _OK
    + b"content-length: 5\r\n\r\nhelloHTTP/1.1 2c\r\n\r\n",
    "trailers without end": bytes([FLOODS, 0, 0, 0, 0]) + _CHUNKED + b"0\r\nX-Trailer: ",
    "a chunk extension without end": bytes([FLOODS, 0, 0, 0, 0]) + _CHUNKED + b"5;extension=",
    "a body behind an answer to HEAD": bytes([TO_HEAD, 0, 0, 0, 0]) + _OK
    + b"content-length: 5\r\n\r\nhello",
    "half a line end behind an answer, alone": b"4\1\1\1\1HTTP/1.1 204 Oon0\r\n\r\n\r",
}  # fmt: skip
SEEDS: list[bytes] = [*_seeds(), *FINDS.values()]
WORDS: list[bytes] = [b"HTTP/1.1 ", b"transfer-encoding: chunked\r\n", b"content-length: ",
                      b"connection: close\r\n", b"\r\n\r\n", b"0\r\n\r\n"]  # fmt: skip
