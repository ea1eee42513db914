"""The conductor in the gateway, before a worker that speaks the real link."""

import asyncio
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import httpx
import pytest

from gateway.app import Gateway
from gateway.settings.load import SettingsError
from gateway.settings.types import ConductorSettings, NotesSettings, WorkerHostSettings
from proto.messages import Delta, MonitorEvent, Refused, Submit
from tests.fakes.backend import FakeBackend, sse
from tests.fakes.worker import FakeWorker
from tests.gateway.conducted import ASKED, conducted, is_question
from tests.gateway.harness import backend, running_gateway
from tests.gateway.managed_backend import end, text, usage

BODY = {"model": "TandemLLM", "messages": [{"role": "user", "content": ASKED}]}


async def answer(worker: FakeWorker, run: Submit) -> None:
    await worker.write(run, "debug" if is_question(run) else "It lacks a bracket.")
    await worker.finish(run, 1)


def kept(gateway: Gateway) -> int:
    rooms: Any = gateway.rooms
    return len(rooms.notebook.session_rows)


async def test_what_the_next_turn_needs_is_kept_while_this_one_is_answered(tmp_path: Path) -> None:
    may_end = asyncio.Event()

    async def slow(worker: FakeWorker, run: Submit) -> None:
        if not is_question(run):
            await may_end.wait()
        await answer(worker, run)

    async with conducted(tmp_path, slow) as (gateway, worker, client):
        asking = asyncio.create_task(client.post("/v1/chat/completions", json=BODY))
        await worker.hear(Submit, 2)
        async with asyncio.timeout(5):
            while not kept(gateway.gateway):
                await asyncio.sleep(0.005)
        may_end.set()
        assert (await asking).status_code == 200


async def test_a_question_is_a_short_run_of_the_side_lane_and_a_row_of_its_own(
    tmp_path: Path,
) -> None:
    async with conducted(tmp_path, answer) as (gateway, worker, client):
        await client.post("/v1/chat/completions", json=BODY)
        question, run = await worker.hear(Submit), await worker.hear(Submit, 2)
        rows = [await gateway.row(0), await gateway.row(1)]
    assert is_question(question) and question.plan.lane == "side"
    assert question.params.max_tokens == 8 and not question.plan.thinking.on
    assert run.plan.monitor is not None and run.plan.session
    by_kind = {row.kind: row for row in rows}
    child, row = by_kind["classifier"], by_kind["generation"]
    assert child.parent_request_id == row.request_id and child.prompt_tokens is None
    assert (row.task_class, row.class_source, row.profile) == ("debug", "model", "chat")


async def test_another_backend_may_be_asked_what_kind_of_task_a_turn_is(tmp_path: Path) -> None:
    worker = FakeWorker(answer)
    async with FakeBackend(lambda seen: sse(text("review"), *end(**usage(30, 1)))) as up:
        asked = backend(up.url, small=("tiny", "other"), flavor="llamacpp")
        host = WorkerHostSettings(spawn=False, conductor=True)
        conductor = ConductorSettings(ask_backend="b", notes=NotesSettings(store="memory"))
        async with worker.listening(tmp_path) as endpoint:
            host = replace(host, endpoint=endpoint)
            async with (
                running_gateway(
                    tmp_path, worker=host, conductor=conductor, backends={"b": asked}
                ) as gateway,
                httpx.AsyncClient(base_url=gateway.base, timeout=10) as client,
            ):
                assert gateway.gateway.engine is not None
                await gateway.gateway.engine.wait_ready()
                await client.post("/v1/chat/completions", json=BODY)
                rows = [await gateway.row(0), await gateway.row(1)]
    by_kind = {row.kind: row for row in rows}
    assert [is_question(run) for run in worker.heard if isinstance(run, Submit)] == [False]
    child, row = by_kind["classifier"], by_kind["generation"]
    assert (child.backend, child.upstream_model, child.prompt_tokens) == ("b", "tiny", None)
    assert (row.backend, row.task_class, row.class_source) == ("worker", "review", "model")


async def test_a_clouds_own_small_model_is_asked_for_it(tmp_path: Path) -> None:
    said = text(json.dumps({"choice": "review"}))
    async with FakeBackend(lambda seen: sse(said, *end(**usage(30, 1)))) as up:
        cloud = backend(up.url, small=("tiny",), conductor=True, models=("large",))
        conductor = ConductorSettings(notes=NotesSettings(store="memory"))
        async with (
            running_gateway(tmp_path, conductor=conductor, backends={"b": cloud}) as gateway,
            httpx.AsyncClient(base_url=gateway.base, timeout=10) as client,
        ):
            await client.post("/v1/chat/completions", json={**BODY, "model": "large"})
            rows = [await gateway.row(0), await gateway.row(1)]
        asked = [json.loads(one.body)["model"] for one in up.seen if one.body]
    assert asked == ["tiny", "large"]
    assert {row.task_class for row in rows if row.kind == "generation"} == {"review"}


