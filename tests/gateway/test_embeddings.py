"""Embeddings of our own engine against a worker that speaks the real link."""

import asyncio
import base64
import json
import struct
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import httpx
import pytest

from gateway.routing.table import RoutingTable, Target
from gateway.settings.types import Settings, WorkerHostSettings
from proto.limits import EMBED_TEXTS, EMBED_TEXTS_ASKED
from proto.messages import Cancel, Drain, Embed, Embedded, Refused, Submit
from tests.fakes.worker import READY, EmbedScript, FakeWorker
from tests.gateway.harness import Running, running_gateway

BODY = {"model": "TandemLLM", "input": "hi"}
EMBEDDING = replace(READY, caps=replace(READY.caps, embed=True))


async def no_run(worker: FakeWorker, run: Submit) -> None:
    raise AssertionError("nothing was to be generated")


async def by_length(worker: FakeWorker, question: Embed) -> None:
    """A vector tells the number of its text's characters; a text has two tokens."""
    vectors = tuple((float(len(text)), 0.5, -0.5, 0.25) for text in question.texts)
    await worker.send(Embedded(question.req_id, vectors, 2 * len(vectors)))


def refusing(code: Any, detail: str, param: str | None = None, after: int | None = None) -> Any:
    async def refuse(worker: FakeWorker, question: Embed) -> None:
        refused = Refused(code, detail, req_id=question.req_id, param=param, retry_after_ms=after)
        await worker.send(refused)

    return refuse


@asynccontextmanager
async def engine(
    tmp_path: Path, embed: EmbedScript = by_length, ready: Any = EMBEDDING
) -> AsyncIterator[tuple[Running, FakeWorker, httpx.AsyncClient]]:
    worker = FakeWorker(no_run, embed)
    worker.ready = ready
    async with worker.listening(tmp_path) as endpoint:
        host = WorkerHostSettings(endpoint=endpoint, spawn=False)
        async with (
            running_gateway(tmp_path, worker=host) as gateway,
            httpx.AsyncClient(base_url=gateway.base, timeout=10) as client,
        ):
            link = gateway.gateway.engine
            assert link is not None
            async with asyncio.timeout(5):
                await link.wait_ready()
            yield gateway, worker, client


async def ask(client: httpx.AsyncClient, **fields: Any) -> httpx.Response:
    return await client.post("/v1/embeddings", json={**BODY, **fields})


def error(answer: httpx.Response) -> tuple[int, str, str | None]:
    found = answer.json()["error"]
    return answer.status_code, found["code"], found["param"]


async def test_one_text_is_answered_and_booked(tmp_path: Path) -> None:
    async with engine(tmp_path) as (gateway, worker, client):
        answer = await ask(client, user="somebody", anything=1)
        row = await gateway.row()
        question = await worker.hear(Embed)
    assert answer.json() == {
        "object": "list",
        "data": [{"object": "embedding", "index": 0, "embedding": [2.0, 0.5, -0.5, 0.25]}],
        "model": "TandemLLM",
        "usage": {"prompt_tokens": 2, "total_tokens": 2},
    }
    assert answer.headers["x-routed-via"] == "worker/TandemLLM"
    assert answer.headers["content-type"] == "application/json"
    assert question.texts == ("hi",)
    assert (row.kind, row.path, row.backend, row.surface) == (
        "embedding", "managed", "worker", "embeddings",
    )  # fmt: skip
    assert (row.prompt_tokens, row.completion_tokens, row.usage_source) == (2, 0, "backend")
    assert (row.upstream_input_tokens, row.upstream_output_tokens) == (2, 0)
    assert (row.status, row.outcome, row.served_model) == (200, "succeeded", "fake")
    assert row.total_ms is not None


