"""The listening side: every client's connection and every running request. Knows no bytes."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Callable, Coroutine
from typing import TYPE_CHECKING, Any, Protocol

from gateway.door.connection import ClientConnection
from gateway.exchange import Exchange
from gateway.middleware.request_id import RequestIds
from gateway.outbox import Outbox

if TYPE_CHECKING:
    from gateway.door.shared import Sharing

Serve = Callable[[Exchange], Coroutine[Any, Any, None]]

BACKLOG = 2048


class Listening(Protocol):
    """A socket that accepts connections."""

    def close(self) -> None:
        """Lets go of it."""

    async def wait_closed(self) -> None:
        """Until it is gone."""


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
        self._server: Listening | None = None

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

    async def open(self, listener: socket.socket, sharing: Sharing | None = None) -> None:
        """Begins to accept connections on a bound socket. `sharing`: with other processes."""
        if sharing is not None:
            from gateway.door.shared import SharedListener

            self._server = SharedListener(
                listener,
                lambda: ClientConnection(self),
                BACKLOG,
                sharing,
                self.connections.__len__,
            )
            return
        self._server = await self.loop.create_server(
            lambda: ClientConnection(self), sock=listener, backlog=BACKLOG
        )

    def stop_accepting(self) -> None:
        """Lets go of the listening socket; the connections that there are go on."""
        if self._server is not None:
            self._server.close()

    async def close(self, wait_s: float) -> None:
        """Accepts no more, lets what runs end for `wait_s`, then cuts it."""
        self.is_closing = True
        self.stop_accepting()
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
