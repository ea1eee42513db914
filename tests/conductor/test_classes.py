"""The kinds of task: the shipped table, and which sets can be told apart."""

from hypothesis import given
from hypothesis import strategies as st

from conductor.classes import CLASSES, MOST_CLASSES, faults_of
from conductor.profiles import TaskClass

BUDGETS = {
    "chat": 512, "fact": 256, "write": 1024, "edit": 2048, "build": 4096, "debug": 6144,
    "review": 6144, "plan": 4096, "math": 8192, "agent": 3072, "other": 2048,
}  # fmt: skip
FINE = TaskClass("what it is", 100)


def told(classes: dict[str, TaskClass]) -> list[tuple[str | None, str]]:
    return [(fault.name, fault.message) for fault in faults_of(classes)]


def test_the_shipped_classes_can_be_used_and_have_their_budgets() -> None:
    assert {name: task_class.budget for name, task_class in CLASSES.items()} == BUDGETS
    assert told(dict(CLASSES)) == []
    assert [name for name, task_class in CLASSES.items() if not task_class.effort] == ["other"]


@given(st.lists(st.from_regex(r"[a-z][a-z0-9_-]{0,5}", fullmatch=True), unique=True, max_size=14))
def test_a_set_is_refused_exactly_when_two_begin_alike_or_there_are_too_many(
    names: list[str],
) -> None:
    letters = {name[0] for name in names}
    is_good = len(letters) == len(names) and len(names) <= MOST_CLASSES
    assert (told(dict.fromkeys(names, FINE)) == []) is is_good


def test_the_later_of_two_that_begin_alike_is_named() -> None:
    assert told({"debug": FINE, "draw": FINE}) == [
        ("draw", "it begins with the same letter as 'debug'")
    ]


def test_one_more_than_twelve_is_too_many() -> None:
    thirteen = dict.fromkeys("abcdefghijklm", FINE)
    assert told(thirteen) == [(None, "at most 12 classes, found 13")]


def test_a_class_needs_a_plain_name_a_meaning_in_one_line_and_no_debt() -> None:
    assert told({"Debug": FINE})[0][0] == "Debug"
    assert told({"a.b": FINE}) != [] and told({"": FINE}) != [] and told({"a" * 33: FINE}) != []
    assert told({"a": TaskClass(" ")}) == [("a", "key 'meaning' is missing")]
    assert "one line" in told({"a": TaskClass("one\ntwo")})[0][1]
    assert told({"a": TaskClass("x", -1)}) == [("a", "budget: expected at least 0, found -1")]
