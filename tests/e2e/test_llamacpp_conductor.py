"""The conductor before llama.cpp's own server: classes, notes, a closed loop, its own counts.

`make test-llamacpp` runs this. Everything that went by is kept, so that what is said of an answer
can be held against what the server sent.
"""

import json
import sqlite3
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.e2e.llamacpp import BINARY, free_port, native_server, started
from tests.e2e.server import Server, serving
from tests.fakes.recorder import Recorder

pytestmark = [
    pytest.mark.llamacpp,
    pytest.mark.skipif(BINARY is None, reason="TANDEM_LLAMA_SERVER names no llama-server"),
]

CONFIG = """server: {state_dir: STATE_DIR}
backends:
  llama:
    kind: openai
    flavor: llamacpp
    base_url: http://127.0.0.1:PORT/v1
    models: [smol]
    conductor: true
conductor: {default_profile: patient}
"""
# Whatever the class, there is a note; it has no say in the budget, so that a loop is closed for
# being one. Cores may be slow.
PROFILES = {
    "patient": """extends: chat
router: {timeout_ms: 60000}
thinking: {mode: client}
rules: [{id: english, text: Answer in English.}]
""",
    "forgetful": "extends: patient\nnote: {replay: false}\n",
}
# As models that always reason have it: the generation prompt opens the block.
REASONING_TEMPLATE = """{%- for message in messages -%}
{{- '<|im_start|>' + message.role + '\\n' -}}
{%- if message.role == 'assistant' and message.reasoning_content -%}
{{- '<think>\\n' + message.reasoning_content + '\\n</think>\\n\\n' -}}
{%- endif -%}
{{- message.content + '<|im_end|>\\n' -}}
{%- endfor -%}
{%- if add_generation_prompt -%}
{{- '<|im_start|>assistant\\n<think>\\n' -}}
{%- if enable_thinking is defined and enable_thinking is false -%}
{{- '\\n</think>\\n\\n' -}}
{%- endif -%}
{%- endif -%}
"""
TOOL = {"type": "function", "function": {
    "name": "read_file", "parameters": {"type": "object", "properties": {"at": {"type": "string"}}},
}}  # fmt: skip
# Which of them sends so small a model into circles depends on the processor's rounding.
LOOPS = (
    "Is 91 a prime number? Check every divisor, then check again.",
    "Is 97 a prime number? Try every divisor one by one and check each twice.",
    "Count the letters of the word banana.",
    "List all reasons why 2+2=4, and check each reason again.",
)
SHORT_THOUGHTS = (
    "What is the capital of France?",
    "Say hello.",
    "Why is the sky blue?",
    "What is 12 times 12?",
)
CLASSIFIER_TOKENS = 8
BLOCK_TOKENS = 2  # of a prompt that servers read again: the last token, and one beside a seam
WITHIN_S = 20.0


class Stage:
    """A gateway before a real server, with a recorder between them."""

    def __init__(self, server: Server, recorder: Recorder, port: int) -> None:
        self.server, self.recorder, self.port = server, recorder, port

    def ask(self, messages: list[Any], **more: Any) -> "Asked":
        """One chat request, and all that it led to."""
        headers = more.pop("headers", {})
        body = {"model": "smol", "messages": messages, "temperature": 0, "max_tokens": 24, **more}
        before = len(self.recorder.requests)
        url = f"{self.server.base}/v1/chat/completions"
        answer = httpx.post(url, json=body, headers=headers, timeout=300)
        assert answer.status_code == 200, answer.text
        until_s = time.monotonic() + WITHIN_S
        while len(self.recorder.bodies) < len(self.recorder.requests):
            assert time.monotonic() < until_s, "an answer is not over"
            time.sleep(0.02)
        legs = list(zip(self.recorder.requests, self.recorder.bodies, strict=True))[before:]
        return Asked(self, answer, [Leg(*leg) for leg in legs])


