"""`tandem check`: what a good configuration amounts to."""

import json
from pathlib import Path

import pytest

from conductor.tokens import estimated_tokens
from gateway.cli import main

PROFILE = """\
name: own
extends: coding
match: {priority: 2}
router: {classes: {debug: {budget: 9, packages: [a]}}}
monitor: {tasks: {E2: {mode: off}}}
sampling: {temperature: 0.5}
"""


@pytest.fixture
def config(tmp_path: Path) -> Path:
    (tmp_path / "profiles").mkdir()
    (tmp_path / "packages").mkdir()
    (tmp_path / "profiles/own.yaml").write_text(PROFILE)
    for name, match in (("a", "match: {tools: [bash]}\n"), ("b", "match: {tools: [bash]}\n"),
                        ("c", "classes: [plan]\n")):  # fmt: skip
        text = f"---\nid: {name}\ntitle: {name}\n{match}---\nRead {name}.\n"
        (tmp_path / f"packages/{name}.md").write_text(text)
    file = tmp_path / "tandem.yaml"
    file.write_text("worker: {}\nconductor: {default_profile: own}\n")
    return file


def said(capsys: pytest.CaptureFixture[str], *arguments: str) -> str:
    assert main(["check", *arguments]) == 0
    return capsys.readouterr().out


def test_a_profile_is_shown_resolved_by_what_is_not_the_default(
    config: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    text = said(capsys, "--config", str(config))
    own = text.split("    own: ")[1].split("\n    tools: ")[0]
    assert own.splitlines()[1:] == [
        '      extends: "coding"',
        '      match.clients: ["opencode", "claude-code", "codex", "qwen-code", "gemini-cli", '
        '"cline", "continue", "aider"]',
        "      match.priority: 2",
        "      router.classes.debug.budget: 9",
        '      router.classes.debug.packages: ["a"]',
        "      packages.enabled: true",
        '      monitor.tasks.E2: {"mode": "off", "params": null}',
        "      sampling.temperature: 0.5",
    ]
    assert "  default_profile: own\n" in text and "  packages: ['a', 'b', 'c']\n" in text


def test_the_whole_profile_is_in_the_json(config: Path, capsys: pytest.CaptureFixture[str]) -> None:
    profiles = json.loads(said(capsys, "--config", str(config), "--json"))["profiles"]
    assert sorted(profiles) == ["chat", "chat-app", "coding", "hermes", "own", "tools"]
    assert profiles["own"]["router"]["classes"]["fact"]["budget"] == 256
    assert profiles["own"]["note"] == {"enabled": True, "max_tokens": 2000, "replay": True}


def test_packages_are_shown_with_tokens_classes_and_collisions(
    config: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    tokens = estimated_tokens("Read a.")
    assert said(capsys, "--config", str(config), "--packages").splitlines() == [
        f"a: at most {tokens} of 600 tokens, classes all, listed by own",
        f"b: at most {tokens} of 600 tokens, classes all, listed by no profile",
        f"c: at most {tokens} of 600 tokens, classes plan, listed by no profile",
        "collision: a and b, by tool bash",
    ]
    report = json.loads(said(capsys, "--config", str(config), "--packages", "--json"))
    assert report["collisions"] == [{"ids": ["a", "b"], "by": "tool bash"}]
    assert [fact["tokens"] for fact in report["packages"]] == [tokens] * 3


def test_no_packages_are_said_to_be_none(config: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for file in (config.parent / "packages").iterdir():
        file.unlink()
    (config.parent / "profiles/own.yaml").write_text("name: own\n")
    assert said(capsys, "--config", str(config), "--packages") == "there are no packages\n"


def test_mistakes_beside_the_file_end_with_2(
    config: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (config.parent / "profiles/own.yaml").write_text("name: own\nefort: off\n")
    assert main(["check", "--config", str(config)]) == 2
    wanted = "profiles/own.yaml:2: unknown key 'efort'; nearest known key: 'effort'\n"
    assert capsys.readouterr().err.endswith(wanted)
