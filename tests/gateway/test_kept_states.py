"""`/v1/cache` against a worker that speaks the real link: who may, what is asked, what is shown."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import httpx
import pytest

from gateway import kept_states
from gateway.settings.types import ClientKey, Secret, WorkerHostSettings
from proto.messages import STATE_KINDS, Cache, CacheInfo, Cancel, Drain, Embedded, Refused, Submit
from tests.fakes.worker import CacheScript, FakeWorker
from tests.gateway.harness import Running, running_gateway

ADMIN = {"authorization": "Bearer operator"}
NONE = {"entries": 0, "bytes": 0, "hits": 0, "evictions": 0}
PREFIX = {"entries": 1, "bytes": 4096, "hits": 7, "evictions": 2}


async def no_run(worker: FakeWorker, run: Submit) -> None:
    raise AssertionError("nothing was to be generated")


async def two_kinds(worker: FakeWorker, question: Cache) -> None:
    """Has a prefix, and a state of a kind that only a later version knows."""
    cleared = 512 if question.op == "clear" else None
    await worker.send(
        CacheInfo(
            question.req_id, {"prefix": 1, "later": 3}, {"prefix": 4096, "later": 9}, cleared,
            {"prefix": 7}, {"prefix": 2}, {"too_large": 4}, 5, 6,
        )
    )  # fmt: skip


async def never(worker: FakeWorker, question: Cache) -> None:
    """Lives and does not answer."""


def refusing(code: Any, detail: str, after_ms: int | None = None) -> CacheScript:
    async def refuse(worker: FakeWorker, question: Cache) -> None:
        await worker.send(Refused(code, detail, req_id=question.req_id, retry_after_ms=after_ms))

    return refuse


@asynccontextmanager
async def engine(
    tmp_path: Path, cache: CacheScript = two_kinds, *, has_token: bool = True
) -> AsyncIterator[tuple[Running, FakeWorker, httpx.AsyncClient]]:
    worker = FakeWorker(no_run, cache=cache)
    server = {"admin_token": Secret("env:A", "operator")} if has_token else {}
    async with worker.listening(tmp_path) as endpoint:
        host = WorkerHostSettings(endpoint=endpoint, spawn=False)
        async with (
            running_gateway(
                tmp_path, worker=host, server={**server, "metrics_token": Secret("env:M", "meter")},
                keys=(ClientKey("one", secret=Secret("env:K", "client")),),
            ) as gateway,
            httpx.AsyncClient(base_url=gateway.base, timeout=10) as client,
        ):  # fmt: skip
            link = gateway.gateway.engine
            assert link is not None
            async with asyncio.timeout(5):
                await link.wait_ready()
            yield gateway, worker, client


def asked(worker: FakeWorker) -> list[tuple[str, tuple[str, ...] | None]]:
    return [(said.op, said.kinds) for said in worker.heard if isinstance(said, Cache)]


def error(answer: httpx.Response) -> tuple[int, str, str | None]:
    found = answer.json()["error"]
    return answer.status_code, found["code"], found["param"]


async def test_statistics_have_every_kind_and_one_entry_a_worker(tmp_path: Path) -> None:
    async with engine(tmp_path) as (gateway, worker, client):
        answer = await client.get("/v1/cache", headers=ADMIN)
        head = await client.head("/v1/cache", headers=ADMIN)
        assert not gateway.books.rows  # it is no model call
    later = {"entries": 3, "bytes": 9, "hits": 0, "evictions": 0}
    kinds = {**dict.fromkeys(STATE_KINDS, NONE), "prefix": PREFIX, "later": later}
    assert answer.json() == {
        "workers": [
            {
                "worker_id": "w",
                "model": "fake",
                "kinds": kinds,
                "misses": 5,
                "collisions": 6,
                "skipped": {"too_large": 4},
            }
        ]
    }
    assert (answer.status_code, head.status_code, head.content) == (200, 200, b"")
    assert asked(worker) == [("stats", None)] * 2


@pytest.mark.parametrize(
    ("query", "kinds"),
    [
        ("", None),
        ("?kind=prefix", ("prefix",)),
        ("?kind=spill&kind=disk&kind=spill", ("spill", "disk")),
    ],
)
async def test_what_is_named_is_dropped_and_without_a_name_all(
    tmp_path: Path, query: str, kinds: tuple[str, ...] | None
) -> None:
    async with engine(tmp_path) as (_, worker, client):
        answer = await client.delete(f"/v1/cache{query}", headers=ADMIN)
    (entry,) = answer.json()["workers"]
    assert asked(worker) == [("clear", kinds)]
    assert entry["cleared_bytes"] == 512
    assert tuple(entry["kinds"]) == (kinds or (*STATE_KINDS, "later"))


async def test_a_kind_narrows_what_is_shown(tmp_path: Path) -> None:
    async with engine(tmp_path) as (_, worker, client):
        answer = await client.get("/v1/cache?kind=prefix", headers=ADMIN)
    assert answer.json()["workers"][0]["kinds"] == {"prefix": PREFIX}
    assert asked(worker) == [("stats", None)]


@pytest.mark.parametrize("method", ["GET", "DELETE"])
@pytest.mark.parametrize(
    ("query", "param"),
    [("kind=suffix", "kind"), ("kind=", "kind"), ("kind", "kind"), ("kind=prefix&kind=", "kind"),
     ("kind=Prefix", "kind"), ("kinds=prefix", "kinds"), ("kind=prefix&x=1", "x")],
)  # fmt: skip
async def test_what_is_unknown_is_a_400_that_names_it_and_drops_nothing(
    tmp_path: Path, method: str, query: str, param: str
) -> None:
    async with engine(tmp_path) as (_, worker, client):
        answer = await client.request(method, f"/v1/cache?{query}", headers=ADMIN)
    assert error(answer) == (400, "invalid_request", param)
    message = answer.json()["error"]["message"]
    assert f"'{param}'" in message
    if param == "kind":
        assert ", ".join(STATE_KINDS) in message
    assert not asked(worker)


@pytest.mark.parametrize("method", ["GET", "HEAD", "DELETE"])
@pytest.mark.parametrize(
    "headers",
    [{}, {"authorization": "Bearer no"}, {"authorization": "Bearer client"},
     {"authorization": "Bearer meter"}, {"x-api-key": "operator"}, {"cookie": "token=operator"}],
)  # fmt: skip
async def test_only_the_admins_bearer_token_opens_it(
    tmp_path: Path, method: str, headers: dict[str, str]
) -> None:
    async with engine(tmp_path) as (_, worker, client):
        answer = await client.request(method, "/v1/cache?key=operator", headers=headers)
        opened = await client.request(method, "/v1/cache", headers=ADMIN)
    assert answer.status_code == 401
    assert opened.status_code == 200
    assert len(asked(worker)) == 1


@pytest.mark.parametrize("method", ["GET", "DELETE"])
async def test_without_a_token_it_is_closed_to_this_machine_too(
    tmp_path: Path, method: str
) -> None:
    async with engine(tmp_path, has_token=False) as (_, worker, client):
        answer = await client.request(method, "/v1/cache", headers=ADMIN)
    assert error(answer) == (404, "not_found", None)
    assert not asked(worker)


async def test_other_methods_are_not_allowed(tmp_path: Path) -> None:
    async with engine(tmp_path) as (_, _, client):
        answer = await client.post("/v1/cache", headers=ADMIN)
    assert error(answer) == (405, "method_not_allowed", None)
    assert "DELETE, GET" in answer.json()["error"]["message"]


async def test_without_an_engine_there_is_none(tmp_path: Path) -> None:
    server = {"admin_token": Secret("env:A", "operator")}
    async with (
        running_gateway(tmp_path, server=server) as gateway,
        httpx.AsyncClient(base_url=gateway.base) as client,
    ):
        answers = [await client.request(m, "/v1/cache", headers=ADMIN) for m in ("GET", "DELETE")]
    for answer in answers:
        assert error(answer) == (404, "not_found", None)
        assert "No engine is configured" in answer.json()["error"]["message"]


async def test_an_error_has_the_form_of_whoever_asks(tmp_path: Path) -> None:
    async with engine(tmp_path) as (_, _, client):
        headers = {**ADMIN, "anthropic-version": "2023-06-01"}
        answer = await client.delete("/v1/cache?kind=x", headers=headers)
    assert (answer.status_code, answer.json()["type"]) == (400, "error")
    assert answer.json()["error"]["param"] == "kind"


@pytest.mark.parametrize(
    ("refused", "status", "code", "retry_after"),
    [
        (("draining", "draining", 30_000), 503, "draining", "30"),
        (("busy", "queue_full", 5_000), 503, "queue_full", "5"),
        (("internal", "OSError", None), 503, "engine_unavailable", "5"),
        (("bad_request", "not supported yet", None), 400, "invalid_request", None),
    ],
)
async def test_a_refusal_has_its_status_and_retry_time(
    tmp_path: Path, refused: Any, status: int, code: str, retry_after: str | None
) -> None:
    async with engine(tmp_path, refusing(*refused)) as (_, _, client):
        answer = await client.delete("/v1/cache", headers=ADMIN)
        ready = await client.get("/readyz")
    assert error(answer) == (status, code, None)
    assert answer.headers.get("retry-after") == retry_after
    assert ready.status_code == 200


async def test_a_draining_worker_is_asked_nothing(tmp_path: Path) -> None:
    async with engine(tmp_path) as (_, worker, client):
        await worker.send(Drain(1000))
        async with asyncio.timeout(5):
            while (await client.get("/readyz")).status_code == 200:
                await asyncio.sleep(0.01)
        answer = await client.get("/v1/cache", headers=ADMIN)
    assert error(answer) == (503, "engine_unavailable", None)
    assert answer.headers["retry-after"] == "5"
    assert not asked(worker)


async def test_a_worker_that_is_not_there_is_a_503(tmp_path: Path) -> None:
    host = WorkerHostSettings(endpoint=f"ipc://{tmp_path}/nobody.sock", spawn=False)
    server = {"admin_token": Secret("env:A", "operator")}
    async with (
        running_gateway(tmp_path, worker=host, server=server) as gateway,
        httpx.AsyncClient(base_url=gateway.base) as client,
    ):
        answer = await client.delete("/v1/cache", headers=ADMIN)
    assert error(answer) == (503, "engine_unavailable", None)


async def test_a_worker_that_is_replaced_leaves_nobody_waiting(tmp_path: Path) -> None:
    async def be_replaced(worker: FakeWorker, question: Cache) -> None:
        await worker.send(replace(worker.ready, incarnation="2"))

    async with engine(tmp_path, be_replaced) as (_, _, client):
        answer = await client.get("/v1/cache", headers=ADMIN)
    assert error(answer) == (503, "engine_unavailable", None)


async def test_a_worker_that_beats_and_does_not_answer_is_a_504(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(kept_states, "CACHE_S", 0.2)
    async with engine(tmp_path, never) as (gateway, worker, client):
        answer = await client.delete("/v1/cache", headers=ADMIN)
        question, cancel = await worker.hear(Cache), await worker.hear(Cancel)
        link = gateway.gateway.engine
        assert link is not None and not link._questions._open
        await two_kinds(worker, question)  # too late, and no reason to complain
        worker.cache = two_kinds
        again = await client.get("/v1/cache", headers=ADMIN)
        assert link.faults == {"refused": 0, "ignored": 0, "rejected": 0}
    assert error(answer) == (504, "upstream_timeout", None)
    assert "0.2 s" in answer.json()["error"]["message"]
    assert (cancel.run_id, again.status_code) == (question.req_id, 200)


async def test_an_answer_to_something_else_is_none(tmp_path: Path) -> None:
    async def mistake(worker: FakeWorker, question: Cache) -> None:
        await worker.send(Embedded(question.req_id, ((1.0,),), 1))

    async with engine(tmp_path, mistake) as (_, _, client):
        answer = await client.get("/v1/cache", headers=ADMIN)
    assert error(answer) == (503, "engine_unavailable", None)
