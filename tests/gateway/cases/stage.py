"""A client of raw sockets, and the stage it plays on: scripted backend, gateway, caller.

The client reads no more than it is told to, and knows whether an answer was whole.
"""

import asyncio
import contextlib
import json
import socket
from collections.abc import AsyncIterator, Sequence
from pathlib import Path
from typing import Any, Self

from tests.gateway.cases.samples import Sample
from tests.gateway.cases.scripted import RESET, Script, ScriptedBackend
from tests.gateway.harness import Running, running_gateway

Headers = Sequence[tuple[str, str]]
STILL_OPEN = b"(the connection is still open)"
READ_S = 10.0  # nothing in these tests takes this long


class Answer:
    """What one request got. `is_whole`: its framing says that it ended where it should."""

    def __init__(self) -> None:
        self.status = 0
        self.headers: list[tuple[str, str]] = []
        self.body = b""
        self.is_whole = False

    def header(self, name: str) -> str | None:
        """The only value of a header."""
        values = [value for key, value in self.headers if key == name]
        assert len(values) < 2, self.headers
        return values[0] if values else None

    @property
    def json(self) -> Any:
        return json.loads(self.body)


class Caller:
    """One connection to the gateway."""

    def __init__(self, sock: socket.socket) -> None:
        self.sock = sock
        self.answer = Answer()
        self._rest = b""
        self._length_read = 0
        self._loop = asyncio.get_running_loop()

    @classmethod
    async def connect(cls, port: int, receive_bytes: int | None = None) -> Self:
        """`receive_bytes`: the size of its socket's buffer."""
        sock = socket.socket()
        sock.setblocking(False)
        if receive_bytes is not None:
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_bytes)
        await asyncio.get_running_loop().sock_connect(sock, ("127.0.0.1", port))
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        return cls(sock)

    async def send(self, data: bytes) -> None:
        await self._loop.sock_sendall(self.sock, data)

    async def ask(self, target: str, body: bytes = b"", headers: Headers = ()) -> None:
        """Sends a POST."""
        await self.send(request(target, body, headers))

    async def receive(self, most_bytes: int = 65_536) -> bytes:
        """The next bytes as they come; b"" at the end, however it came."""
        async with asyncio.timeout(READ_S):
            with contextlib.suppress(ConnectionError):
                return await self._loop.sock_recv(self.sock, most_bytes)
        return b""

    async def head(self) -> Answer:
        """Reads status and headers of the next answer, interim ones apart."""
        self.answer, self._length_read = Answer(), 0
        while b"\r\n\r\n" not in self._rest:
            piece = await self.receive()
            if not piece:
                return self.answer
            self._rest += piece
        raw, _, self._rest = self._rest.partition(b"\r\n\r\n")
        first, *lines = raw.decode("latin-1").split("\r\n")
        self.answer.status = int(first.split(" ")[1])
        if self.answer.status == 100:
            return await self.head()
        pairs = (line.split(": ", 1) for line in lines)
        self.answer.headers = [(name.lower(), value) for name, value in pairs]
        return self.answer

    async def until(self, mark: bytes) -> bytes:
        """Reads raw bytes until `mark` is among them; keeps them for `whole`."""
        while mark not in self._rest:
            piece = await self.receive()
            assert piece, f"the answer ended before {mark!r}: {self._rest[-300:]!r}"
            self._rest += piece
        return self._rest

    async def whole(self) -> Answer:
        """Reads the rest of the answer."""
        answer = self.answer if self.answer.status else await self.head()
        pieces = []
        while piece := await self.piece():
            pieces.append(piece)
        answer.body = b"".join(pieces)
        self.answer = Answer()
        return answer

    async def body(self, size_bytes: int) -> bytes:
        """So much of the body, and no more than came with it."""
        if not self.answer.status:
            await self.head()
        got = b""
        while len(got) < size_bytes:
            piece = await self.piece()
            assert piece, f"the body ended after {got[-300:]!r}"
            got += piece
        return got

    async def piece(self) -> bytes:
        """The next bytes of the body without their framing; b"" at its end or its cut."""
        answer = self.answer
        length = answer.header("content-length")
        if answer.header("transfer-encoding") == "chunked":
            return await self._chunk(answer)
        left = int(length or 0) - self._length_read
        if left and not self._rest:
            self._rest = await self.receive()
        piece, self._rest = self._rest[:left], self._rest[left:]
        self._length_read += len(piece)
        answer.is_whole = self._length_read == int(length or 0)
        return piece

    async def at_end(self, most_s: float = READ_S) -> bytes:
        """Reads until the gateway closes; what came, and a note if it did not close."""
        pieces = [self._rest]
        try:
            async with asyncio.timeout(most_s):
                while piece := await self.receive():
                    pieces.append(piece)
        except TimeoutError:
            pieces.append(STILL_OPEN)
        return b"".join(pieces)

    async def _chunk(self, answer: Answer) -> bytes:
        if answer.is_whole:
            return b""
        while b"\r\n" not in self._rest:
            if not (piece := await self.receive()):
                return b""
            self._rest += piece
        line, _, self._rest = self._rest.partition(b"\r\n")
        size = int(line, 16)
        parts, have = [self._rest], len(self._rest)
        while have < size + 2:
            if not (piece := await self.receive()):
                self._rest = b""
                return b"".join(parts)[:size]
            parts.append(piece)
            have += len(piece)
        data = b"".join(parts)
        self._rest = data[size + 2 :]
        answer.is_whole = size == 0
        return data[:size]

    def close(self) -> None:
        """Hangs up."""
        self.sock.close()

    def reset(self) -> None:
        """Hangs up with a reset."""
        self.sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, RESET)
        self.sock.close()


