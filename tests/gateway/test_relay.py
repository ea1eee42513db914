"""The relay: bytes up, bytes down, what is booked, and what happens when something breaks."""

import asyncio
import gzip
import json
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.fakes.backend import Cut, FakeBackend, Gate, Reply, Seen, sse
from tests.gateway.harness import backend, running_gateway

CHAT = {"model": "m", "messages": [{"role": "user", "content": "hi"}]}
ANSWER = b'{"id":"x","model":"m-served","choices":[{"index":0,"message":{"role":"assistant",' \
    b'"content":"hello"},"finish_reason":"stop"}],"usage":{"prompt_tokens":7,' \
    b'"completion_tokens":3,"prompt_tokens_details":{"cached_tokens":2}}}'  # fmt: skip
STREAM = (
    b': hello\n\ndata: {"choices":[{"index":0,"delta":{"role":"assistant","content":""}}]}\n\n',
    b'data: {"choices":[{"index":0,"delta":{"content":"h\xc3\xa9"}}]}\r\n\r\n',
    b'data: {"choices":[{"index":0,"delta":{},"finish_reason":"stop"}],'
    b'"usage":{"prompt_tokens":5,"completion_tokens":4}}\n\n',
    b"data: [DONE]\n\n",
)


def answers(reply: Reply) -> Any:
    return lambda seen: reply


async def post(base: str, path: str, body: Any, **more: Any) -> httpx.Response:
    async with httpx.AsyncClient(timeout=10) as client:
        return await client.post(base + path, json=body, **more)


async def test_whole_answer_comes_down_byte_for_byte_and_is_booked(tmp_path: Path) -> None:
    async with (
        FakeBackend(answers(Reply(pieces=[ANSWER]))) as up,
        running_gateway(tmp_path, backends={"b": backend(up.url)}) as gateway,
    ):
        answer = await post(gateway.base, "/v1/chat/completions", CHAT)
        row = await gateway.row()
    assert answer.content == ANSWER
    assert answer.headers["x-routed-via"] == "b/m"
    assert answer.headers["x-request-id"] == row.request_id
    assert (row.prompt_tokens, row.cached_tokens, row.completion_tokens) == (7, 2, 3)
    assert (row.outcome, row.usage_source, row.path) == ("succeeded", "backend", "relay")
    assert (row.served_model, row.finish_reason) == ("m-served", "stop")


@pytest.mark.parametrize("framing", ["chunked", "close"])
async def test_stream_comes_down_byte_for_byte(tmp_path: Path, framing: Any) -> None:
    async with (
        FakeBackend(answers(sse(*STREAM, framing=framing))) as up,
        running_gateway(tmp_path, backends={"b": backend(up.url)}) as gateway,
    ):
        answer = await post(gateway.base, "/v1/chat/completions", {**CHAT, "stream": True})
        row = await gateway.row()
    assert answer.content == b"".join(STREAM)
    assert answer.headers["x-accel-buffering"] == "no"
    assert (row.prompt_tokens, row.completion_tokens, row.stream) == (5, 4, 1)
    assert (row.outcome, row.finish_reason) == ("succeeded", "stop")
    assert row.ttft_ms is not None


async def test_request_body_goes_up_unchanged_and_credentials_do_not(tmp_path: Path) -> None:
    body = b'{ "model" : "m",\t"x": 1.0e2, "s":"\\u00e9", "messages":[] }'
    sent = {
        "authorization": "Bearer client-secret", "x-api-key": "client-secret",
        "cookie": "client-secret", "x-goog-api-key": "client-secret",
        "openai-organization": "client-secret", "x-tandem-profile": "p",
        "x-forwarded-for": "1.2.3.4",
        "anthropic-beta": "some-flag", "content-type": "application/json",
        "connection": "keep-alive, x-named", "x-named": "hop",
    }  # fmt: skip
    async with (
        FakeBackend(answers(Reply(pieces=[ANSWER]))) as up,
        running_gateway(
            tmp_path, backends={"b": backend(up.url, headers={"X-Extra": "ours"})}
        ) as gateway,
        httpx.AsyncClient() as client,
    ):
        await client.post(
            f"{gateway.base}/v1/chat/completions?key=client-secret&beta=true",
            content=body, headers=sent,
        )  # fmt: skip
    seen = up.seen[0]
    assert seen.body == body
    assert "client-secret" not in repr(seen)
    assert not {"x-tandem-profile", "x-forwarded-for", "x-named"} & seen.headers.keys()
    assert seen.headers["anthropic-beta"] == "some-flag"
    assert (seen.headers["x-extra"], seen.headers["accept-encoding"]) == ("ours", "identity")
    assert seen.target == "/v1/chat/completions?beta=true"


