"""What a client may send us: `gateway.door`, by hand, against a second reader of HTTP.

The first byte of an input says how requests are answered and what else happens, the next four how
the bytes are cut, the rest is what the client sends.
"""

import asyncio
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import count

from gateway.door.connection import ClientConnection
from gateway.errors import ApiError
from gateway.exchange import Exchange
from gateway.outbox import Outbox
from tests.fuzz import rfc9112
from tests.fuzz.wire import ManualLoop, Transport, cuts, kept_bytes

BODY_BYTES = 1024
UNREAD_BYTES = 4096
LIMITS = {
    "gateway.door.connection.HEADER_BLOCK_BYTES": 512,
    "gateway.door.connection.HEADER_COUNT": 12,
    "gateway.door.head.HEADER_BLOCK_BYTES": 512,
    "gateway.door.head.HEADER_COUNT": 12,
    "gateway.door.connection.REQUEST_LINE_BYTES": 256,
    "gateway.door.connection.PIPELINED_REQUESTS": 3,
    "gateway.door.connection.PIPELINED_BYTES": 256,
    "gateway.exchange.BODY_PIECES": 16,
    "gateway.exchange.HEADER_BLOCK_BYTES": 512,
    "gateway.exchange.Exchange._limit_bytes": UNREAD_BYTES,  # until the body is read
}
MOST_BYTES = 4096
# How requests are answered (two bits), and what happens beside that.
STREAMS, ANSWERS_EARLY, HANGS = 1, 2, 3
TURNS, FLOODS, LEAVES, IS_SLOW = 4, 8, 16, 32
_FLOOD = b"a" * 2048
_WELL_INSIDE_BYTES = 256  # inputs this short reach no limit but that of the count
_loop = ManualLoop()


@dataclass(slots=True)
class Served:
    """One request as it was handed on. `fault`: the status of the error it was answered with."""

    method: str
    target: bytes
    headers: tuple[tuple[bytes, bytes], ...]
    request_id: str
    version: str
    body: bytes | None = None
    fault: int = 0

    def facts(self) -> tuple[object, ...]:
        """What must not depend on the cuts."""
        if self.fault:
            return ("refused",)  # of several mistakes the first to be seen is named
        return (self.method, self.target, self.headers, self.body)


class _Door:
    """Serves every request in the way that the input says."""

    def __init__(self, way: int) -> None:
        self.loop = _loop
        self.outbox = Outbox(_loop)
        self.connections: set[ClientConnection] = set()
        self.is_closing = False
        self.served: list[Served] = []
        self.tasks: list[asyncio.Task[None]] = []
        self.hang = _loop.create_future()
        self._way = way
        self._numbers = count(1)

    def new_id(self) -> str:
        return f"r{next(self._numbers)}"

    def begin(self, exchange: Exchange) -> None:
        exchange.task = self.loop.create_task(self._serve(exchange))
        self.tasks.append(exchange.task)

    async def _serve(self, exchange: Exchange) -> None:
        exchange.begin()
        target = exchange.raw_path + (b"?" + exchange.query if exchange.query else b"")
        version = "1.1" if exchange._line.speaks_chunked else "1.0"
        served = Served(
            exchange.method, target, tuple(exchange.headers), exchange.request_id, version
        )
        self.served.append(served)
        way = self._way & 3
        try:
            if exchange.fault is not None:
                raise exchange.fault
            if way == HANGS:
                await self.hang
            if way != ANSWERS_EARLY:
                served.body = await exchange.read_body(BODY_BYTES)
            if way == STREAMS:
                exchange.start(200, [(b"x-request-id", exchange.request_id.encode())])
                exchange.write(b"one")
                await exchange.drain()
                exchange.finish(b"two")
            else:
                exchange.reply(200, b"{}")
        except ApiError as fault:
            served.fault = fault.status
            exchange.reply_error(fault)
        except asyncio.CancelledError:
            exchange.cut()
            exchange.end_reason()


