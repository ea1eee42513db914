"""The monitor over real runs of the embedded model: real processes, real tokens, and what client,
journal and ledger have of it.

The model reasons because its template says so (`reasoning_model`); what it then does is its own.
"""

import importlib.util
import json
import os
import sqlite3
import time
from collections.abc import Iterator
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import pytest

from gateway.embedded_model import model_path
from gateway.settings.types import Settings
from tests.e2e.reasoning_model import write_model
from tests.e2e.server import Server, serving

pytestmark = [pytest.mark.worker, pytest.mark.model]
if importlib.util.find_spec("torch") is None:
    pytest.skip("the worker extra is not installed", allow_module_level=True)

MODEL = Path(os.environ.get("TANDEM_TEST_MODEL") or model_path(Settings().state_dir, "smollm2"))
WITHIN_S = 20.0
WEATHER = {"type": "function", "function": {"name": "get_weather", "parameters": {
    "type": "object", "required": ["city", "days"],
    "properties": {"city": {"type": "string"}, "days": {"type": "integer"}},
}}}  # fmt: skip


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    if not MODEL.is_file():
        pytest.skip(f"no model at {MODEL}: run `tandem fetch-model`")
    folder = tmp_path_factory.mktemp("monitor")
    model = write_model(MODEL, folder / "reasoning.gguf")
    worker = f"worker: {{model: '{model}', conductor: true, max_len: 2048}}"
    with serving(folder, f"server: {{state_dir: STATE_DIR}}\n{worker}\n") as running:
        yield running


@dataclass
class Answer:
    """What a client has of an answer, and what the ledger and the journal have of it."""

    message: dict[str, Any]
    finish: str
    usage: dict[str, Any]
    row: sqlite3.Row
    acts: list[tuple[str, str]]


def ask(server: Server, messages: list[Any], *, stream: bool = False, **more: Any) -> Answer:
    """Asks as a program that goes by the profile `tools`, where nothing but the monitor acts."""
    body = {"model": "TandemLLM", "messages": messages, "temperature": 0, "stream": stream, **more}
    answer = httpx.post(
        f"{server.base}/v1/chat/completions", json=body, headers={"X-Tandem-Profile": "tools"},
        timeout=300,
    )  # fmt: skip
    assert answer.status_code == 200, answer.text
    whole = joined(answer.text) if stream else answer.json()
    request_id = answer.headers["x-request-id"]
    choice = whole["choices"][0]
    row = row_of(server, request_id)
    made = Answer(
        choice["message"], choice["finish_reason"], whole["usage"], row, acts(server, request_id)
    )
    print(json.dumps(choice, ensure_ascii=False), whole["usage"], made.acts, sep="\n")
    check_usage(made)
    return made


def joined(text: str) -> dict[str, Any]:
    """A streamed answer as one that is whole."""
    events = [json.loads(line[6:]) for line in text.splitlines() if line.startswith("data: {")]
    message: dict[str, Any] = {}
    calls: dict[int, dict[str, Any]] = {}
    finish = None
    for choice in (event["choices"][0] for event in events if event["choices"]):
        finish = choice["finish_reason"] or finish
        for key, value in choice["delta"].items():
            if key != "tool_calls":
                message[key] = message.get(key, "") + value
        for part in choice["delta"].get("tool_calls", ()):
            made = calls.setdefault(part["index"], {"name": "", "arguments": ""})
            for key, value in part["function"].items():
                made[key] += value or ""
    if calls:
        message["tool_calls"] = [{"function": made} for made in calls.values()]
    (usage,) = [event["usage"] for event in events if event.get("usage")]
    return {"choices": [{"message": message, "finish_reason": finish}], "usage": usage}


def check_usage(answer: Answer) -> None:
    """Hidden tokens are in the ledger, and in no usage."""
    row = answer.row
    assert answer.usage["completion_tokens"] == row["completion_tokens"]
    assert answer.usage["prompt_tokens"] == row["prompt_tokens"]
    assert row["upstream_output_tokens"] == row["completion_tokens"] + row["hidden_tokens"]


def row_of(server: Server, request_id: str) -> sqlite3.Row:
    until_s = time.monotonic() + WITHIN_S
    while True:
        with closing(sqlite3.connect(server.state_dir / "ledger.sqlite")) as database:
            database.row_factory = sqlite3.Row
            query = "SELECT * FROM ledger WHERE outcome IS NOT NULL AND request_id = ?"
            found: sqlite3.Row | None = database.execute(query, (request_id,)).fetchone()
        if found is not None:
            return found
        assert time.monotonic() < until_s, f"no row of {request_id}"
        time.sleep(0.1)