class Leg:
    """One request as the server got it, and its events as it sent them."""

    def __init__(self, request: bytes, answer: bytes) -> None:
        self.sent = json.loads(request)
        lines = answer.decode(errors="replace").split("\n\n")
        self.ends = [line for line in lines if line == "data: [DONE]"]
        self.events = [json.loads(line[6:]) for line in lines if is_whole(line)]

    def said(self, name: str) -> str:
        """All of one field of its deltas."""
        return "".join(delta.get(name) or "" for delta in self.deltas())

    def deltas(self) -> Iterator[dict[str, Any]]:
        return (choice["delta"] for event in self.events for choice in event["choices"])

    @property
    def finish(self) -> str:
        reasons = [one["finish_reason"] for event in self.events for one in event["choices"]]
        (reason,) = [reason for reason in reasons if reason is not None]
        return str(reason)

    @property
    def usage(self) -> dict[str, Any]:
        """The usage that the server states; its times must say the same."""
        (event,) = [event for event in self.events if event.get("usage")]
        usage, timings = event["usage"], event["timings"]
        assert usage["prompt_tokens"] == timings["cache_n"] + timings["prompt_n"]
        assert usage["completion_tokens"] == timings["predicted_n"]
        assert usage["prompt_tokens_details"]["cached_tokens"] == timings["cache_n"]
        return {**usage, "cached_tokens": timings["cache_n"]}

    def written_up_to(self, reasoning: str) -> int:
        """Tokens that its times count where its reasoning is this far."""
        so_far = ""
        for event in self.events:
            so_far += "".join(c["delta"].get("reasoning_content") or "" for c in event["choices"])
            if so_far == reasoning and "timings" in event:
                return int(event["timings"]["predicted_n"])
        raise AssertionError("the client's reasoning is not what the server sent")


def is_whole(line: str) -> bool:
    """Whether it is an event that was not cut."""
    return line.startswith("data: {") and line.endswith("}")


class Asked:
    """An answer, the requests that it took, and its rows."""

    def __init__(self, on: Stage, answer: httpx.Response, legs: list[Leg]) -> None:
        self.on, self.legs = on, legs
        self.request_id = answer.headers["x-request-id"]
        self.profile = answer.headers["x-tandem-profile"]
        if answer.headers["content-type"].startswith("text/event-stream"):
            lines = [line[6:] for line in answer.text.splitlines() if line.startswith("data: ")]
            assert lines[-1] == "[DONE]"
            events = [json.loads(line) for line in lines[:-1]]
            choices = [choice for event in events for choice in event["choices"]]
            self.finish = choices[-1]["finish_reason"]
            self.text = "".join(one["delta"].get("content") or "" for one in choices)
            self.reasoning = "".join(one["delta"].get("reasoning_content") or "" for one in choices)
            self.usage = events[-1]["usage"]
        else:
            (choice,) = answer.json()["choices"]
            self.finish, said = choice["finish_reason"], choice["message"]
            self.text, self.reasoning = said["content"] or "", said.get("reasoning_content") or ""
            self.usage = answer.json()["usage"]

    @property
    def said(self) -> dict[str, Any]:
        """As a client sends it back that drops the reasoning."""
        return {"role": "assistant", "content": self.text}

    def rows(self) -> list[sqlite3.Row]:
        """Of the request and below it, the request's own first, once all are written."""
        until_s = time.monotonic() + WITHIN_S
        while True:
            with closing(sqlite3.connect(self.on.server.state_dir / "ledger.sqlite")) as database:
                database.row_factory = sqlite3.Row
                found = database.execute(
                    "SELECT * FROM ledger WHERE outcome IS NOT NULL AND"
                    " (request_id = ? OR parent_request_id = ?)"
                    " ORDER BY parent_request_id IS NOT NULL",
                    (self.request_id, self.request_id),
                ).fetchall()
            if found and found[0]["parent_request_id"] is None:
                return found
            assert time.monotonic() < until_s, f"no row of {self.request_id}"
            time.sleep(0.1)

    def row(self, kind: str = "generation") -> sqlite3.Row:
        (row,) = [row for row in self.rows() if row["kind"] == kind]
        return row

    def kinds(self) -> list[str]:
        return sorted(row["kind"] for row in self.rows())

    def journal(self, event: str) -> list[dict[str, Any]]:
        """Its lines of this event, once there is one."""
        until_s = time.monotonic() + WITHIN_S
        while True:
            files = (self.on.server.state_dir / "journal").glob("*.jsonl")
            lines = [json.loads(line) for file in files for line in file.read_text().splitlines()]
            mine = [line for line in lines if line["request_id"] == self.request_id]
            if found := [line for line in mine if line["event"] == event]:
                return found
            assert time.monotonic() < until_s, f"no line {event}: {mine}"
            time.sleep(0.1)