def check(data: bytes) -> None:
    """One input. Raises: AssertionError, or whatever the gateway must not raise."""
    if len(data) < 5:
        return
    way, lengths, sent = data[0], data[1:5], data[5:]
    whole = _serve(way & ~(TURNS | FLOODS | LEAVES), sent, b"")
    cut = _serve(way & ~(TURNS | FLOODS | LEAVES), sent, lengths)
    _agree(whole, cut, sent)
    _compare(whole, sent)
    if way & (TURNS | FLOODS | LEAVES):
        _serve(way, sent, lengths)


def _serve(way: int, sent: bytes, lengths: bytes) -> list[Served]:
    door, transport = _Door(way), Transport()
    connection = ClientConnection(door)
    connection.connection_made(transport)
    if way & IS_SLOW:
        connection.pause_writing()
    for piece in [*cuts(sent, lengths), *([_FLOOD] * 48 if way & FLOODS else [])]:
        if transport.is_over:
            break
        connection.data_received(piece)
        if way & TURNS:
            _loop.turn()
            _check_memory(connection, len(piece))
    if way & FLOODS and not transport.is_over and not connection._is_deaf:
        exchange = connection._receiving
        assert exchange is not None and exchange.body_bytes >= len(_FLOOD), "it is taken for ever"
    _loop.turn(3)
    if way & LEAVES:
        transport.abort()  # as every event loop has it by then
        connection.connection_lost(None)
    elif way & IS_SLOW:
        connection.resume_writing()
    _end(connection, door, transport, has_left=bool(way & LEAVES))
    _check_answers(door, bytes(transport.written), is_cut=bool(way & LEAVES))
    return door.served


def _end(
    connection: ClientConnection, door: _Door, transport: Transport, *, has_left: bool
) -> None:
    """Lets everything come to its end, and then the time that no silent client outlives."""
    for _ in range(12):
        _loop.turn(3)
        if not door.hang.done():
            door.hang.set_result(None)
        elif all(task.done() for task in door.tasks) and transport.is_over:
            break
    if has_left:
        assert not door.connections
    for _ in range(4):
        if door.connections and not transport.is_over:
            _loop.pass_time(100)
    assert has_left or transport.is_over, "a silent client is kept for ever"
    if not has_left:
        connection.connection_lost(None)
    _loop.turn(3)
    for task in door.tasks:
        assert task.done(), "a request that never ends"
        assert has_left or not task.cancelled()
        if not task.cancelled():
            task.result()
    assert not door.connections


def _check_memory(connection: ClientConnection, piece_bytes: int) -> None:
    if connection._is_deaf:
        return  # it takes nothing more
    kept = kept_bytes(
        connection,
        apart_from=(asyncio.BaseTransport, asyncio.AbstractEventLoop, asyncio.Future, _Door),
    )
    # A piece of a body costs more than its bytes, and one read may hold many of them.
    assert kept <= 12 * piece_bytes + UNREAD_BYTES + 3 * 40 * 256 + 8192, kept


def _check_answers(door: _Door, written: bytes, *, is_cut: bool) -> None:
    """At most one answer a request, in their order, each of them HTTP."""
    at = 0
    for served in door.served:
        if at == len(written):
            break
        try:
            answer, at = rfc9112.read_answer(written, at, to_head=served.method == "HEAD")
        except rfc9112.NotWhole:
            assert is_cut or served.fault or written[at:].startswith(b"HTTP/1.1 100 "), written
            return
        assert answer.values(b"x-request-id") == [served.request_id.encode()], (served, written)
        assert served.version == "1.1" or not answer.values(b"transfer-encoding"), written
    assert at == len(written), (written, at, door.served)


def _agree(whole: list[Served], cut: list[Served], sent: bytes) -> None:
    """However the bytes are cut, the same is served. How much is read ahead is another matter."""
    if len(sent) > _WELL_INSIDE_BYTES:
        whole = [served for served in whole if not served.fault]
        cut = [served for served in cut if not served.fault]
    most = max(len(whole), len(cut))
    if len(sent) <= _WELL_INSIDE_BYTES and most <= 3:
        assert len(whole) == len(cut), (whole, cut)
    for one, other in zip(whole, cut, strict=False):
        assert one.facts() == other.facts(), (one, other)