async def test_texts_keep_their_order_over_the_messages_they_are_asked_in(tmp_path: Path) -> None:
    texts = ["x" * (number % 50 + 1) for number in range(2 * EMBED_TEXTS_ASKED + 3)]
    async with engine(tmp_path) as (gateway, worker, client):
        answer = await ask(client, input=texts)
        row = await gateway.row()
    data = answer.json()["data"]
    assert [entry["index"] for entry in data] == list(range(len(texts)))
    assert [entry["embedding"][0] for entry in data] == [len(text) for text in texts]
    asked = [message.texts for message in worker.heard if isinstance(message, Embed)]
    assert [len(part) for part in asked] == [EMBED_TEXTS_ASKED, EMBED_TEXTS_ASKED, 3]
    assert answer.json()["usage"]["prompt_tokens"] == row.prompt_tokens == 2 * len(texts)


async def test_a_list_of_one_is_answered_as_one(tmp_path: Path) -> None:
    async with engine(tmp_path) as (_, _, client):
        whole, listed = await ask(client), await ask(client, input=["hi"])
    assert whole.content == listed.content


async def test_base64_is_little_endian_float32(tmp_path: Path) -> None:
    async with engine(tmp_path) as (_, _, client):
        answer = await ask(client, input=["a", "bb"], encoding_format="base64")
    packed = [base64.b64decode(entry["embedding"]) for entry in answer.json()["data"]]
    assert packed[0] == bytes.fromhex("0000803f 0000003f 000000bf 0000803e")
    assert struct.unpack("<4f", packed[1]) == (2.0, 0.5, -0.5, 0.25)


@pytest.mark.parametrize("encoding", ["float", "base64"])
async def test_dimensions_cut_and_make_the_length_one_again(tmp_path: Path, encoding: str) -> None:
    async with engine(tmp_path) as (_, _, client):
        answer = await ask(client, input="abc", dimensions=2, encoding_format=encoding)
        whole = await ask(client, input="abc", dimensions=4)
    vector = answer.json()["data"][0]["embedding"]
    if encoding == "base64":
        vector = struct.unpack("<2f", base64.b64decode(vector))
    length = (3.0**2 + 0.5**2) ** 0.5
    assert vector == pytest.approx([3.0 / length, 0.5 / length])
    assert len(whole.json()["data"][0]["embedding"]) == 4


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"input": None}, "input"),
        ({"input": ""}, "input"),
        ({"input": []}, "input"),
        ({"input": 7}, "input"),
        ({"input": {"text": "a"}}, "input"),
        ({"input": ["a", ""]}, "input[1]"),
        ({"input": ["a", "b", 7]}, "input[2]"),
        ({"input": ["a", None]}, "input[1]"),
        ({"input": [True]}, "input[0]"),
        ({"input": [1, 2, 3]}, "input"),
        ({"input": [[1, 2], [3]]}, "input[0]"),
        ({"input": ["a"] * (EMBED_TEXTS + 1)}, "input"),
        ({"dimensions": 0}, "dimensions"),
        ({"dimensions": 1.5}, "dimensions"),
        ({"dimensions": True}, "dimensions"),
        ({"dimensions": "8"}, "dimensions"),
        ({"dimensions": 5}, "dimensions"),  # the model has four
        ({"encoding_format": "int8"}, "encoding_format"),
        ({"encoding_format": ["float"]}, "encoding_format"),
    ],
)
async def test_a_bad_field_is_a_400_that_names_it(
    tmp_path: Path, fields: dict[str, Any], param: str
) -> None:
    async with engine(tmp_path) as (gateway, worker, client):
        answer = await ask(client, **fields)
        row = await gateway.row()
    assert error(answer) == (400, "invalid_request", param)
    assert f"'{param}'" in answer.json()["error"]["message"]
    assert (row.kind, row.outcome, row.status) == ("embedding", "refused", 400)
    if fields.get("input") in ([1, 2, 3], [[1, 2], [3]]):
        assert "token ids" in answer.json()["error"]["message"]
    if fields != {"dimensions": 5}:
        assert not [message for message in worker.heard if isinstance(message, Embed)]


