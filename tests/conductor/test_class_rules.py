"""Kinds of task that need no model."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from conductor.class_rules import GO_ON, GO_ON_CHARS, choices_of, ruled
from conductor.profiles import TaskClass
from conductor.turn import Turn
from conductor.types import Classified

NAMES = ("chat", "edit", "build", "debug", "review", "other")
CLASSES = {name: TaskClass(name, 1) for name in NAMES}


def rule(text: str, previous: str | None = "edit", **turn: bool) -> Classified | None:
    return ruled(Turn("user", text, 0, **turn), NAMES, previous)


@pytest.mark.parametrize(
    "text",
    ["continue", "Continue.", "yes", "Yes!", "go on", "Go on…", "OK", "y", "weiter", "Sí", "继续",
     "да", "👍", "...", "1", "2.", "(3)"],
)  # fmt: skip
def test_a_word_to_go_on_keeps_the_class(text: str) -> None:
    assert rule(text) == Classified("edit", "kept")
    assert rule(text, None) is None
    assert rule(text, "no class of these") is None


@pytest.mark.parametrize(
    "text", ["fix it", "2+2=?", "why?", "run tests", "yes, and mend the tests", "1 or 2", "." * 13]
)
def test_a_short_text_that_says_something_is_asked_about(text: str) -> None:
    assert rule(text) is None


def test_no_word_to_go_on_is_longer_than_its_limit() -> None:
    assert all(len(words) <= GO_ON_CHARS for words in GO_ON)


@pytest.mark.parametrize(
    "text",
    ["hi", "Hello!", "  hey there :)", "Good morning.", "¡Hola!", "Grüß", "你好", "Hallo 👋"],
)
def test_only_a_greeting_is_chat(text: str) -> None:
    expected = None if text == "Grüß" else Classified("chat", "rules")
    assert rule(text.strip()) == expected


@pytest.mark.parametrize("text", ["hi, mend the parser", "hello world", "hi" + "!" * 40])
def test_more_than_a_greeting_is_asked_about(text: str) -> None:
    assert rule(text) is None


def test_only_attachments_are_other() -> None:
    assert rule("", has_files=True) == Classified("other", "rules")
    assert rule("") is None
    assert rule("what is this picture of?", has_files=True) is None


def test_the_body_of_a_command_keeps_the_class() -> None:
    assert rule("Read all files and sum up.", is_command=True) == Classified("edit", "kept")
    assert rule("Read all files and sum up.", None, is_command=True) is None


@pytest.mark.parametrize(
    "trace",
    [
        "Traceback (most recent call last):\n  File …",
        "Error: no\n    at read (/srv/app.js:10:5)",
        "java.lang.Error\n\tat a.b.C.main(C.java:12)",
        "  at A.B(String s) in C:\\x.cs:line 12",
        "panic: index out of range",
        "goroutine 1 [running]:",
        "thread 'main' panicked at src/main.rs:2:5",
        "thread 'main' (712) panicked at src/main.rs:2:5",
        "    #0 0x4f3a in main x.c:3",
        "\tfrom a.rb:3:in `x'",
        "#0 /srv/a.php(12): run()",
    ],
)
def test_a_stack_trace_in_a_fence_is_to_debug(trace: str) -> None:
    assert rule(f"This happens:\n```\n{trace}\n```") == Classified("debug", "rules")
    assert rule(f"This happens:\n{trace}") is None
    assert rule(f"```\nx = 1\n```\n{trace}") is None


@pytest.mark.parametrize("code", ["x = 1", "# look at (a:1)", "look at this: panic: x", "at 5:30"])
def test_other_code_in_a_fence_is_asked_about(code: str) -> None:
    assert rule(f"Mend this:\n```py\n{code}\n```") is None


DIFF = "diff --git a/x b/x\n--- a/x\n+++ b/x\n@@ -1 +1,2 @@\n-a ?\n+b ?"


@pytest.mark.parametrize(
    "text",
    [
        f"Is this right?\n{DIFF}",
        f"Is this right?\n```diff\n{DIFF}\n```",
        "```diff\n-a\n+b\n```\nIs this right？",
        "--- a/x\n+++ b/x\n-a\n+b\n\nGood?",
        "@@ -1,2 +1,3 @@\n-a\nGood?",
    ],
)
def test_a_diff_with_a_question_is_to_review(text: str) -> None:
    assert rule(text) == Classified("review", "rules")


@pytest.mark.parametrize(
    "text", [f"Apply this.\n{DIFF}", DIFF, "Is this right?\n```py\na\n```", "---\nGood?\n+++\n"]
)
def test_a_diff_or_a_question_alone_is_asked_about(text: str) -> None:
    assert rule(text) is None


def test_a_rule_never_leaves_the_choice() -> None:
    code = choices_of({"x-tandem-task-type": " Code "}, CLASSES)
    assert code == ("edit", "build", "debug", "review")
    assert ruled(Turn("user", "hello"), code, None) is None
    assert ruled(Turn("user", "yes"), code, "chat") is None
    assert ruled(Turn("user", "yes"), code, "edit") == Classified("edit", "kept")


def test_a_task_type_that_says_nothing_leaves_all() -> None:
    assert choices_of({}, CLASSES) == NAMES
    assert choices_of({"x-tandem-task-type": "auto"}, CLASSES) == NAMES
    assert choices_of({"x-tandem-task-type": "chat"}, CLASSES) == ("chat",)
    assert choices_of({"x-tandem-task-type": "code"}, {"chat": CLASSES["chat"]}) == ("chat",)


@given(st.text(max_size=200), st.sampled_from([None, *NAMES]))
def test_a_rule_gives_one_of_the_choices_or_nothing(text: str, previous: str | None) -> None:
    task = rule(text, previous)
    assert task is None or task.name in NAMES


@pytest.mark.parametrize("piece", ["at x in ", "at (", " ", "#1 ", "--- a\n", "```", "from a:1:"])
def test_a_long_line_costs_one_pass(piece: str) -> None:
    assert rule("```\nat " + piece * 100_000) is None
