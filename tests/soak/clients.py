"""Clients of every kind, and what each of their requests leaves in the books. Knows no database."""

import asyncio
import contextlib
import json
import random
from collections import Counter
from collections.abc import Awaitable, Callable
from itertools import count
from typing import Any

KEY = "key-of-the-soak"
WITHIN_S = 60.0  # for one request of any kind
SLOW_READ_BYTES = 64 * 1024
SLOW_READ_S = 0.02  # between two reads of a slow client
BIG_EVENTS = 128  # of 4 KiB: more than the sockets on the way hold for a client that does not read
ENDLESS = 1_000_000


class Line:
    """A connection to the gateway that is kept while the gateway keeps it."""

    def __init__(self, port: int) -> None:
        self._port = port
        self._streams: tuple[asyncio.StreamReader, asyncio.StreamWriter] | None = None

    async def send(self, *pieces: bytes) -> None:
        """Sends, each piece in a packet of its own; a new connection if there is none."""
        if self._streams is None:
            self._streams = await asyncio.open_connection("127.0.0.1", self._port)
        for piece in pieces:
            with contextlib.suppress(ConnectionError):  # it may have answered and closed already
                self._streams[1].write(piece)
                await self._streams[1].drain()

    @property
    def reader(self) -> asyncio.StreamReader:
        assert self._streams is not None
        return self._streams[0]

    async def receive(self, *, is_slow: bool = False) -> tuple[int, bytes]:
        """Status and body of the next answer."""
        head = (await self.reader.readuntil(b"\r\n\r\n")).lower()
        if b"transfer-encoding: chunked" in head:
            body = await self._chunks(is_slow=is_slow)
        else:
            length = head.partition(b"content-length: ")[2].partition(b"\r\n")[0]
            body = await self.reader.readexactly(int(length))
        if b"connection: close" in head:
            await self.leave()
        return int(head[9:12]), body

    async def _chunks(self, *, is_slow: bool) -> bytes:
        pieces, until_pause_bytes = [], SLOW_READ_BYTES
        while size := int(await self.reader.readuntil(b"\r\n"), 16):
            pieces.append((await self.reader.readexactly(size + 2))[:-2])
            until_pause_bytes -= size
            if is_slow and until_pause_bytes < 0:
                until_pause_bytes = SLOW_READ_BYTES
                await asyncio.sleep(SLOW_READ_S)
        await self.reader.readexactly(2)
        return b"".join(pieces)

    async def leave(self, *, is_rude: bool = False) -> None:
        """Closes; rudely: with a reset."""
        streams, self._streams = self._streams, None
        if streams is None:
            return
        if is_rude:
            streams[1].transport.abort()
        streams[1].close()
        with contextlib.suppress(ConnectionError):
            await streams[1].wait_closed()


