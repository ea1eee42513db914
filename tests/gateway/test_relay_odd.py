"""Backends and clients that do what they should not: each of these once gave a wrong answer."""

import asyncio
import gzip
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import httpx
import pytest

from gateway.settings.load import SettingsError
from gateway.settings.types import BackendSettings, ClientKey, Secret
from tests.fakes.backend import Cut, FakeBackend, Reply, sse
from tests.gateway.harness import backend, running_gateway
from tests.gateway.test_relay import ANSWER, CHAT, STREAM, answers, post

STREAMED = {**CHAT, "stream": True}


@asynccontextmanager
async def raw_backend(*answer: bytes, keep_open: bool = False) -> AsyncIterator[str]:
    """A backend that sends these bytes, whatever it was asked, and closes."""

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = await reader.readuntil(b"\r\n\r\n")
        length = int(head.lower().split(b"content-length: ")[1].split(b"\r\n")[0])
        await reader.readexactly(length)
        for piece in answer:
            writer.write(piece)
            await writer.drain()
        if keep_open:
            await reader.read()
        writer.close()
        await asyncio.gather(writer.wait_closed(), return_exceptions=True)

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    try:
        yield f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
    finally:
        server.close()
        await server.wait_closed()


SECOND = b"HTTP/1.1 400 Bad\r\ncontent-length: 3\r\n\r\nBAD"


@pytest.mark.parametrize(
    "first",
    [
        b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n2\r\n{}\r\n0\r\n\r\n",
        b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\n{}",
    ],
    ids=["chunked", "length"],
)
@pytest.mark.parametrize("rest", [SECOND, SECOND[:9]], ids=["whole", "partial"])
async def test_bytes_behind_an_answer_belong_to_nobody(
    tmp_path: Path, first: bytes, rest: bytes
) -> None:
    async with (
        raw_backend(first + rest, keep_open=True) as url,
        running_gateway(tmp_path, backends={"b": backend(url)}) as gateway,
    ):
        answer = await post(gateway.base, "/v1/chat/completions", CHAT)
        assert gateway.gateway.client.idle_count() == 0
    assert (answer.status_code, answer.content) == (200, b"{}")


async def test_a_close_delimited_answer_that_was_cut_is_not_ended_cleanly(tmp_path: Path) -> None:
    head = b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\n\r\n"
    async with (
        raw_backend(head + ANSWER[:30]) as url,
        running_gateway(tmp_path, backends={"b": backend(url)}) as gateway,
    ):
        with pytest.raises(httpx.RemoteProtocolError):
            await post(gateway.base, "/v1/chat/completions", CHAT)
        row = await gateway.row()
    assert (row.outcome, row.error_type) == ("failed", "upstream_failed")
    async with (
        raw_backend(head + ANSWER) as url,
        running_gateway(tmp_path / "whole", backends={"b": backend(url)}) as gateway,
    ):
        assert (await post(gateway.base, "/v1/chat/completions", CHAT)).content == ANSWER
        assert (await gateway.row()).outcome == "succeeded"


async def test_a_break_behind_the_finish_is_no_error(tmp_path: Path) -> None:
    async with (
        FakeBackend(answers(sse(*STREAM, Cut()))) as up,
        running_gateway(tmp_path, backends={"b": backend(up.url)}) as gateway,
    ):
        answer = await post(gateway.base, "/v1/chat/completions", STREAMED)
        row = await gateway.row()
    assert answer.content == b"".join(STREAM)
    assert (row.outcome, row.error_type, row.completion_tokens) == ("succeeded", None, 4)


async def test_too_many_headers_are_a_502(tmp_path: Path) -> None:
    many = b"".join(b"x-%d: y\r\n" % n for n in range(130))
    async with (
        raw_backend(b"HTTP/1.1 200 OK\r\n" + many + b"content-length: 2\r\n\r\n{}") as url,
        running_gateway(tmp_path, backends={"b": backend(url)}) as gateway,
    ):
        answer = await post(gateway.base, "/v1/chat/completions", CHAT)
    assert (answer.status_code, answer.json()["error"]["code"]) == (502, "upstream_failed")


