"""Rung 3: a backend's own tokenizer counts what an answer without usage took, after the answer."""

import asyncio
import contextlib
import json
import zlib
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import httpx
import pytest
from structlog.testing import capture_logs

from gateway.backends.base import Backend
from gateway.outbox import Outbox
from gateway.relay import counting, tokenizers
from gateway.relay.client import UpstreamClient
from gateway.relay.usage import KeptReading
from proto.limits import COUNTED_TEXT_BYTES, COUNTS_RUNNING, COUNTS_WAITING
from tests.fakes.backend import Cut, FakeBackend, Gate, Reply, Seen, sse
from tests.gateway.harness import Running, backend, running_gateway

MESSAGES = b'[ {"role":"user", "content":"how are you"} ]'
CHAT = b'{"model":"m","messages":' + MESSAGES + b',"stream":true}'
WHOLE = (
    b'{"model":"m","choices":[{"index":0,"message":{"content":"a b c"},"finish_reason":"stop"}]}'
)
FINISH = b'data: {"choices":[{"index":0,"delta":{},"finish_reason":"stop"}]}\n\n'
DONE = b"data: [DONE]\n\n"
TEMPLATE_TOKENS = 100  # what the fakes' chat templates add

Script = Callable[[Seen], Reply]


def delta(text: str) -> bytes:
    body = {"choices": [{"index": 0, "delta": {"content": text}}]}
    return b"data: " + json.dumps(body).encode() + b"\n\n"


TEN = [delta(f" word{n}") for n in range(10)]


def words(text: str, *, special: bool) -> int:
    return len(text.split()) + special


def answer(body: Any, status: int = 200) -> Reply:
    return Reply(status=status, pieces=[json.dumps(body).encode()])


def openai_tokenizer(seen: Seen, *, knows_chats: bool = True) -> Reply:
    """vLLM's, and SGLang's with or without chats."""
    asked = json.loads(seen.body)
    assert (seen.method, seen.target, asked["model"]) == ("POST", "/tokenize", "m")
    if "messages" in asked and not knows_chats:
        return answer({"error": "prompt is missing"}, 400)
    if "messages" in asked:
        count = sum(words(m["content"], special=False) for m in asked["messages"])
        count += TEMPLATE_TOKENS + len(asked.get("tools", []))
    else:
        count = words(asked["prompt"], special=asked["add_special_tokens"])
    return answer({"count": count, "max_model_len": 8, "tokens": [1] * count})


def llamacpp_tokenizer(seen: Seen) -> Reply:
    asked = json.loads(seen.body)
    if seen.target == "/apply-template":
        text = " ".join(m["content"] for m in asked["messages"])
        return answer({"prompt": "t " * (TEMPLATE_TOKENS - 1) + text})
    assert seen.target == "/tokenize"
    return answer({"tokens": [1] * words(asked["content"], special=asked["add_special"])})


def older_sglang(seen: Seen) -> Reply:
    return openai_tokenizer(seen, knows_chats=False)


TOKENIZERS: dict[str, Script] = {
    "vllm": openai_tokenizer,
    "sglang": openai_tokenizer,
    "llamacpp": llamacpp_tokenizer,
}


def server(reply: Reply, tokenizer: Script = openai_tokenizer) -> Script:
    def script(seen: Seen) -> Reply:
        return reply if seen.target.startswith("/v1/") else tokenizer(seen)

    return script


@contextlib.asynccontextmanager
async def serving(
    tmp_path: Path, script: Script, **settings: Any
) -> AsyncIterator[tuple[Running, FakeBackend]]:
    async with FakeBackend(script) as up:
        one = backend(up.url, **{"flavor": "vllm", **settings})
        async with running_gateway(tmp_path, backends={"b": one}) as gateway:
            yield gateway, up


async def post(base: str, body: bytes, surface: str = "chat/completions") -> httpx.Response:
    async with httpx.AsyncClient(timeout=10) as client:
        return await client.post(f"{base}/v1/{surface}", content=body)


async def wait_for(event: asyncio.Event) -> None:
    async with asyncio.timeout(5):
        await event.wait()


