"""The background writer: when it asks, what calls it off."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

import pytest

from conductor.memory.notes import Draft
from conductor.ports import PortFault, Question, Reply
from gateway.conducting.memory import writer
from gateway.conducting.memory.writer import Key, MemoryWriter, Watched
from gateway.settings.types import MemoryWriterSettings

HERE: Key = ("anon", "s1")
THERE: Key = ("anon", "s2")


@dataclass
class Model:
    """Answers a question when it may."""

    may_answer: asyncio.Event = field(default_factory=asyncio.Event)
    asked: list[str] = field(default_factory=list)
    came: asyncio.Event = field(default_factory=asyncio.Event)
    fault: Exception | None = None

    async def ask(self, question: Question) -> Reply:
        self.asked.append(question.text)
        self.came.set()
        await self.may_answer.wait()
        if self.fault is not None:
            raise self.fault
        return Reply('{"notes": [{"kind": "fact", "text": "it rains"}]}', None, 1)


@dataclass
class World:
    """A writer and its clock."""

    writer: MemoryWriter
    model: Model
    now_s: float = 0.0
    kept: list[tuple[Draft, ...]] = field(default_factory=list)
    faults: list[str] = field(default_factory=list)
    done: asyncio.Event = field(default_factory=asyncio.Event)

    def watch(
        self, key: Key = HERE, said: str = "hello", tail: str = "t1", turns: int = 4,
        is_engine: bool = True,
    ) -> None:  # fmt: skip
        """A request of a conversation comes and ends."""
        self.writer.began(key, is_engine=is_engine)
        self.writer.watch(
            key, Watched(said, tail, turns, self.model, is_engine, self._keep, self._fail)
        )
        self.writer.ended(key)

    async def later(self, seconds: float) -> None:
        """So much later the writer looks again."""
        self.now_s += seconds
        self.writer.watch(
            ("clock", ""), Watched("", "", 0, self.model, False, self._keep, self._fail)
        )
        for _ in range(10):
            await asyncio.sleep(0)

    def _keep(self, drafts: tuple[Draft, ...]) -> None:
        self.kept.append(drafts)
        self.done.set()

    def _fail(self, fault: PortFault) -> None:
        self.faults.append(fault.reason)
        self.done.set()


@asynccontextmanager
async def world(quiet_s: float = 60.0) -> AsyncIterator[World]:
    made: World
    writer = MemoryWriter(MemoryWriterSettings(quiet_s, 4), now=lambda: made.now_s)
    made = World(writer, Model())
    task = asyncio.create_task(writer.run())
    yield made
    writer.stop()
    async with asyncio.timeout(5):
        await task


async def test_it_asks_when_the_conversation_was_quiet_and_keeps_what_it_hears() -> None:
    async with world() as on:
        on.watch(said="we bake rye")
        await on.later(59)
        assert on.model.asked == []
        await on.later(1)
        assert len(on.model.asked) == 1 and "we bake rye" in on.model.asked[0]
        on.model.may_answer.set()
        await on.done.wait()
        assert on.kept == [(Draft("fact", "it rains"),)]
        await on.later(1000)
        assert len(on.model.asked) == 1


async def test_a_new_tail_is_looked_at_again_an_old_one_is_not() -> None:
    async with world() as on:
        on.model.may_answer.set()
        on.watch()
        await on.later(60)
        on.watch()
        await on.later(60)
        assert len(on.model.asked) == 1
        on.watch(tail="t2")
        await on.later(60)
        assert len(on.model.asked) == 2


async def test_while_a_request_runs_its_conversation_is_not_quiet() -> None:
    async with world() as on:
        on.watch()
        on.writer.began(HERE, is_engine=True)
        on.writer.began(HERE, is_engine=True)
        await on.later(600)
        on.writer.ended(HERE)
        await on.later(600)
        assert on.model.asked == []
        on.writer.ended(HERE)
        await on.later(59)
        assert on.model.asked == []
        await on.later(1)
        assert len(on.model.asked) == 1


@pytest.mark.parametrize(
    ("key", "asks_engine", "wants_engine", "is_called_off"),
    [
        (HERE, False, False, True), (THERE, True, True, True), (THERE, False, True, False),
        (THERE, True, False, False),
    ],
)  # fmt: skip
async def test_a_request_calls_off_a_question_that_it_would_wait_for(
    key: Key, asks_engine: bool, wants_engine: bool, is_called_off: bool
) -> None:
    async with world() as on:
        on.watch(is_engine=asks_engine)
        await on.later(60)
        assert len(on.model.asked) == 1
        on.writer.began(key, is_engine=wants_engine)
        on.model.may_answer.set()
        await on.later(0)
        assert bool(on.kept) is not is_called_off
        on.writer.ended(key)
        await on.later(60)  # it was not looked at: it is asked again
        assert len(on.model.asked) == 1 + is_called_off and len(on.kept) == 1


async def test_a_fault_is_told_once_and_not_tried_again() -> None:
    async with world() as on:
        on.model.fault = PortFault("busy")
        on.model.may_answer.set()
        on.watch()
        await on.later(60)
        await on.later(600)
        assert (on.faults, len(on.model.asked)) == (["busy"], 1)


async def test_a_fault_of_ours_does_not_end_it() -> None:
    async with world() as on:
        on.model.fault = RuntimeError("ours")
        on.model.may_answer.set()
        on.watch()
        await on.later(60)
        on.model.fault = None
        on.watch(THERE)
        await on.later(60)
        assert len(on.kept) == 1


async def test_it_ends_while_it_asks() -> None:
    async with world() as on:
        on.watch()
        await on.later(60)
        assert len(on.model.asked) == 1
    assert on.kept == [] and on.faults == []


async def test_it_remembers_so_many_conversations_and_no_more(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(writer, "MOST_WATCHED", 2)
    async with world() as on:
        on.model.may_answer.set()
        for name in ("a", "b", "c"):
            on.watch(("anon", name), said=f"said in {name}")
        on.now_s += 60
        on.watch(("anon", "d"), turns=0)
        for _ in range(30):
            await asyncio.sleep(0)
        asked = " ".join(on.model.asked)
        assert "said in c" in asked and "said in a" not in asked