def request(target: str, body: bytes = b"", headers: Headers = (), method: str = "POST") -> bytes:
    """A request's bytes."""
    lines = [f"{method} {target} HTTP/1.1", "host: gateway", f"content-length: {len(body)}"]
    lines += [f"{name}: {value}" for name, value in headers]
    return "\r\n".join(lines).encode("latin-1") + b"\r\n\r\n" + body


async def call(port: int, target: str, body: bytes = b"", headers: Headers = ()) -> Answer:
    """One request on a connection of its own."""
    caller = await Caller.connect(port)
    try:
        async with asyncio.timeout(READ_S):  # an answer without an end is no answer
            await caller.ask(target, body, headers)
            return await caller.whole()
    finally:
        caller.close()


class Stage:
    """A sample's backend, a gateway in front of it, and callers."""

    def __init__(self, sample: Sample, up: ScriptedBackend, gateway: Running) -> None:
        self.sample = sample
        self.up = up
        self.gateway = gateway
        self.port = gateway.port

    async def ask(self, *, is_stream: bool = True, headers: Headers = ()) -> Answer:
        """Sends the sample's request and reads the whole answer."""
        target, body = self.message(is_stream=is_stream)
        return await call(self.port, target, body, headers)

    def message(self, *, is_stream: bool = True) -> tuple[str, bytes]:
        """The sample's target and body."""
        return self.sample.target(is_stream=is_stream), self.sample.body(is_stream=is_stream)

    @contextlib.asynccontextmanager
    async def caller(
        self, *, is_stream: bool = True, body: bytes | None = None, receive_bytes: int | None = None
    ) -> AsyncIterator[Caller]:
        """A client that has asked and reads by itself."""
        caller = await Caller.connect(self.port, receive_bytes)
        target, usual = self.message(is_stream=is_stream)
        try:
            await caller.ask(target, usual if body is None else body)
            yield caller
        finally:
            caller.close()

    async def row(self, number: int = 0) -> Any:
        """The row of the n-th request, once it is closed."""
        return await self.gateway.row(number)


def in_flight(gateway: Running) -> int:
    """Model calls that have arrived and are not closed."""
    return gateway.gateway.pipeline.in_flight


def kept_connections(gateway: Running) -> int:
    """Idle connections to backends."""
    return gateway.gateway.client.idle_count()


@contextlib.asynccontextmanager
async def stage(
    tmp_path: Path,
    sample: Sample,
    script: Script,
    *,
    is_early: bool = False,
    send_bytes: int | None = None,
    sections: dict[str, Any] | None = None,
    **settings: Any,
) -> AsyncIterator[Stage]:
    """Everything running. `settings` are the backend's, `sections` the gateway's others."""
    async with (
        ScriptedBackend(script, is_early=is_early, send_bytes=send_bytes) as up,
        running_gateway(
            tmp_path, backends={"b": sample.backend(up.url, **settings)}, **(sections or {})
        ) as gateway,
    ):
        yield Stage(sample, up, gateway)


def failure(sample: Sample, answer: Answer) -> str:
    """The proper error of an answer that failed, whichever way: as a status, or as a stream's end.

    Returns its words.
    """
    if answer.status != 200:
        assert answer.status >= 400 and answer.is_whole
        error_code(sample.surface, answer.body)
        return answer.body.decode()
    told = sample.grammar.check(answer.body)
    assert told.ending == "failed" and answer.is_whole, answer.body[-300:]
    return str(told.error)


def error_code(surface: str, body: bytes) -> str:
    """The code of an error of ours; it must have the form of the surface."""
    error = json.loads(body)
    if surface == "messages":
        assert error["type"] == "error" and error["error"]["type"], error
        code = error["error"].get("code")
    elif surface == "gemini":
        assert type(error["error"]["code"]) is int and error["error"]["status"], error
        code = error["error"]["details"][0].get("reason")
    else:
        assert {"message", "type", "param", "code"} <= error["error"].keys(), error
        code = error["error"]["code"]
    assert error["error"]["message"]
    return str(code)


async def settle() -> None:
    """Lets everything happen that can happen by now: gateway, backend and test share a loop."""
    for _ in range(20):
        await asyncio.sleep(0)
