"""Keeps connections to backends and sends requests over them. Knows no surface and no ledger.

Redirects are not followed. A kept connection that turns out to be dead before a byte of an answer
is replaced once; nothing else is ever sent twice.
"""

import asyncio
import os
import socket
import ssl
from collections.abc import Coroutine
from typing import Any

import aiohappyeyeballs

from gateway.backends.base import Origin
from gateway.outbox import Outbox
from gateway.relay.connection import (
    ConnectFailed,
    Connection,
    Receiver,
    UpstreamBroken,
    UpstreamTimeout,
)

IDLE_CONNECTIONS = 256  # kept per origin; more are closed instead of kept
IDLE_S = 55.0  # most servers drop an idle connection after 60 s, and we would find out too late
NEXT_ADDRESS_S = 0.25  # a name with several addresses: the next is tried beside it (RFC 8305)


class UpstreamClient:
    """HTTP/1.1 toward backends, with kept connections."""

    def __init__(self, outbox: Outbox) -> None:
        self._outbox = outbox
        self._now = outbox.loop.time  # to ask for the running loop takes a system call each time
        self.redone_count = 0  # requests whose kept connection turned out to be dead
        self._idle: dict[Origin, dict[Connection, None]] = {}  # the last one was used last

    async def send(
        self, origin: Origin, head: bytes, body: bytes, *, connect_s: float
    ) -> Connection:
        """Sends one request and returns when the answer's head is there, to be read.

        `head`: request line and headers, closed by the blank line. The caller gives the connection
        back with `release`.

        Raises: UpstreamFault.
        """
        return await self._send(origin, head, body, connect_s, None)

    def relay(
        self, origin: Origin, head: bytes, body: bytes, receiver: Receiver, *, connect_s: float
    ) -> Coroutine[Any, Any, Connection]:
        """Sends one request and returns when the receiver has had the whole answer.

        Otherwise as `send`. Raises: UpstreamFault, or what the receiver raised.
        """
        return self._send(origin, head, body, connect_s, receiver)

    async def _send(
        self, origin: Origin, head: bytes, body: bytes, connect_s: float, receiver: Receiver | None
    ) -> Connection:
        connection = self._take_idle(origin)
        may_be_stale = connection is not None
        while True:
            if connection is None:
                connection = await self._connect(origin, connect_s)
            try:
                if receiver is not None:
                    await connection.start(head, body, receiver)
                else:
                    connection.start(head, body)
                    await connection.has_head()
                return connection
            except UpstreamBroken as fault:
                connection.hang_up()
                if not (may_be_stale and fault.before_answer):
                    raise
            except BaseException:
                connection.hang_up()
                raise
            self.redone_count += 1
            connection, may_be_stale = None, False

    def release(self, origin: Origin, connection: Connection) -> None:
        """Keeps a connection whose answer was read to its end; hangs up on any other."""
        idle = self._idle.get(origin)
        if idle is None:
            idle = self._idle[origin] = {}
        if len(idle) >= IDLE_CONNECTIONS or not connection.rest():
            connection.hang_up()
            return
        connection.idle_since_s = self._now()
        idle[connection] = None
        oldest = next(iter(idle))
        if oldest.is_dead or connection.idle_since_s - oldest.idle_since_s > IDLE_S:
            del idle[oldest]
            oldest.hang_up()

    def close(self) -> None:
        """Hangs up on every kept connection."""
        for idle in self._idle.values():
            while idle:
                idle.popitem()[0].hang_up()

    def idle_count(self) -> int:
        """Connections kept and waiting."""
        return sum(map(len, self._idle.values()))

    def _take_idle(self, origin: Origin) -> Connection | None:
        """The connection used last, if it was not too long ago."""
        idle = self._idle.get(origin)
        while idle:
            connection, _ = idle.popitem()
            if connection.is_dead:
                continue
            if self._now() - connection.idle_since_s < IDLE_S:
                return connection
            connection.hang_up()
        return None

    async def _connect(self, origin: Origin, connect_s: float) -> Connection:
        try:
            async with asyncio.timeout(connect_s or None):
                return await _dial(origin, self._outbox)
        except TimeoutError as fault:
            raise UpstreamTimeout("connect_s", connect_s) from fault
        except OSError as fault:
            raise ConnectFailed(_connect_fault(fault)) from fault


async def _dial(origin: Origin, outbox: Outbox) -> Connection:
    loop = asyncio.get_running_loop()
    addresses = await loop.getaddrinfo(origin.host, origin.port, type=socket.SOCK_STREAM)
    sock = await aiohappyeyeballs.start_connection(
        addresses, happy_eyeballs_delay=NEXT_ADDRESS_S, interleave=1, loop=loop
    )
    try:
        _, connection = await loop.create_connection(
            lambda: Connection(loop, outbox),
            sock=sock,
            ssl=origin.tls,
            server_hostname=origin.host if origin.tls else None,
        )
    except BaseException:
        sock.close()
        raise
    return connection


def _connect_fault(fault: OSError) -> str:
    """Why no connection could be made, without the address: clients are told this too."""
    if isinstance(fault, ssl.SSLError):
        return f"TLS failed ({fault.reason})"
    if isinstance(fault, socket.gaierror):
        return "its name is not known"
    return os.strerror(fault.errno).lower() if fault.errno else "no address answered"
