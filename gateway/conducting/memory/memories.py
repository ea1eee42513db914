"""Memory notes of one process: the store of them, what is written to it, and the background writer.

Nobody waits for what is written here. Knows no request.
"""

import asyncio
from collections.abc import Awaitable, Callable

from conductor.ports import Memory, PortFault
from conductor.types import JournalLine
from gateway.conducting.memory.writer import MemoryWriter
from gateway.journal import Journal, JournalHead
from gateway.settings.types import MemoryWriterSettings

MOST_WRITES = 256  # that wait for the database; what comes beyond it is not kept
LAST_WRITES_S = 2.0  # for those that wait when the process ends


class Memories:
    """`store`: what plans read of, too."""

    def __init__(self, store: Memory, journal: Journal, settings: MemoryWriterSettings) -> None:
        self.store = store
        self.writer = MemoryWriter(settings)
        self._journal = journal
        self._writes: set[asyncio.Task[None]] = set()

    def write(self, head: JournalHead, work: Callable[[], Awaitable[None]]) -> None:
        """Has something written for a request that does not wait for it."""
        if len(self._writes) >= MOST_WRITES:
            self._fail(head, "busy")
            return
        task = asyncio.create_task(self._do(head, work))
        self._writes.add(task)
        task.add_done_callback(self._writes.discard)

    async def finish(self) -> None:
        """Calls off what is asked, and waits for what is written."""
        self.writer.stop()
        if self._writes:
            await asyncio.wait(self._writes, timeout=LAST_WRITES_S)

    async def _do(self, head: JournalHead, work: Callable[[], Awaitable[None]]) -> None:
        try:
            await work()
        except PortFault as fault:
            self._fail(head, fault.reason)

    def _fail(self, head: JournalHead, reason: str) -> None:
        self._journal.emit(head, JournalLine("error", reason, task="memory"))