@pytest.mark.parametrize("status", [999, 600])
async def test_a_status_that_does_not_exist_is_a_502(tmp_path: Path, status: int) -> None:
    async with (
        raw_backend(b"HTTP/1.1 %d X\r\ncontent-length: 0\r\n\r\n" % status) as url,
        running_gateway(tmp_path, backends={"b": backend(url)}) as gateway,
    ):
        answer = await post(gateway.base, "/v1/chat/completions", CHAT)
    assert answer.status_code == 502


async def test_an_interim_answer_is_passed_over(tmp_path: Path) -> None:
    interim = b"HTTP/1.1 103 Early Hints\r\nlink: x\r\n\r\n"
    final = b"HTTP/1.1 200 OK\r\ncontent-length: %d\r\n\r\n%b" % (len(ANSWER), ANSWER)
    async with (
        raw_backend(interim, final) as url,
        running_gateway(tmp_path, backends={"b": backend(url)}) as gateway,
    ):
        answer = await post(gateway.base, "/v1/chat/completions", CHAT)
    assert answer.content == ANSWER and "link" not in answer.headers


async def test_a_stream_with_a_length_that_breaks_ends_with_the_error(tmp_path: Path) -> None:
    reply = Reply(
        headers={"content-type": "text/event-stream", "content-length": "5000"},
        pieces=[STREAM[1], Cut()],
    )
    async with (
        FakeBackend(answers(reply)) as up,
        running_gateway(tmp_path, backends={"b": backend(up.url)}) as gateway,
    ):
        answer = await post(gateway.base, "/v1/chat/completions", STREAMED)
        row = await gateway.row()
    assert answer.content.startswith(STREAM[1]) and answer.content.endswith(b"data: [DONE]\n\n")
    assert (row.status, row.outcome) == (200, "failed")


async def test_a_compressed_stream_that_breaks_gets_no_plain_bytes(tmp_path: Path) -> None:
    packed = gzip.compress(STREAM[1])
    reply = Reply(
        headers={"content-type": "text/event-stream", "content-encoding": "gzip"},
        pieces=[packed, Cut()], framing="chunked",
    )  # fmt: skip
    async with (
        FakeBackend(answers(reply)) as up,
        running_gateway(tmp_path, backends={"b": backend(up.url)}) as gateway,
    ):
        with pytest.raises(httpx.RemoteProtocolError):
            await post(gateway.base, "/v1/chat/completions", STREAMED)


async def test_every_connection_header_counts(tmp_path: Path) -> None:
    async with (
        FakeBackend(answers(Reply(pieces=[ANSWER]))) as up,
        running_gateway(tmp_path, backends={"b": backend(up.url)}) as gateway,
        httpx.AsyncClient() as client,
    ):
        await client.post(
            f"{gateway.base}/v1/chat/completions", json=CHAT,
            headers=[("connection", "x-one"), ("connection", "X-Two"), ("x-one", "1"),
                     ("x-two", "2"), ("x-three", "3")],
        )  # fmt: skip
    assert {"x-one", "x-two", "x-three"} & up.seen[0].headers.keys() == {"x-three"}


async def test_a_client_that_pauses_does_not_make_its_backend_silent(tmp_path: Path) -> None:
    piece = b'data: {"choices":[{"index":0,"delta":{"content":"' + b"x" * 65_000 + b'"}}]}\n\n'
    pieces = [piece] * 200 + list(STREAM[2:])
    async with (
        FakeBackend(answers(sse(*pieces))) as up,
        running_gateway(tmp_path, backends={"b": backend(up.url, idle_s=0.3)}) as gateway,
        httpx.AsyncClient(timeout=20) as client,
        client.stream("POST", f"{gateway.base}/v1/chat/completions", json=STREAMED) as answer,
    ):
        stream = answer.aiter_raw()
        body = await anext(stream)
        await asyncio.sleep(1)  # longer than idle_s: the clock under test is the gateway's own
        async for more in stream:
            body += more
        row = await gateway.row()
    assert body == b"".join(pieces)
    assert row.outcome == "succeeded"
    assert up.connections == 1


