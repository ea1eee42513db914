"""Small questions to a backend: in whose words, what is answered, what is booked."""

import asyncio
import json
import time
from typing import Any

import pytest

from conductor.ports import PortFault, Question
from gateway.backends.base import Backend
from gateway.backends.http import Place
from gateway.backends.http_host import HttpHost
from gateway.conducting.ask import Answering, HostAsk
from gateway.ledger.entry import Entry
from gateway.outbox import Outbox
from gateway.relay.client import UpstreamClient
from tests.fakes.backend import FakeBackend, Gate, Reply, sse
from tests.fakes.books import MemoryBooks
from tests.gateway.harness import backend
from tests.gateway.managed_backend import end, event, text, thought, usage

QUESTION = Question("Which?", "a text", ("chat", "fact"))
WRAPPED = text(json.dumps({"choice": "fact"}))


class Asked:
    """One question to a scripted backend, and what became of it."""

    def __init__(self, books: MemoryBooks, up: FakeBackend, one: Backend) -> None:
        self.books, self.up, self.backend = books, up, one
        client = UpstreamClient(Outbox(asyncio.get_running_loop()))
        entry = Entry(request_id="r", ts_ms=1, arrived_s=time.monotonic())
        entry.backend, entry.upstream_model = "b", "m"
        host = HttpHost(Place(one, client, books))
        self.port = HostAsk(Answering(host, "m", "b"), books, entry, salt="")

    def sent(self, number: int = 0) -> Any:
        return json.loads(self.up.seen[number].body)


def at(up: FakeBackend, **settings: Any) -> Asked:
    return Asked(MemoryBooks(), up, Backend("b", backend(up.url, **settings)))


@pytest.mark.parametrize(
    ("flavor", "fields", "answer"),
    [
        ("vllm", {"structured_outputs": {"choice": ["chat", "fact"]}}, text("fact")),
        ("sglang", {"regex": "(chat|fact)"}, text("fact")),
        ("llamacpp", {"grammar": 'root ::= "chat" | "fact"'}, text(" fact")),
        ("none", {"max_tokens": 20}, WRAPPED),
        ("openrouter", {"max_tokens": 20}, WRAPPED),
    ],
)
async def test_each_server_is_held_to_the_choices_in_its_own_words(
    flavor: Any, fields: dict[str, Any], answer: bytes
) -> None:
    async with FakeBackend(lambda seen: sse(answer, *end(**usage(30, 1)))) as up:
        asked = at(up, flavor=flavor)
        reply = await asked.port.ask(QUESTION)
    sent = asked.sent()
    assert reply.text == "fact" and sent.items() >= fields.items()
    assert (sent["temperature"], sent["messages"][1]["content"]) == (0, "a text")
    schema = sent.get("response_format", {}).get("json_schema", {}).get("schema", {})
    if flavor in ("none", "openrouter"):
        assert schema["properties"]["choice"]["enum"] == ["chat", "fact"]
    else:
        assert not schema and sent["chat_template_kwargs"] == {"enable_thinking": False}
    (row,) = asked.books.rows
    assert (row.kind, row.parent_request_id, row.request_id) == (
        "classifier",
        "r",
        "r-classifier-1",
    )
    assert (row.upstream_input_tokens, row.upstream_output_tokens) == (30, 1)
    assert (row.outcome, row.backend, row.upstream_model) == ("succeeded", "b", "m")
    assert asked.backend.in_flight == 0


async def test_a_server_that_ignores_the_form_is_asked_in_its_older_name_next() -> None:
    async with FakeBackend(lambda seen: sse(text("Well, it is a fact."), *end())) as up:
        asked = at(up, flavor="vllm")
        for _ in range(2):
            with pytest.raises(PortFault, match="no_choice"):
                await asked.port.ask(QUESTION)
    assert asked.sent(1)["guided_choice"] == ["chat", "fact"]
    assert "structured_outputs" not in asked.sent(1)


async def test_reasoning_is_no_part_of_an_answer() -> None:
    up_answer = (thought("hm"), text("<think>x</think>"), text("fact"), *end())
    async with FakeBackend(lambda seen: sse(*up_answer)) as up:
        with pytest.raises(PortFault):
            await at(up).port.ask(QUESTION)
    async with FakeBackend(lambda seen: sse(text("<think>x</think>fact"), *end())) as up:
        assert (await at(up).port.ask(QUESTION)).text == "fact"


@pytest.mark.parametrize(
    ("reply", "reason"),
    [
        (Reply(401, pieces=[b"no"]), "provider_authentication_failed"),
        (Reply(400, pieces=[b"no"]), "provider_rejected_request"),
        (sse(Gate()), "timeout"),
    ],
)
async def test_a_fault_is_the_ports(reply: Reply, reason: str) -> None:
    async with FakeBackend(lambda seen: reply) as up:
        asked = at(up)
        with pytest.raises(PortFault, match=reason):
            await asked.port.ask(Question("s", "t", ("a", "b"), timeout_ms=200))
    (row,) = asked.books.rows
    assert (row.outcome, row.error_type) == ("failed", reason)
    assert asked.backend.in_flight == 0


async def test_a_question_waits_behind_nobody() -> None:
    async with FakeBackend(lambda seen: sse(event({}), *end())) as up:
        asked = at(up, max_in_flight=1)
        asked.backend.in_flight = 1
        with pytest.raises(PortFault, match="backend_busy"):
            await asked.port.ask(QUESTION)
    assert not up.seen and asked.books.rows[0].error_type == "backend_busy"
