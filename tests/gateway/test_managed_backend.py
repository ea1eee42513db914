"""A backend with the conductor before it: what goes up, what comes down, what is booked."""

import asyncio
import json
from pathlib import Path
from typing import Any

import httpx
import pytest

from gateway.settings.types import BackendKey, Secret
from proto.plan import REASONING_PART, Segment
from tests.fakes.backend import Cut, FakeBackend, Gate, Reply, sse
from tests.gateway.harness import backend, running_gateway
from tests.gateway.managed_backend import (
    CHAT,
    DONE,
    TOOL,
    call,
    end,
    event,
    stage,
    text,
    thought,
    usage,
)

KEY = BackendKey("team", Secret("env:K", "sk-very-secret-value"))


async def test_a_whole_answer_is_written_and_booked(tmp_path: Path) -> None:
    counted = {**usage(9, 5), "prompt_tokens_details": {"cached_tokens": 4}}
    up = (event({"role": "assistant"}), thought("hm"), text("Hel"), text("lo"), *end(**counted))
    async with stage(tmp_path, up, keys=(KEY,), flavor="vllm") as on:
        answer = await on.ask(temperature=0.5, max_tokens=900, top_k=3)
        row = await on.gateway.row()
    body = answer.json()
    message = {"role": "assistant", "content": "Hello", "reasoning_content": "hm"}
    assert body["choices"][0]["message"] == message
    assert (body["usage"]["prompt_tokens"], body["usage"]["completion_tokens"]) == (9, 5)
    assert body["usage"]["prompt_tokens_details"]["cached_tokens"] == 4
    sent = on.sent()
    assert sent["stream"] is True and sent["stream_options"] == {"include_usage": True}
    assert (sent["model"], sent["temperature"], sent["max_tokens"], sent["top_k"]) == (
        "m", 0.5, 900, 3,
    )  # fmt: skip
    assert on.up.seen[0].headers["authorization"] == "Bearer sk-very-secret-value"
    assert (row.path, row.backend, row.upstream_model, row.upstream_key) == (
        "managed", "b", "m", "team",
    )  # fmt: skip
    assert (row.prompt_tokens, row.cached_tokens, row.completion_tokens) == (9, 4, 5)
    assert (row.usage_source, row.adjusted, row.outcome) == ("backend", 0, "succeeded")
    assert (row.served_model, row.finish_reason, row.upstream_status) == ("served", "stop", 200)
    assert (row.note_tokens, row.hidden_tokens) == (0, 0)
    assert row.ttft_ms is not None and row.thinking_closed_by == "model"


async def test_a_stream_is_written_as_it_comes(tmp_path: Path) -> None:
    gate = Gate()
    async with (
        stage(tmp_path, (text("a"), gate, text("b"), *end())) as on,
        on.client.stream("POST", "/v1/chat/completions", json={**CHAT, "stream": True}) as answer,
    ):
        lines = answer.aiter_lines()
        first = json.loads((await anext(lines)).removeprefix("data: "))
        gate.open.set()
        rest = [line async for line in lines if line]
    assert first["choices"][0]["delta"] == {"role": "assistant", "content": "a"}
    assert rest[-1] == "data: [DONE]" and '"finish_reason":"stop"' in rest[-2]


async def test_other_surfaces_of_the_backend_stay_relayed(tmp_path: Path) -> None:
    reply = Reply(pieces=[b'{"choices":[{"text":"x","finish_reason":"stop"}]}'])
    async with stage(tmp_path, reply) as on:
        answer = await on.client.post("/v1/completions", json={"model": "m", "prompt": "x"})
        row = await on.gateway.row()
    assert answer.content == reply.pieces[0] and row.path == "relay"


async def test_reasoning_in_tags_is_told_from_the_answer_however_it_is_cut(tmp_path: Path) -> None:
    pieces = [text(letter) for letter in "<think>\nso it is\n</think>\n\nThe <think> answer"]
    async with stage(tmp_path, (*pieces, *end())) as on:
        body = (await on.ask()).json()
    message = body["choices"][0]["message"]
    assert message["reasoning_content"] == "so it is"
    assert message["content"] == "The <think> answer"


async def test_calls_are_sent_whole_at_the_end_with_ids_and_one_name(tmp_path: Path) -> None:
    up = (
        text("I look."), call(0, "c1", "look", ""), call(0, None, "look", '{"at":'),
        call(0, "c1", None, '"x"}'), call(0, "c2", "look", ""), *end("stop"),
    )  # fmt: skip
    async with stage(tmp_path, up) as on:
        _, events = await on.stream(tools=[TOOL])
        row = await on.gateway.row()
    deltas = [e["choices"][0]["delta"] for e in events[:-1] if e["choices"]]
    steps = [step for delta in deltas for step in delta.get("tool_calls", ())]
    assert [(step["index"], step.get("id")) for step in steps] == [
        (0, "c1"), (0, None), (1, "c2"), (1, None),
    ]  # fmt: skip
    assert [s["function"].get("arguments") for s in steps] == ["", '{"at":"x"}', "", "{}"]
    assert [s["function"].get("name") for s in steps] == ["look", None, "look", None]
    assert events[-2]["choices"][0]["finish_reason"] == "tool_calls"
    assert (row.tool_calls, row.finish_reason) == (2, "tool_calls")