@contextmanager
def staged(folder: Path, *options: str) -> Iterator[Stage]:
    port = free_port()
    profiles = folder / "profiles"
    profiles.mkdir()
    for name, text in PROFILES.items():
        (profiles / f"{name}.yaml").write_text(f"name: {name}\n{text}")
    with (
        started(native_server(port, "-c", "8192", *options), port),
        Recorder(port) as recorder,
        serving(folder, CONFIG.replace("PORT", str(recorder.port))) as server,
    ):
        yield Stage(server, recorder, port)


@pytest.fixture(scope="module")
def plain(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stage]:
    """The model as it is, which does not reason."""
    with staged(tmp_path_factory.mktemp("plain")) as on:
        yield on


@pytest.fixture(scope="module")
def reasoning(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stage]:
    """The model under a template that makes it reason."""
    folder = tmp_path_factory.mktemp("reasoning")
    template = folder / "reasoning.jinja"
    template.write_text(REASONING_TEMPLATE)
    # One slot: with more, a request can reach another one before the server saw that we hung up.
    with staged(folder, "-np", "1", "--chat-template-file", str(template)) as on:
        yield on


def user(text: str) -> dict[str, Any]:
    return {"role": "user", "content": text}


def text_of(leg: Leg, number: int) -> str:
    return str(leg.sent["messages"][number]["content"])


def test_a_new_message_gets_its_class_from_the_server_under_a_grammar(plain: Stage) -> None:
    asked = plain.ask([user("Why does my parser fail on the second line of the file?")])
    question, answer = asked.legs
    assert question.sent["grammar"].startswith('root ::= "chat" | "fact" | ')
    row, booked = asked.row(), asked.row("classifier")
    assert (row["class_source"], row["task_class"]) == ("model", question.said("content"))
    assert f'"{row["task_class"]}"' in question.sent["grammar"]
    usage = question.usage
    assert usage["completion_tokens"] <= CLASSIFIER_TOKENS
    assert (booked["outcome"], booked["usage_source"]) == ("succeeded", "backend")
    assert booked["upstream_output_tokens"] == usage["completion_tokens"]
    assert booked["upstream_input_tokens"] == usage["prompt_tokens"]
    assert booked["prompt_tokens"] is None  # no client pays for it
    assert "grammar" not in answer.sent
    print(f"\nclass {row['task_class']} in {usage['completion_tokens']} tokens of the server's")


def test_a_tool_result_asks_nobody_and_keeps_the_class(plain: Stage) -> None:
    question = user("Why does my parser fail on the last line of the file? Read it.")
    # A client of its own: beside its turns with tools, other requests may be its helper calls.
    headers = {"X-Tandem-Profile": "patient", "X-Tandem-Client": "opencode"}
    profile = {"headers": headers, "tools": [TOOL]}
    first = plain.ask([question], **profile)
    call = {"id": "c1", "type": "function", "function": {"name": "read_file", "arguments": "{}"}}
    history = [question, {"role": "assistant", "content": None, "tool_calls": [call]},
               {"role": "tool", "tool_call_id": "c1", "content": "x = ("}]  # fmt: skip
    second = plain.ask(history, **profile)
    assert first.kinds() == ["classifier", "generation"] and len(first.legs) == 2
    assert second.kinds() == ["generation"] and len(second.legs) == 1
    assert second.row()["class_source"] == "kept"
    assert second.row()["task_class"] == first.row()["task_class"]


