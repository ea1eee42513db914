"""The managed path against a worker that speaks the real link: what is sent, shown and booked."""

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import httpx
import pytest

from gateway.settings.types import WorkerHostSettings
from proto.messages import (
    Ack,
    Cancel,
    Credit,
    Drain,
    Hello,
    Progress,
    Queued,
    Refused,
    Submit,
)
from proto.worker_settings import QueueSettings, WorkerSettings
from tests.fakes.worker import FakeWorker, Script
from tests.gateway.harness import Running, running_gateway

BODY = {"model": "TandemLLM", "messages": [{"role": "user", "content": "hi"}]}


@asynccontextmanager
async def engine(
    tmp_path: Path, script: Script, **queue: Any
) -> AsyncIterator[tuple[Running, FakeWorker, httpx.AsyncClient]]:
    worker = FakeWorker(script)
    async with worker.listening(tmp_path) as endpoint:
        host = WorkerHostSettings(endpoint=endpoint, spawn=False, conductor=False)
        settings = WorkerSettings(queue=QueueSettings(**queue))
        async with (
            running_gateway(tmp_path, worker=host, engine=settings) as gateway,
            httpx.AsyncClient(base_url=gateway.base, timeout=10) as client,
        ):
            link = gateway.gateway.engine
            assert link is not None
            async with asyncio.timeout(5):
                await link.wait_ready()
            yield gateway, worker, client


async def say_hello(worker: FakeWorker, run: Submit) -> None:
    await worker.write(run, "Hel", "lo")
    await worker.finish(run, 2)


def records(text: str) -> list[Any]:
    lines = [line[6:] for line in text.splitlines() if line.startswith("data: ")]
    return [line if line == "[DONE]" else json.loads(line) for line in lines]


async def test_a_whole_answer_is_written_and_booked(tmp_path: Path) -> None:
    async with engine(tmp_path, say_hello) as (gateway, worker, client):
        answer = await client.post("/v1/chat/completions", json={**BODY, "temperature": 0.5})
        row = await gateway.row()
        run = await worker.hear(Submit)
        await worker.hear(Ack)
    body = answer.json()
    assert body["choices"][0]["message"] == {"role": "assistant", "content": "Hello"}
    assert body["usage"]["total_tokens"] == 7
    assert answer.headers["x-routed-via"] == "worker/TandemLLM"
    assert run.params.temperature == 0.5 and run.call.messages[0].text == "hi"
    assert (row.path, row.run_id, row.finish_reason) == ("managed", run.run_id, "stop")
    assert (row.prompt_tokens, row.completion_tokens, row.usage_source) == (5, 2, "backend")
    assert (row.queue_ms, row.prompt_ms, row.ttft_ms) == (1, 2, 3)


async def test_a_stream_is_written_as_it_comes(tmp_path: Path) -> None:
    go_on = asyncio.Event()

    async def script(worker: FakeWorker, run: Submit) -> None:
        await worker.write(run, "a")
        await go_on.wait()
        await worker.write(run, "b", first=2)
        await worker.finish(run, 2)

    async with (
        engine(tmp_path, script) as (_, _, client),
        client.stream("POST", "/v1/chat/completions", json={**BODY, "stream": True}) as answer,
    ):
        lines = answer.aiter_lines()
        first = json.loads((await anext(lines)).removeprefix("data: "))
        go_on.set()
        rest = records("\n".join([line async for line in lines]))
    assert first["choices"][0]["delta"] == {"role": "assistant", "content": "a"}
    assert rest[-1] == "[DONE]" and rest[-2]["choices"][0]["finish_reason"] == "stop"


@pytest.mark.parametrize(
    ("refused", "status", "code", "retry_after"),
    [
        (("busy", "queue_full", 5000), 503, "queue_full", "5"),
        (("busy", "queue_timeout", 10_000), 429, "queue_timeout", "10"),
        (("busy", "memory_full", 30_000), 503, "memory_full", "30"),
        (("draining", "draining", 30_000), 503, "draining", "30"),
        (("too_long", "9000 tokens, window 8192", None), 400, "context_length_exceeded", None),
        (("bad_request", "no images", None), 400, "invalid_request", None),
        (("unknown_run", "?", None), 503, "engine_unavailable", "5"),
    ],
)
async def test_a_refusal_has_its_status_and_retry_time(
    tmp_path: Path, refused: Any, status: int, code: str, retry_after: str | None
) -> None:
    async def script(worker: FakeWorker, run: Submit) -> None:
        await worker.send(
            Refused(refused[0], refused[1], run_id=run.run_id, param="messages",
                    retry_after_ms=refused[2])
        )  # fmt: skip

    async with engine(tmp_path, script) as (gateway, _, client):
        answer = await client.post("/v1/chat/completions", json={**BODY, "stream": True})
        row = await gateway.row()
    assert (answer.status_code, answer.json()["error"]["code"]) == (status, code)
    assert answer.headers.get("retry-after") == retry_after
    assert row.completion_tokens is None
    assert row.outcome == ("failed" if code == "engine_unavailable" else "refused")