async def test_a_call_without_an_id_gets_one_and_an_echo_is_dropped(tmp_path: Path) -> None:
    up = (call(0, None, "look", "{}"), call(1, None, "look", "{}"), *end("tool_calls"))
    async with stage(tmp_path, up) as on:
        body = (await on.ask(tools=[TOOL])).json()
    calls = body["choices"][0]["message"]["tool_calls"]
    assert [one["id"] for one in calls] == ["call_stream_1"]


async def test_a_forced_call_stands_alone(tmp_path: Path) -> None:
    up = (call(0, "a", "look", "{}"), call(1, "b", "look", '{"at":"y"}'), *end("tool_calls"))
    async with stage(tmp_path, up) as on:
        body = (await on.ask(tools=[TOOL], tool_choice="required")).json()
        sent = on.sent()
    assert len(body["choices"][0]["message"]["tool_calls"]) == 1
    assert (sent["tool_choice"], sent["parallel_tool_calls"]) == ("required", False)


async def test_a_call_cut_by_the_limit_is_left_out_and_ends_length(tmp_path: Path) -> None:
    up = (text("a"), call(0, "c", "look", '{"at":"x'), *end("length"))
    async with stage(tmp_path, up) as on:
        body = (await on.ask(tools=[TOOL])).json()
    choice = body["choices"][0]
    assert choice["finish_reason"] == "length" and "tool_calls" not in choice["message"]


async def test_a_call_cut_at_a_clean_end_is_never_delivered(tmp_path: Path) -> None:
    up = (text("a"), call(0, "c", "look", '{"at":"x'), *end("tool_calls"))
    async with stage(tmp_path, up) as on:
        _, events = await on.stream(tools=[TOOL])
        row = await on.gateway.row()
    assert events[-2]["error"]["type"] == "stream_error" and events[-1] == "[DONE]"
    assert "look" not in json.dumps(events)
    assert (row.outcome, row.error_type) == ("failed", "upstream_failed")


@pytest.mark.parametrize(
    ("theirs", "ours"),
    [("stop", "stop"), ("length", "length"), ("max_tokens", "length"), ("end_turn", "stop"),
     ("content_filter", "stop"), ("tool_calls", "stop")],
)  # fmt: skip
async def test_finish_reasons_are_standard_ones(tmp_path: Path, theirs: str, ours: str) -> None:
    async with stage(tmp_path, (text("a"), *end(theirs))) as on:
        body = (await on.ask()).json()
    assert body["choices"][0]["finish_reason"] == ours


async def test_a_stream_that_only_says_done_is_whole(tmp_path: Path) -> None:
    async with stage(tmp_path, (text("a"), DONE)) as on:
        body = (await on.ask()).json()
    assert body["choices"][0]["finish_reason"] == "stop"


@pytest.mark.parametrize("last", [(), (Cut(),), (event({}, "abort"), DONE)])
async def test_a_stream_that_breaks_off_ends_with_an_error(
    tmp_path: Path, last: tuple[Any, ...]
) -> None:
    async with stage(tmp_path, (text("a"), *last)) as on:
        _, events = await on.stream()
        row = await on.gateway.row()
    assert events[-2]["error"]["code"] == "upstream_failed" and events[-1] == "[DONE]"
    assert (row.outcome, row.error_type, row.usage_source) == (
        "failed", "upstream_failed", "estimated",
    )  # fmt: skip
    assert row.completion_tokens == 1


@pytest.mark.parametrize(
    ("status", "body", "ours", "code"),
    [
        (401, b"key sk-very-secret-value is wrong", 502, "provider_authentication_failed"),
        (403, b"no", 502, "provider_authentication_failed"),
        (402, b"no", 502, "provider_out_of_credits"),
        (302, b"", 502, "upstream_failed"),
        (400, b'{"error":{"message":"bad top_p"}}', 400, "provider_rejected_request"),
        (422, b"no", 400, "provider_rejected_request"),
        (404, b"no", 404, "model_not_found"),
        (429, b"no", 429, "rate_limit_exceeded"),
        (413, b"no", 400, "context_length_exceeded"),
        (400, b'{"error":{"code":"context_length_exceeded"}}', 400, "context_length_exceeded"),
        (500, b"boom http://10.0.0.1/x sk-very-secret-value", 502, "upstream_failed"),
        (503, b"no", 502, "upstream_failed"),
    ],
)
async def test_an_upstream_error_is_ours_to_explain(
    tmp_path: Path, status: int, body: bytes, ours: int, code: str
) -> None:
    reply = Reply(status, {"content-type": "application/json", "retry-after": "7"}, [body])
    async with stage(tmp_path, reply, keys=(KEY,)) as on:
        answer = await on.ask(stream=True)
        row = await on.gateway.row()
    assert (answer.status_code, answer.json()["error"]["code"]) == (ours, code)
    assert "very-secret" not in answer.text and "10.0.0.1" not in answer.text
    assert answer.headers.get("retry-after") == ("7" if status in (429, 500, 503) else None)
    assert (row.upstream_status, row.error_type) == (status, code)
    assert row.completion_tokens is None
    if status == 400 and code.startswith("provider"):
        assert "bad top_p" in answer.text


