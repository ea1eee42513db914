"""A listening socket that several processes accept on. Knows no bytes.

An event loop's own server takes every connection that waits once it wakes, so the first process to
wake would have nearly all of them, and keep them. Here each takes one at a time, and lets one with
fewer go first.
"""

import asyncio
import errno
import socket
from collections.abc import Callable
from typing import Protocol

import structlog

log = structlog.get_logger(__name__)

AFTER_YOU_S = 0.002  # for a sibling with fewer connections to take the one that waits
AGAIN_S = 1.0  # after the system refused a connection: there are too many open
NOT_OURS = (BlockingIOError, InterruptedError, ConnectionAbortedError)  # a sibling was first


class Sharing(Protocol):
    """Who takes the next connection."""

    def is_ours(self, count: int) -> bool:
        """Whether it is for us, who have `count` of them."""


class SharedListener:
    """Accepts connections, each served by a protocol of `make`, until it is closed.

    `count` says how many there are.
    """

    def __init__(
        self,
        listener: socket.socket,
        make: Callable[[], asyncio.Protocol],
        backlog: int,
        sharing: Sharing,
        count: Callable[[], int],
    ) -> None:
        self._loop = asyncio.get_running_loop()
        self._listener = listener
        self._make = make
        self._sharing = sharing
        self._count = count
        self._has_waited = False
        self._begun: set[asyncio.Task[object]] = set()  # accepted, and not yet counted
        listener.setblocking(False)
        listener.listen(backlog)
        self._sharing.is_ours(0)  # we are there
        self._watch()

    def close(self) -> None:
        """Lets go of the socket."""
        if self._listener.fileno() >= 0:
            self._loop.remove_reader(self._listener.fileno())
            self._listener.close()

    async def wait_closed(self) -> None:
        """Nothing is left to wait for."""

    def _watch(self) -> None:
        if self._listener.fileno() >= 0:
            self._loop.add_reader(self._listener.fileno(), self._take_one)

    def _look_away(self, for_s: float) -> None:
        self._loop.remove_reader(self._listener.fileno())
        self._loop.call_later(for_s, self._watch)

    def _take_one(self) -> None:
        """A connection waits. If nobody takes it who should, we do."""
        has_waited, self._has_waited = self._has_waited, False
        if not self._sharing.is_ours(self._count() + len(self._begun)) and not has_waited:
            self._has_waited = True
            self._look_away(AFTER_YOU_S)
            return
        try:
            connection, _ = self._listener.accept()
        except NOT_OURS:
            return
        except OSError as fault:
            log.error("door.accept_failed", reason=errno.errorcode.get(fault.errno or 0))
            self._look_away(AGAIN_S)
            return
        connection.setblocking(False)
        serving = self._loop.connect_accepted_socket(self._make, connection)
        task: asyncio.Task[object] = self._loop.create_task(serving)
        self._begun.add(task)
        task.add_done_callback(self._begun.discard)