def two_turns(on: Stage, question: str, profile: str) -> tuple[Asked, Asked]:
    headers = {"X-Tandem-Profile": profile}
    first = on.ask([user(question)], headers=headers)
    history = [user(question), first.said, user("And what else do I need for it, please?")]
    return first, on.ask(history, headers=headers)


def test_a_note_stands_again_and_the_server_finds_its_prompt(plain: Stage) -> None:
    first, second = two_turns(plain, "Which flour is best for a sourdough bread?", "patient")
    before, after = first.legs[-1], second.legs[-1]
    assert text_of(before, 0).endswith("\n</tandem_note>\n")
    assert text_of(after, 0) == text_of(before, 0)
    assert text_of(after, 2).endswith("\n</tandem_note>\n")
    assert second.journal("note_replay")
    prompt, cached = before.usage["prompt_tokens"], after.usage["cached_tokens"]
    assert cached >= prompt - BLOCK_TOKENS
    row = second.row()
    assert (row["upstream_cached_tokens"], row["usage_source"]) == (cached, "backend")
    assert row["upstream_input_tokens"] == after.usage["prompt_tokens"]
    assert row["note_tokens"] > 0 and row["adjusted"] == 1
    assert second.usage["prompt_tokens"] == row["upstream_input_tokens"] - row["note_tokens"]
    print(f"\nreplayed: {cached} cached of {after.usage['prompt_tokens']}, turn 1 had {prompt}")


def test_without_its_note_the_server_finds_less(plain: Stage) -> None:
    first, second = two_turns(plain, "Which flour is best for a flat pizza bread?", "forgetful")
    before, after = first.legs[-1], second.legs[-1]
    bare, noted = text_of(after, 0), text_of(before, 0)
    assert noted.startswith(bare) and bare == "Which flour is best for a flat pizza bread?"
    prompt, cached = before.usage["prompt_tokens"], after.usage["cached_tokens"]
    assert cached <= prompt - first.row()["note_tokens"] // 2
    assert second.row()["upstream_cached_tokens"] == cached
    print(f"\nnot replayed: {cached} cached of {after.usage['prompt_tokens']}, turn 1 had {prompt}")


PLAIN_REQUESTS = [
    ([user("What is the capital of Italy?")], {}),
    ([user("Wie heißt die Hauptstadt? 日本語 😀")], {"max_tokens": 40}),
    ([user("Count to ten.")], {"stop": ["5"], "max_tokens": 40}),
    ([user("A long story, please.")], {"max_tokens": 5}),
    ([user("Give me JSON about a cat.")], {"response_format": {"type": "json_object"}}),
]


@pytest.mark.parametrize("is_stream", [False, True])
@pytest.mark.parametrize(("messages", "more"), PLAIN_REQUESTS)
def test_an_answer_comes_down_whole_with_its_finish_and_counts(
    plain: Stage, messages: list[Any], more: dict[str, Any], is_stream: bool
) -> None:
    stream = {"stream": True, "stream_options": {"include_usage": True}} if is_stream else {}
    asked = plain.ask(messages, **more, **stream)
    leg = asked.legs[-1]
    assert asked.text == leg.said("content") and asked.text
    assert (asked.finish, leg.ends) == (leg.finish, ["data: [DONE]"])
    row = asked.row()
    assert row["finish_reason"] == asked.finish and row["outcome"] == "succeeded"
    assert asked.usage["completion_tokens"] == leg.usage["completion_tokens"]
    assert asked.usage["prompt_tokens"] == leg.usage["prompt_tokens"] - row["note_tokens"]
    assert len(asked.legs) == len(asked.rows())