async def test_fields_that_are_null_are_absent(tmp_path: Path) -> None:
    async with engine(tmp_path) as (_, _, client):
        answer = await ask(client, dimensions=None, encoding_format=None, user=None)
    assert answer.json()["data"][0]["embedding"] == [2.0, 0.5, -0.5, 0.25]


async def test_half_an_emoji_is_replaced(tmp_path: Path) -> None:
    async with engine(tmp_path) as (_, worker, client):
        half = b'{"model":"TandemLLM","input":["a\\ud83d"]}'
        answer = await client.post("/v1/embeddings", content=half)
    assert answer.status_code == 200
    assert (await worker.hear(Embed)).texts == ("a\ufffd",)


async def test_a_text_that_is_too_long_is_named_by_the_clients_own_count(tmp_path: Path) -> None:
    async def long_ones(worker: FakeWorker, question: Embed) -> None:
        if "long" not in question.texts:
            await by_length(worker, question)
            return
        param = f"texts[{question.texts.index('long')}]"
        await refusing("too_long", "the text has 9 tokens; this model takes 8", param)(
            worker, question
        )

    async with engine(tmp_path, long_ones) as (gateway, _, client):
        at = EMBED_TEXTS_ASKED + 2
        listed = await ask(client, input=["a"] * at + ["long"])
        single = await ask(client, input="long")
        row = await gateway.row()
    assert error(listed) == (400, "context_length_exceeded", f"input[{at}]")
    assert error(single) == (400, "context_length_exceeded", "input")
    for words in (f"'input[{at}]'", "9 tokens", "takes 8"):
        assert words in listed.json()["error"]["message"]
    assert (row.outcome, row.error_type, row.prompt_tokens) == (
        "refused", "context_length_exceeded", None,
    )  # fmt: skip


@pytest.mark.parametrize(
    ("refused", "status", "code", "param", "retry_after"),
    [
        (("busy", "queue_full", None, 5000), 503, "queue_full", None, "5"),
        (("busy", "queue_timeout", None, 10_000), 429, "queue_timeout", None, "10"),
        (("draining", "draining", None, 30_000), 503, "draining", None, "30"),
        (("internal", "RuntimeError", None, None), 503, "engine_unavailable", None, "5"),
        (("bad_request", "no token", "texts[0]", None), 400, "invalid_request", "input", None),
    ],
)
async def test_a_refusal_has_its_status_and_retry_time(
    tmp_path: Path, refused: Any, status: int, code: str, param: str | None, retry_after: Any
) -> None:
    async with engine(tmp_path, refusing(*refused)) as (gateway, _, client):
        answer = await ask(client)
        row = await gateway.row()
        again = await client.get("/readyz")
    assert error(answer) == (status, code, param)
    assert answer.headers.get("retry-after") == retry_after
    assert row.outcome == ("failed" if code == "engine_unavailable" else "refused")
    assert row.prompt_tokens is None
    assert again.status_code == 200  # a refused question is no reason to introduce oneself again


async def test_a_model_that_makes_none_is_not_served_on_embeddings(tmp_path: Path) -> None:
    async with engine(tmp_path, ready=READY) as (gateway, worker, client):
        answer = await ask(client)
        row = await gateway.row()
        other = await client.post("/v1/responses", json={"model": "TandemLLM", "input": "hi"})
    assert error(answer) == (404, "surface_not_served", "model")
    assert "not served on embeddings; it is on chat, completions." in answer.text
    assert "it is on chat, completions." in other.text
    assert (row.kind, row.outcome, row.status) == ("embedding", "refused", 404)
    assert not [message for message in worker.heard if isinstance(message, Embed)]


def test_the_table_asks_each_time_what_the_engines_model_can() -> None:
    can: list[bool] = [False]
    table = RoutingTable(Settings(worker=WorkerHostSettings()), lambda name: [], lambda: can[0])
    assert table.speaks(Target(None, "TandemLLM")) == ("chat", "completions")
    can[0] = True
    assert table.speaks(Target(None, "TandemLLM")) == ("chat", "completions", "embeddings")


