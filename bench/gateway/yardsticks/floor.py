"""Python's floor: a relay with no ASGI server at all, asyncio.Protocol on both sides.

    python floor.py --port 9210 --upstream-port 9100

Requests are framed and read for their model; the upstream's answer is framed by httptools, but its
bytes are written to the client as they came, head and chunk framing and all. Not a gateway: no
header edits, no errors, no back-pressure. What uvloop and callbacks in Python cost at the least.
"""

import argparse
import asyncio
import json
from typing import cast

import httptools
import uvloop

HOST = "127.0.0.1"


class Upstream(asyncio.Protocol):
    """One keep-alive connection upward; hands every byte to the client it works for."""

    def __init__(self, idle: list["Upstream"]) -> None:
        self.idle = idle
        self.client: Client | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast("asyncio.Transport", transport)

    def begin(self, client: "Client", request: bytes) -> None:
        """Sends a client's request."""
        self.client = client
        self.is_done = False
        self.parser = httptools.HttpResponseParser(self)
        self.transport.write(request)

    def data_received(self, data: bytes) -> None:
        assert self.client is not None
        self.parser.feed_data(data)
        self.client.transport.write(data)
        if self.is_done:
            self.idle.append(self)
            self.client.make_ready()

    def on_message_complete(self) -> None:
        self.is_done = True

    def connection_lost(self, fault: Exception | None) -> None:
        if self in self.idle:
            self.idle.remove(self)
        elif self.client is not None:
            self.client.transport.close()


class Client(asyncio.Protocol):
    """One client's connection."""

    def __init__(self, idle: list[Upstream], upstream_port: int) -> None:
        self.idle = idle
        self.upstream_port = upstream_port
        self.dialing: asyncio.Task[None] | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast("asyncio.Transport", transport)
        self.make_ready()

    def make_ready(self) -> None:
        """For the next request."""
        self.pieces: list[bytes] = []
        self.body: list[bytes] = []
        self.is_whole = False
        self.parser = httptools.HttpRequestParser(self)

    def data_received(self, data: bytes) -> None:
        self.pieces.append(data)
        self.parser.feed_data(data)
        if not self.is_whole:
            return
        if self.body:
            json.loads(b"".join(self.body)).get("model")
        request = b"".join(self.pieces)
        if self.idle:
            self.idle.pop().begin(self, request)
        else:
            self.dialing = asyncio.get_running_loop().create_task(self.dial(request))

    async def dial(self, request: bytes) -> None:
        """Opens one more connection upward, for this request and those to come."""
        loop = asyncio.get_running_loop()
        _, upstream = await loop.create_connection(
            lambda: Upstream(self.idle), HOST, self.upstream_port
        )
        upstream.begin(self, request)

    def on_body(self, piece: bytes) -> None:
        self.body.append(piece)

    def on_message_complete(self) -> None:
        self.is_whole = True


async def main(port: int, upstream_port: int) -> None:
    """Serves until the process is ended."""
    idle: list[Upstream] = []
    server = await asyncio.get_running_loop().create_server(
        lambda: Client(idle, upstream_port), HOST, port, backlog=1024
    )
    await server.serve_forever()


if __name__ == "__main__":
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("--port", type=int, default=9210)
    options.add_argument("--upstream-port", type=int, default=9100)
    args = options.parse_args()
    uvloop.run(main(args.port, args.upstream_port))
