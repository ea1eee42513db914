"""What is written to memory notes behind requests' backs."""

import asyncio
from collections.abc import Callable
from pathlib import Path

import pytest

from conductor.ports import PortFault
from gateway.background import Background
from gateway.conducting.memory import memories
from gateway.conducting.memory.memories import Memories
from gateway.journal import Journal, JournalHead
from gateway.settings.types import JournalSettings, MemoryWriterSettings

HEAD = JournalHead("r")


@pytest.fixture
def background() -> Background:
    return Background("test")


@pytest.fixture
def room(tmp_path: Path, background: Background) -> Memories:
    journal = Journal(tmp_path, JournalSettings(), background, lambda: 0)
    return Memories(None, journal, MemoryWriterSettings())  # type: ignore[arg-type]


def lines(folder: Path, background: Background) -> str:
    background.close()
    return "".join(file.read_text() for file in folder.glob("*.jsonl"))


async def test_the_end_waits_for_what_is_written(room: Memories) -> None:
    may_write, written = asyncio.Event(), []

    async def write() -> None:
        await may_write.wait()
        written.append(1)

    room.write(HEAD, write)
    ending = asyncio.create_task(room.finish())
    for _ in range(5):
        await asyncio.sleep(0)
    assert not ending.done()
    may_write.set()
    await ending
    assert written == [1]


async def test_a_store_that_fails_is_journaled(
    room: Memories, tmp_path: Path, background: Background
) -> None:
    async def fail() -> None:
        raise PortFault("database")

    room.write(HEAD, fail)
    await room.finish()
    text = lines(tmp_path, background)
    assert '"task":"memory"' in text and '"reason":"database"' in text


async def test_no_more_waits_than_there_is_room_for(
    room: Memories, tmp_path: Path, background: Background, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(memories, "MOST_WRITES", 1)
    done: list[str] = []

    def writing(name: str) -> Callable[[], asyncio.Future[None]]:
        def write() -> asyncio.Future[None]:
            done.append(name)
            future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            future.set_result(None)
            return future

        return write

    room.write(HEAD, writing("first"))
    room.write(HEAD, writing("second"))
    await room.finish()
    assert done == ["first"] and '"reason":"busy"' in lines(tmp_path, background)