def _compare(served: list[Served], sent: bytes) -> None:
    """A request that is served is framed as a strict reading of the RFC frames it."""
    at = 0
    for one in served:
        if one.fault:
            return
        try:
            strict, at = rfc9112.read_request(sent, at)
        except rfc9112.NotWhole as part:
            assert part.head is not None, (one, at)
            assert one.body is None, (one, at)
            strict = part.head
        except rfc9112.Odd:
            return
        except rfc9112.Malformed as fault:
            raise AssertionError(f"served, but malformed: {fault} at {at}: {one}") from fault
        method, target, version = strict.first
        assert one.method.encode() == method, (one, strict)
        if target.startswith(b"/"):
            path, mark, query = target.partition(b"#")[0].partition(b"?")
            assert one.target == path + (mark if query else b"") + query, (one, strict)
        assert one.body is None or one.body == strict.body, (one, strict)
        assert one.version == version.decode(), (one, strict)
        if not strict.values(b"upgrade"):  # an offer is declined by leaving it out
            headers = [(name, value.rstrip(b" \t")) for name, value in one.headers]
            assert headers == strict.fields, (one, strict)


_WAYS = (0, STREAMS, ANSWERS_EARLY, HANGS | TURNS, TURNS | FLOODS, HANGS | FLOODS | TURNS,
         STREAMS | LEAVES | TURNS, STREAMS | IS_SLOW | TURNS)  # fmt: skip


def _seeds() -> Iterator[bytes]:
    post = b"POST /v1/chat/completions?a=1 HTTP/1.1\r\nHost: x\r\n"
    length = post + b"Content-Length: 5\r\n\r\nhello"
    chunked = post + b"Transfer-Encoding: chunked\r\n\r\n"
    get = b"GET / HTTP/1.1\r\nhost: x\r\n\r\n"
    upgrade = b"Connection: Upgrade, HTTP2-Settings\r\nUpgrade: h2c\r\nHTTP2-Settings: AAE\r\n"
    for number, sent in enumerate([
        get, get * 2, get * 6, length, length + get, length * 5,
        chunked + b"5\r\nhello\r\n6;a=b\r\n world\r\n0\r\n\r\n" + get,
        chunked + b"1\r\na\r\n0\r\nX-Trailer: 1\r\nContent-Length: 7\r\n\r\n" + length,
        chunked + b"1\r\na\r\n0\r\nX-Trailer: ",
        chunked + b"1\r\na\r\n5;extension=",
        chunked + b"2\r\naa\r\n" * 100,
        chunked + b"fffff\r\nhello",
        chunked + b"5\r\nhelloX",
        chunked + b"fffffffffffffffff\r\n",
        post + b"Content-Length: 5\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n" + get,
        post + b"Content-Length: 5\r\nContent-Length: 6\r\n\r\nhello!",
        post + b"Content-Length: +5\r\n\r\nhello",
        post + b"Transfer-Encoding: gzip, chunked\r\n\r\n0\r\n\r\n",
        post + b"Transfer-Encoding : chunked\r\n\r\n0\r\n\r\n",
        post + b"Expect: 100-continue\r\nContent-Length: 5\r\n\r\n",
        post + b"Expect: 100-continue \r\nContent-Length: 5 \r\n\r\nhel",
        post + b"Transfer-Encoding: chunked \r\n\r\n1\r\na\r\n0\r\n\r\n",
        post + b"Transfer-Encoding: chunked\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
        post + b"Expect: a dragon\r\nContent-Length: 5\r\n\r\n",
        post + b"Content-Length: 5000\r\n\r\n" + b"x" * 1500,
        post + upgrade + b"Content-Length: 5\r\n\r\nhello" + get,
        b"GET / HTTP/1.1\r\nhost: x\r\n" + upgrade + b"\r\n" + get,
        b"GET / HTTP/1.0\r\nConnection: upgrade\r\nUpgrade: h2c\r\n\r\n" + get,
        b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
        b"CONNECT x:1 HTTP/1.1\r\nHost: x\r\n\r\n",
        b"HEAD / HTTP/1.1\r\nHost: x\r\n\r\n" + get,
        b"GET / HTTP/1.0\r\n\r\n" + get,
        b"GET / HTTP/1.1\r\n\r\n",
        b"GET / HTTP/1.1\r\nHost: x\r\nHost: y\r\n\r\n",
        b"GET http://x/a%20b?c=d#e HTTP/1.1\r\nHost: x\r\n\r\n",
        b"GET /" + b"a" * 300 + b" HTTP/1.1\r\nHost: x\r\n\r\n",
        b"GET / HTTP/1.1\r\nHost: x\r\n" + b"a: b\r\n" * 14 + b"\r\n",
        b"GET / HTTP/1.1\r\nHost: x\r\nb: " + b"c" * 600 + b"\r\n\r\n",
        b"GET / HTTP/1.1\r\nHost: x\r\na: b\r\n c\r\n\r\n",
        b"GET / HTTP/1.1\nHost: x\n\n",
        b"\r\n\r\n" + get, b"OPTIONS * HTTP/1.1\r\nHost: x\r\n\r\n", b"\x16\x03\x01\x02",
    ]):  # fmt: skip
        for way in _WAYS:
            yield bytes([way, 1 + number % 7, 3, 0, 9]) + sent
        yield bytes([0, 1, 1, 1, 1]) + sent


