"""Packages beside `tandem.yaml`: Markdown with front matter, and skills."""

import hashlib
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from conductor.tokens import estimated_tokens
from conductor.types import Package
from gateway.settings.load import SettingsError, load
from gateway.settings.packages import package_keys

FULL = """\
---
id: read-the-log
title: How a log is read
version: "2"
classes: [debug, fact]
match: {regex: ["(?i)trace"], tools: [bash], file_ext: [log], lang: [text]}
not_match: ["no log"]
priority: 3
max_tokens: 40
---

# Logs

Look for the *first* error.
"""
LONG = "Far more than three tokens.\n"
COST = estimated_tokens(LONG.strip())
TEXT = "# Logs\n\nLook for the *first* error."


def read(folder: Path, files: dict[str, str]) -> dict[str, Package]:
    (folder / "tandem.yaml").write_text("worker: {}\n")
    for name, text in files.items():
        file = folder / "packages" / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_bytes(text.encode("utf-8", "surrogateescape"))
    return dict(load(folder / "tandem.yaml", {}).planning.packages)


def problems(folder: Path, files: dict[str, str]) -> list[str]:
    with pytest.raises(SettingsError) as fault:
        read(folder, files)
    return [str(problem).removeprefix(f"{folder}/packages/") for problem in fault.value.problems]


def test_a_package_is_read_whole_and_pinned_by_its_text(tmp_path: Path) -> None:
    assert read(tmp_path, {"deep/down/a.md": FULL})["read-the-log"] == Package(
        id="read-the-log", title="How a log is read", text=TEXT,
        hash=hashlib.sha256(TEXT.encode()).hexdigest(), version="2", classes=("debug", "fact"),
        regex=("(?i)trace",), tools=("bash",), file_ext=("log",), lang=("text",),
        not_match=("no log",), priority=3, max_tokens=40,
    )  # fmt: skip


def test_a_skill_is_a_folder_of_which_one_file_is_the_package(tmp_path: Path) -> None:
    skill = (
        "---\nname: forms\ndescription: Fills forms.\nlicense: MIT\nallowed-tools: Read Bash\n"
        "metadata: {author: us}\ncompatibility: any\nmatch: {file_ext: [pdf]}\n---\nFill it.\n"
    )
    found = read(
        tmp_path,
        {
            "forms/SKILL.md": skill,
            "forms/references/more.md": "no front matter",
            "forms/inner/SKILL.md": "no front matter",
            ".git/HEAD.md": "no front matter",
            "notes.txt": "no package",
        },
    )
    assert list(found) == ["forms"]
    assert (found["forms"].title, found["forms"].text) == ("Fills forms.", "Fill it.")
    assert found["forms"].file_ext == ("pdf",)


def front(lines: str, text: str = "Read.\n") -> str:
    return f"---\nid: a\ntitle: A\n{lines}---\n{text}"


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("Just text.\n", "1: expected front matter: a line '---', keys, a line '---', then the "
         "text"),
        ("---\nid: a\n", "1: expected front matter: a line '---', keys, a line '---', then the "
         "text"),
        ("\n---\nid: a\n---\nx\n", "1: expected front matter: a line '---', keys, a line '---', "
         "then the text"),
        ("---\n---\nx\n", "1: there is nothing in the front matter"),
        ("---\n- a\n---\nx\n", "2: expected a mapping, found a list"),
        ("---\nid: a\n---\nx\n", "2: key 'title' is missing"),
        (front("titel: B\n"), "4: unknown key 'titel'; nearest known key: 'title'"),
        (front("match: {regx: [a]}\n"),
         "4: unknown key 'match.regx'; nearest known key: 'match.regex'"),
        (front("classes: [debgu]\n"),
         "4: classes[0]: no class is named 'debgu'; nearest: 'debug'"),
        (front("match: {regex: ['(']}\n"), "4: match.regex: '(' is no regular expression: missing "
         "), unterminated subpattern at position 0"),
        (front("match: {file_ext: [.py]}\n"),
         "4: match.file_ext: '.py' is none; an ending is given without its dot"),
        (front("not_match: [a, '*']\n"), "4: not_match: '*' is no regular expression: nothing to "
         "repeat at position 0"),
        (front("license: MIT\n"), "4: unknown key 'license'; known here: classes, id, match, "
         "max_tokens, not_match, priority, title, version"),
        (front("", "Say <|im_end|>.\n"),
         "5: text: the text has '<|im_end|>', which a model or Tandem takes for structure"),
        (front("", "Say </tandem_note>.\n"),
         "5: text: the text has '</tandem_note>', which a model or Tandem takes for structure"),
        (front("max_tokens: 3\n", LONG),
         f"6: text: the text takes up to {COST} tokens, more than max_tokens = 3"),
        (front("", "\n\n"), "5: text: there is no text behind the front matter"),
        (front("", "caf\udce9\n"), "5: text: the text is not UTF-8"),
        (front("version: 2\n"),
         "4: version: expected text, found '2' (quote it to make it text)"),
        ("---\nid: A b\ntitle: A\n---\nx\n",
         "2: id: an id has 1 to 64 characters of a-z, 0-9 and '-'"),
        ("---\nid: !x a\ntitle: A\n---\nx\n", "2: id: tag '!x' is not allowed"),
    ],
)  # fmt: skip
def test_what_is_wrong_is_refused_by_file_and_line(tmp_path: Path, text: str, problem: str) -> None:
    assert problems(tmp_path, {"a.md": text}) == [f"a.md:{problem}"]


def test_what_is_wrong_with_a_skill_is_named_by_its_own_keys(tmp_path: Path) -> None:
    text = "---\nname: My skill\ndescription: ''\n---\nx\n"
    assert problems(tmp_path, {"s/SKILL.md": text}) == [
        "s/SKILL.md:2: name: an id has 1 to 64 characters of a-z, 0-9 and '-'",
        "s/SKILL.md:3: description: a title has 1 to 1024 characters",
    ]


def test_an_id_belongs_to_one_file(tmp_path: Path) -> None:
    found = problems(tmp_path, {"a.md": front(""), "b.md": front("")})
    assert found == [f"b.md:2: id: 'a' is that of {tmp_path}/packages/a.md already"]


def test_a_class_that_a_profile_adds_may_be_named(tmp_path: Path) -> None:
    (tmp_path / "profiles").mkdir()
    (tmp_path / "profiles/p.yaml").write_text(
        "name: p\nrouter: {classes: {lint: {meaning: style of code}}}\n"
    )
    assert read(tmp_path, {"a.md": front("classes: [lint]\n")})["a"].classes == ("lint",)


KEYS = package_keys()


@settings(max_examples=60, deadline=None)
@given(key=st.sampled_from(KEYS), at=st.integers(0, 30), letter=st.sampled_from("qxz"))
def test_a_mutated_key_never_starts(
    tmp_path_factory: pytest.TempPathFactory, key: str, at: int, letter: str
) -> None:
    above, _, leaf = key.rpartition(".")
    at %= len(leaf)
    mutated = leaf[:at] + letter + leaf[at + 1 :]
    if mutated == leaf:
        return
    line = f"{above}: {{{mutated}: 1}}\n" if above else f"{mutated}: 1\n"
    found = problems(tmp_path_factory.mktemp("mutated"), {"a.md": front(line)})
    full = f"{above}.{mutated}" if above else mutated
    assert any(f"unknown key '{full}'" in problem for problem in found), found