async def test_an_error_end_that_nobody_takes_frees_the_backend(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("gateway.exchange.LAST_WRITE_S", 0.2)
    piece = b'data: {"choices":[{"index":0,"delta":{"content":"' + b"x" * 65_000 + b'"}}]}\n\n'
    async with (
        FakeBackend(answers(sse(*[piece] * 400))) as up,
        running_gateway(tmp_path, backends={"b": backend(up.url, total_s=0.5)}) as gateway,
    ):
        _, writer = await asyncio.open_connection("127.0.0.1", gateway.port, limit=1024)
        body = json.dumps(STREAMED).encode()
        writer.write(
            b"POST /v1/chat/completions HTTP/1.1\r\nhost: x\r\ncontent-length: %d\r\n\r\n%b"
            % (len(body), body)
        )
        row = await gateway.row()
        assert gateway.gateway.pipeline.routing.backends["b"].in_flight == 0
        assert gateway.gateway.pipeline.in_flight == 0
        writer.close()
        await asyncio.gather(writer.wait_closed(), return_exceptions=True)
    assert (row.outcome, row.error_type) == ("failed", "total_s")


@pytest.mark.parametrize(
    "headers",
    [
        {"x-stainless-read-timeout": "0.2"}, {"X-Stainless-Timeout": "0.2"},
        {"X-Server-Timeout": "0.2"},
        {"x-stainless-read-timeout": "NOT_GIVEN", "x-stainless-timeout": "0.2"},
        {"x-stainless-read-timeout": "0", "x-stainless-timeout": "nan", "x-server-timeout": "0.2"},
    ],
)  # fmt: skip
async def test_a_whole_call_waits_no_longer_than_its_client(
    tmp_path: Path, headers: dict[str, str]
) -> None:
    """In every spelling there is; what is no number is no announcement."""
    async with (
        raw_backend(keep_open=True) as url,
        running_gateway(tmp_path, backends={"b": backend(url)}) as gateway,
    ):
        answer = await post(gateway.base, "/v1/chat/completions", CHAT, headers=headers)
        row = await gateway.row()
        assert gateway.gateway.pipeline.routing.backends["b"].health.state == "up"
    assert answer.status_code == 504 and "client timeout" in answer.text
    assert row.error_type == "client timeout"


async def test_a_black_hole_counts_as_a_failed_connect(tmp_path: Path) -> None:
    from gateway.relay.client import UpstreamTimeout
    from gateway.relay.forward import note_fault

    async with running_gateway(tmp_path, backends={"b": backend("http://127.0.0.1:1")}) as gateway:
        b = gateway.gateway.pipeline.routing.backends["b"]
        for _ in range(5):
            note_fault(b, UpstreamTimeout("connect_s", 5))
        assert b.health.state == "down"


@pytest.mark.parametrize("call", ["gem/..%2f..%2fsecret", "..", "gem//x", "gem/.", "%2e%2e/x"])
async def test_a_model_in_the_path_cannot_climb(tmp_path: Path, call: str) -> None:
    async with FakeBackend(answers(Reply(pieces=[b"{}"]))) as up:
        settings = BackendSettings(kind="gemini", base_url=up.url, prefix="")
        async with running_gateway(
            tmp_path,
            backends={"g": replace(settings, prefix="g"), "h": replace(settings, prefix=".")},
        ) as gateway:
            reader, writer = await asyncio.open_connection("127.0.0.1", gateway.port)
            path = f"/v1beta/models/{call}:generateContent"
            writer.write(
                f"POST {path} HTTP/1.1\r\nhost: x\r\ncontent-length: 2\r\n"
                "connection: close\r\n\r\n{}".encode()
            )
            answer = await reader.read()
            writer.close()
    assert answer.startswith(b"HTTP/1.1 404")
    assert not [seen for seen in up.seen if seen.method == "POST"]


async def test_an_escaped_model_in_the_path_goes_up_as_it_came(tmp_path: Path) -> None:
    async with FakeBackend(answers(Reply(pieces=[b"{}"]))) as up:
        settings = BackendSettings(kind="gemini", base_url=up.url, models=("a/b",))
        async with (
            running_gateway(tmp_path, backends={"g": settings}) as gateway,
            httpx.AsyncClient(base_url=gateway.base) as client,
        ):
            await client.post("/v1beta/models/a%2Fb:generateContent", json={})
    assert up.seen[0].target == "/v1beta/models/a%2Fb:generateContent"


@pytest.mark.parametrize(
    ("method", "path", "headers", "form"),
    [
        ("GET", "/v1/models", {"anthropic-version": "x"}, "anthropic"),
        ("GET", "/v1/models", {"x-goog-api-client": "x"}, "google"),
        ("GET", "/v1beta/models", {}, "google"),
        ("GET", "/v1/models", {}, "openai"),
        ("PUT", "/v1/models/m:generateContent", {}, "google"),
        ("PUT", "/v1/messages", {}, "anthropic"),
        ("POST", "/v1/messages", {}, "anthropic"),
    ],
)
async def test_errors_before_anything_else_have_the_callers_form_too(
    tmp_path: Path, method: str, path: str, headers: dict[str, str], form: str
) -> None:
    keys = (ClientKey("k", secret=Secret("env:K", "k")),)
    async with (
        running_gateway(
            tmp_path, backends={"b": backend("http://127.0.0.1:1")}, keys=keys
        ) as gateway,
        httpx.AsyncClient(base_url=gateway.base) as client,
    ):
        answer = await client.request(method, path, headers=headers, json={})
    assert answer.status_code in (401, 405)
    body: dict[str, Any] = answer.json()
    assert (body.get("type") == "error") is (form == "anthropic")
    assert ("status" in body["error"]) is (form == "google")


async def test_a_reload_never_opens_a_bound_address_to_everybody(tmp_path: Path) -> None:
    keys = (ClientKey("k", secret=Secret("env:K", "k")),)
    async with (
        running_gateway(
            tmp_path, backends={"b": backend("http://127.0.0.1:1")}, keys=keys,
            server={"host": "0.0.0.0"},
        ) as gateway,
        httpx.AsyncClient(base_url=gateway.base) as client,
    ):  # fmt: skip
        old = gateway.gateway.settings
        with pytest.raises(SettingsError, match="reachable from other machines"):
            gateway.gateway.apply(
                replace(old, keys=(), server=replace(old.server, host="127.0.0.1"))
            )
        assert gateway.gateway.settings is old
        assert (await client.get("/v1/models")).status_code == 401


async def test_a_reload_keeps_what_did_not_change(tmp_path: Path) -> None:
    async with (
        FakeBackend(answers(Reply(pieces=[b'{"data":[{"id":"listed"}]}']))) as up,
        running_gateway(tmp_path, backends={"b": backend(up.url, models="auto")}) as gateway,
    ):
        await gateway.gateway.pipeline.routing.catalog.refresh()
        before = gateway.gateway.pipeline.routing
        gateway.gateway.apply(replace(gateway.gateway.settings, rev="two"))
        after = gateway.gateway.pipeline.routing
    assert after is not before and after.backends["b"] is before.backends["b"]
    assert "listed" in after.catalog.listed("b")


async def test_a_list_of_models_that_nobody_can_read_hides_no_other(tmp_path: Path) -> None:
    deep = b'{"data":' + b"[" * 100_000
    async with (
        FakeBackend(answers(Reply(pieces=[deep]))) as up,
        running_gateway(
            tmp_path,
            backends={"b": backend(up.url, models="auto"), "c": backend("http://127.0.0.1:1")},
        ) as gateway,
        httpx.AsyncClient(base_url=gateway.base) as client,
    ):
        models = (await client.get("/v1/models")).json()["data"]
    assert [model["id"] for model in models] == ["m"]