@pytest.mark.parametrize("flavor", TOKENIZERS)
@pytest.mark.parametrize("is_stream", [True, False])
async def test_answer_without_usage_is_counted(
    tmp_path: Path, flavor: str, is_stream: bool
) -> None:
    """A stream and a whole answer, at each kind of server that has a tokenizer."""
    reply = sse(delta("a "), delta("b c"), FINISH, DONE) if is_stream else Reply(pieces=[WHOLE])
    script = server(reply, TOKENIZERS[flavor])
    async with serving(tmp_path, script, flavor=flavor) as (gateway, _up):
        await post(gateway.base, CHAT if is_stream else CHAT.replace(b"true", b"false"))
        row = await gateway.row()
    assert (row.prompt_tokens, row.completion_tokens) == (TEMPLATE_TOKENS + 3, 3)
    assert (row.usage_source, row.outcome) == ("counted", "succeeded")


async def test_chat_goes_to_the_tokenizer_as_the_client_wrote_it(tmp_path: Path) -> None:
    """By span, with the tools and what else the template reads, and nothing more."""
    tools = b'[{"type":"function", "function":{"name":"f"}}]'
    body = CHAT[:-1] + b',"tools": ' + tools + b',"chat_template_kwargs":{"x":1.50},"user":"u"}'
    async with serving(tmp_path, server(sse(delta("a"), FINISH))) as (gateway, up):
        await post(gateway.base, body)
        row = await gateway.row()
    asked = up.seen[2].body
    template = b',"chat_template_kwargs":{"x":1.50}}'
    assert asked == b'{"model":"m","messages":' + MESSAGES + b',"tools":' + tools + template
    assert row.prompt_tokens == TEMPLATE_TOKENS + 3 + 1


async def test_older_sglang_counts_the_texts_of_a_chat(tmp_path: Path) -> None:
    """It knows no messages: without the template, but by its own tokenizer."""
    script = server(sse(delta("a b"), FINISH), older_sglang)
    async with serving(tmp_path, script, flavor="sglang") as (gateway, _up):
        await post(gateway.base, CHAT)
        row = await gateway.row()
    assert (row.prompt_tokens, row.completion_tokens) == (1 + 4, 2)
    assert row.usage_source == "counted"


@pytest.mark.parametrize(
    ("prompt", "tokens"),
    [
        (b'"one two"', 3),
        (b'["one two", "three"]', 4),
        (b"[5, 6, 7]", 3),
        (b"[[5, 6], [7]]", 3),
    ],
)
async def test_prompts_of_completions(tmp_path: Path, prompt: bytes, tokens: int) -> None:
    """Text, texts, token ids and lists of them; the tokenizer adds what begins a text."""
    text = b'data: {"choices":[{"index":0,"text":"a b","finish_reason":"stop"}]}\n\n'
    async with serving(tmp_path, server(sse(text, DONE))) as (gateway, _up):
        await post(
            gateway.base, b'{"model":"m","stream":true,"prompt":' + prompt + b"}", "completions"
        )
        row = await gateway.row()
    assert (row.prompt_tokens, row.completion_tokens, row.usage_source) == (tokens, 2, "counted")


async def test_the_tokenizer_stands_beside_the_versioned_paths(tmp_path: Path) -> None:
    """Below a prefix, with the backend's own key; not below /v1."""
    seen_paths = []

    def script(seen: Seen) -> Reply:
        seen_paths.append((seen.target, seen.headers.get("x-extra")))
        if "chat" in seen.target:
            return sse(delta("a"), FINISH)
        return answer({"count": 4})

    async with FakeBackend(script) as up:
        one = backend(up.url + "/box", flavor="vllm", headers={"X-Extra": "ours"})
        async with running_gateway(tmp_path, backends={"b": one}) as gateway:
            await post(gateway.base, CHAT)
            row = await gateway.row()
    assert seen_paths == [
        ("/box/v1/chat/completions", "ours"), ("/box/tokenize", "ours"), ("/box/tokenize", "ours")
    ]  # fmt: skip
    assert (row.prompt_tokens, row.completion_tokens) == (4, 4)