async def test_a_client_that_leaves_calls_its_question_off(tmp_path: Path) -> None:
    async def once(worker: FakeWorker, question: Embed) -> None:
        if len([message for message in worker.heard if isinstance(message, Embed)]) == 1:
            await by_length(worker, question)

    async with engine(tmp_path, once) as (gateway, worker, client):
        asking = asyncio.create_task(ask(client, input=["a"] * (EMBED_TEXTS_ASKED + 1)))
        question = await worker.hear(Embed, 2)
        asking.cancel()
        cancel = await worker.hear(Cancel)
        row = await gateway.row()
        link = gateway.gateway.engine
        assert link is not None and not link._questions._open
        await by_length(worker, question)  # too late, and no reason to complain
        await asyncio.sleep(0.05)
        assert link.faults == {"refused": 0, "ignored": 0, "rejected": 0}
    assert cancel.run_id == question.req_id
    assert (row.outcome, row.error_type) == ("aborted", "client_left")
    assert row.prompt_tokens == 2 * EMBED_TEXTS_ASKED  # what was read for it until then


async def test_a_worker_that_is_gone_is_told_and_nobody_waits(tmp_path: Path) -> None:
    async def be_replaced(worker: FakeWorker, question: Embed) -> None:
        await worker.send(replace(worker.ready, incarnation="2"))

    async with engine(tmp_path, be_replaced) as (gateway, worker, client):
        answer = await ask(client)
        row = await gateway.row()
        worker.embed = by_length
        again = await ask(client)
    assert error(answer) == (503, "engine_unavailable", None)
    assert (row.outcome, row.status) == ("failed", 503)
    assert again.status_code == 200


async def test_vectors_of_two_models_are_never_in_one_answer(tmp_path: Path) -> None:
    async def change(worker: FakeWorker, question: Embed) -> None:
        await by_length(worker, question)
        await worker.send(replace(worker.ready, weights_hash="other"))

    async with engine(tmp_path, change) as (_, _, client):
        answer = await ask(client, input=["a"] * (EMBED_TEXTS_ASKED + 1))
    assert error(answer) == (503, "engine_unavailable", None)


async def test_too_few_vectors_are_no_answer(tmp_path: Path) -> None:
    async def one(worker: FakeWorker, question: Embed) -> None:
        await worker.send(Embedded(question.req_id, ((1.0,),), 2))

    async with engine(tmp_path, one) as (_, _, client):
        answer = await ask(client, input=["a", "b"])
    assert error(answer) == (503, "engine_unavailable", None)


async def test_a_draining_worker_is_asked_nothing(tmp_path: Path) -> None:
    async with engine(tmp_path) as (_, worker, client):
        await worker.send(Drain(1000))
        async with asyncio.timeout(5):
            while (await client.get("/readyz")).status_code == 200:
                await asyncio.sleep(0.01)
        answer = await ask(client)
    assert error(answer) == (503, "engine_unavailable", None)
    assert not [message for message in worker.heard if isinstance(message, Embed)]


async def test_a_drain_of_the_gateway_that_runs_out_ends_the_question(tmp_path: Path) -> None:
    async def never(worker: FakeWorker, question: Embed) -> None:
        return

    async with engine(tmp_path, never) as (gateway, worker, client):
        asking = asyncio.create_task(ask(client))
        await worker.hear(Embed)
        server = replace(gateway.gateway.settings.server, drain_s=0.1)
        gateway.gateway.settings = replace(gateway.gateway.settings, server=server)
        await gateway.gateway.drain()
        answer = await asking
        await worker.hear(Cancel)
    assert error(answer) == (503, "draining", None)


async def test_the_name_that_was_asked_for_is_the_one_that_is_answered(tmp_path: Path) -> None:
    async with engine(tmp_path) as (_, _, client):
        answer = await ask(client, model='text-"embedding"-3-ü')
    assert json.loads(answer.content)["model"] == 'text-"embedding"-3-ü'
