"""What the conductor needs of the world, as small protocols. Knows no implementation.

A port that fails raises `PortFault`; the step that asked takes its default, and no request fails.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from conductor.memory.notes import MemoryEntry, MemoryNote, MemoryScope
from conductor.types import JournalLine, NoteRecord, Session
from proto.chat import Json


class PortFault(Exception):
    """A port could not answer in time, or at all. `reason`: one word."""

    def __init__(self, reason: str) -> None:
        super().__init__(reason)
        self.reason = reason


@dataclass(frozen=True, slots=True)
class Question:
    """A small question to the served model: temperature 0, no reasoning.

    Exactly one of `choices` and `schema` holds the answer to a form.
    """

    system: str
    text: str
    choices: tuple[str, ...] = ()
    schema: dict[str, Json] | None = None
    max_tokens: int = 8
    timeout_ms: int = 1500


@dataclass(frozen=True, slots=True)
class Reply:
    """The answer. `margin`: how clearly one of `choices` was chosen, None where nobody knows."""

    text: str
    margin: float | None
    ms: int


class Ask(Protocol):
    """The served model, for small questions."""

    async def ask(self, question: Question) -> Reply:
        """Raises: PortFault."""
        ...


class Sessions(Protocol):
    """States of conversations, by scope (the client's key) and the session's key."""

    async def find(self, scope: str, key: str) -> Sequence[Session]:
        """Those stored under a key, last used first: one for each opening."""
        ...

    async def save(self, session: Session) -> None:
        """Stores one, in place of that with the same scope, key and opening."""
        ...


class Notes(Protocol):
    """Placed notes."""

    async def find(
        self, scope: str, chains: Sequence[str], messages: Sequence[str]
    ) -> Sequence[NoteRecord]:
        """Records of a scope at any of these chain hashes, or of any of these message hashes."""
        ...

    async def save(self, records: Sequence[NoteRecord]) -> None:
        """Stores records; one at the same chain and place is replaced only by equal text."""
        ...


class Memory(Protocol):
    """Memory notes."""

    async def search(
        self, scope: MemoryScope, words: Sequence[str], limit: int
    ) -> Sequence[MemoryNote]:
        """The notes of a scope that serve best where these words are said, best first."""
        ...

    async def add(self, entries: Sequence[MemoryEntry]) -> None:
        """Keeps notes; none twice, and none that was deleted in the last 90 days."""
        ...

    async def note_used(self, scope: MemoryScope, ids: Sequence[int], now_ms: int) -> None:
        """These notes were placed in a prompt."""
        ...


class Journal(Protocol):
    """Where lines go. Never waits and never fails."""

    def emit(self, line: JournalLine) -> None: ...


@dataclass(frozen=True, slots=True)
class Ports:
    """All of them."""

    ask: Ask
    sessions: Sessions
    notes: Notes
    memory: Memory | None = None
