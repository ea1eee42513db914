"""Memory notes that models of an HTTP backend write: the same as before our own engine."""

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import httpx

from conductor.memory.tool import NAME
from conductor.profiles import MemoryRules
from gateway.settings.types import ConductorSettings
from gateway.store.db import Database
from gateway.store.memory_desk import list_notes
from tests.fakes.backend import Cut, FakeBackend, Gate, Reply, sse
from tests.gateway.harness import Running, backend, running_gateway
from tests.gateway.managed_backend import call, end, text, usage
from tests.gateway.remembering import planning

FACT = "the suite takes ten minutes"
BLOCK = f"\n<tandem_memory>\nfact: {FACT}\n</tandem_memory>"
REMEMBER = call(0, "c0", NAME, json.dumps({"kind": "fact", "text": FACT}))
LOOK = {"type": "function", "function": {"name": "look", "parameters": {"type": "object"}}}
HEADERS = {"X-Tandem-Profile": "chat"}
ASK: dict[str, Any] = {"model": "m", "messages": [{"role": "user", "content": "How long?"}]}
BUSY = Reply(503, pieces=[b'{"error":{"message":"no place"}}'])


@asynccontextmanager
async def before(
    tmp_path: Path, *answers: Reply, **settings: Any
) -> AsyncIterator[tuple[Running, FakeBackend, httpx.AsyncClient]]:
    left = list(answers)
    async with (
        FakeBackend(lambda seen: left.pop(0)) as up,
        running_gateway(
            tmp_path,
            backends={"b": backend(up.url, conductor=True, **settings)},
            planning=planning(MemoryRules(write=True)),
            conductor=ConductorSettings(),
        ) as running,
        httpx.AsyncClient(base_url=running.base, timeout=10, headers=HEADERS) as client,
    ):
        yield running, up, client


def kept(tmp_path: Path) -> list[str]:
    """The texts of the notes; to be read when the gateway has ended."""
    database = Database.open(tmp_path / "state" / "tandem.sqlite", only_below=tmp_path)
    try:
        return [note.text for note in list_notes(database.reader)]
    finally:
        database.close()


async def test_a_block_is_cut_and_its_tokens_do_not_count(tmp_path: Path) -> None:
    reply = sse(text("Ten."), text(BLOCK[:9]), text(BLOCK[9:]), *end(**usage(7, 20)))
    async with before(tmp_path, reply, tokens_per_delta="one") as (running, _, client):
        answer = (await client.post("/v1/chat/completions", json=ASK)).json()
        row = await running.row()
    assert answer["choices"][0]["message"]["content"] == "Ten."
    assert answer["usage"]["completion_tokens"] == row.completion_tokens == 18
    assert (row.hidden_tokens, row.upstream_output_tokens, row.adjusted) == (2, 20, 1)
    assert kept(tmp_path) == [FACT]


async def test_an_answer_goes_on_behind_a_call_of_the_tool(tmp_path: Path) -> None:
    first = sse(text("Noted."), REMEMBER, *end("tool_calls", **usage(30, 9)))
    second = sse(text("Ten."), *end(**usage(50, 2)))
    async with before(
        tmp_path, first, second, tokens_per_delta="one", max_in_flight=1
    ) as (running, up, client):  # fmt: skip
        answer = await client.post("/v1/chat/completions", json={**ASK, "tools": [LOOK]})
        child, row = await running.row(0), await running.row(1)
    (choice,) = answer.json()["choices"]
    assert choice["message"] == {"role": "assistant", "content": "Noted.\n\nTen."}
    assert choice["finish_reason"] == "stop"
    bodies = [json.loads(seen.body) for seen in up.seen]
    assert [tool["function"]["name"] for tool in bodies[0]["tools"]] == ["look", NAME]
    said, result = bodies[1]["messages"][-2:]
    assert bodies[1]["messages"][:-2] == bodies[0]["messages"]
    assert (said["content"], said["tool_calls"][0]["id"]) == ("Noted.", "c0")
    assert result == {"role": "tool", "content": "Kept.", "tool_call_id": "c0"}
    shown = answer.json()["usage"]
    assert (shown["prompt_tokens"], shown["completion_tokens"]) == (30, 3)
    assert (child.kind, child.parent_request_id, child.upstream_output_tokens) == (
        "continuation", row.request_id, 2,
    )  # fmt: skip
    assert (row.completion_tokens, row.hidden_tokens, row.upstream_output_tokens) == (3, 8, 9)
    assert row.tool_calls is None and row.adjusted == 1
    assert kept(tmp_path) == [FACT]


async def test_where_the_backend_takes_no_further_request_the_answer_stands(
    tmp_path: Path,
) -> None:
    first = sse(text("Noted."), REMEMBER, *end("tool_calls", **usage(30, 9)))
    async with before(tmp_path, first, BUSY) as (running, _, client):
        answer = await client.post("/v1/chat/completions", json={**ASK, "tools": [LOOK]})
        child, row = await running.row(0), await running.row(1)
    (choice,) = answer.json()["choices"]
    assert (choice["message"]["content"], choice["finish_reason"]) == ("Noted.", "stop")
    assert (child.outcome, row.outcome) == ("failed", "succeeded")
    assert kept(tmp_path) == [FACT]


async def test_one_that_breaks_off_behind_the_first_words_ends_as_an_error(tmp_path: Path) -> None:
    first = sse(text("Noted."), REMEMBER, *end("tool_calls", **usage(30, 9)))
    async with before(tmp_path, first, sse(text("Te"), Cut())) as (running, _, client):
        answer = await client.post("/v1/chat/completions", json={**ASK, "tools": [LOOK]})
        child, row = await running.row(0), await running.row(1)
    assert answer.status_code == 502
    assert (child.outcome, row.outcome) == ("failed", "failed")
    assert row.completion_tokens + row.hidden_tokens == (
        row.upstream_output_tokens + child.upstream_output_tokens
    )


async def test_a_client_that_leaves_a_block_is_served_no_more(tmp_path: Path) -> None:
    gate = Gate()
    reply = sse(text("Ten."), text(BLOCK[:20]), gate)
    async with before(tmp_path, reply, tokens_per_delta="one") as (running, up, client):
        asking = asyncio.create_task(client.post("/v1/chat/completions", json=ASK))
        await gate.reached.wait()
        asking.cancel()
        await asyncio.gather(asking, return_exceptions=True)
        row = await running.row()
    assert row.outcome == "aborted" and up.hung_up.is_set()
    assert kept(tmp_path) == []
