"""Files and batches: what names no model goes to the backend that is the default, untouched."""

import asyncio
import hashlib
import tracemalloc
from decimal import Decimal
from pathlib import Path
from typing import Any

import httpx
import pytest

from gateway.ledger.prices import PriceList
from gateway.relay.tap import BytesTap
from gateway.settings.types import BudgetSettings, ClientKey, PriceSettings, Secret
from tests.fakes.backend import Cut, FakeBackend, Gate, Reply, Seen, sse
from tests.gateway.harness import Running, backend, running_gateway

MIB = 1024 * 1024
OCTETS = {"content-type": "application/octet-stream"}
BLOB = bytes(range(256)) * 5


async def call(gateway: Running, method: str, path: str, **more: Any) -> httpx.Response:
    async with httpx.AsyncClient(base_url=gateway.base, timeout=30) as client:
        return await client.request(method, path, **more)


async def raw(gateway: Running, first_line: str, body: bytes = b"") -> bytes:
    """Sends a request line as it is, which no client library would, and reads to the end."""
    reader, writer = await asyncio.open_connection("127.0.0.1", gateway.port)
    head = f"{first_line} HTTP/1.1\r\nhost: x\r\nconnection: close\r\n"
    writer.write(f"{head}content-length: {len(body)}\r\n\r\n".encode() + body)
    answer = await reader.read()
    writer.close()
    return answer


@pytest.mark.parametrize("path", ["/v1/files", "/v1/files/file-1/content", "/v1/batches/b-1"])
@pytest.mark.parametrize("method", ["GET", "POST", "DELETE", "OPTIONS"])
async def test_what_names_no_model_goes_to_the_default_and_is_booked(
    tmp_path: Path, method: str, path: str
) -> None:
    """Method, path, query and bytes are the same there; the row says where, and has no tokens."""
    body = b"\x00\xff not to be read" if method == "POST" else b""
    async with (
        FakeBackend(lambda seen: Reply(headers=OCTETS, pieces=[BLOB])) as up,
        running_gateway(
            tmp_path,
            backends={
                "first": backend("http://127.0.0.1:1"),
                "second": backend(up.url, default=True),
            },
        ) as gateway,
    ):
        answer = await call(gateway, method, f"{path}?after=a%20b&key=mine", content=body)
        row = await gateway.row()
    assert (answer.status_code, answer.content) == (200, BLOB)
    assert answer.headers["x-routed-via"] == "second"
    assert answer.headers["x-request-id"] == row.request_id
    seen = up.seen[0]
    assert (seen.method, seen.target, seen.body) == (method, f"{path}?after=a%20b", body)
    assert (row.kind, row.surface, row.path) == ("other", path.split("/")[2], "relay")
    assert (row.outcome, row.backend, row.usage_source) == ("succeeded", "second", "none")
    assert [row.model, row.upstream_model, row.prompt_tokens, row.body_hash] == [None] * 4


async def test_head_keeps_the_length_of_what_it_does_not_send(tmp_path: Path) -> None:
    """HEAD of a file's content: its Content-Length, no body, and the connection goes on."""
    headers = {**OCTETS, "content-length": "12345"}
    async with (
        FakeBackend(lambda seen: Reply(headers=headers)) as up,
        running_gateway(tmp_path, backends={"b": backend(up.url, default=True)}) as gateway,
        httpx.AsyncClient(base_url=gateway.base) as client,
    ):
        answers = [await client.head("/v1/files/file-1/content") for _ in range(2)]
        row = await gateway.row(1)
    assert [answer.headers["content-length"] for answer in answers] == ["12345"] * 2
    assert [seen.method for seen in up.seen] == ["HEAD"] * 2
    assert row.outcome == "succeeded"


async def test_a_download_that_ends_with_its_connection_is_whole(tmp_path: Path) -> None:
    """No length and no chunks: nobody can tell more, and nothing is appended."""
    async with (
        FakeBackend(lambda seen: Reply(headers=OCTETS, pieces=[BLOB], framing="close")) as up,
        running_gateway(tmp_path, backends={"b": backend(up.url, default=True)}) as gateway,
    ):
        answer = await call(gateway, "GET", "/v1/files/file-1/content")
        row = await gateway.row()
    assert answer.content == BLOB
    assert (row.outcome, row.error_type) == ("succeeded", None)


async def test_a_download_that_breaks_off_is_not_ended_cleanly(tmp_path: Path) -> None:
    """Fewer bytes than announced, of a file that is itself events: no error is written into it."""
    reply = sse(b"data: 1\n\n", Cut())
    async with (
        FakeBackend(lambda seen: reply) as up,
        running_gateway(tmp_path, backends={"b": backend(up.url, default=True)}) as gateway,
    ):
        with pytest.raises(httpx.RemoteProtocolError):
            await call(gateway, "GET", "/v1/files/file-1/content")
        row = await gateway.row()
    assert (row.outcome, row.error_type) == ("failed", "upstream_failed")


