"""`tandem explain`: what would be decided about a request, without a server."""

import json
from pathlib import Path
from typing import Any

import pytest

from gateway.cli import main

RULES = """\
name: own
extends: chat
match: {clients: [curl]}
rules: [{id: tests, text: Run the tests.}]
"""
HI = {"model": "TandemLLM", "messages": [{"role": "user", "content": "hello"}]}


@pytest.fixture
def config(tmp_path: Path) -> Path:
    (tmp_path / "profiles").mkdir()
    (tmp_path / "profiles" / "own.yaml").write_text(RULES)
    file = tmp_path / "tandem.yaml"
    file.write_text(
        "worker: {conductor: true}\n"
        "backends:\n"
        "  near: {kind: openai, base_url: 'http://127.0.0.1:1/v1', models: [plain]}\n"
        "  own: {kind: openai, base_url: 'http://127.0.0.1:2/v1', models: [led], conductor: true}\n"
        f"server: {{state_dir: {tmp_path}/state}}\n"
    )
    return file


def explain(config: Path, body: Any, *options: str, headers: str = "") -> int:
    request, lines = config.parent / "request.json", config.parent / "headers.txt"
    request.write_text(body if isinstance(body, str) else json.dumps(body))
    lines.write_text(headers)
    words = ["explain", str(request), "--headers", str(lines), "--config", str(config), *options]
    return main(words)


def facts(config: Path, body: Any, capsys: pytest.CaptureFixture[str], headers: str = "") -> Any:
    assert explain(config, body, "--json", headers=headers) == 0
    return json.loads(capsys.readouterr().out)


def test_a_turn_is_explained_with_its_note_marked(
    config: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    found = facts(config, HI, capsys, "User-Agent: curl/8.5\n")
    assert (found["route"], found["path"], found["client"]) == (
        "worker/TandemLLM",
        "managed",
        "curl",
    )
    assert (found["profile"], found["turn"], found["class"]) == ("own", "user", "chat (rules)")
    assert found["thinking"] == {"on": True, "budget": 512} and found["monitor"]["D1"] == "act"
    (message,) = found["messages"]
    assert message["text"].startswith("hello⟦note⟧") and "Run the tests." in message["text"]
    assert explain(config, HI, headers="User-Agent: curl/8.5\n") == 0
    shown = capsys.readouterr().out
    assert "profile: own\n" in shown and "--- user\nhello⟦note⟧" in shown


def test_a_class_that_only_the_model_knows_is_not_made_up(
    config: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    body = {**HI, "messages": [{"role": "user", "content": "Compare two kinds of flour for me."}]}
    assert facts(config, body, capsys)["class"] == "by the model, which nobody asked"


def test_tools_pass_through_and_helper_calls_are_named(
    config: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    tool = {"type": "function", "function": {"name": "look"}}
    found = facts(config, {**HI, "tools": [tool]}, capsys)
    assert found["profile"] == "tools" and found["messages"][0]["text"] == "hello"
    assert facts(config, {**HI, "max_tokens": 1}, capsys)["side"] == "probe"


def test_what_is_relayed_is_not_decided_about(
    config: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    found = facts(config, {**HI, "model": "plain"}, capsys)
    assert (found["route"], found["path"]) == ("near/plain", "relay") and "profile" not in found
    found = facts(config, {**HI, "model": "led"}, capsys)
    assert (found["route"], found["path"], found["conductor"]) == ("own/led", "managed", "on")


def test_where_the_conductor_is_off_it_says_so(
    config: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    config.write_text("worker: {conductor: false}\n")
    assert facts(config, HI, capsys)["conductor"] == "off: worker.conductor is false"


@pytest.mark.parametrize(
    ("body", "headers", "word"),
    [
        ("{", "", "cannot be read as JSON"),
        ("[]", "", "an object with 'model'"),
        ({**HI, "model": "gone"}, "", "No model is named 'gone'"),
        ({**HI, "temperature": 9}, "", "'temperature'"),
        (HI, "X-Tandem-Profile: chatt\n", "no profile is named 'chatt'; known: chat"),
    ],
)
def test_what_would_be_refused_is_one_sentence(
    config: Path, capsys: pytest.CaptureFixture[str], body: Any, headers: str, word: str
) -> None:
    assert explain(config, body, headers=headers) == 1
    assert word in capsys.readouterr().err


def test_files_that_are_not_there_are_named(
    config: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["explain", "/nowhere/request.json", "--config", str(config)]) == 1
    assert "/nowhere/request.json" in capsys.readouterr().err
    request = config.parent / "request.json"
    request.write_text(json.dumps(HI))
    words = ["explain", str(request), "--headers", "/nowhere/lines", "--config", str(config)]
    assert main(words) == 1 and "/nowhere/lines" in capsys.readouterr().err
