"""Bug class 22: whoever hangs up while something is waited for ends all of it.

The relay's part: `test_r16_unstreamed_hang_up`, `test_r17_abandoned_streams`.
"""

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest

from conductor.monitor.verdicts import CallForm, Regenerate
from proto.messages import Cancel, Delta, Progress, Queued, Submit
from tests.fakes.backend import Gate
from tests.fakes.worker import FakeWorker
from tests.gateway.conducted import body, conducted, is_question
from tests.gateway.managed_backend import TOOL, Scripted, call, end, stage

Phase = Callable[[FakeWorker, Submit], Awaitable[None]]


async def waits(worker: FakeWorker, run: Submit) -> None:
    await worker.send(Queued(run.run_id, 2, 40_000, 5, "", ""))


async def waits_for_memory(worker: FakeWorker, run: Submit) -> None:
    await worker.send(Progress(run.run_id, "memory_wait", 0, 20, 0))


async def reads(worker: FakeWorker, run: Submit) -> None:
    await worker.send(Progress(run.run_id, "prefill", 5, 20, 0))


async def writes_a_call_again(worker: FakeWorker, run: Submit) -> None:
    await worker.send(Delta(run.run_id, 1, (1,), ("Let me look.",), ("text",), (False,), retry=1))


@pytest.mark.parametrize("is_streamed", [True, False])
@pytest.mark.parametrize("phase", [waits, waits_for_memory, reads, writes_a_call_again])
async def test_a_run_of_our_own_engine_ends_in_every_phase(
    tmp_path: Path, phase: Phase, is_streamed: bool
) -> None:
    is_there = asyncio.Event()

    async def script(worker: FakeWorker, run: Submit) -> None:
        if is_question(run):
            await worker.write(run, "debug")
            return await worker.finish(run, 1)
        await phase(worker, run)
        is_there.set()

    async with conducted(tmp_path, script) as (gateway, worker, client):
        asked = body(stream=is_streamed)
        asking = asyncio.create_task(client.post("/v1/chat/completions", json=asked))
        async with asyncio.timeout(5):
            await is_there.wait()
        asking.cancel()
        await asyncio.gather(asking, return_exceptions=True)
        cancelled = await worker.hear(Cancel)
        rows = [await gateway.row(0), await gateway.row(1)]
        assert await gateway.gateway.pipeline.wait_idle(5)
    (main,) = [run for run in worker.heard if isinstance(run, Submit) and not is_question(run)]
    assert cancelled.run_id == main.run_id
    assert {row.kind: row.outcome for row in rows}["generation"] == "aborted"


async def test_a_question_for_the_class_ends(tmp_path: Path) -> None:
    async def silent(worker: FakeWorker, run: Submit) -> None:
        return None

    async with conducted(tmp_path, silent) as (gateway, worker, client):
        asking = asyncio.create_task(client.post("/v1/chat/completions", json=body()))
        question = await worker.hear(Submit)
        asking.cancel()
        await asyncio.gather(asking, return_exceptions=True)
        assert (await worker.hear(Cancel)).run_id == question.run_id
        rows = [await gateway.row(0), await gateway.row(1)]
    assert is_question(question) and {row.outcome for row in rows} == {"aborted"}


async def test_a_backends_second_request_ends(tmp_path: Path) -> None:
    again = Gate()
    monitor = Scripted(calls={0: Regenerate(0, CallForm("find"))})
    first = (call(0, "c", "find", "{}"), *end())
    async with stage(tmp_path, first, (again,), monitor=monitor, flavor="vllm") as on:
        asking = asyncio.create_task(on.ask(tools=[TOOL]))
        async with asyncio.timeout(5):
            while len(on.up.seen) < 2:
                await asyncio.sleep(0.005)
        asking.cancel()
        await asyncio.gather(asking, return_exceptions=True)
        async with asyncio.timeout(5):
            await on.up.hung_up.wait()
        rows = [await on.gateway.row(0), await on.gateway.row(1)]
    assert {row.kind: row.outcome for row in rows} == {
        "generation": "aborted", "regeneration": "aborted",
    }  # fmt: skip