def closed(on: Stage, questions: tuple[str, ...], by: str, **more: Any) -> Asked:
    """The first of the answers whose reasoning the monitor closed, as the row names it."""
    named = []
    for question in questions:
        asked = on.ask([user(question)], **more)
        named.append(asked.row()["thinking_closed_by"])
        if named[-1] == by:
            return asked
    raise AssertionError(f"closed by {named}, never by {by}")


@pytest.mark.parametrize("is_stream", [False, True])
def test_a_loop_is_closed_and_the_answer_follows(reasoning: Stage, is_stream: bool) -> None:
    stream = {"stream": True, "stream_options": {"include_usage": True}} if is_stream else {}
    asked = closed(reasoning, LOOPS, "loop", max_tokens=1100, **stream)
    *_, cut, further = asked.legs
    assert asked.text.strip() and asked.text == further.said("content")
    assert not further.said("reasoning_content")
    assert cut.said("reasoning_content").startswith(asked.reasoning)
    assert not cut.said("content") and not cut.ends
    assert (asked.finish, further.ends) == (further.finish, ["data: [DONE]"])
    acts = [(line["task"], line["mode"]) for line in asked.journal("monitor_act")]
    assert acts[0] in (("D1", "act"), ("D1b", "act"))

    begun = further.sent["messages"][-1]
    assert begun["content"] == "" and further.sent["continue_final_message"] == "content"
    assert begun["reasoning_content"].startswith(asked.reasoning)
    bridge = begun["reasoning_content"].removeprefix(asked.reasoning)
    assert bridge.strip() and bridge.strip() not in asked.reasoning
    assert further.sent["messages"][:-1] == cut.sent["messages"]
    shown = rendered(reasoning, further)
    assert shown == f"{rendered(reasoning, cut)}{begun['reasoning_content']}\n</think>\n\n"

    assert set(asked.kinds()) - {"classifier"} == {"continuation", "generation"}
    assert len(asked.legs) == len(asked.rows())
    row, child = asked.row(), asked.row("continuation")
    first_tokens = cut.written_up_to(asked.reasoning)
    assert (row["outcome"], child["outcome"]) == ("succeeded", "succeeded")
    assert (row["usage_source"], child["usage_source"]) == ("backend", "backend")
    assert row["upstream_output_tokens"] == first_tokens
    assert child["upstream_input_tokens"] == further.usage["prompt_tokens"]
    assert child["upstream_cached_tokens"] == further.usage["cached_tokens"]
    assert further.usage["cached_tokens"] >= row["upstream_input_tokens"]

    both = first_tokens + further.usage["completion_tokens"]
    assert asked.usage["completion_tokens"] == row["completion_tokens"] == both
    assert asked.usage["prompt_tokens"] == row["upstream_input_tokens"] - row["note_tokens"]
    assert (row["adjusted"], row["hidden_tokens"]) == (1, 0)
    print(
        f"\nloop closed after {first_tokens} tokens; {further.usage['cached_tokens']} of"
        f" {further.usage['prompt_tokens']} were cached, {len(asked.text)} characters followed"
    )


def test_an_answer_that_ended_in_its_reasoning_is_gone_on_with(reasoning: Stage) -> None:
    asked = closed(reasoning, SHORT_THOUGHTS, "E1", max_tokens=700)
    *_, ended, further = asked.legs
    assert ended.finish == "stop" and not ended.said("content").strip()
    assert asked.reasoning == ended.said("reasoning_content")
    assert asked.text.strip() and asked.text == further.said("content")
    assert rendered(reasoning, further).count("<think>") == 1
    both = ended.usage["completion_tokens"] + further.usage["completion_tokens"]
    assert asked.usage["completion_tokens"] == both
    assert set(asked.kinds()) - {"classifier"} == {"continuation", "generation"}


def rendered(on: Stage, leg: Leg) -> str:
    """The prompt that the server makes of a request, as it says itself."""
    url = f"http://127.0.0.1:{on.port}/apply-template"
    return str(httpx.post(url, json=leg.sent).json()["prompt"])
