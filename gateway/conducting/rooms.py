"""Where the conductor keeps things: built once, kept small, closed at the end.

Knows no request.
"""

import asyncio
import time
from collections.abc import Callable
from contextlib import suppress

from conductor.ports import Memory, PortFault
from gateway.background import Background
from gateway.journal import Journal
from gateway.notebook.command import open_store
from gateway.notebook.keeping import Keeping, Notebook
from gateway.notebook.memory import MemoryNotebook
from gateway.notebook.stored import StoredNotebook
from gateway.settings.types import Settings
from gateway.transcripts import Transcripts

PRUNE_S = 3600.0  # how often old notes are looked for
LAST_WRITES_S = 2.0  # for what waits when the process ends


class Rooms:
    """Notebook, journal, transcripts and memory of one process.

    `hash_key`: of this installation's hashes.

    Raises: CommandFailed when the store cannot be opened.
    """

    def __init__(
        self,
        settings: Settings,
        hash_key: bytes,
        *,
        memory: Memory | None = None,
        wall: Callable[[], float] = time.time,
    ) -> None:
        self.hash_key = hash_key
        self.memory = memory
        self.notebook = _notebook(settings)
        self._background = Background("journal")
        self._wall = wall
        self.journal = Journal(
            settings.journal_dir, settings.journal, self._background, self._now_ms
        )
        folder = settings.state_dir / "transcripts"
        self.transcripts = Transcripts(folder, self._background, self._now_ms)

    async def run(self) -> None:
        """Makes the tables, and deletes what is too old, until it is cancelled."""
        self.notebook.start()
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


def _notebook(settings: Settings) -> Notebook:
    notes = settings.conductor.notes
    keeping = Keeping(notes.ttl_days, notes.max_mb)
    if notes.store == "memory":
        return MemoryNotebook(keeping)
    return StoredNotebook(open_store(settings), keeping)
