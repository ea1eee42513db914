"""Memory notes: whose they are, and which a prompt gets."""

import pytest

from conductor.memory.notes import (
    DAY_MS,
    MOST_WORDS,
    PREFACE,
    MemoryNote,
    MemoryScope,
    body_of,
    chosen,
    fact_hash,
    ranked,
    scope_of,
    words_of,
)
from conductor.profiles import MemoryRules
from conductor.tokens import estimated_tokens
from proto.chat import Message, Role, TextPart

PROJECT = MemoryRules(read=True)


def said(text: str, role: Role = "system") -> Message:
    return Message(role, (TextPart(text),))


def note(
    number: int, text: str = "x", day: int = 0, uses: int = 0, pin: bool = False
) -> MemoryNote:
    return MemoryNote(number, "fact", text, day * DAY_MS, uses, pin)


def test_the_header_names_the_project() -> None:
    history = [said("Working directory: /home/a/one")]
    assert scope_of("k", PROJECT, " bakery ", history) == MemoryScope("k", "bakery")
    assert scope_of("k", PROJECT, "x" * 500, []).project == "x" * 100


def test_without_it_the_folder_does_whatever_a_client_says_around_it() -> None:
    ways = [
        [said("You help.\n - Primary working directory: /home/a/one\n - git: yes")],
        [said("Working directory: /home/a/one", "developer")],
        [said("  Current working directory : /home/a/one\n")],
        [said("cwd: /home/a/one")],
        [said("I am currently working in the directory: /home/a/one\nIt has:")],
        [said("You help."), said("<environment_context>\n<cwd>/home/a/one</cwd>", "user")],
    ]
    (scope,) = {scope_of("k", PROJECT, None, way) for way in ways}
    assert len(scope.project) == 16
    assert scope.key == "k"
    assert scope_of("k", PROJECT, None, [said("cwd: /home/a/two")]) != scope


def test_a_user_s_words_name_no_project() -> None:
    history = [said("You help."), said("my working directory: /home/a/one", "user")]
    assert scope_of("k", PROJECT, " ", history) == MemoryScope("k")
    later = [said("hello", "user"), said("<cwd>/home/a/one</cwd>", "user")]
    assert scope_of("k", PROJECT, None, later) == MemoryScope("k")
    assert scope_of("k", PROJECT, None, []) == MemoryScope("k")


def test_notes_of_a_key_know_no_project() -> None:
    rules = MemoryRules(read=True, scope="key")
    assert scope_of("k", rules, "bakery", [said("cwd: /a")]) == MemoryScope("k")


def test_the_same_fact_is_the_same_in_other_dress() -> None:
    assert fact_hash("Tests run with `pytest`.") == fact_hash("tests run  with pytest")
    assert fact_hash("tests run with pytest") != fact_hash("tests run with nose")


def test_words_are_what_a_text_is_about() -> None:
    assert words_of("Where is THE parser, the parser of v12 and 猫?") == ("parser", "12", "猫")
    assert len(words_of(" ".join(f"word{'x' * n}" for n in range(2 * MOST_WORDS)))) == MOST_WORDS


@pytest.mark.parametrize(
    ("better", "worse"),
    [
        (note(1, pin=True), note(2, "parser bug", day=9, uses=9)),
        (note(1, "parser bug"), note(2, "parser", day=9, uses=9)),
        (note(1, day=1), note(2, day=0, uses=9)),
        (note(1, uses=2), note(2, uses=1)),
        (note(2), note(1)),
    ],
)
def test_what_counts_more(better: MemoryNote, worse: MemoryNote) -> None:
    words = words_of("a bug in the parser")
    assert ranked([worse, better], words) == ranked([better, worse], words) == [better, worse]


def test_of_one_day_s_notes_use_decides() -> None:
    early, late = note(1, uses=2), MemoryNote(2, "fact", "x", DAY_MS - 1, uses=1)
    assert ranked([late, early], ()) == [early, late]


def test_a_prompt_gets_what_fits() -> None:
    long, short = note(1, "long " * 60, day=5), note(2, "short")
    line = estimated_tokens("- [2] fact: short") + 1
    assert chosen([long, short], (), estimated_tokens(PREFACE) + line) == (short,)
    assert chosen([long, short], (), estimated_tokens(PREFACE) + line - 1) == ()
    assert chosen([long, short], (), 10_000) == (long, short)
    assert chosen([short, note(3, "other")], (), estimated_tokens(PREFACE) + line) == (
        note(3, "other"),
    )


def test_notes_are_shown_as_data_with_their_numbers() -> None:
    assert body_of([note(7, "it rains")]) == f"{PREFACE}\n- [7] fact: it rains"
    assert body_of([]) == ""