@pytest.mark.parametrize("status", [404, 500])
async def test_an_error_of_the_backend_passes_and_is_booked(tmp_path: Path, status: int) -> None:
    """Its own status and bytes."""
    body = b'{"error" : {"message": "no such file"}}'
    async with (
        FakeBackend(lambda seen: Reply(status=status, pieces=[body])) as up,
        running_gateway(tmp_path, backends={"b": backend(up.url, default=True)}) as gateway,
    ):
        answer = await call(gateway, "DELETE", "/v1/files/none")
        row = await gateway.row()
    assert (answer.status_code, answer.content) == (status, body)
    assert (row.outcome, row.error_type) == ("failed", "upstream_status")


@pytest.mark.parametrize(
    ("status", "code"), [(302, "upstream_failed"), (401, "provider_authentication_failed")]
)
async def test_redirects_and_refused_credentials_are_ours_to_explain(
    tmp_path: Path, status: int, code: str
) -> None:
    """As for model calls, in OpenAI's form."""
    reply = Reply(status=status, headers={"location": "/elsewhere"}, pieces=[b"our-key"])
    async with (
        FakeBackend(lambda seen: reply) as up,
        running_gateway(tmp_path, backends={"b": backend(up.url, default=True)}) as gateway,
    ):
        answer = await call(gateway, "GET", "/v1/files")
    assert (answer.status_code, answer.json()["error"]["code"]) == (502, code)
    assert len(up.seen) == 1


async def test_without_a_default_the_error_names_what_to_configure(tmp_path: Path) -> None:
    """404 in OpenAI's form, a row, and no backend was asked."""
    async with (
        FakeBackend(lambda seen: Reply(pieces=[b"{}"])) as up,
        running_gateway(tmp_path, backends={"b": backend(up.url)}) as gateway,
    ):
        answer = await call(gateway, "POST", "/v1/batches", json={"model": "m"})
        row = await gateway.row()
    error = answer.json()["error"]
    assert (answer.status_code, error["code"]) == (404, "no_default_backend")
    assert "default: true" in error["message"]
    assert (row.outcome, row.error_type, row.surface) == (
        "refused", "no_default_backend", "batches",
    )  # fmt: skip
    assert not up.seen


async def test_only_a_key_for_every_model_may_use_files(tmp_path: Path) -> None:
    """Whoever shares the backend's files shares all of them: globs of some models do not do."""
    keys = tuple(
        ClientKey(name, secret=Secret("env:K", name), models=models)
        for name, models in {"all": ("*",), "also": ("m", "*"), "some": ("m", "b", "b/*")}.items()
    )
    async with (
        FakeBackend(lambda seen: Reply(pieces=[b"{}"])) as up,
        running_gateway(
            tmp_path, backends={"b": backend(up.url, default=True)}, keys=keys
        ) as gateway,
    ):
        answers = [
            await call(gateway, "GET", "/v1/files", headers={"authorization": f"Bearer {key}"})
            for key in ("all", "also", "some", "none")
        ]
        row = await gateway.row(2)
    assert [answer.status_code for answer in answers] == [200, 200, 403, 401]
    error = answers[2].json()["error"]
    assert (error["code"], error["param"]) == ("model_not_allowed", None)
    assert "files" in error["message"]
    assert (row.outcome, row.user_id) == ("refused", "some")
    assert len(up.seen) == 2
    assert "authorization" not in up.seen[0].headers


async def test_a_key_with_a_budget_may_not_use_what_cannot_be_counted(tmp_path: Path) -> None:
    """A batch is thousands of calls that no row is made of."""
    budget = BudgetSettings(Decimal(10), "day")
    keys = (ClientKey("k", secret=Secret("env:K", "k"), budget=budget),)
    async with (
        FakeBackend(lambda seen: Reply(pieces=[b"{}"])) as up,
        running_gateway(
            tmp_path, backends={"b": backend(up.url, default=True)}, keys=keys
        ) as gateway,
    ):
        answer = await call(gateway, "POST", "/v1/batches", headers={"x-api-key": "k"})
        row = await gateway.row()
    assert (answer.status_code, answer.json()["error"]["code"]) == (403, "model_not_allowed")
    assert "budget" in answer.json()["error"]["message"]
    assert (row.outcome, up.seen) == ("refused", [])