async def test_an_error_does_not_quote_the_prompt_or_its_notes(tmp_path: Path) -> None:
    note = Segment("n", "note", 0, "\nkeep it very short")
    words = b'{"error":{"message":"cannot read: keep it very short"}}'
    async with stage(tmp_path, Reply(400, pieces=[words]), segments=(note,)) as on:
        answer = await on.ask()
    assert "cannot read" in answer.text and "very short" not in answer.text


async def test_an_error_in_the_stream_is_an_error_end(tmp_path: Path) -> None:
    fault = b'data: {"error":{"message":"out of memory"}}\n\n'
    async with stage(tmp_path, (text("a"), fault), (fault,)) as on:
        _, events = await on.stream()
        first = await on.ask(stream=True)
    assert events[-2]["error"]["type"] == "stream_error"
    assert "out of memory" in events[-2]["error"]["message"]
    assert first.status_code == 502


async def test_an_unreachable_backend_is_502(tmp_path: Path) -> None:
    one = backend("http://127.0.0.1:1", conductor=True)
    async with (
        running_gateway(tmp_path, backends={"b": one}) as gateway,
        httpx.AsyncClient(base_url=gateway.base) as client,
    ):
        answer = await client.post("/v1/chat/completions", json=CHAT)
        row = await gateway.row()
    assert answer.status_code == 502 and "127.0.0.1" not in answer.text
    assert (row.outcome, row.error_type) == ("failed", "upstream_failed")


@pytest.mark.parametrize(
    ("clock", "answer", "status"),
    [
        ("first_event_s", (Gate(),), 504),
        ("first_event_s", (b": ping\n\n", Gate()), 504),
        ("idle_s", (text("a"), b": ping\n\n", Gate()), 200),
        ("total_s", (text("a"), Gate()), 200),
    ],
)
async def test_a_silent_backend_is_given_up(
    tmp_path: Path, clock: str, answer: tuple[Any, ...], status: int
) -> None:
    async with stage(tmp_path, answer, **{clock: 0.1}) as on:
        got, events = await on.stream()
        row = await on.gateway.row()
        async with asyncio.timeout(5):
            await on.up.hung_up.wait()
    assert got.status_code == status
    if status == 200:
        assert events[-2]["error"]["code"] == "upstream_timeout"
    assert (row.outcome, row.error_type) == ("failed", clock)


async def test_a_client_that_does_not_wait_longer_ends_a_whole_answer(tmp_path: Path) -> None:
    async with stage(tmp_path, (text("a"), Gate())) as on:
        answer = await on.client.post(
            "/v1/chat/completions", json=CHAT, headers={"x-stainless-read-timeout": "0.1"}
        )
        row = await on.gateway.row()
    assert answer.status_code == 504 and row.error_type == "client timeout"


async def test_a_client_that_leaves_closes_the_request(tmp_path: Path) -> None:
    async with stage(tmp_path, (text("abcdefgh"), Gate()), tokens_per_delta="one") as on:
        async with on.client.stream(
            "POST", "/v1/chat/completions", json={**CHAT, "stream": True}
        ) as answer:
            await anext(answer.aiter_lines())
        async with asyncio.timeout(1):
            await on.up.hung_up.wait()
        row = await on.gateway.row()
        backends = on.gateway.gateway.pipeline.routing.backends
    assert (row.outcome, row.error_type) == ("aborted", "client_left")
    assert (row.completion_tokens, row.usage_source) == (1, "estimated")
    assert backends["b"].in_flight == 0


async def test_a_client_that_leaves_before_an_answer_closes_the_request(tmp_path: Path) -> None:
    gate = Gate()
    async with stage(tmp_path, (gate,)) as on:
        asking = asyncio.create_task(on.ask())
        await gate.reached.wait()
        asking.cancel()
        async with asyncio.timeout(1):
            await on.up.hung_up.wait()
        row = await on.gateway.row()
    assert (row.outcome, row.usage_source) == ("aborted", "none")


