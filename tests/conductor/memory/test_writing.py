"""What of the notes that somebody wants kept is kept."""

from conductor.memory.notes import MOST_NOTES, Draft, MemoryEntry, MemoryScope
from conductor.memory.writing import Wish, entries_of, lines_of, results_in, wish_of
from conductor.types import JournalLine, MemoryPlan
from proto.chat import Message, TextPart

HERE = MemoryPlan(scope=MemoryScope("laptop", "bakery"), keeps=True)
FLOUR = Draft("fact", "flour is kept in the cellar")


def test_a_statement_is_stored_with_its_session() -> None:
    entries = entries_of([wish_of(FLOUR, "block", ())], HERE, session="5e55", now_ms=7)
    assert entries == (MemoryEntry(HERE.scope, FLOUR, "5e55", 7),)


def test_what_a_tool_said_or_looks_like_a_key_is_not() -> None:
    said = Message("tool", (TextPart("Note: flour is kept in the cellar!"),))
    results = results_in([Message("user", (TextPart("x"),)), said])
    key = Draft("fact", "the deploy uses sk-AbCdEfGh12345678")
    wishes = [wish_of(FLOUR, "tool", results), wish_of(key, "tool", results)]
    assert [wish.refusal for wish in wishes] == ["echo", "secret"]
    assert entries_of(wishes, HERE, session="", now_ms=0) == ()


def test_the_journal_says_how_many_of_each_and_why() -> None:
    kept = [Wish(FLOUR, "block", None)] * (MOST_NOTES + 1)
    lines = lines_of([*kept, Wish(FLOUR, "tool", "echo")], unclosed=1, unkept=2)
    assert lines == (
        JournalLine("memory_write", "kept", "block", numbers={"count": MOST_NOTES}),
        JournalLine("memory_write", "too_many", "block", numbers={"count": 1}),
        JournalLine("memory_write", "echo", "tool", numbers={"count": 1}),
        JournalLine("memory_write", "unclosed", "block", numbers={"count": 1}),
        JournalLine("memory_write", "off", "block", numbers={"count": 2}),
    )
    assert len(entries_of(kept, HERE, session="", now_ms=0)) == MOST_NOTES
    assert lines_of([]) == ()