class Clients:
    """Asks in every way there is. `booked`: rows that must be there, by outcome."""

    def __init__(self, port: int, seed: int) -> None:
        self.booked: Counter[str] = Counter()
        self.asked: Counter[str] = Counter()
        self._port = port
        self._random = random.Random(seed)
        self._ids = count(1)

    async def run(self, request_count: int, at_once: int) -> None:
        """So many requests, so many at a time. Raises: AssertionError for a wrong answer."""
        names = self._random.choices([*KINDS], [weight for weight, _ in KINDS.values()],
                                     k=request_count)  # fmt: skip
        async with asyncio.TaskGroup() as workers:
            for _ in range(at_once):
                workers.create_task(self._work(names))

    async def _work(self, names: list[str]) -> None:
        line = Line(self._port)
        while names:
            name = names.pop()
            self.asked[name] += 1
            try:
                async with asyncio.timeout(WITHIN_S):
                    await KINDS[name][1](self, line)
            except Exception as fault:
                raise AssertionError(f"a request of the kind {name!r} failed: {fault!r}") from fault
        await line.leave()

    def post(self, body: bytes | dict[str, Any], key: str = KEY, more: str = "") -> bytes:
        """A chat completion as it is sent."""
        data = body if isinstance(body, bytes) else json.dumps(body).encode()
        head = (f"POST /v1/chat/completions HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {key}\r\n"
                f"Content-Length: {len(data)}\r\n{more}\r\n")  # fmt: skip
        return head.encode() + data

    def call(self, way: str, **more: Any) -> tuple[str, dict[str, Any]]:
        """A request that tells the backend how to answer, and the mark that the answer bears."""
        mark = f"id-{next(self._ids)}"
        is_stream = way in ("stream", "broken", "paced")
        return mark, {"model": "m", "messages": [], "stream": is_stream, "x_way": way,
                      "x_id": mark, **more}  # fmt: skip

    def expect(self, outcome: str, *, is_right: bool, said: object) -> None:
        """Notes what must be in the books."""
        assert is_right, said
        self.booked[outcome] += 1

    def flip(self) -> bool:
        return self._random.random() < 0.5

    async def leave_midst(self, line: Line, body: bytes) -> None:
        """Asks, reads a piece of the answer, and leaves."""
        await line.send(body)
        piece = await line.reader.read(100)
        assert piece.startswith(b"HTTP/1.1 200 "), piece
        await line.leave(is_rude=self.flip())


async def _whole(clients: Clients, line: Line) -> None:
    mark, body = clients.call("whole")
    await line.send(clients.post(body))
    status, answer = await line.receive()
    clients.expect("succeeded", is_right=status == 200 and mark.encode() in answer, said=answer)


async def _in_chunks(clients: Clients, line: Line) -> None:
    mark, body = clients.call("whole")
    data = json.dumps(body).encode()
    head = clients.post(b"").replace(b"Content-Length: 0", b"Transfer-Encoding: chunked")
    pieces = [b"%x\r\n%b\r\n" % (len(data[at : at + 40]), data[at : at + 40])
              for at in range(0, len(data), 40)]  # fmt: skip
    await line.send(head, *pieces, b"0\r\n\r\n")
    status, answer = await line.receive()
    clients.expect("succeeded", is_right=status == 200 and mark.encode() in answer, said=answer)


async def _pipelined(clients: Clients, line: Line) -> None:
    calls = [clients.call("whole") for _ in range(3)]
    await line.send(b"".join(clients.post(body) for _, body in calls))
    for mark, _ in calls:
        status, answer = await line.receive()
        clients.expect("succeeded", is_right=status == 200 and mark.encode() in answer, said=answer)


async def _stream(clients: Clients, line: Line, *, is_slow: bool = False) -> None:
    more = {"x_events": BIG_EVENTS, "x_is_big": True} if is_slow else {"x_events": 20}
    mark, body = clients.call("stream", **more)
    await line.send(clients.post(body))
    status, answer = await line.receive(is_slow=is_slow)
    is_right = answer.count(mark.encode()) == more["x_events"] and answer.endswith(b"[DONE]\n\n")
    clients.expect("succeeded", is_right=status == 200 and is_right, said=answer[-200:])


async def _slow(clients: Clients, line: Line) -> None:
    await _stream(clients, line, is_slow=True)


async def _slow_then_gone(clients: Clients, line: Line) -> None:
    _, body = clients.call("stream", x_events=ENDLESS, x_is_big=True)
    await clients.leave_midst(line, clients.post(body))
    clients.expect("aborted", is_right=True, said="")


async def _error(clients: Clients, line: Line) -> None:
    wanted = 500 if clients.flip() else 429
    _, body = clients.call("error", x_status=wanted)
    await line.send(clients.post(body))
    status, answer = await line.receive()
    clients.expect("failed", is_right=status == wanted, said=answer)


async def _cut(clients: Clients, line: Line) -> None:
    _, body = clients.call("cut")
    await line.send(clients.post(body))
    status, answer = await line.receive()
    clients.expect("failed", is_right=status == 502, said=answer)