_HEAD = b"POST / HTTP/1.1\r\nHost: x\r\n"
_CHUNKED = _HEAD + b"Transfer-Encoding: chunked\r\n\r\n"
_LAST = b"GET / HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n"
FINDS: dict[str, bytes] = {
    "a socket that drains does not end a body": bytes([IS_SLOW, 0, 0, 0, 0]) + _CHUNKED
    + b"5\r\nhello\r\n6\r\n wor",
    "the end of the connection is said by the last request": b"\0\0\0\0\0" + _HEAD
    + b"Content-Length: 0\r\n\r\n" + _LAST,
    "an old request behind a new one": bytes([STREAMS, 0, 0, 0, 0]) + _HEAD
    + b"Content-Length: 0\r\n\r\nGET / HTTP/1.0\r\n\r\n",
    "trailers without end": bytes([TURNS | FLOODS, 0, 0, 0, 0]) + _CHUNKED + b"0\r\nX-Trailer: ",
    "a chunk extension without end": bytes([TURNS | FLOODS, 0, 0, 0, 0]) + _CHUNKED + b"5;e=",
    "a body that nobody reads": bytes([HANGS | TURNS | FLOODS, 0, 0, 0, 0]) + _CHUNKED
    + b"fffff\r\nhello",
    "a transfer coding that is not undone": b"\0\0\0\0\0" + _HEAD
    + b"Transfer-Encoding: gzip, chunked\r\n\r\n0\r\n\r\n",
    "a client that leaves before its next request has begun": bytes([STREAMS | TURNS | LEAVES])
    + b"\3\3\0\t" + 3 * b"GET / HTTP/1.1\r\nhost: x\r\n\r\n" + b"GConnection: upgrade\r\n"
    b"Upgrade: h2c\r\nP/1.1\r\nhost: x\r\n\r\nGET / HTTP/1.1\r\nhost: x\r\n\r\n",
    "an offer in HTTP/0.9": b"\0\0\0\0\0GET /\r\nHost: x\r\n"
    b"Connection: upgrade\r\nUpgrade: h2c\r\n\r\n",
    "an offer in HTTP/1.0": bytes([STREAMS, 0, 0, 0, 0]) + b"GET / HTTP/1.0\r\n"
    b"Connection: upgrade\r\nUpgrade: h2c\r\n\r\n",
}  # fmt: skip
SEEDS: list[bytes] = [*_seeds(), *FINDS.values()]
WORDS: list[bytes] = [
    b" HTTP/1.1\r\nHost: x\r\n", b"Transfer-Encoding: chunked\r\n", b"Content-Length: ",
    b"Connection: close\r\n", b"Connection: upgrade\r\nUpgrade: h2c\r\n", b"\r\n\r\n",
    b"0\r\n\r\n", b"Expect: 100-continue\r\n", b"GET ", b"POST ", b"HEAD ",
]  # fmt: skip
