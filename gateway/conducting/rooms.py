"""Where the conductor keeps things: built once, kept small, closed at the end.

Knows no request.
"""

import asyncio
import time
from collections.abc import Callable
from contextlib import suppress

from conductor.ports import Memory, PortFault
from gateway.background import Background
from gateway.conducting.memory.memories import Memories
from gateway.journal import Journal
from gateway.notebook.command import open_store
from gateway.notebook.desk import Desk
from gateway.notebook.keeping import Keeping, Notebook
from gateway.notebook.memory import MemoryNotebook
from gateway.notebook.memory_notes import MemoryStore
from gateway.notebook.stored import StoredNotebook
from gateway.settings.types import Settings
from gateway.transcripts import Transcripts

PRUNE_S = 3600.0  # how often old notes are looked for
LAST_WRITES_S = 2.0  # for what waits when the process ends


class Rooms:
    """Notebook, journal, transcripts and memory notes of one process.

    `hash_key`: of this installation's hashes. `memories` None: there is no database for them.

    Raises: CommandFailed when the store cannot be opened.
    """

    def __init__(
        self,
        settings: Settings,
        hash_key: bytes,
        *,
        wall: Callable[[], float] = time.time,
    ) -> None:
        self.hash_key = hash_key
        self._background = Background("journal")
        self._wall = wall
        self.journal = Journal(
            settings.journal_dir, settings.journal, self._background, self._now_ms
        )
        self.notebook, store = _kept(settings)
        self.memories: Memories | None = None
        if store is not None:
            self.memories = Memories(store, self.journal, settings.conductor.memory)
        folder = settings.state_dir / "transcripts"
        self.transcripts = Transcripts(folder, self._background, self._now_ms)

    async def run(self) -> None:
        """Makes the tables, deletes what is too old, writes memory notes, until it is cancelled."""
        self.notebook.start()
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self._prune())
            if self.memories is not None:
                tasks.create_task(self.memories.writer.run())

    async def finish(self) -> None:
        """Nothing is asked any more, and what is written is waited for, for a moment."""
        if self.memories is not None:
            await self.memories.finish()

    async def _prune(self) -> None:
        while True:
            await asyncio.sleep(PRUNE_S)
            with suppress(PortFault):  # the notebook has said so
                await self.notebook.prune(self._now_ms())

    def close(self) -> None:
        """Writes what waits. Blocks: not for an event loop."""
        self.notebook.close(LAST_WRITES_S)
        self._background.close()

    def _now_ms(self) -> int:
        return int(self._wall() * 1000)


def _kept(settings: Settings) -> tuple[Notebook, Memory | None]:
    """The notebook, and memory notes beside it in the same database."""
    notes = settings.conductor.notes
    keeping = Keeping(notes.ttl_days, notes.max_mb)
    if notes.store == "memory":
        return MemoryNotebook(keeping), None
    database = open_store(settings)
    desk = Desk(database)
    return StoredNotebook(database, keeping, desk), MemoryStore(database, desk)