async def test_a_client_that_leaves_cancels_its_run(tmp_path: Path) -> None:
    async def script(worker: FakeWorker, run: Submit) -> None:
        await worker.write(run, "a", "b", "c")

    async with engine(tmp_path, script) as (gateway, worker, client):
        async with client.stream(
            "POST", "/v1/chat/completions", json={**BODY, "stream": True}
        ) as answer:
            lines = answer.aiter_lines()
            while '"c"' not in await anext(lines):
                continue
        cancel = await worker.hear(Cancel)
        row = await gateway.row()
    assert cancel.run_id == (row.run_id)
    assert (row.outcome, row.error_type) == ("aborted", "client_left")
    assert (row.prompt_tokens, row.completion_tokens, row.usage_source) == (5, 3, "counted")


async def test_credit_follows_what_the_client_takes(tmp_path: Path) -> None:
    async def script(worker: FakeWorker, run: Submit) -> None:
        assert run.credit == 256
        await worker.write(run, *["x"] * 300)
        await worker.finish(run, 300)

    async with engine(tmp_path, script) as (_, worker, client):
        await client.post("/v1/chat/completions", json=BODY)
        credits = [await worker.hear(Credit, n) for n in (1, 2)]
        acks = [await worker.hear(Ack, n) for n in (1, 2, 3)]
    assert [credit.tokens for credit in credits] == [128, 128]
    assert [(ack.upto, ack.done) for ack in acks] == [(128, False), (256, False), (300, True)]


async def test_a_worker_that_falls_silent_ends_its_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("gateway.backends.engine.LINK_LEASE_S", 0.6)
    monkeypatch.setattr("gateway.backends.engine.LINK_BEAT_S", 0.1)

    async def script(worker: FakeWorker, run: Submit) -> None:
        await worker.write(run, "a")
        worker.is_silent = True

    async with engine(tmp_path, script) as (gateway, worker, client):
        answer = await client.post("/v1/chat/completions", json={**BODY, "stream": True})
        ended = records(answer.text)
        refused = await client.post("/v1/chat/completions", json=BODY)
        not_ready = await client.get("/readyz")
        worker.is_silent = False
        worker.script = say_hello
        assert gateway.gateway.engine is not None
        async with asyncio.timeout(5):
            await gateway.gateway.engine.wait_ready()
        again = await client.post("/v1/chat/completions", json=BODY)
        row = await gateway.row()
    assert ended[-1] == "[DONE]"
    assert ended[-2]["error"]["code"] == "engine_unavailable"
    assert ended[-2]["error"]["type"] == "stream_error"
    assert (refused.status_code, refused.headers["retry-after"]) == (503, "5")
    assert (not_ready.status_code, not_ready.json()["reason"]) == (503, "worker_unavailable")
    assert again.json()["choices"][0]["message"]["content"] == "Hello"
    assert (row.outcome, row.error_type, row.completion_tokens) == (
        "failed", "engine_unavailable", 1,
    )  # fmt: skip


async def test_a_worker_that_was_replaced_loses_the_runs_of_the_old_one(tmp_path: Path) -> None:
    async def script(worker: FakeWorker, run: Submit) -> None:
        await worker.write(run, "a")
        await worker.send(replace(worker.ready, incarnation="2"))

    async with engine(tmp_path, script) as (_, _, client):
        answer = await client.post("/v1/chat/completions", json=BODY)
    assert answer.json()["error"]["code"] == "engine_unavailable"


async def test_a_draining_worker_gets_nothing_new(tmp_path: Path) -> None:
    async with engine(tmp_path, say_hello) as (_, worker, client):
        await worker.send(Drain(1000))
        async with asyncio.timeout(5):
            while (await client.get("/readyz")).status_code == 200:
                await asyncio.sleep(0.01)
        answer = await client.post("/v1/chat/completions", json=BODY)
    assert answer.json()["error"]["code"] == "engine_unavailable"
    assert not [message for message in worker.heard if isinstance(message, Submit)]


async def test_a_stream_that_waits_is_opened_and_told_how_long(tmp_path: Path) -> None:
    async def script(worker: FakeWorker, run: Submit) -> None:
        await worker.send(Queued(run.run_id, 2, 7000, 5, "", ""))
        await worker.send(Progress(run.run_id, "prefill", 1, 5, 0))
        await worker.write(run, "a")
        await worker.finish(run, 1)

    async with engine(tmp_path, script, open_after_s=0) as (_, _, client):
        answer = await client.post("/v1/chat/completions", json={**BODY, "stream": True})
    assert ": waiting at position 2, about 7 s\n\n" in answer.text
    assert records(answer.text)[-1] == "[DONE]"


