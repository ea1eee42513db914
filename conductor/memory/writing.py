"""What of the notes that somebody wants kept is kept. Knows no stream and no table."""

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Literal

from conductor.memory.notes import MOST_NOTES, Draft, MemoryEntry
from conductor.memory.refusal import Refusal, refusal_of
from conductor.monitor.secrets import looks_secret
from conductor.types import JournalLine, MemoryPlan
from proto.chat import Message

Source = Literal["block", "tool", "background"]


@dataclass(frozen=True, slots=True)
class Wish:
    """A draft, who had it, and why it is not kept (None: it is)."""

    draft: Draft
    source: Source
    refusal: Refusal | None


def results_in(messages: Iterable[Message]) -> tuple[str, ...]:
    """What tools said in a conversation."""
    return tuple(message.text for message in messages if message.role == "tool")


def wish_of(draft: Draft, source: Source, results: Sequence[str]) -> Wish:
    """The draft, judged."""
    return Wish(draft, source, refusal_of(draft.text, results, looks_secret))


def entries_of(
    wishes: Sequence[Wish], memory: MemoryPlan, *, session: str, now_ms: int
) -> tuple[MemoryEntry, ...]:
    """What is to be stored of one request's wishes."""
    drafts = [wish.draft for wish in wishes if wish.refusal is None][:MOST_NOTES]
    return tuple(MemoryEntry(memory.scope, draft, session, now_ms) for draft in drafts)


def lines_of(
    wishes: Sequence[Wish], *, unclosed: int = 0, unkept: int = 0
) -> tuple[JournalLine, ...]:
    """What the journal says of them.

    `unclosed`: blocks that ran to the end of their answer; `unkept`: of answers to requests that
    keep none.
    """
    counts: Counter[tuple[str, str]] = Counter()
    taken = 0
    for wish in wishes:
        taken += wish.refusal is None
        is_over = wish.refusal is None and taken > MOST_NOTES
        counts[wish.source, "too_many" if is_over else wish.refusal or "kept"] += 1
    if unclosed:
        counts["block", "unclosed"] = unclosed
    if unkept:
        counts["block", "off"] = unkept
    return tuple(
        JournalLine("memory_write", reason, task=source, numbers={"count": count})
        for (source, reason), count in counts.items()
    )