# R22: what was cut off is booked.


@pytest.mark.parametrize("way", ["client leaves", "backend breaks off"])
@pytest.mark.parametrize("tokenize", [True, False])
async def test_stream_cut_after_ten_deltas_is_booked(
    tmp_path: Path, way: str, tokenize: bool
) -> None:
    """R22: counted, or estimated where there is no tokenizer; never nothing."""
    gate = Gate()
    last = gate if way == "client leaves" else Cut()
    script = server(sse(*TEN, last))
    async with serving(tmp_path, script, tokenize=tokenize) as (gateway, up):
        async with (
            httpx.AsyncClient() as client,
            client.stream("POST", f"{gateway.base}/v1/chat/completions", content=CHAT) as got,
        ):
            async for line in got.aiter_lines():
                if "word9" in line or "error" in line:
                    break
        row = await gateway.row()
    assert row.outcome == ("aborted" if way == "client leaves" else "failed")
    if tokenize:
        assert (row.completion_tokens, row.usage_source) == (10, "counted")
        assert row.prompt_tokens == TEMPLATE_TOKENS + 3
    else:
        assert (row.completion_tokens, row.usage_source) == (15, "estimated")
        assert len(up.seen) == 1


# What is not counted.


@pytest.mark.parametrize("flavor", ["none", "openrouter"])
async def test_backend_without_a_tokenizer_is_not_asked(tmp_path: Path, flavor: str) -> None:
    """By its flavor."""
    async with serving(tmp_path, server(sse(delta("a"), FINISH)), flavor=flavor) as (gateway, up):
        await post(gateway.base, CHAT)
        row = await gateway.row()
    assert (row.usage_source, len(up.seen)) == ("estimated", 1)


async def test_usage_of_the_backend_is_not_counted_again(tmp_path: Path) -> None:
    """Rung 1 comes first; and nothing is counted where nothing was produced."""
    usage = b'data: {"choices":[],"usage":{"prompt_tokens":5,"completion_tokens":6}}\n\n'
    replies = [sse(delta("a"), FINISH, usage), sse(FINISH)]

    def script(seen: Seen) -> Reply:
        return replies.pop(0) if "chat" in seen.target else answer({}, 500)

    async with serving(tmp_path, script) as (gateway, up):
        await post(gateway.base, CHAT)
        await post(gateway.base, CHAT)
        first, second = await gateway.row(0), await gateway.row(1)
    assert (first.prompt_tokens, first.usage_source) == (5, "backend")
    assert (second.prompt_tokens, second.usage_source) == (None, "none")
    assert len(up.seen) == 2


@pytest.mark.parametrize(
    "broken",
    [
        answer({"detail": "Not Found"}, 404),
        answer({"tokens": [1]}),
        answer({"count": -1}),
        answer({"count": True}),
        answer([]),
        Reply(pieces=[b"<html>"]),
        Reply(pieces=[Cut()], framing="chunked"),
    ],
)
async def test_tokenizer_that_gives_no_count_leaves_the_estimate(
    tmp_path: Path, broken: Reply
) -> None:
    """Whatever it answers; said once a minute and not for each request."""
    script = server(sse(delta("abcde"), FINISH), lambda seen: broken)
    with capture_logs() as logs:
        async with serving(tmp_path, script) as (gateway, _up):
            for number in range(2):
                await post(gateway.base, CHAT)
                row = await gateway.row(number)
    assert (row.completion_tokens, row.usage_source, row.outcome) == (2, "estimated", "succeeded")
    said = [line for line in logs if line["event"] == "usage.not_counted"]
    assert [line["backend"] for line in said] == ["b"]


async def test_failures_are_said_again_after_a_minute(tmp_path: Path) -> None:
    """The first of each minute."""
    now_s = 0.0
    script = server(sse(delta("abcde"), FINISH), lambda seen: answer({}, 500))
    with capture_logs() as logs:
        async with serving(tmp_path, script) as (gateway, _up):
            gateway.gateway.counting._now = lambda: now_s
            for number, at_s in enumerate((1.0, 60.9, 61.0)):
                now_s = at_s
                await post(gateway.base, CHAT)
                await gateway.row(number)
    assert sum(line["event"] == "usage.not_counted" for line in logs) == 2


