"""The conductor before our own engine: real processes, a real model, and what rows say."""

import importlib.util
import json
import sqlite3
import time
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.e2e.server import Server, serving

pytestmark = pytest.mark.worker
if not all(importlib.util.find_spec(name) for name in ("torch", "transformers")):
    pytest.skip("the worker extra is not installed", allow_module_level=True)

ASKED = "Why does my parser fail on the second line? It worked yesterday."
MORE = "And what about the third line of it, please?"
TOOL = {"type": "function", "function": {"name": "read_file", "parameters": {"type": "object"}}}
CLASSIFIER_TOKENS = 8
WITHIN_S = 20.0


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    from tests.e2e.tiny import write_checkpoint

    return write_checkpoint(tmp_path_factory.mktemp("tiny"))


def config(checkpoint: Path) -> str:
    return (
        "server: {state_dir: STATE_DIR}\n"
        f"worker: {{model: '{checkpoint}', weights: fp32, threads: 1, conductor: true}}\n"
    )


@pytest.fixture(scope="module")
def server(checkpoint: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    with serving(tmp_path_factory.mktemp("conductor"), config(checkpoint)) as running:
        yield running


def ask(server: Server, messages: list[Any], **more: Any) -> httpx.Response:
    headers = more.pop("headers", {})
    body = {"model": "TandemLLM", "messages": messages, "temperature": 0, "max_tokens": 40, **more}
    url = f"{server.base}/v1/chat/completions"
    return httpx.post(url, json=body, headers=headers, timeout=60)


def said(answer: httpx.Response) -> dict[str, Any]:
    """The answer as a client sends it back that drops the reasoning."""
    assert answer.status_code == 200, answer.text
    return {"role": "assistant", "content": answer.json()["choices"][0]["message"]["content"]}


def user(text: str) -> dict[str, Any]:
    return {"role": "user", "content": text}


def rows(server: Server, request_id: str) -> dict[str, sqlite3.Row]:
    """The rows of one request by kind, once they are written."""
    until_s = time.monotonic() + WITHIN_S
    while True:
        with closing(sqlite3.connect(server.state_dir / "ledger.sqlite")) as database:
            database.row_factory = sqlite3.Row
            found = database.execute(
                "SELECT * FROM ledger WHERE outcome IS NOT NULL AND"
                " (request_id = ? OR parent_request_id = ?)",
                (request_id, request_id),
            ).fetchall()
        if any(row["parent_request_id"] is None for row in found):
            return {row["kind"]: row for row in found}
        assert time.monotonic() < until_s, f"no row of {request_id}"
        time.sleep(0.1)


def test_a_turn_is_classified_and_its_note_is_hidden_from_the_client(server: Server) -> None:
    answer = ask(server, [user(ASKED)])
    found = rows(server, answer.headers["x-request-id"])
    row, asked = found["generation"], found["classifier"]
    assert answer.headers["x-tandem-profile"] == row["profile"] == "chat"
    assert (row["class_source"], asked["outcome"]) == ("model", "succeeded")
    assert asked["upstream_output_tokens"] <= CLASSIFIER_TOKENS
    assert asked["prompt_tokens"] is None  # no client pays for it
    usage = answer.json()["usage"]
    assert usage["prompt_tokens"] == row["prompt_tokens"]
    assert row["upstream_input_tokens"] == row["prompt_tokens"] + row["note_tokens"]
    assert row["note_tokens"] > 0


def test_the_next_turn_finds_its_prefix_notes_included(server: Server) -> None:
    first = ask(
        server,
        [
            user("The first question of all, about bread."),
        ],
    )
    history = [user("The first question of all, about bread."), said(first), user(MORE)]
    second = ask(server, history)
    before, after = (
        rows(server, answer.headers["x-request-id"])["generation"] for answer in (first, second)
    )
    assert after["note_tokens"] > before["note_tokens"]
    cached = second.json()["usage"]["prompt_tokens_details"]["cached_tokens"]
    assert cached >= before["prompt_tokens"]
    # All of the first prompt, and of its answer what came back: forwarded is the new message alone.
    new = after["upstream_input_tokens"] - before["upstream_input_tokens"]
    left = after["upstream_input_tokens"] - after["upstream_cached_tokens"]
    assert left < new


def test_a_tool_result_asks_nobody_and_keeps_the_class(server: Server) -> None:
    call = {"id": "c1", "type": "function", "function": {"name": "read_file", "arguments": "{}"}}
    headers = {"X-Tandem-Profile": "coding"}
    first = ask(server, [user(f"{ASKED} Read it.")], tools=[TOOL], headers=headers)
    history = [
        user(f"{ASKED} Read it."),
        {"role": "assistant", "content": None, "tool_calls": [call]},
        {"role": "tool", "tool_call_id": "c1", "content": "line 2: x = ("},
    ]
    second = ask(server, history, tools=[TOOL], headers=headers)
    before = rows(server, first.headers["x-request-id"])
    after = rows(server, second.headers["x-request-id"])
    assert "classifier" in before and "classifier" not in after
    assert after["generation"]["class_source"] == "kept"
    assert after["generation"]["task_class"] == before["generation"]["task_class"]


def test_the_tools_profile_asks_nobody_and_adds_nothing(server: Server) -> None:
    answer = ask(server, [user(ASKED)], tools=[TOOL])
    found = rows(server, answer.headers["x-request-id"])
    assert answer.headers["x-tandem-profile"] == "tools" and set(found) == {"generation"}
    assert found["generation"]["note_tokens"] == 0


def test_an_unknown_profile_is_a_400_that_names_the_known_ones(server: Server) -> None:
    answer = ask(server, [user(ASKED)], headers={"X-Tandem-Profile": "chatt"})
    error = answer.json()["error"]
    assert (answer.status_code, error["code"]) == (400, "unknown_profile")
    assert "chat, " in error["message"] and error["param"] == "X-Tandem-Profile"


def test_a_side_request_is_one_and_leaves_the_conversation_alone(server: Server) -> None:
    asked = "A question that only this conversation begins with, about rye."
    # A client of its own: beside another one's turns with tools, any of these may be a helper call.
    client = {"headers": {"X-Tandem-Client": "curl"}}
    first = ask(server, [user(asked)], **client)
    probe = ask(server, [user("hi")], max_tokens=1, **client)
    row = rows(server, probe.headers["x-request-id"])["side"]
    assert row["side_kind"] == "probe" and row["class_source"] is None
    second = ask(server, [user(asked), said(first), user(MORE)], **client)
    after = rows(server, second.headers["x-request-id"])["generation"]
    before = rows(server, first.headers["x-request-id"])["generation"]
    assert after["upstream_cached_tokens"] >= before["upstream_input_tokens"]


def test_notes_outlive_a_restart(checkpoint: Path, tmp_path: Path) -> None:
    with serving(tmp_path, config(checkpoint)) as running:
        first = ask(running, [user(ASKED)])
        once = rows(running, first.headers["x-request-id"])["generation"]
    history = [user(ASKED), said(first), user(MORE)]
    with serving(tmp_path, config(checkpoint)) as running:
        again = ask(running, [user(ASKED)])
        twice = rows(running, again.headers["x-request-id"])
        second = ask(running, history)
        later = rows(running, second.headers["x-request-id"])["generation"]
    assert set(twice) == {"generation"}  # it is known which kind of task this was
    assert said(again) == said(first)
    assert twice["generation"]["note_tokens"] == once["note_tokens"] < later["note_tokens"]


def test_the_journal_says_what_was_decided_and_never_what_was_said(server: Server) -> None:
    request_id = ask(server, [user("Which flour is best for a secret cake?")]).headers[
        "x-request-id"
    ]
    until_s = time.monotonic() + WITHIN_S
    lines: list[dict[str, Any]] = []
    while not any(line["event"] == "note_new" for line in lines):
        assert time.monotonic() < until_s, "no lines of the request"
        texts = [file.read_text() for file in (server.state_dir / "journal").glob("*.jsonl")]
        lines = [json.loads(line) for text in texts for line in text.splitlines()]
        lines = [line for line in lines if line["request_id"] == request_id]
    assert {"profile", "class", "thinking"} <= {line["event"] for line in lines}
    assert not any("secret cake" in json.dumps(line) for line in lines)