@pytest.mark.parametrize(
    "path",
    [
        "/v1/files/../chat", "/v1/files/%2e%2e/organization", "/v1/files/a/..%2f..%2fx",
        "/v1/files/a/.", "/v1/files//x", "/v1/files/a/", "/v1/files/..;/x", "/v1/files/..%5cx",
        "/v1%2ffiles/x", "/v1/%66iles", "/v1/batches/%2E%2E",
    ],
)  # fmt: skip
async def test_a_path_that_could_mean_another_one_goes_nowhere(tmp_path: Path, path: str) -> None:
    """With our credential, a backend that resolves dots would open any of its pages."""
    async with (
        FakeBackend(lambda seen: Reply(pieces=[b"{}"])) as up,
        running_gateway(tmp_path, backends={"b": backend(up.url, default=True)}) as gateway,
    ):
        answer = await raw(gateway, f"GET {path}")
    assert answer.startswith(b"HTTP/1.1 404")
    assert not up.seen


async def test_other_methods_are_refused_with_those_that_are_not(tmp_path: Path) -> None:
    """PUT and PATCH are no part of these surfaces."""
    async with running_gateway(
        tmp_path, backends={"b": backend("http://127.0.0.1:1", default=True)}
    ) as gateway:
        answer = await call(gateway, "PUT", "/v1/files/file-1")
    assert answer.status_code == 405
    assert "DELETE, GET, HEAD, OPTIONS, POST" in answer.json()["error"]["message"]


async def test_64_mib_go_up_and_down(tmp_path: Path) -> None:
    """The largest body there may be, and an answer of the same size, both as they are."""
    big = b"".join(hashlib.sha256(b"%d" % at).digest() * 32 for at in range(65_536))
    assert len(big) == 64 * MIB
    pieces: list[Any] = [big[at : at + MIB] for at in range(0, len(big), MIB)]
    async with (
        FakeBackend(lambda seen: Reply(headers=OCTETS, pieces=pieces, framing="chunked")) as up,
        running_gateway(tmp_path, backends={"b": backend(up.url, default=True)}) as gateway,
    ):
        answer = await call(gateway, "POST", "/v1/files", content=big)
        over = await call(gateway, "POST", "/v1/files", content=big + b"x")
        row = await gateway.row()
    assert answer.content == big
    assert [seen.body for seen in up.seen] == [big]
    assert (over.status_code, over.json()["error"]["code"]) == (413, "request_too_large")
    assert row.outcome == "succeeded"


def test_nothing_of_a_download_is_kept() -> None:
    """A tap that nobody reads holds on to no piece, however many come."""
    tap = BytesTap("files", None)
    tracemalloc.start()
    try:
        for _ in range(64):
            tap.feed(bytes(MIB))
        peak_bytes = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak_bytes < 3 * MIB
    assert tap.life == 64


async def test_a_download_starts_before_it_is_whole(tmp_path: Path) -> None:
    """The first piece is at the client while the backend still waits to send the next one."""
    gate = Gate()
    reply = Reply(headers=OCTETS, pieces=[b"first", gate, b"second"], framing="chunked")
    async with (
        FakeBackend(lambda seen: reply) as up,
        running_gateway(tmp_path, backends={"b": backend(up.url, default=True)}) as gateway,
        httpx.AsyncClient(base_url=gateway.base) as client,
        client.stream("GET", "/v1/files/file-1/content") as answer,
    ):
        pieces = answer.aiter_raw()
        assert await anext(pieces) == b"first"
        gate.open.set()
        assert await anext(pieces) == b"second"


async def test_files_cost_nothing_where_models_have_prices(tmp_path: Path) -> None:
    """A price for every model is none for what names none."""
    async with (
        FakeBackend(lambda seen: Reply(pieces=[b"{}"])) as up,
        running_gateway(tmp_path, backends={"b": backend(up.url, default=True)}) as gateway,
    ):
        await call(gateway, "GET", "/v1/files")
        row = await gateway.row()
    prices = PriceList([PriceSettings("*", per_request=Decimal(1))])
    assert prices.find(row.backend, row.upstream_model or row.model, row.ts_ms) is None
    assert prices.find(row.backend, "m", row.ts_ms) is not None


async def test_a_batch_may_say_what_it_likes(tmp_path: Path) -> None:
    """A body that is no JSON, and one that names a model of somebody else's: neither is read."""
    seen_bodies: list[bytes] = []

    def script(seen: Seen) -> Reply:
        seen_bodies.append(seen.body)
        return Reply(pieces=[b"{}"])

    bodies = [b'{"model": "m", "model"', b'{"model": "unknown", "base_url": "http://x"}']
    async with (
        FakeBackend(script) as up,
        running_gateway(tmp_path, backends={"b": backend(up.url, default=True)}) as gateway,
    ):
        answers = [await call(gateway, "POST", "/v1/batches", content=body) for body in bodies]
    assert [answer.status_code for answer in answers] == [200, 200]
    assert seen_bodies == bodies