@pytest.mark.parametrize("over", [-1, 0, 1])
async def test_text_beyond_what_is_held_is_estimated(tmp_path: Path, over: int) -> None:
    """Prompt and answer together: one below the limit, at it, one above."""
    chat = CHAT.replace(b"you", "yoü".encode())  # bytes count, and not characters
    members = b'"messages":' + MESSAGES.replace(b"you", "yoü".encode())
    text = "ab " * 100_000
    reply_bytes = COUNTED_TEXT_BYTES - len(members) + over
    whole = text + "x" * (reply_bytes - len(text))
    async with serving(tmp_path, server(sse(delta(text), delta(whole[len(text) :]), FINISH))) as (
        gateway, _up,
    ):  # fmt: skip
        await post(gateway.base, chat)
        row = await gateway.row()
    assert row.usage_source == ("estimated" if over > 0 else "counted")


def test_texts_beyond_what_is_held_are_dropped() -> None:
    """Not only left out of the count: they are let go while the stream runs."""
    reading = KeptReading()
    reading.text("x" * COUNTED_TEXT_BYTES)
    assert reading.texts is not None
    reading.text("y")
    reading.text("z")
    assert (reading.texts, reading.delta_count) == (None, 3)


async def test_answer_that_could_not_be_read_to_its_end_is_estimated(tmp_path: Path) -> None:
    """Its compressed bytes broke: what is known of its text is not all of it."""
    packer = zlib.compressobj(wbits=zlib.MAX_WBITS + 16)
    packed = packer.compress(delta("abcde")) + packer.flush(zlib.Z_SYNC_FLUSH)
    gate = Gate()
    reply = sse(packed, gate, b"\xff no gzip \xff")
    reply.headers["content-encoding"] = "gzip"
    async with serving(tmp_path, server(reply)) as (gateway, up):
        async with (
            httpx.AsyncClient() as client,
            client.stream("POST", f"{gateway.base}/v1/chat/completions", content=CHAT) as got,
        ):
            async for _piece in got.aiter_raw():
                gate.open.set()
        row = await gateway.row()
    assert (row.completion_tokens, row.usage_source, len(up.seen)) == (2, "estimated", 1)