async def test_a_question_that_is_refused_costs_the_request_nothing(tmp_path: Path) -> None:
    async def busy(worker: FakeWorker, run: Submit) -> None:
        if is_question(run):
            await worker.send(Refused("busy", "queue_full", run.run_id))
        else:
            await answer(worker, run)

    async with conducted(tmp_path, busy) as (gateway, _, client):
        found = await client.post("/v1/chat/completions", json=BODY)
        rows = [await gateway.row(0), await gateway.row(1)]
    assert found.status_code == 200
    by_kind = {row.kind: row for row in rows}
    assert (by_kind["classifier"].outcome, by_kind["classifier"].error_type) == ("failed", "busy")
    assert (by_kind["generation"].task_class, by_kind["generation"].class_source) == (
        "other", "default",
    )  # fmt: skip


async def test_a_question_that_nobody_answers_is_called_off_in_time(tmp_path: Path) -> None:
    async def silent(worker: FakeWorker, run: Submit) -> None:
        if not is_question(run):
            await answer(worker, run)

    async with conducted(tmp_path, silent) as (gateway, _, client):
        found = await client.post("/v1/chat/completions", json=BODY)
        rows = [await gateway.row(0), await gateway.row(1)]
    assert found.status_code == 200
    assert {row.error_type for row in rows if row.kind == "classifier"} == {"timeout"}


async def test_a_client_that_leaves_while_its_turn_is_classified_ends_the_question(
    tmp_path: Path,
) -> None:
    async def silent(worker: FakeWorker, run: Submit) -> None:
        return None

    async with conducted(tmp_path, silent) as (gateway, worker, client):
        asking = asyncio.create_task(client.post("/v1/chat/completions", json=BODY))
        await worker.hear(Submit)
        asking.cancel()
        await asyncio.gather(asking, return_exceptions=True)
        rows = [await gateway.row(0), await gateway.row(1)]
    assert {(row.kind, row.outcome) for row in rows} == {
        ("classifier", "aborted"), ("generation", "aborted"),
    }  # fmt: skip


async def test_what_the_monitor_did_is_counted_in_the_row(tmp_path: Path) -> None:
    async def watched(worker: FakeWorker, run: Submit) -> None:
        if is_question(run):
            return await answer(worker, run)
        events = (MonitorEvent(1, "D1", "act", "loop"), MonitorEvent(1, "E2", "shadow", "promise"))
        await worker.send(Delta(run.run_id, 1, (1,), ("So.",), ("text",), (False,), events=events))
        await worker.finish(run, 1)

    async with conducted(tmp_path, watched) as (gateway, _, client):
        await client.post("/v1/chat/completions", json=BODY)
        rows = [await gateway.row(0), await gateway.row(1)]
    (row,) = [row for row in rows if row.kind == "generation"]
    assert (row.monitor_acts, row.monitor_shadows) == (1, 1)


async def test_a_profile_that_a_key_may_not_use_is_a_403(tmp_path: Path) -> None:
    from gateway.settings.types import ClientKey, Secret

    key = ClientKey("k", secret=Secret("set", "sesame"), profiles=("tools",))
    worker = FakeWorker(answer)
    async with worker.listening(tmp_path) as endpoint:
        host = WorkerHostSettings(endpoint=endpoint, spawn=False, conductor=True)
        conductor = ConductorSettings(notes=NotesSettings(store="memory"))
        async with (
            running_gateway(tmp_path, worker=host, conductor=conductor, keys=(key,)) as gateway,
            httpx.AsyncClient(base_url=gateway.base, timeout=10) as client,
        ):
            assert gateway.gateway.engine is not None
            await gateway.gateway.engine.wait_ready()
            headers = {"Authorization": "Bearer sesame"}
            own = await client.post("/v1/chat/completions", json=BODY, headers=headers)
            other = await client.post(
                "/v1/chat/completions", json=BODY,
                headers={**headers, "X-Tandem-Profile": "chat"},
            )  # fmt: skip
    assert (own.status_code, own.headers["x-tandem-profile"]) == (200, "tools")
    assert (other.status_code, other.json()["error"]["code"]) == (403, "profile_not_allowed")


async def test_a_reload_whose_store_cannot_be_opened_leaves_everything_as_it_was(
    tmp_path: Path,
) -> None:
    one = backend("http://127.0.0.1:1")
    async with running_gateway(tmp_path, backends={"b": one}) as running:
        gateway = running.gateway
        before, routing = gateway.settings, gateway.pipeline.routing
        gateway.settings.store_target.mkdir()  # type: ignore[union-attr]
        led = replace(before, backends={"b": replace(one, conductor=True)}, rev="two")
        with pytest.raises(SettingsError, match=r"tandem\.sqlite"):
            gateway.apply(led)
        assert (gateway.settings, gateway.pipeline.routing) == (before, routing)
        assert gateway.rooms is None and gateway.pipeline.managed is None
