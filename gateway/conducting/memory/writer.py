"""The background writer: looks once at what users said, when their conversation is quiet.

Their words lie here, in this process alone, until then. Knows no store and no prompt.
"""

import asyncio
import time
from collections import Counter, OrderedDict
from collections.abc import Callable
from dataclasses import dataclass

import structlog

from conductor.memory.background import drafts_of, is_due, question_of
from conductor.memory.notes import Draft
from conductor.ports import Ask, PortFault
from gateway.settings.types import MemoryWriterSettings

log = structlog.get_logger(__name__)

MOST_WATCHED = 1_000  # conversations; those that were quiet longest are forgotten first

Key = tuple[str, str]  # scope and session
Keep = Callable[[tuple[Draft, ...]], None]
Fail = Callable[[PortFault], None]


@dataclass(slots=True)
class Watched:
    """A conversation that is to be looked at. `said`: by its user, gone once it was looked at.

    `tail`: the hash behind its last message. `keep`, `fail`: what becomes of the answer.
    `is_engine`: our own engine is asked, which has few places.
    """

    said: str
    tail: str
    turns: int
    ask: Ask
    is_engine: bool
    keep: Keep
    fail: Fail
    seen_tail: str | None = None
    quiet_from_s: float = 0.0


class MemoryWriter:
    """Asks one question at a time. `now`: monotonic seconds."""

    def __init__(
        self, settings: MemoryWriterSettings, *, now: Callable[[], float] = time.monotonic
    ) -> None:
        self._settings = settings
        self._now = now
        self._watched: OrderedDict[Key, Watched] = OrderedDict()
        self._running: Counter[Key] = Counter()
        self._asking: tuple[Key, bool, asyncio.Task[None]] | None = None
        self._changed = asyncio.Event()
        self._is_over = False

    def began(self, key: Key, *, is_engine: bool) -> None:
        """A request of a conversation is answered now: a question about it is called off, and one
        to our own engine for any request there."""
        self._running[key] += 1
        if self._asking is not None:
            asked, asks_engine, task = self._asking
            if asked == key or (is_engine and asks_engine):
                task.cancel()

    def ended(self, key: Key) -> None:
        """It is over: from now on the conversation is quiet, if no other runs."""
        self._running[key] -= 1
        if self._running[key] > 0:
            return
        del self._running[key]
        if (watched := self._watched.get(key)) is not None:
            watched.quiet_from_s = self._now()
            self._changed.set()

    def watch(self, key: Key, watched: Watched) -> None:
        """A conversation is to be looked at when it is quiet, in place of what was known of it."""
        before = self._watched.pop(key, None)
        watched.seen_tail = before.seen_tail if before else None
        watched.quiet_from_s = self._now()
        self._watched[key] = watched
        while len(self._watched) > MOST_WATCHED:
            self._watched.popitem(last=False)
        self._changed.set()

    async def run(self) -> None:
        """Looks at conversations until `stop`."""
        while not self._is_over:
            self._changed.clear()
            due = next((key for key, one in self._watched.items() if self._is_due(key, one)), None)
            if due is not None:
                await self._look(due, self._watched[due])
                continue
            try:
                async with asyncio.timeout(self._wait_s()):
                    await self._changed.wait()
            except TimeoutError:
                continue

    def stop(self) -> None:
        """Calls off what is asked; `run` returns."""
        self._is_over = True
        self._changed.set()
        if self._asking is not None:
            self._asking[2].cancel()

    def _is_due(self, key: Key, one: Watched) -> bool:
        return key not in self._running and is_due(
            quiet_ms=round((self._now() - one.quiet_from_s) * 1000),
            turns=one.turns,
            tail=one.tail,
            seen_tail=one.seen_tail,
            quiet_s=self._settings.quiet_s,
            min_turns=self._settings.min_turns,
        )

    def _wait_s(self) -> float | None:
        """Until the next conversation may be due, None where a change has to come first."""
        from_s = [
            one.quiet_from_s
            for key, one in self._watched.items()
            if key not in self._running
            and one.turns >= self._settings.min_turns
            and one.tail != one.seen_tail
        ]
        if not from_s:
            return None
        return max(min(from_s) + self._settings.quiet_s - self._now(), 0.0) + 0.001

    async def _look(self, key: Key, one: Watched) -> None:
        task = asyncio.create_task(self._ask(one))
        self._asking = (key, one.is_engine, task)
        try:
            await asyncio.wait({task})
        finally:
            self._asking = None
            task.cancel()  # where the process ends meanwhile
        if task.cancelled():
            one.quiet_from_s = self._now()  # it is tried again
            return
        if (fault := task.exception()) is not None:
            log.error("memory.writer_failed", fault=type(fault).__name__)
        one.seen_tail, one.said = one.tail, ""

    async def _ask(self, one: Watched) -> None:
        try:
            reply = await one.ask.ask(question_of(one.said))
        except PortFault as fault:
            one.fail(fault)
            return
        one.keep(drafts_of(reply.text))