def acts(server: Server, request_id: str) -> list[tuple[str, str]]:
    """The journal's lines on what the monitor did in a request: task and reason."""
    until_s = time.monotonic() + WITHIN_S
    while True:
        files = (server.state_dir / "journal").glob("*.jsonl")
        lines = [json.loads(line) for file in files for line in file.read_text().splitlines()]
        lines = [line for line in lines if line["request_id"] == request_id]
        done = [(line["task"], line["reason"]) for line in lines if line["event"] == "monitor_act"]
        if done:
            return done
        assert time.monotonic() < until_s, f"no act in {lines}"
        time.sleep(0.1)


def user(text: str) -> dict[str, Any]:
    return {"role": "user", "content": text}


def turns(name: str, *days: Any) -> list[dict[str, Any]]:
    """A conversation whose calls the model will take for its example."""
    messages = []
    asked = (("Paris", "three"), ("Rome", "five"), ("Oslo", "two"))
    for number, ((city, words), count) in enumerate(zip(asked, days, strict=True)):
        arguments = json.dumps({"city": city, "days": count})
        call = {"id": f"c{number}", "type": "function",
                "function": {"name": name, "arguments": arguments}}  # fmt: skip
        messages += [
            user(f"What will the weather be in {city} for {words} days?"),
            {"role": "assistant", "content": "", "tool_calls": [call]},
            {"role": "tool", "tool_call_id": f"c{number}", "content": "Sunny."},
            {"role": "assistant", "content": "Sunny."},
        ]
    return [*messages, user("What will the weather be in Berlin for four days?")]


def called(answer: Answer) -> tuple[str, Any]:
    (call,) = answer.message["tool_calls"]
    assert answer.finish == "tool_calls" and not answer.message.get("content")
    return call["function"]["name"], json.loads(call["function"]["arguments"])


@pytest.mark.parametrize("stream", [False, True], ids=["whole", "streamed"])
def test_a_loop_of_reasoning_is_closed_and_the_answer_follows(server: Server, stream: bool) -> None:
    answer = ask(
        server, [user("Is the bridge safe?")], stream=stream, max_tokens=1200, stop=[".", "?"],
        chat_template_kwargs={"enable_thinking": True},
    )  # fmt: skip
    assert [task for task, _ in answer.acts] == ["D1"]
    assert answer.row["thinking_closed_by"] == "loop"
    assert answer.message["reasoning_content"] and answer.message["content"].strip()
    assert answer.row["hidden_tokens"] > 0


@pytest.mark.parametrize("stream", [False, True], ids=["whole", "streamed"])
def test_an_empty_turn_goes_on(server: Server, stream: bool) -> None:
    """The answer is in the prompt already, so that the model has nothing to say but its end."""
    answer = ask(
        server, [user("What is the capital of France?")], stream=stream, max_tokens=40,
        chat_template_kwargs={"opening": "The capital of France is Paris."},
    )  # fmt: skip
    assert answer.acts == [("E1", "empty")]
    assert answer.message["content"].strip()
    assert answer.row["hidden_tokens"] > 0


@pytest.mark.parametrize("stream", [False, True], ids=["whole", "streamed"])
def test_a_call_that_breaks_its_schema_is_written_again_under_the_tools_grammar(
    server: Server, stream: bool
) -> None:
    messages = turns("get_weather", "three", "five", "two")
    answer = ask(server, messages, stream=stream, tools=[WEATHER], max_tokens=120)
    assert answer.acts == [("C3", "type")]
    name, arguments = called(answer)
    assert name == "get_weather" and type(arguments["days"]) is int
    assert answer.row["hidden_tokens"] > 20  # the first try


def test_a_call_under_another_spelling_of_its_name_is_renamed(server: Server) -> None:
    answer = ask(server, turns("Get_Weather", 3, 5, 2), tools=[WEATHER], max_tokens=120)
    assert answer.acts == [("C3", "coerced")]
    assert called(answer)[0] == "get_weather"
    assert answer.row["hidden_tokens"] == 0


def test_a_call_of_a_tool_that_is_not_offered_is_written_again(server: Server) -> None:
    answer = ask(server, turns("weather_of", 3, 5, 2), tools=[WEATHER], max_tokens=120)
    assert answer.acts == [("C3", "unknown_tool")]
    assert called(answer)[0] == "get_weather"
    assert answer.row["hidden_tokens"] > 20
