"""When our own engine is asked for a kind of task: what the rows of real processes say."""

import copy
import importlib.util
import json
import os
import sqlite3
import threading
import time
from collections import Counter
from collections.abc import Collection, Iterator
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import httpx
import pytest

from gateway.embedded_model import model_path
from gateway.settings.types import Settings
from tests.conductor.recorded import agents, chats
from tests.conductor.recorded.sessions import SHAPES, Script
from tests.conductor.recorded.talk import Request
from tests.e2e.server import Server, serving

pytestmark = pytest.mark.worker
if not all(importlib.util.find_spec(name) for name in ("torch", "transformers")):
    pytest.skip("the worker extra is not installed", allow_module_level=True)

MODEL = Path(os.environ.get("TANDEM_TEST_MODEL") or model_path(Settings().state_dir, "smollm2"))
WITHIN_S = 30.0
MOST_ROUNDS = 8
ANSWER_TOKENS = 2  # what is answered is recorded
LONG_WORDS = 8  # characters; "go on" and greetings are shorter, and known by rules
# A person asks on a slow machine, too: how long a question may take is not what is tested here.
PATIENT = "name: chat\ndescription: as it comes, with patience\nrouter: {timeout_ms: 60000}\n"

# All that asks nobody: results, summaries, words of programs, retries, helper calls.
FEW: tuple[Script, ...] = (
    agents.opencode_title,
    agents.opencode_compacted,
    agents.claude_commanded,
    agents.codex_compacted,
    chats.hermes_told,
    chats.webui_tasks,
    chats.plain_retry,
    chats.plain_greeting,
)
# Without the one that asks the same again: whether that is known depends on the model's answers.
MOST = tuple(script for script in SHAPES if script is not chats.webui_chat)


def rows(server: Server, ids: Collection[str]) -> list[sqlite3.Row]:
    """All closed rows, once all of these requests have one."""
    until_s = time.monotonic() + WITHIN_S
    while True:
        with closing(sqlite3.connect(server.state_dir / "ledger.sqlite")) as database:
            database.row_factory = sqlite3.Row
            found = database.execute("SELECT * FROM ledger WHERE outcome IS NOT NULL").fetchall()
        if {*ids} <= {row["request_id"] for row in found}:
            return found
        assert time.monotonic() < until_s, f"{len(found)} rows of {len(ids)} requests"
        time.sleep(0.1)


def send(server: Server, request: Request) -> str:
    """A recorded request with a short answer; the id that it got."""
    body = {**request.body, "max_tokens": ANSWER_TOKENS}
    url = f"{server.base}/v1/chat/completions"
    answer = httpx.post(url, json=body, headers=request.headers, timeout=60)
    assert answer.status_code == 200, answer.text
    return answer.headers["x-request-id"]


# -- how often ------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    from tests.e2e.tiny import write_checkpoint

    checkpoint = write_checkpoint(tmp_path_factory.mktemp("tiny"))
    config = (
        "server: {state_dir: STATE_DIR}\n"
        f"worker: {{model: '{checkpoint}', weights: fp32, threads: 1, conductor: true}}\n"
    )
    with serving(tmp_path_factory.mktemp("asked"), config) as running:
        yield running


@pytest.mark.parametrize(
    "scripts", [FEW, pytest.param(MOST, marks=pytest.mark.long)], ids=["few", "most"]
)
def test_a_question_is_a_row_and_there_is_one_for_each_new_message_of_a_person(
    scripts: tuple[Script, ...], server: Server
) -> None:
    asked: dict[str, Request] = {}
    for script in scripts:
        talk = script(f"{script.__name__}-{len(scripts)}")
        for request in talk.requests:
            asked[send(server, with_own_words(request, talk.name))] = request
    found = rows(server, asked)
    questions = Counter(row["parent_request_id"] for row in found if row["kind"] == "classifier")
    expected = {name: 1 for name, request in asked.items() if request.asks}
    assert {name: questions[name] for name in asked if questions[name]} == expected
    sides = {row["request_id"] for row in found if row["kind"] == "side"} & {*asked}
    assert sides == {name for name, request in asked.items() if request.side is not None}
    steps = [row["upstream_output_tokens"] for row in found if row["kind"] == "classifier"]
    assert all(count is None or count <= MOST_ROUNDS for count in steps) and any(steps)


