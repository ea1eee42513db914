"""One listening socket, several processes: who takes a connection that waits."""

import asyncio
import errno
import socket
import time
from collections.abc import AsyncIterator, Iterator
from itertools import pairwise
from pathlib import Path
from typing import cast

import pytest
from structlog.testing import capture_logs

from gateway.door import shared
from gateway.door.shared import SharedListener
from gateway.processes.shares import Shares


class Fixed:
    """Says the same, whoever asks, and remembers what it was told."""

    def __init__(self, answer: bool) -> None:
        self.answer = answer
        self.told: list[int] = []

    def is_ours(self, count: int) -> bool:
        self.told.append(count)
        return self.answer


class Serving(asyncio.Protocol):
    """Notes its connection and says hello."""

    def __init__(self, served: list[asyncio.BaseTransport]) -> None:
        self._served = served

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._served.append(transport)
        cast(asyncio.WriteTransport, transport).write(b"hello")


@pytest.fixture
def bound() -> Iterator[socket.socket]:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        yield listener


class Room:
    """What a test opens; `close` closes it."""

    def __init__(self) -> None:
        self._open: list[SharedListener | asyncio.StreamWriter] = []
        self._served: list[list[asyncio.BaseTransport]] = []

    def listening(
        self, listener: socket.socket, sharing: Fixed | Shares
    ) -> tuple[SharedListener, list[asyncio.BaseTransport]]:
        """A process that accepts, and the connections that it has."""
        served: list[asyncio.BaseTransport] = []
        shared = SharedListener(
            listener, lambda: Serving(served), 100, sharing, lambda: len(served)
        )
        self._open.append(shared)
        self._served.append(served)
        return shared, served

    async def connect(self, bound: socket.socket) -> None:
        """A client that is served."""
        async with asyncio.timeout(5):
            reader, writer = await asyncio.open_connection("127.0.0.1", bound.getsockname()[1])
            self._open.append(writer)
            assert await reader.readexactly(5) == b"hello"

    def close(self) -> None:
        for thing in (*self._open, *(one for served in self._served for one in served)):
            thing.close()


@pytest.fixture
async def room() -> AsyncIterator[Room]:
    made = Room()
    yield made
    made.close()


async def test_a_connection_is_left_to_a_sibling_that_has_fewer(
    room: Room, bound: socket.socket
) -> None:
    _, taken_by_full = room.listening(bound.dup(), Fixed(False))
    _, taken_by_free = room.listening(bound.dup(), Fixed(True))
    for _ in range(5):
        await room.connect(bound)
    assert (len(taken_by_full), len(taken_by_free)) == (0, 5)


async def test_a_connection_that_no_sibling_takes_is_taken_all_the_same(
    room: Room,
    bound: socket.socket,
) -> None:
    _, taken = room.listening(bound.dup(), sharing := Fixed(False))
    for _ in range(3):
        await room.connect(bound)
    assert len(taken) == 3
    assert sharing.told[-1] == 2


async def test_many_that_wait_are_shared_out_evenly(
    room: Room, bound: socket.socket, tmp_path: Path
) -> None:
    """Sixty connections come at once."""
    Shares.make(tmp_path, 3)
    bound.listen(100)
    waiting = [asyncio.create_task(room.connect(bound)) for _ in range(60)]
    processes = [room.listening(bound.dup(), Shares(tmp_path, number)) for number in (1, 2, 3)]
    await asyncio.gather(*waiting)
    counts = [len(taken) for _, taken in processes]
    assert sum(counts) == 60
    assert max(counts) - min(counts) <= 8


async def test_a_process_that_may_open_no_more_tries_again(
    room: Room, bound: socket.socket, monkeypatch: pytest.MonkeyPatch
) -> None:
    tried_s: list[float] = []

    class Full(socket.socket):
        def accept(self) -> tuple[socket.socket, object]:
            tried_s.append(time.monotonic())
            if len(tried_s) <= 2:
                raise OSError(errno.EMFILE, "Too many open files")
            return super().accept()

    monkeypatch.setattr(shared, "AGAIN_S", 0.05)
    with capture_logs() as logs:
        room.listening(Full(fileno=bound.dup().detach()), Fixed(True))
        await room.connect(bound)
    assert [(e["event"], e["reason"]) for e in logs] == [("door.accept_failed", "EMFILE")] * 2
    assert all(later - before > 0.04 for before, later in pairwise(tried_s))


async def test_a_closed_listener_accepts_nothing(room: Room, bound: socket.socket) -> None:
    """Also when it is closed while it lets a sibling go first."""
    faults: list[dict[str, object]] = []
    asyncio.get_running_loop().set_exception_handler(lambda _, fault: faults.append(fault))
    listener, taken = room.listening(bound.dup(), sharing := Fixed(False))
    client = socket.create_connection(("127.0.0.1", bound.getsockname()[1]))
    while len(sharing.told) < 2:  # at its start, and for this connection
        await asyncio.sleep(0)
    listener.close()
    listener.close()
    await asyncio.sleep(2 * shared.AFTER_YOU_S)
    assert not taken and not faults
    client.close()


@pytest.mark.parametrize(
    ("others", "ours", "expected"),
    [
        ([], 10_000, True),  # nobody else is there
        ([0, 5], 2, True),
        ([0, 5], 3, False),
        ([100, 400], 114, True),  # an eighth of many makes no difference, either
        ([100, 400], 115, False),
    ],
)
def test_the_next_connection_is_for_those_with_the_fewest(
    tmp_path: Path, others: list[int], ours: int, expected: bool
) -> None:
    Shares.make(tmp_path, 3)
    for number, count in enumerate(others, start=2):
        Shares(tmp_path, number).is_ours(count)
    assert Shares(tmp_path, 1).is_ours(ours) is expected


def test_nobody_waits_for_a_process_that_is_dead(tmp_path: Path) -> None:
    Shares.make(tmp_path, 2)
    Shares(tmp_path, 2).is_ours(0)
    ours = Shares(tmp_path, 1)
    assert not ours.is_ours(10)
    Shares(tmp_path, 2).forget()
    assert ours.is_ours(10)


def test_the_next_parent_begins_without_those_of_the_last(tmp_path: Path) -> None:
    Shares.make(tmp_path, 2)
    orphan = Shares(tmp_path, 2)
    Shares.make(tmp_path, 2)
    orphan.is_ours(0)
    assert Shares(tmp_path, 1).is_ours(10)
