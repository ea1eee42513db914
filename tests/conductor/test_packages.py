"""Packages: what may be loaded, and which of them a turn gets."""

from dataclasses import replace
from typing import Any

import pytest

from conductor.packages import choose_packages, collisions, faults_of, listed, pattern_fault
from conductor.profiles import PackageRules, Profile, Router, TaskClass
from conductor.tokens import estimated_tokens
from conductor.types import Package

WORDS = "Some words that cost tokens."
COST = estimated_tokens(WORDS)
ON = PackageRules(enabled=True, max_count=9, max_tokens=9_000)


def package(name: str, text: str = "Read it first.", **more: Any) -> Package:
    return Package(id=name, title="A title", text=text, hash=f"{hash(text):x}", **more)


def told(found: Package) -> list[str]:
    return [f"{fault.field}: {fault.message}" for fault in faults_of(found)]


@pytest.mark.parametrize(
    "marker",
    ["<|im_start|>", "<|eot_id|>", "<｜begin▁of▁sentence｜>", "<think>", "</think>", "<tool_call>",
     "</tool_response>", "<function=look>", "</parameter>", "<start_of_turn>", "<bos>", "</s>",
     "[INST]", "<</SYS>>", "<tandem_note>", "</tandem_memory>", "<Think>"],
)  # fmt: skip
def test_a_text_with_markup_of_models_or_ours_is_refused(marker: str) -> None:
    (message,) = told(package("a", f"Write {marker} here."))
    assert message.startswith(f"text: the text has {marker!r}")


def test_ordinary_markdown_is_no_markup() -> None:
    text = (
        "# Title\n\n\t`a < b | c > d`, <b>bold</b>, <https://x.y>, [INSTALL], f(x) |> g, Grüße.\n"
    )
    assert told(package("a", text)) == []


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"id": "Read"}, "id: an id has 1 to 64 characters of a-z, 0-9 and '-'"),
        ({"id": "a" * 65}, "id: an id has 1 to 64 characters of a-z, 0-9 and '-'"),
        ({"id": ""}, "id: an id has 1 to 64 characters of a-z, 0-9 and '-'"),
        ({"title": " "}, "title: a title has 1 to 1024 characters"),
        ({"title": "t" * 1025}, "title: a title has 1 to 1024 characters"),
        ({"text": " \n"}, "text: there is no text behind the front matter"),
        ({"text": "a\udce4"}, "text: the text is not UTF-8"),
        ({"text": "a\r\nb"},
         "text: the text has control characters; lines end with a line feed alone"),
        ({"text": WORDS, "max_tokens": COST - 1},
         f"text: the text takes up to {COST} tokens, more than max_tokens = {COST - 1}"),
        ({"file_ext": (".py",)}, "file_ext: '.py' is none; an ending is given without its dot"),
        ({"lang": ("",)}, "lang: '' is none; an ending is given without its dot"),
    ],
)  # fmt: skip
def test_what_is_wrong_is_told_and_nothing_is_mended(change: dict[str, Any], message: str) -> None:
    assert told(replace(package("a"), **change)) == [message]


def test_a_text_as_long_as_it_may_be_is_fine() -> None:
    signs: dict[str, Any] = {"file_ext": ("py", "c++"), "lang": ("c#",), "regex": ("a|b",)}
    assert told(package("a", WORDS, max_tokens=COST, **signs)) == []


@pytest.mark.parametrize("field", ["regex", "not_match"])
def test_a_pattern_must_be_one(field: str) -> None:
    (message,) = told(replace(package("a"), **{field: ("fine", "(")}))
    assert message.startswith(f"{field}: '(' is no regular expression")
    assert pattern_fault("(a|b)+") is None


def chosen(packages: list[Package], profile: Profile | None = None, **turn: Any) -> list[str]:
    facts: dict[str, Any] = {
        "task_class": "debug", "user_text": "", "tool_names": (), "placed": ()
    }  # fmt: skip
    found = choose_packages(
        profile or Profile("p", packages=ON),
        {package.id: package for package in packages},
        **{**facts, **turn},
    )
    return [package.id for package in found]