def with_own_words(request: Request, name: str) -> Request:
    """With its name behind what is said in it: what was asked in one conversation is known in all
    others, where it is said in the same words."""
    body = copy.deepcopy(request.body)
    for message in body["messages"]:
        said = message["content"]
        text = said if isinstance(said, str) else "".join(part["text"] for part in said or [])
        if message["role"] != "user" or len(text) < LONG_WORDS or text.endswith(">"):
            continue
        if isinstance(said, str):
            message["content"] = f"{said} ({name})"
        else:
            said[-1]["text"] += f" ({name})"
    return replace(request, body=body)


# -- beside what runs -----------------------------------------------------------------------------


@pytest.mark.long
@pytest.mark.model
@pytest.mark.parametrize("is_drafted", [True, False], ids=["drafted", "plain"])
def test_a_question_to_the_embedded_model_takes_few_steps_beside_a_long_answer(
    is_drafted: bool, tmp_path: Path
) -> None:
    if not MODEL.is_file():
        pytest.skip(f"no model at {MODEL}: run `tandem fetch-model`")
    (tmp_path / "profiles").mkdir()
    (tmp_path / "profiles" / "chat.yaml").write_text(PATIENT)
    config = (
        "server: {state_dir: STATE_DIR}\n"
        f"worker: {{model: '{MODEL}', conductor: true,"
        f" speculation: {{enabled: {str(is_drafted).lower()}}}}}\n"
    )
    with serving(tmp_path, config) as running:
        alone = Long(running).read()
        among = Long(running)
        reading = threading.Thread(target=among.read)
        reading.start()
        assert among.has_begun.wait(WITHIN_S)
        talk = chats.webui_chat("beside")
        asked = send(running, talk.requests[0])
        reading.join(WITHIN_S * 4)
        found = rows(running, [asked])
    # Drafts of other lengths round otherwise, and near ties may end otherwise: not without them.
    assert among.text == alone.text or is_drafted
    (question,) = (row for row in found if row["parent_request_id"] == asked)
    assert (question["kind"], question["outcome"]) == ("classifier", "succeeded")
    assert 0 < question["blocks"] <= MOST_ROUNDS
    assert 0 < question["upstream_output_tokens"] <= MOST_ROUNDS
    began_ms = question["ts_ms"]
    ended_ms = began_ms + question["total_ms"]
    # The long answer had begun, goes on while the question is answered, and long behind that.
    before, beside, behind = (
        sum(low <= came < high for came in among.came_ms)
        for low, high in ((0, began_ms), (began_ms, ended_ms), (ended_ms, float("inf")))
    )
    print(
        f"{question['blocks']} rounds, {question['upstream_output_tokens']} tokens,"
        f" {question['total_ms']} ms; chunks of the long answer: {before} before,"
        f" {beside} beside, {behind} behind"
    )
    assert before and beside and behind > 10


class Long:
    """A long answer, streamed. `came_ms`: when each piece of it came, by the clock of the day."""

    body: dict[str, Any] = {
        "model": "TandemLLM",
        "messages": [{"role": "user", "content": "Write a very long story about a ship at sea."}],
        "temperature": 0,
        "max_tokens": 300,
        "cache_prompt": False,
        "stream": True,
    }

    def __init__(self, server: Server) -> None:
        self.text = ""
        self.came_ms: list[float] = []
        self.has_begun = threading.Event()
        self._url = f"{server.base}/v1/chat/completions"

    def read(self) -> "Long":
        """To its end."""
        headers = {"X-Tandem-Profile": "tools"}
        with httpx.stream("POST", self._url, json=self.body, headers=headers, timeout=120) as told:
            for line in told.iter_lines():
                if not line.startswith("data: {"):
                    continue
                for choice in json.loads(line[6:])["choices"]:
                    if piece := choice["delta"].get("content"):
                        self.text += piece
                        self.came_ms.append(time.time() * 1000)
                if len(self.came_ms) > 20:
                    self.has_begun.set()
        return self