async def test_alias_replaces_only_the_model_value(tmp_path: Path) -> None:
    from gateway.settings.types import RouteSettings, RouteTarget

    body = b'{"messages":[],"model":"quick" ,"temperature":1.50,"metadata":{"model":"quick"}}'
    routes = {"quick": RouteSettings((RouteTarget("b", "m"),))}
    async with (
        FakeBackend(answers(Reply(pieces=[ANSWER]))) as up,
        running_gateway(tmp_path, backends={"b": backend(up.url)}, routes=routes) as gateway,
        httpx.AsyncClient() as client,
    ):
        await client.post(f"{gateway.base}/v1/chat/completions", content=body)
        row = await gateway.row()
    assert up.seen[0].body == body.replace(b'"quick" ,', b'"m" ,')
    assert (row.model, row.upstream_model) == ("quick", "m")


async def test_gzipped_request_goes_up_as_received(tmp_path: Path) -> None:
    packed = gzip.compress(json.dumps(CHAT).encode())
    async with (
        FakeBackend(answers(Reply(pieces=[ANSWER]))) as up,
        running_gateway(tmp_path, backends={"b": backend(up.url)}) as gateway,
        httpx.AsyncClient() as client,
    ):
        answer = await client.post(
            f"{gateway.base}/v1/chat/completions",
            content=packed, headers={"content-encoding": "gzip"},
        )  # fmt: skip
    assert answer.status_code == 200
    assert up.seen[0].body == packed
    assert up.seen[0].headers["content-encoding"] == "gzip"


async def test_compressed_answer_keeps_its_bytes_and_is_booked(tmp_path: Path) -> None:
    packed = gzip.compress(ANSWER)
    headers = {"content-type": "application/json", "content-encoding": "gzip"}
    async with (
        FakeBackend(answers(Reply(headers=headers, pieces=[packed]))) as up,
        running_gateway(tmp_path, backends={"b": backend(up.url)}) as gateway,
        httpx.AsyncClient() as client,
        client.stream("POST", f"{gateway.base}/v1/chat/completions", json=CHAT) as answer,
    ):
        raw = b"".join([piece async for piece in answer.aiter_raw()])
        row = await gateway.row()
    assert raw == packed
    assert row.completion_tokens == 3


@pytest.mark.parametrize("status", [400, 404, 422, 429, 500, 503])
async def test_upstream_errors_pass_with_their_own_bytes(tmp_path: Path, status: int) -> None:
    body = b'{"error":{"message":"their words"}}'
    reply = Reply(status, {"content-type": "application/json", "retry-after": "7"}, [body])
    async with (
        FakeBackend(answers(reply)) as up,
        running_gateway(tmp_path, backends={"b": backend(up.url)}) as gateway,
    ):
        answer = await post(gateway.base, "/v1/chat/completions", CHAT)
        row = await gateway.row()
    assert (answer.status_code, answer.content) == (status, body)
    assert answer.headers["retry-after"] == "7"
    assert (row.outcome, row.error_type, row.upstream_status) == (
        "failed", "upstream_status", status,
    )  # fmt: skip
    assert row.completion_tokens is None


@pytest.mark.parametrize(
    ("status", "code"),
    [
        (401, "provider_authentication_failed"),
        (403, "provider_authentication_failed"),
        (402, "provider_out_of_credits"),
        (302, "upstream_failed"),
    ],
)
async def test_client_never_sees_401_for_an_upstream_fault(
    tmp_path: Path, status: int, code: str
) -> None:
    reply = Reply(status, {"location": "http://elsewhere.invalid"}, [b"key sk-secret is wrong"])
    async with (
        FakeBackend(answers(reply)) as up,
        running_gateway(tmp_path, backends={"b": backend(up.url)}) as gateway,
    ):
        answer = await post(gateway.base, "/v1/chat/completions", CHAT)
    assert answer.status_code == 502
    assert answer.json()["error"]["code"] == code
    assert "sk-secret" not in answer.text and "elsewhere" not in answer.text


async def test_unreachable_backend_is_502_and_booked(tmp_path: Path) -> None:
    async with running_gateway(tmp_path, backends={"b": backend("http://127.0.0.1:1")}) as gateway:
        answer = await post(gateway.base, "/v1/chat/completions", CHAT)
        row = await gateway.row()
    assert answer.status_code == 502
    assert "127.0.0.1" not in answer.text
    assert (row.outcome, row.error_type, row.status) == ("failed", "upstream_failed", 502)


