"""The listening side: every client's connection and every running request. Knows no bytes."""

import asyncio
import socket
from collections.abc import Callable, Coroutine
from typing import Any

from gateway.door.connection import ClientConnection
from gateway.exchange import Exchange
from gateway.middleware.request_id import RequestIds
from gateway.outbox import Outbox

Serve = Callable[[Exchange], Coroutine[Any, Any, None]]

BACKLOG = 2048


class Door:
    """The listening side: every client's connection and every running request."""

    def __init__(self, serve: Serve, outbox: Outbox) -> None:
        self._serve = serve
        self.outbox = outbox
        self.loop = asyncio.get_running_loop()
        self.connections: set[ClientConnection] = set()
        self.tasks: set[asyncio.Task[None]] = set()
        self.new_id: Callable[[], str] = RequestIds()
        self.is_closing = False
        self._server: asyncio.Server | None = None

    def begin(self, exchange: Exchange) -> None:
        """Starts the work on a request, as a task of its own."""
        exchange.task = task = self.loop.create_task(self._run(exchange))
        self.tasks.add(task)

    async def _run(self, exchange: Exchange) -> None:
        try:
            await self._serve(exchange)
        finally:
            assert exchange.task is not None
            self.tasks.discard(exchange.task)

    async def open(self, listener: socket.socket) -> None:
        """Begins to accept connections on a bound socket."""
        self._server = await self.loop.create_server(
            lambda: ClientConnection(self), sock=listener, backlog=BACKLOG
        )

    async def close(self, wait_s: float) -> None:
        """Accepts no more, lets what runs end for `wait_s`, then cuts it."""
        self.is_closing = True
        if self._server is not None:
            self._server.close()
        for connection in [*self.connections]:
            connection.close_soon()
        if self.tasks:
            await asyncio.wait(self.tasks, timeout=wait_s)
        for task in [*self.tasks]:
            task.cancel()
        await asyncio.gather(*self.tasks, return_exceptions=True)
        for connection in [*self.connections]:
            connection.abort()
        if self._server is not None:
            await self._server.wait_closed()