@pytest.mark.parametrize(
    ("signs", "turn", "fires"),
    [
        ({"regex": ("(?i)trace",)}, {"user_text": "a TRACE"}, True),
        ({"regex": ("trace",)}, {"user_text": "a track"}, False),
        ({"tools": ("bash",)}, {"tool_names": ("read", "bash")}, True),
        ({"tools": ("bash",)}, {"tool_names": ("read",), "user_text": "bash"}, False),
        ({"file_ext": ("py",)}, {"user_text": "see src/main.py, please"}, True),
        ({"file_ext": ("py",)}, {"user_text": "see main.pyc or .py"}, False),
        ({"file_ext": ("c++",)}, {"user_text": "see a.C++"}, True),
        ({"lang": ("rust",)}, {"user_text": "so:\n```rust\nfn f() {}\n```"}, True),
        ({"lang": ("rust",)}, {"user_text": "so:\n```rusty\n```, in rust"}, False),
        ({"lang": ("c",)}, {"user_text": "```c++\n```"}, False),
        ({"regex": ("x",), "tools": ("bash",)}, {"tool_names": ("bash",)}, True),
        ({"classes": ("debug",)}, {}, True),
        ({"classes": ("edit",)}, {}, False),
        ({"classes": ("edit",), "regex": ("x",)}, {"user_text": "x"}, False),
        ({"classes": ("debug",), "regex": ("x",)}, {"user_text": "y"}, False),
        ({"classes": ("debug",)}, {"task_class": None}, False),
        ({}, {"user_text": "x"}, False),
        ({"regex": ("x",), "not_match": ("y",)}, {"user_text": "x y"}, False),
        ({"regex": ("x",)}, {"user_text": "x", "placed": ("a",)}, False),
    ],
)
def test_any_sign_selects_within_the_classes_and_a_veto_stands(
    signs: dict[str, Any], turn: dict[str, Any], fires: bool
) -> None:
    assert chosen([package("a", **signs)], **turn) == (["a"] if fires else [])


def test_nothing_is_placed_unless_the_profile_says_so() -> None:
    always = package("a", classes=("debug",))
    assert chosen([always], Profile("p")) == []


def test_the_profiles_own_come_first_then_priority_then_the_id() -> None:
    some = [package(name, classes=("debug",), priority=p) for name, p in
            (("c", 0), ("b", 0), ("a", 0), ("z", 5))]  # fmt: skip
    rules = replace(ON, per_class={"debug": ("c", "own")})
    debug = TaskClass("x", packages=("other", "c"))
    profile = Profile("p", router=Router(classes={"debug": debug}), packages=rules)
    own = [package("own"), package("other")]
    assert chosen(some + own, profile) == ["c", "own", "other", "z", "a", "b"]
    assert listed(profile, "edit") == () and listed(profile, None) == ()


def test_a_package_that_is_listed_may_still_be_vetoed_by_itself() -> None:
    profile = Profile("p", packages=replace(ON, per_class={"debug": ("a",)}))
    assert chosen([package("a", not_match=("x",))], profile, user_text="x") == []


def test_a_whole_package_or_none_and_no_more_than_fit() -> None:
    small, large = package("b", "Two words.", classes=("debug",)), "Word. " * 100
    some = [package("a", large, classes=("debug",)), small,
            package("c", classes=("debug",))]  # fmt: skip
    tokens = estimated_tokens(small.text)
    third = estimated_tokens(some[2].text)
    rooms = ((tokens, ["b"]), (tokens - 1, []), (tokens + third - 1, ["b"]),
             (tokens + third, ["b", "c"]), (9_000, ["a", "b", "c"]))  # fmt: skip
    for room, ids in rooms:
        assert chosen(some, Profile("p", packages=replace(ON, max_tokens=room))) == ids
    assert chosen(some, Profile("p", packages=replace(ON, max_count=1))) == ["a"]
    assert chosen(some, Profile("p", packages=replace(ON, max_count=0))) == []


def test_packages_that_get_in_each_others_way_are_found() -> None:
    some = [
        package("a", "1", regex=("x",), tools=("bash",)),
        package("b", "2", regex=("x",)),
        package("c", "3", regex=("x",), priority=1),
        package("d", "4", regex=("x",), classes=("edit",)),
        package("e", "5", regex=("x",), classes=("debug",), tools=("bash",)),
        package("f", "6", classes=("plan",)),
        package("g", "7", classes=("plan", "math")),
        package("h", "7"),
    ]
    assert list(collisions(some)) == [
        ("a", "b", "regex x"), ("a", "d", "regex x"), ("b", "d", "regex x"),
        ("a", "e", "regex x"), ("a", "e", "tool bash"), ("b", "e", "regex x"),
        ("f", "g", "class plan"), ("g", "h", "the same text"),
    ]  # fmt: skip