async def test_stale_kept_connection_is_redone_once(tmp_path: Path) -> None:
    calls = 0

    def script(seen: Seen) -> Reply:
        nonlocal calls
        calls += 1
        return Reply(pieces=[ANSWER])

    async with (
        FakeBackend(script) as up,
        running_gateway(tmp_path, backends={"b": backend(up.url)}) as gateway,
    ):
        await post(gateway.base, "/v1/chat/completions", CHAT)
        connection = next(iter(next(iter(gateway.gateway.client._idle.values()))))

        # The backend has closed, and we have not noticed: what we write meets a dead connection.
        written = connection.start

        def start(request: bytes, body: bytes, *rest: Any) -> Any:
            ended = written(request, body, *rest)
            connection.hang_up()
            return ended

        connection.start = start  # type: ignore[method-assign]
        answer = await post(gateway.base, "/v1/chat/completions", CHAT)
    assert answer.content == ANSWER
    assert up.connections == 2


async def test_connections_are_kept_and_used_again(tmp_path: Path) -> None:
    async with (
        FakeBackend(answers(Reply(pieces=[ANSWER]))) as up,
        running_gateway(tmp_path, backends={"b": backend(up.url)}) as gateway,
    ):
        for _ in range(3):
            await post(gateway.base, "/v1/chat/completions", CHAT)
        assert gateway.gateway.client.idle_count() == 1
    assert up.connections == 1


@pytest.mark.parametrize("framing", ["chunked", "close"])
async def test_stream_cut_inside_a_record_ends_with_the_surfaces_error(
    tmp_path: Path, framing: Any
) -> None:
    async with (
        FakeBackend(answers(sse(STREAM[1], b'data: {"cho', Cut(), framing=framing))) as up,
        running_gateway(tmp_path, backends={"b": backend(up.url)}) as gateway,
    ):
        answer = await post(gateway.base, "/v1/chat/completions", {**CHAT, "stream": True})
        row = await gateway.row()
    broken = STREAM[1] + b'data: {"cho\n\n'
    assert answer.content.startswith(broken)
    end = answer.content[len(broken) :].split(b"\n\n")
    assert json.loads(end[0].removeprefix(b"data: "))["error"]["type"] == "stream_error"
    assert end[1] == b"data: [DONE]"
    assert (row.outcome, row.error_type) == ("failed", "upstream_failed")
    assert (row.usage_source, row.completion_tokens) == ("estimated", 1)


async def test_whole_answer_cut_short_is_never_ended_cleanly(tmp_path: Path) -> None:
    reply = Reply(pieces=[ANSWER[:20], Cut()], framing="chunked")
    async with (
        FakeBackend(answers(reply)) as up,
        running_gateway(tmp_path, backends={"b": backend(up.url)}) as gateway,
    ):
        with pytest.raises(httpx.RemoteProtocolError):
            await post(gateway.base, "/v1/chat/completions", CHAT)
        row = await gateway.row()
    assert row.outcome == "failed"


async def test_clean_stream_without_a_finish_passes_and_is_booked_as_failed(tmp_path: Path) -> None:
    async with (
        FakeBackend(answers(sse(STREAM[1], b"data: [DONE]\n\n"))) as up,
        running_gateway(tmp_path, backends={"b": backend(up.url)}) as gateway,
    ):
        answer = await post(gateway.base, "/v1/chat/completions", {**CHAT, "stream": True})
        row = await gateway.row()
    assert answer.content == STREAM[1] + b"data: [DONE]\n\n"
    assert (row.outcome, row.error_type) == ("failed", "no_finish_reason")


async def test_close_delimited_stream_without_a_finish_counts_as_broken(tmp_path: Path) -> None:
    async with (
        FakeBackend(answers(sse(STREAM[1], framing="close"))) as up,
        running_gateway(tmp_path, backends={"b": backend(up.url)}) as gateway,
    ):
        answer = await post(gateway.base, "/v1/chat/completions", {**CHAT, "stream": True})
        row = await gateway.row()
    assert b"stream_error" in answer.content
    assert row.outcome == "failed"


@pytest.mark.parametrize("phase", ["before headers", "mid-stream"])
async def test_client_that_leaves_closes_upstream_within_a_second(
    tmp_path: Path, phase: str
) -> None:
    gate = Gate()
    pieces = [STREAM[1], gate] if phase == "mid-stream" else [gate]
    held = asyncio.Event()

    class Held(FakeBackend):
        async def _answer(self, reply: Reply, reader: Any, writer: Any) -> bool:
            if phase == "before headers":
                held.set()
                if not await self._wait(gate, reader):
                    return False
            return await super()._answer(reply, reader, writer)

    async with (
        Held(answers(sse(*pieces))) as up,
        running_gateway(tmp_path, backends={"b": backend(up.url)}) as gateway,
    ):
        asking = asyncio.create_task(
            post(gateway.base, "/v1/chat/completions", {**CHAT, "stream": True})
        )
        async with asyncio.timeout(5):
            await (held if phase == "before headers" else gate.reached).wait()
        asking.cancel()
        async with asyncio.timeout(1):
            await up.hung_up.wait()
        row = await gateway.row()
        await asyncio.gather(asking, return_exceptions=True)
    assert (row.outcome, row.error_type) == ("aborted", "client_left")
    assert row.completion_tokens == (1 if phase == "mid-stream" else None)


