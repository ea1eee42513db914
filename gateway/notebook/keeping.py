"""What every notebook is, wherever it keeps things, and its limits. Knows no database.

A notebook holds the conductor's sessions and placed notes: hashes, names, and what we wrote.
"""

from dataclasses import dataclass
from typing import Protocol

from conductor.ports import Notes, Sessions

DAY_MS = 86_400_000
MIB = 1024 * 1024
FOUND_SESSIONS = 64  # under one key: openings, of which a client has one at a time
FOUND_NOTES = 4_000  # of one history, other branches included


@dataclass(frozen=True, slots=True)
class Keeping:
    """How long and how much is kept: over `max_mb` MiB the least recently used goes."""

    ttl_days: int = 30
    max_mb: int = 512

    @property
    def max_bytes(self) -> int:
        """`max_mb` in bytes."""
        return self.max_mb * MIB

    def expired_ms(self, now_ms: int) -> int:
        """What was last used then, or before, is kept no longer."""
        return now_ms - self.ttl_days * DAY_MS


class Notebook(Protocol):
    """Sessions and notes, and what keeps them small."""

    @property
    def sessions(self) -> Sessions:
        """The conductor's port."""

    @property
    def notes(self) -> Notes:
        """The conductor's port."""

    def start(self) -> None:
        """Gets ready, so that the first request need not wait for it."""

    async def prune(self, now_ms: int) -> int:
        """Deletes what is too old or too much; how many rows that were. Raises: PortFault."""

    def close(self, wait_s: float) -> None:
        """Writes what waits, for about `wait_s` at most. Blocks: not for an event loop."""