async def _broken(clients: Clients, line: Line) -> None:
    _, body = clients.call("broken", x_events=5)
    await line.send(clients.post(body))
    status, answer = await line.receive()
    is_right = status == 200 and b'"error"' in answer and answer.endswith(b"[DONE]\n\n")
    clients.expect("failed", is_right=is_right, said=answer)


async def _no_json(clients: Clients, line: Line) -> None:
    await line.send(clients.post(b'{"model":'))
    status, answer = await line.receive()
    clients.expect("refused", is_right=status == 400, said=answer)


async def _no_model(clients: Clients, line: Line) -> None:
    await line.send(clients.post({"model": "nobody's", "messages": []}))
    status, answer = await line.receive()
    clients.expect("refused", is_right=status == 404, said=answer)


async def _leaves_in_body(clients: Clients, line: Line) -> None:
    _, body = clients.call("whole")
    await line.send(clients.post(body)[:-20])
    await line.leave()
    clients.expect("aborted", is_right=True, said="")


async def _leaves_waiting(clients: Clients, line: Line) -> None:
    _, body = clients.call("hang")
    await line.send(clients.post(body))
    await asyncio.sleep(SLOW_READ_S)
    await line.leave(is_rude=clients.flip())
    clients.expect("aborted", is_right=True, said="")


async def _leaves_midst(clients: Clients, line: Line) -> None:
    _, body = clients.call("paced", x_events=ENDLESS)
    await clients.leave_midst(line, clients.post(body))
    clients.expect("aborted", is_right=True, said="")


# What is refused before it is a model call: no row.


async def _leaves_in_head(clients: Clients, line: Line) -> None:
    await line.send(clients.post(b"{}")[:30])
    await line.leave(is_rude=clients.flip())


async def _wrong_key(clients: Clients, line: Line) -> None:
    _, body = clients.call("whole")
    await line.send(clients.post(body, key="no-key-of-ours"))
    status, answer = await line.receive()
    assert status == 401, answer


async def _no_path(clients: Clients, line: Line) -> None:
    await line.send(b"GET /v1/nothing HTTP/1.1\r\nHost: x\r\n\r\n")
    status, answer = await line.receive()
    assert status == 404, answer


async def _no_http(clients: Clients, line: Line) -> None:
    await line.send(b"BREW /coffee HTTP/9\r\n\r\n")
    status, answer = await line.receive()
    assert status == 400, answer


async def _large_head(clients: Clients, line: Line) -> None:
    await line.send(clients.post(b"{}", more=f"X-Large: {'x' * 70_000}\r\n"))
    status, answer = await line.receive()
    assert status == 431, answer


async def _models(clients: Clients, line: Line) -> None:
    await line.send(f"GET /v1/models HTTP/1.1\r\nHost: x\r\nx-api-key: {KEY}\r\n\r\n".encode())
    status, answer = await line.receive()
    assert status == 200 and b'"m"' in answer, answer


Ask = Callable[[Clients, Line], Awaitable[None]]
KINDS: dict[str, tuple[int, Ask]] = {  # how often, and how
    "whole": (20, _whole),
    "in chunks": (4, _in_chunks),
    "pipelined, three": (3, _pipelined),
    "streamed": (20, _stream),
    "streamed, slow reader": (2, _slow),
    "slow reader that leaves": (2, _slow_then_gone),
    "backend's error": (4, _error),
    "backend cuts before": (3, _cut),
    "backend cuts a stream": (3, _broken),
    "no JSON": (4, _no_json),
    "unknown model": (4, _no_model),
    "leaves in the head": (4, _leaves_in_head),
    "leaves in the body": (4, _leaves_in_body),
    "leaves while waiting": (4, _leaves_waiting),
    "leaves in a stream": (4, _leaves_midst),
    "wrong key": (4, _wrong_key),
    "unknown path": (3, _no_path),
    "no HTTP": (3, _no_http),
    "head too large": (2, _large_head),
    "list of models": (3, _models),
}