async def test_a_stream_that_was_opened_while_waiting_ends_with_the_refusal(tmp_path: Path) -> None:
    async def script(worker: FakeWorker, run: Submit) -> None:
        await worker.send(Refused("busy", "queue_timeout", run_id=run.run_id, retry_after_ms=10))

    async with engine(tmp_path, script, open_after_s=0) as (gateway, _, client):
        answer = await client.post("/v1/chat/completions", json={**BODY, "stream": True})
        row = await gateway.row()
    assert answer.status_code == 200
    assert records(answer.text)[-2]["error"]["code"] == "queue_timeout"
    assert (row.outcome, row.error_type) == ("failed", "queue_timeout")


async def test_done_for_a_run_that_nobody_has_is_acknowledged(tmp_path: Path) -> None:
    async with engine(tmp_path, say_hello) as (_, worker, _):
        ghost = Submit("ghost", 1, 1, 0, None, None, None, 0, "", 0)  # type: ignore[arg-type]
        await worker.finish(ghost, 9)
        ack = await worker.hear(Ack)
    assert (ack.run_id, ack.upto, ack.done) == ("ghost", 9, True)


async def test_an_engine_fault_is_an_error_not_an_answer(tmp_path: Path) -> None:
    async def script(worker: FakeWorker, run: Submit) -> None:
        await worker.finish(run, 0, reason="error")

    async with engine(tmp_path, script) as (gateway, worker, client):
        answer = await client.post("/v1/chat/completions", json=BODY)
        row = await gateway.row()
        await worker.hear(Ack)
    assert answer.status_code == 503
    assert row.outcome == "failed"


async def test_a_drain_that_runs_out_ends_streams_with_an_error(tmp_path: Path) -> None:
    async def script(worker: FakeWorker, run: Submit) -> None:
        await worker.write(run, "a")

    async with engine(tmp_path, script) as (gateway, worker, client):
        asking = asyncio.create_task(
            client.post("/v1/chat/completions", json={**BODY, "stream": True})
        )
        await worker.hear(Submit)
        gateway.gateway.settings = replace(
            gateway.gateway.settings, server=replace(gateway.gateway.settings.server, drain_s=0.2)
        )
        await gateway.gateway.drain()
        answer = await asking
        late = await client.post("/v1/chat/completions", json=BODY)
    assert records(answer.text)[-2]["error"]["type"] == "stream_error"
    assert (late.status_code, late.json()["error"]["code"]) == (503, "draining")


async def test_a_worker_that_does_not_know_us_is_told_who_we_are(tmp_path: Path) -> None:
    """It was replaced within the lease, or forgot us while this process stood still."""
    async with engine(tmp_path, say_hello) as (_, worker, client):
        hellos = len([m for m in worker.heard if isinstance(m, Hello)])
        await worker.send(Refused("bad_message", "say Hello first"))
        await worker.hear(Hello, hellos + 1)
        async with asyncio.timeout(5):
            while (await client.get("/readyz")).status_code != 200:
                await asyncio.sleep(0.01)
        answer = await client.post("/v1/chat/completions", json=BODY)
    assert answer.status_code == 200


async def test_a_run_that_nobody_waits_for_is_cancelled(tmp_path: Path) -> None:
    async with engine(tmp_path, say_hello) as (_, worker, _):
        await worker.send(Progress("ghost", "prefill", 1, 5, 0))
        cancel = await worker.hear(Cancel)
    assert cancel.run_id == "ghost"


async def test_half_an_emoji_is_replaced_and_what_no_message_can_hold_is_a_400(
    tmp_path: Path,
) -> None:
    async with engine(tmp_path, say_hello) as (gateway, worker, client):
        half = b'{"model":"TandemLLM","messages":[{"role":"user","content":"a\\ud83d"}]}'
        answer = await client.post("/v1/chat/completions", content=half)
        run = await worker.hear(Submit)
        huge = await client.post(
            "/v1/chat/completions", json={**BODY, "chat_template_kwargs": {"a": 2**70}}
        )
        link = gateway.gateway.engine
        assert link is not None and not link._runs
    assert answer.status_code == 200
    assert run.call.messages[0].text == "a\ufffd"
    assert (huge.status_code, huge.json()["error"]["param"]) == (400, "chat_template_kwargs")


async def test_faults_of_the_link_are_counted_by_kind(tmp_path: Path) -> None:
    """Bytes that are no message, a message nobody has a use for, and a refusal of no run."""
    async with engine(tmp_path, say_hello) as (_, worker, client):
        await worker.send_bytes(b"\xc1 no message")
        for _ in range(2):
            await worker.send(Hello("gw", "gw", 1, 1))
        await worker.send(Refused("draining", "no run"))
        counts = {"refused": 1, "ignored": 2, "rejected": 1}
        expected = {f'tandem_link_faults_total{{kind="{k}"}} {n}.0' for k, n in counts.items()}
        async with asyncio.timeout(5):
            while not expected <= {*(await client.get("/metrics")).text.splitlines()}:
                await asyncio.sleep(0.01)