async def test_a_backend_with_enough_to_do_is_busy(tmp_path: Path) -> None:
    gate = Gate()
    async with stage(tmp_path, (gate, text("a"), *end()), max_in_flight=1) as on:
        first = asyncio.create_task(on.ask())
        await gate.reached.wait()
        second = await on.ask()
        gate.open.set()
        assert (await first).status_code == 200
        row = await on.gateway.row()
    assert (second.status_code, second.headers["retry-after"]) == (503, "5")
    assert (row.outcome, row.error_type) == ("refused", "backend_busy")


async def test_a_kept_connection_is_used_again(tmp_path: Path) -> None:
    async with stage(tmp_path, (text("a"), *end())) as on:
        await on.ask()
        await on.ask()
        assert on.up.connections == 1


async def test_an_answer_that_is_no_stream_is_read_whole(tmp_path: Path) -> None:
    message = {"content": [{"type": "text", "text": "he"}, {"type": "text", "text": "llo"}]}
    body = {"choices": [{"message": message, "finish_reason": "stop"}], "usage": usage(3, 2)}
    async with stage(tmp_path, Reply(pieces=[json.dumps(body).encode()])) as on:
        answer = await on.ask()
        row = await on.gateway.row()
    assert answer.json()["choices"][0]["message"]["content"] == "hello"
    assert (row.completion_tokens, row.usage_source) == (2, "backend")


async def test_a_page_instead_of_an_answer_is_an_error(tmp_path: Path) -> None:
    async with stage(tmp_path, Reply(headers={"content-type": "text/html"}, pieces=[b"<p>"])) as on:
        assert (await on.ask()).status_code == 502


async def test_malformed_events_are_skipped(tmp_path: Path) -> None:
    odd = (b"data: {not json\n\n", b"data: 7\n\n", b'data: {"choices":[null]}\n\n')
    async with stage(tmp_path, (*odd, text("a"), *end())) as on:
        assert (await on.ask()).json()["choices"][0]["message"]["content"] == "a"


async def test_several_answers_are_refused(tmp_path: Path) -> None:
    async with stage(tmp_path, (DONE,)) as on:
        answer = await on.ask(n=2)
    error = answer.json()["error"]
    assert (answer.status_code, error["code"], error["param"]) == (
        400, "unsupported_parameter", "n",
    )  # fmt: skip
    assert not on.up.seen


async def test_tokens_of_llamacpp_are_read_from_its_times(tmp_path: Path) -> None:
    timings = {"cache_n": 4, "prompt_n": 3, "predicted_n": 2}
    up = (text("a"), event({}, "stop", timings=timings), DONE)
    async with stage(tmp_path, up, flavor="llamacpp") as on:
        await on.ask()
        row = await on.gateway.row()
    assert (row.prompt_tokens, row.cached_tokens, row.completion_tokens) == (7, 4, 2)
    assert row.usage_source == "backend"


async def test_notes_stand_at_their_place_and_are_not_shown_in_usage(tmp_path: Path) -> None:
    segments = (
        Segment("a", "note", 0, "\n<note>", part=0),
        Segment("h", "hidden", 1, "HID", part=REASONING_PART, offset=2),
        Segment("b", "note", 2, "12345678"),
    )
    messages = [
        {"role": "user", "content": "one"},
        {"role": "assistant", "content": "two", "reasoning_content": "abcd"},
        {"role": "user", "content": [{"type": "text", "text": "x"}, {"type": "text", "text": "y"}]},
    ]
    async with stage(tmp_path, (text("a"), *end(**usage(20, 1))), segments=segments) as on:
        answer = await on.ask(messages=messages)
        row = await on.gateway.row()
    sent = on.sent()["messages"]
    assert sent[0]["content"] == "one\n<note>"
    assert (sent[1]["content"], sent[1]["reasoning_content"]) == ("two", "abHIDcd")
    assert [part["text"] for part in sent[2]["content"]] == ["x", "y12345678"]
    assert (row.upstream_input_tokens, row.note_tokens, row.prompt_tokens) == (20, 5, 15)
    assert (row.adjusted, answer.json()["usage"]["prompt_tokens"]) == (1, 15)


async def test_a_reload_may_put_the_conductor_before_a_backend(tmp_path: Path) -> None:
    from dataclasses import replace

    async with (
        FakeBackend(lambda seen: sse(text("a"), *end())) as up,
        running_gateway(tmp_path, backends={"b": backend(up.url)}) as gateway,
        httpx.AsyncClient(base_url=gateway.base) as client,
    ):
        before = gateway.gateway.settings
        one = replace(before.backends["b"], conductor=True)
        gateway.gateway.apply(replace(before, backends={"b": one}))
        answer = await client.post("/v1/chat/completions", json=CHAT)
        row = await gateway.row()
    assert answer.status_code == 200 and row.path == "managed"
