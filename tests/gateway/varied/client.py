"""A small HTTP/1.1 client on a bare socket: sends exactly these bytes, keeps exactly what came.

Knows no gateway. It is strict: an answer that breaks the framing of RFC 9112 raises `NotHttp`.
"""

import asyncio
import socket
from dataclasses import dataclass, field
from typing import Self

Headers = list[tuple[bytes, bytes]]  # as on the wire: names in their case, in their order

DEADLINE_S = 60.0  # for one answer, of any size
RECEIVE_BYTES = 1024 * 1024
NO_BODY = (204, 304)


class NotHttp(Exception):
    """What came is no answer to this request."""


@dataclass(frozen=True, slots=True)
class Request:
    """One request. `pieces` is its body as it goes over the wire, each piece on its own.

    `waits`: the client said `Expect: 100-continue` and holds its body back until it is told.
    """

    method: bytes
    target: bytes
    headers: Headers
    pieces: tuple[bytes, ...] = ()
    version: bytes = b"HTTP/1.1"
    waits: bool = False

    def head(self) -> bytes:
        lines = [b"%b %b %b\r\n" % (self.method, self.target, self.version)]
        lines += [b"%b: %b\r\n" % header for header in self.headers]
        return b"".join([*lines, b"\r\n"])

    @property
    def wants_close(self) -> bool:
        return self.version == b"HTTP/1.0" or b"close" in tokens(self.headers, b"connection")


@dataclass(slots=True)
class Answer:
    """One answer. `body` is without its chunks; `interim`: the 1xx statuses before it."""

    status: int
    version: bytes
    headers: Headers
    body: bytes = b""
    framing: str = "none"
    interim: list[int] = field(default_factory=list)
    trailers: Headers = field(default_factory=list)

    @property
    def is_last(self) -> bool:
        """Whether the server closes the connection behind it."""
        said = tokens(self.headers, b"connection")
        return b"close" in said or (self.version == b"HTTP/1.0" and b"keep-alive" not in said)


class Client:
    """One connection to a port of this machine, kept while its answers allow it."""

    def __init__(self, port: int) -> None:
        self._port = port
        self._socket: socket.socket | None = None
        self._waiting = bytearray()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *raised: object) -> None:
        self.close()

    async def send(self, request: Request) -> Answer:
        """Sends a request and returns the whole answer.

        Raises: NotHttp, TimeoutError, OSError.
        """
        try:
            async with asyncio.timeout(DEADLINE_S):
                return await self._exchange(request)
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        """Closes the connection; the next request makes a new one."""
        if self._socket is not None:
            self._socket.close()
        self._socket = None
        self._waiting.clear()

    async def _exchange(self, request: Request) -> Answer:
        loop = asyncio.get_running_loop()
        if self._socket is None:
            self._socket = socket.socket()
            self._socket.setblocking(False)
            self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            await loop.sock_connect(self._socket, ("127.0.0.1", self._port))
        interim: list[int] = []
        await loop.sock_sendall(self._socket, request.head())
        answer = await self._wait_for_continue(interim) if request.waits else None
        if answer is None:
            for piece in request.pieces:
                await loop.sock_sendall(self._socket, piece)
                await asyncio.sleep(0)  # so that the other side reads it on its own
            answer = await self._answer_head(interim)
        answer.interim = interim
        await self._read_body(request, answer)
        if request.wants_close or answer.is_last:
            await self._expect_end()
        if self._waiting:
            raise NotHttp(f"bytes behind the answer: {bytes(self._waiting[:60])!r}")
        return answer

    async def _wait_for_continue(self, interim: list[int]) -> Answer | None:
        """None when the body is wanted; otherwise the answer that came without it."""
        head = await self._head()
        interim.append(head.status)
        if head.status == 100:
            return None
        interim.pop()
        return head

    async def _answer_head(self, interim: list[int]) -> Answer:
        while 100 <= (head := await self._head()).status < 200:
            if head.status == 101:
                raise NotHttp("nobody asked for another protocol")
            interim.append(head.status)
        return head

    async def _head(self) -> Answer:
        first, *lines = (await self._until(b"\r\n\r\n")).split(b"\r\n")
        version, _, rest = first.partition(b" ")
        status = rest[:3]
        if version not in (b"HTTP/1.1", b"HTTP/1.0") or not status.isdigit():
            raise NotHttp(f"no status line: {first!r}")
        return Answer(int(status), version, [split_header(line) for line in lines])

    async def _read_body(self, request: Request, answer: Answer) -> None:
        lengths = values(answer.headers, b"content-length")
        codings = values(answer.headers, b"transfer-encoding")
        if codings and (lengths or request.version == b"HTTP/1.0"):
            raise NotHttp("chunks beside a length, or for a client that does not know them")
        if request.method == b"HEAD" or answer.status in NO_BODY:
            return
        if codings == [b"chunked"]:
            answer.framing = "chunked"
            await self._read_chunks(answer)
        elif codings or len(lengths) > 1:
            raise NotHttp(f"no length that one can rely on: {codings} {lengths}")
        elif lengths:
            answer.framing = "length"
            answer.body = await self._exactly(int(lengths[0]))
        else:
            answer.framing = "close"
            while await self._receive():
                pass
            answer.body = bytes(self._waiting)
            self.close()

    async def _read_chunks(self, answer: Answer) -> None:
        pieces: list[bytes] = []
        while size := int((await self._until(b"\r\n")).partition(b";")[0], 16):
            pieces.append(await self._exactly(size))
            if await self._exactly(2) != b"\r\n":
                raise NotHttp("a chunk is longer than it says")
        while line := await self._until(b"\r\n"):
            answer.trailers.append(split_header(line))
        answer.body = b"".join(pieces)

    async def _expect_end(self) -> None:
        if self._socket is not None and await self._receive():
            raise NotHttp(f"bytes where the end should be: {bytes(self._waiting[:60])!r}")
        self.close()

    async def _until(self, mark: bytes) -> bytes:
        """What comes before the mark, without it."""
        looked = 0
        while (at := self._waiting.find(mark, looked)) < 0:
            looked = max(0, len(self._waiting) - len(mark))
            if not await self._receive():
                raise NotHttp(f"it ends within a line: {bytes(self._waiting[:60])!r}")
        found = bytes(self._waiting[:at])
        del self._waiting[: at + len(mark)]
        return found

    async def _exactly(self, size: int) -> bytes:
        while len(self._waiting) < size:
            if not await self._receive():
                raise NotHttp(f"it ends {size - len(self._waiting)} bytes too early")
        found = bytes(memoryview(self._waiting)[:size])
        del self._waiting[:size]
        return found

    async def _receive(self) -> int:
        assert self._socket is not None
        piece = await asyncio.get_running_loop().sock_recv(self._socket, RECEIVE_BYTES)
        self._waiting += piece
        return len(piece)


def split_header(line: bytes) -> tuple[bytes, bytes]:
    """Name and value of a header line, without the white space around the value."""
    name, colon, value = line.partition(b":")
    if not colon or not name or name != name.strip():
        raise NotHttp(f"no header: {line[:60]!r}")
    return name, value.strip(b" \t")


def values(headers: Headers, name: bytes) -> list[bytes]:
    """Every value of a (lower-case) name, in order."""
    return [value for key, value in headers if key.lower() == name]


def tokens(headers: Headers, name: bytes) -> set[bytes]:
    """The comma-separated words of a header, in lower case."""
    words = b",".join(values(headers, name)).split(b",")
    return {word.strip().lower() for word in words} - {b""}