async def test_client_that_leaves_after_the_finish_has_succeeded(tmp_path: Path) -> None:
    gate = Gate()
    async with (
        FakeBackend(answers(sse(*STREAM[:3], gate))) as up,
        running_gateway(tmp_path, backends={"b": backend(up.url)}) as gateway,
        httpx.AsyncClient() as client,
    ):
        body = {**CHAT, "stream": True}
        url = f"{gateway.base}/v1/chat/completions"
        async with client.stream("POST", url, json=body) as answer:
            got = b""
            async for piece in answer.aiter_raw():
                got += piece
                if got.endswith(STREAM[2]):
                    break
        row = await gateway.row()
    assert (row.outcome, row.completion_tokens) == ("succeeded", 4)


@pytest.mark.parametrize("clock", ["first_event_s", "idle_s", "total_s"])
async def test_clock_that_fires_is_named(tmp_path: Path, clock: str) -> None:
    gate = Gate()
    pieces = [b": ping\n\n", gate] if clock == "first_event_s" else [STREAM[1], gate]
    settings = backend("http://unused", **{clock: 0.05})
    async with (
        FakeBackend(answers(sse(*pieces))) as up,
        running_gateway(
            tmp_path, backends={"b": backend(up.url, **{clock: getattr(settings, clock)})}
        ) as gateway,
    ):
        answer = await post(gateway.base, "/v1/chat/completions", {**CHAT, "stream": True})
        row = await gateway.row()
    assert clock in answer.text
    assert (row.outcome, row.error_type) == ("failed", clock)


async def test_max_in_flight_refuses_the_next_one(tmp_path: Path) -> None:
    gate = Gate()
    async with (
        FakeBackend(answers(sse(STREAM[1], gate, *STREAM[2:]))) as up,
        running_gateway(tmp_path, backends={"b": backend(up.url, max_in_flight=1)}) as gateway,
    ):
        first = asyncio.create_task(
            post(gateway.base, "/v1/chat/completions", {**CHAT, "stream": True})
        )
        async with asyncio.timeout(5):
            await gate.reached.wait()
        second = await post(gateway.base, "/v1/chat/completions", CHAT)
        gate.open.set()
        await first
        row = await gateway.row(0)
    assert second.status_code == 503
    assert (second.json()["error"]["code"], second.headers["retry-after"]) == ("backend_busy", "5")
    assert (row.outcome, row.error_type) == ("refused", "backend_busy")


async def test_slow_client_slows_its_backend(tmp_path: Path) -> None:
    piece = b'data: {"choices":[{"index":0,"delta":{"content":"' + b"x" * 65_000 + b'"}}]}\n\n'
    written = 0

    class Counting(FakeBackend):
        async def _answer(self, reply: Reply, reader: Any, writer: Any) -> bool:
            nonlocal written
            drain = writer.drain

            async def counted() -> None:
                nonlocal written
                await drain()
                written += 1

            writer.drain = counted
            return await super()._answer(reply, reader, writer)

    async with (
        Counting(answers(sse(*[piece] * 400, *STREAM[2:]))) as up,
        running_gateway(tmp_path, backends={"b": backend(up.url)}) as gateway,
    ):
        _, writer = await asyncio.open_connection("127.0.0.1", gateway.port, limit=1024)
        body = json.dumps({**CHAT, "stream": True}).encode()
        writer.write(
            b"POST /v1/chat/completions HTTP/1.1\r\nhost: x\r\ncontent-length: %d\r\n\r\n%b"
            % (len(body), body)
        )
        seen = -1
        while seen != written:  # until nothing moves any more
            seen = written
            await asyncio.sleep(0.3)
        assert 0 < written < 350
        writer.close()
        await asyncio.gather(writer.wait_closed(), return_exceptions=True)


async def test_counts_of_a_streams_beginning_are_not_those_of_its_end(tmp_path: Path) -> None:
    start = (
        b'event: message_start\ndata: {"type":"message_start","message":{"usage":'
        b'{"input_tokens":5,"output_tokens":1}}}\n\n'
    )
    delta = (
        b'event: content_block_delta\ndata: {"type":"content_block_delta","delta":'
        b'{"type":"text_delta","text":"twelve bytes"}}\n\n'
    )
    async with (
        FakeBackend(answers(sse(start, delta, Cut()))) as up,
        running_gateway(
            tmp_path,
            backends={"b": backend(up.url, kind="anthropic", base_url=up.url, models=("m",))},
        ) as gateway,
    ):
        answer = await post(gateway.base, "/v1/messages", {**CHAT, "stream": True})
        row = await gateway.row()
    assert b"event: error" in answer.content
    assert (row.usage_source, row.prompt_tokens, row.completion_tokens) == ("estimated", 5, 3)