async def test_tokenizer_that_says_too_much_is_not_listened_to(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its answer is longer than any list of tokens."""
    monkeypatch.setattr(tokenizers, "ANSWER_BYTES", 10)
    async with serving(tmp_path, server(sse(delta("abcde"), FINISH))) as (gateway, _up):
        await post(gateway.base, CHAT)
        row = await gateway.row()
    assert row.usage_source == "estimated"


async def test_counts_that_the_backend_gave_before_it_broke_off_are_kept(tmp_path: Path) -> None:
    """Messages say what the prompt took at the start: only the answer is counted."""
    start = (
        b'{"type":"message_start","message":{"usage":{"input_tokens":7,'
        b'"cache_read_input_tokens":2,"cache_creation_input_tokens":3,"output_tokens":1}}}'
    )
    text = b'{"type":"content_block_delta","delta":{"text":"one two"}}'
    script = server(sse(b"data: " + start + b"\n\n", b"data: " + text + b"\n\n", Cut()))
    async with serving(tmp_path, script, speaks=("messages",)) as (gateway, up):
        await post(gateway.base, CHAT, "messages")
        row = await gateway.row()
    assert (row.prompt_tokens, row.completion_tokens, row.usage_source) == (12, 2, "counted")
    assert (row.cached_tokens, row.cache_write_tokens, len(up.seen)) == (2, 3, 2)


# When it happens.


async def test_answer_and_times_do_not_wait_for_the_count(tmp_path: Path) -> None:
    """The client has its answer while the tokenizer thinks; the row's times end with the answer."""
    gate = Gate()

    def tokenizer(seen: Seen) -> Reply:
        reply = openai_tokenizer(seen)
        reply.pieces.insert(0, gate)
        return reply

    async with serving(tmp_path, server(sse(delta("a"), FINISH), tokenizer)) as (gateway, _up):
        now_s = 1.0
        gateway.gateway.pipeline._now = lambda: now_s
        await post(gateway.base, CHAT)
        await wait_for(gate.reached)
        assert (gateway.books.rows, gateway.gateway.pipeline.in_flight) == ([], 0)
        now_s = 1000.0
        gate.open.set()
        row = await gateway.row()
    assert (row.usage_source, row.total_ms) == ("counted", 0)


async def test_more_than_may_wait_are_estimated(tmp_path: Path) -> None:
    """Two are asked about, a hundred wait, the next one is closed at once."""
    gates: list[Gate] = []
    both = asyncio.Event()

    def tokenizer(seen: Seen) -> Reply:
        reply = openai_tokenizer(seen)
        if len(gates) < COUNTS_RUNNING:
            gates.append(Gate())
            reply.pieces.insert(0, gates[-1])
            if len(gates) == COUNTS_RUNNING:
                both.set()
        return reply

    async with serving(tmp_path, server(sse(delta("a"), FINISH), tokenizer)) as (gateway, _up):
        await asyncio.gather(*(post(gateway.base, CHAT) for _ in range(COUNTS_RUNNING)))
        await wait_for(both)
        async with httpx.AsyncClient(timeout=30) as client:
            url = f"{gateway.base}/v1/chat/completions"
            for _ in range(COUNTS_WAITING + 1):
                await client.post(url, content=CHAT)
        first = await gateway.row(0)
        assert (first.usage_source, len(gateway.books.rows)) == ("estimated", 1)
        for gate in gates:
            gate.open.set()
        await gateway.row(COUNTS_RUNNING + COUNTS_WAITING)
    sources = [row.usage_source for row in gateway.books.rows]
    assert sources.count("counted") == COUNTS_RUNNING + COUNTS_WAITING


async def test_silent_tokenizer_has_its_deadline(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It never answers: the row closes with its estimate."""
    monkeypatch.setattr(counting, "COUNT_S", 0.05)
    script = server(
        sse(delta("abcde"), FINISH), lambda seen: Reply(pieces=[Gate()], framing="chunked")
    )
    async with serving(tmp_path, script) as (gateway, _up):
        await post(gateway.base, CHAT)
        row = await gateway.row()
    assert (row.completion_tokens, row.usage_source) == (2, "estimated")


@pytest.mark.parametrize("answers_in_time", [True, False])
async def test_shutdown_gives_counts_a_moment_and_closes_every_row(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, answers_in_time: bool
) -> None:
    """Counted if the tokenizer answers while the gateway stops, else estimated; none is lost."""
    monkeypatch.setattr("gateway.app.LAST_COUNTS_S", 5.0 if answers_in_time else 0.05)
    requests = COUNTS_RUNNING + 1
    gate = Gate()

    def tokenizer(seen: Seen) -> Reply:
        reply = openai_tokenizer(seen)
        reply.pieces.insert(0, gate)
        return reply

    script = server(sse(delta("a"), FINISH), tokenizer)
    async with serving(tmp_path, script) as (gateway, _up):
        await asyncio.gather(*(post(gateway.base, CHAT) for _ in range(requests)))
        await wait_for(gate.reached)
        assert gateway.books.rows == []
        closing = asyncio.create_task(gateway.gateway.close())
        if answers_in_time:
            gate.open.set()
        await closing
        assert len(gateway.books.rows) == requests
        sources = {row.usage_source for row in gateway.books.rows}
    assert sources == {"counted" if answers_in_time else "estimated"}


async def test_nothing_is_taken_once_it_has_finished() -> None:
    """A row that comes later is closed by its giver: nobody would answer for it."""
    counted = counting.Counting(UpstreamClient(Outbox(asyncio.get_running_loop())))
    await counted.finish(0.1)
    one = Backend("b", backend("http://127.0.0.1:1", flavor="vllm"))
    assert not counted.take(tokenizers.Question(one, "m", "text"), lambda counts: None)
