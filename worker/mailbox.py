"""How the worker's threads reach each other: bounded boxes and one board. Knows no message."""

import contextlib
import os
import queue
from typing import Generic, TypeVar

from proto.messages import Beat
from worker.limits import INBOX_ITEMS, OUTBOX_ITEMS
from worker.types import Outgoing

T = TypeVar("T")


class Inbox(Generic[T]):
    """A box whose writers never wait: they ask `is_full` and leave what they read where it was.

    Writing is safe in a signal handler.
    """

    def __init__(self, limit: int = INBOX_ITEMS) -> None:
        self._items: queue.SimpleQueue[T] = queue.SimpleQueue()
        self._limit = limit

    @property
    def is_full(self) -> bool:
        """Whether a writer shall hold back."""
        return self._items.qsize() >= self._limit

    @property
    def is_empty(self) -> bool:
        """Whether nothing waits to be read."""
        return self._items.empty()

    def put(self, item: T) -> None:
        """Adds an item. Never waits."""
        self._items.put(item)

    def take_all(self, wait_s: float = 0.0) -> list[T]:
        """All items, in order; waits up to `wait_s` for a first one."""
        items: list[T] = []
        with contextlib.suppress(queue.Empty):
            if wait_s > 0.0:
                items.append(self._items.get(timeout=wait_s))
            while True:
                items.append(self._items.get_nowait())
        return items


class Outbox:
    """Messages for the link, with a descriptor that becomes readable when there are some."""

    def __init__(self) -> None:
        self._items: queue.Queue[Outgoing] = queue.Queue(OUTBOX_ITEMS)
        self.wake_fd, self._write_fd = os.pipe()
        os.set_blocking(self.wake_fd, False)
        os.set_blocking(self._write_fd, False)

    def put(self, item: Outgoing) -> None:
        """Adds a message, and wakes the link. Waits while the box is full."""
        self._items.put(item)
        with contextlib.suppress(BlockingIOError):  # a full pipe wakes as well
            os.write(self._write_fd, b"\0")

    def take_all(self) -> list[Outgoing]:
        """All messages, in order. Never waits."""
        with contextlib.suppress(BlockingIOError):
            os.read(self.wake_fd, 65_536)
        items: list[Outgoing] = []
        with contextlib.suppress(queue.Empty):
            while True:
                items.append(self._items.get_nowait())
        return items


class Board:
    """What the loop shows to the link: when it last turned, and its latest numbers.

    Each attribute is replaced whole, so that no reader needs a lock.
    """

    def __init__(self, now_s: float) -> None:
        self.pulse_s = now_s
        self.beat = Beat("idle")
