"""Audio, images and moderations: forms and JSON up, sound and pictures down, what is booked."""

import asyncio
import gzip
from dataclasses import replace
from pathlib import Path
from typing import Any

import httpx
import pytest

from gateway.settings.types import RouteSettings, RouteTarget
from tests.fakes.backend import Cut, FakeBackend, Gate, Reply, sse
from tests.gateway.harness import Running, backend, running_gateway
from tests.gateway.test_forms import FILE, MODEL, field, form

FORM = {"content-type": "multipart/form-data; boundary=b0und"}
SOUND = {"content-type": "audio/mpeg"}
ROUTES = {"quick": RouteSettings((RouteTarget("b", "whisper/é"),))}
USAGE = b'"usage":{"type":"tokens","input_tokens":14,"output_tokens":45,"total_tokens":59}'


async def post(gateway: Running, path: str, **more: Any) -> httpx.Response:
    async with httpx.AsyncClient(base_url=gateway.base, timeout=10) as client:
        return await client.post(path, **more)


def reply(body: bytes, content_type: str = "application/json", **more: Any) -> Reply:
    return Reply(headers={"content-type": content_type}, pieces=[body], **more)


JSON_CALLS = [
    ("/v1/audio/speech", "audio", "generation"),
    ("/v1/images/generations", "images", "generation"),
    ("/v1/moderations", "moderations", "other"),
]


@pytest.mark.parametrize(("path", "surface", "kind"), JSON_CALLS)
async def test_json_is_relayed_by_its_model(
    tmp_path: Path, path: str, surface: str, kind: str
) -> None:
    """Bytes as they are, but for an alias; the answer's too; a row with the surface's name."""
    body = b'{ "input":"say \xc3\xa9", "model" : "quick", "base_url": "http://evil", "n": 1e0}'
    answer = b'{"data" : [1.0], "id":"x"}\n'
    async with (
        FakeBackend(lambda seen: reply(answer)) as up,
        running_gateway(tmp_path, backends={"b": backend(up.url)}, routes=ROUTES) as gateway,
    ):
        got = await post(gateway, path, content=body)
        row = await gateway.row()
    assert got.content == answer
    assert up.seen[0].target == path
    assert up.seen[0].body == body.replace(b'"quick"', '"whisper/é"'.encode())
    assert got.headers["x-routed-via"].startswith("b/whisper/")
    assert (row.surface, row.kind, row.model) == (surface, kind, "quick")
    assert (row.outcome, row.usage_source, row.prompt_tokens) == ("succeeded", "none", None)


@pytest.mark.parametrize("path", [
    "/v1/audio/transcriptions", "/v1/audio/translations", "/v1/images/edits",
    "/v1/images/variations",
])  # fmt: skip
@pytest.mark.parametrize("model", ["m", "quick"])
async def test_a_form_is_relayed_by_its_model_part(tmp_path: Path, path: str, model: str) -> None:
    """The bytes of the part named model and no other change, and these for an alias only."""
    file = bytes(range(256)) * 9 + b'\r\nname="model"\r\n\r\nquick\r\n--b0un'
    body = form((FILE, file), (MODEL, model.encode()), field("prompt", "quick"))
    there = {"m": "m", "quick": "whisper/é"}[model].encode()
    async with (
        FakeBackend(lambda seen: reply(b'{"text":"hallo",%b}' % USAGE)) as up,
        running_gateway(tmp_path, backends={"b": backend(up.url)}, routes=ROUTES) as gateway,
    ):
        got = await post(gateway, path, content=body, headers=FORM)
        row = await gateway.row()
    assert got.status_code == 200
    assert up.seen[0].body == form((FILE, file), (MODEL, there), field("prompt", "quick"))
    assert up.seen[0].headers["content-type"] == FORM["content-type"]
    assert (row.surface, row.model, row.upstream_model) == (
        path.split("/")[2], model, there.decode(),
    )  # fmt: skip
    assert (row.usage_source, row.prompt_tokens, row.completion_tokens) == ("backend", 14, 45)
    assert len(row.body_hash) == 16


@pytest.mark.parametrize("model", ["m", "quick"])
async def test_a_compressed_form_goes_up_as_received_or_unpacked_for_an_edit(
    tmp_path: Path, model: str
) -> None:
    """As with JSON: the coding goes only when the bytes had to be changed."""
    plain = form((MODEL, model.encode()), (FILE, b"sound"))
    packed = gzip.compress(plain, mtime=0)
    async with (
        FakeBackend(lambda seen: reply(b"{}")) as up,
        running_gateway(tmp_path, backends={"b": backend(up.url)}, routes=ROUTES) as gateway,
    ):
        headers = {**FORM, "content-encoding": "gzip"}
        await post(gateway, "/v1/audio/transcriptions", content=packed, headers=headers)
    seen = up.seen[0]
    if model == "m":
        assert (seen.body, seen.headers["content-encoding"]) == (packed, "gzip")
    else:
        assert seen.body == form((MODEL, "whisper/é".encode()), (FILE, b"sound"))
        assert "content-encoding" not in seen.headers


@pytest.mark.parametrize(
    ("body", "headers", "code", "param"),
    [
        (form((FILE, b"x")), FORM, "invalid_request", "model"),
        (form((MODEL, b"m"), (MODEL, b"n")), FORM, "invalid_request", "model"),
        (b"no form", FORM, "invalid_form", None),
        (form((MODEL, b"m")), {"content-type": "multipart/form-data"}, "invalid_form",
         "content-type"),
        (form((MODEL, b"m")), {}, "invalid_json", None),
    ],
)  # fmt: skip
async def test_a_bad_form_is_a_400_that_names_the_field(
    tmp_path: Path, body: bytes, headers: dict[str, str], code: str, param: str | None
) -> None:
    """In OpenAI's form, with a row, and no backend hears of it."""
    async with (
        FakeBackend(lambda seen: reply(b"{}")) as up,
        running_gateway(tmp_path, backends={"b": backend(up.url)}) as gateway,
    ):
        got = await post(gateway, "/v1/audio/transcriptions", content=body, headers=headers)
        row = await gateway.row()
    error = got.json()["error"]
    assert (got.status_code, error["code"], error["param"]) == (400, code, param)
    assert error["type"] == "invalid_request_error"
    assert (row.outcome, row.error_type) == ("refused", code)
    assert not up.seen


async def test_fields_of_a_form_never_say_where_it_goes(tmp_path: Path) -> None:
    """R39: addresses and keys in the body are parts like any other, and go to nobody else."""
    parts = [
        field(name, "http://127.0.0.1:1/v1")
        for name in ("api_base", "base_url", "custom_llm_provider", "extra_headers", "api_key")
    ]
    body = form(*parts, (MODEL, b"m"))
    async with (
        FakeBackend(lambda seen: reply(b"{}")) as up,
        running_gateway(tmp_path, backends={"b": backend(up.url)}) as gateway,
    ):
        got = await post(gateway, "/v1/images/edits", content=body, headers=FORM)
    assert got.status_code == 200
    assert up.seen[0].body == body
    assert "authorization" not in up.seen[0].headers


async def test_what_a_backend_does_not_speak_is_said(tmp_path: Path) -> None:
    """A local server speaks neither by default; the error says what it speaks."""
    async with running_gateway(
        tmp_path, backends={"b": backend("http://127.0.0.1:1", flavor="vllm")}
    ) as gateway:
        got = await post(gateway, "/v1/audio/speech", json={"model": "m", "input": "x"})
    assert (got.status_code, got.json()["error"]["code"]) == (404, "surface_not_served")
    assert "audio" in got.text and "embeddings" in got.text


@pytest.mark.parametrize("framing", ["length", "chunked", "close"])
async def test_speech_is_sound_and_any_end_of_it_is_an_end(tmp_path: Path, framing: Any) -> None:
    """Bytes that nobody can read: no tap fails on them, and nothing is booked but the call."""
    sound = b"\xff\xfb\x90\x00" * 1000
    async with (
        FakeBackend(lambda seen: replace(reply(sound, "audio/mpeg"), framing=framing)) as up,
        running_gateway(tmp_path, backends={"b": backend(up.url)}) as gateway,
    ):
        got = await post(gateway, "/v1/audio/speech", json={"model": "m", "input": "say"})
        row = await gateway.row()
        assert gateway.gateway.metrics.tap_faults == 0
    assert (got.content, got.headers["content-type"]) == (sound, "audio/mpeg")
    assert (row.outcome, row.usage_source, row.completion_tokens) == ("succeeded", "none", None)


async def test_sound_that_goes_silent_ends_by_the_idle_clock(tmp_path: Path) -> None:
    """Its bytes are its signs of life; what has begun is cut, never ended cleanly."""
    gate = Gate()
    answer = Reply(headers=SOUND, pieces=[b"la", gate], framing="chunked")
    async with (
        FakeBackend(lambda seen: answer) as up,
        running_gateway(
            tmp_path, backends={"b": backend(up.url, first_event_s=60, idle_s=0.05)}
        ) as gateway,
    ):
        with pytest.raises(httpx.RemoteProtocolError):
            await post(gateway, "/v1/audio/speech", json={"model": "m", "input": "say"})
        row = await gateway.row()
    assert (row.outcome, row.error_type) == ("failed", "idle_s")


async def test_sound_that_never_begins_ends_by_the_first_clock(tmp_path: Path) -> None:
    """Headers alone are no sign of life."""
    gate = Gate()
    async with (
        FakeBackend(lambda seen: gate_first(gate)) as up,
        running_gateway(tmp_path, backends={"b": backend(up.url, first_event_s=0.05)}) as gateway,
    ):
        with pytest.raises(httpx.RemoteProtocolError):
            await post(gateway, "/v1/audio/speech", json={"model": "m", "input": "say"})
        row = await gateway.row()
    assert (row.outcome, row.error_type) == ("failed", "first_event_s")


def gate_first(gate: Gate) -> Reply:
    return Reply(headers=SOUND, pieces=[gate, b"la"], framing="chunked")


async def test_json_that_was_cut_is_not_ended_cleanly(tmp_path: Path) -> None:
    """A transcript in JSON shows whether it is whole, also where its end is the connection's."""
    cut = reply(b'{"text":"half of', framing="close")
    async with (
        FakeBackend(lambda seen: cut) as up,
        running_gateway(tmp_path, backends={"b": backend(up.url)}) as gateway,
    ):
        with pytest.raises(httpx.RemoteProtocolError):
            await post(gateway, "/v1/audio/translations", content=form((MODEL, b"m")), headers=FORM)
        row = await gateway.row()
    assert (row.outcome, row.error_type) == ("failed", "upstream_failed")


TRANSCRIPTS: list[tuple[bytes, str, tuple[str, int | None, int | None]]] = [
    (b'{"text":"eight by",%b}' % USAGE, "application/json", ("backend", 14, 45)),
    (b'{"text":"eight by","usage":{"type":"duration","seconds":9}}', "application/json",
     ("estimated", 1, 2)),
    (b'{"text":""}', "application/json", ("none", None, None)),
    (b"eight by", "text/plain; charset=utf-8", ("estimated", 1, 2)),
    (b"WEBVTT\n\n", "text/vtt", ("estimated", 1, 2)),
]  # fmt: skip


@pytest.mark.parametrize("tokens_per_delta", ["one", "unknown"])
@pytest.mark.parametrize(("body", "content_type", "booked"), TRANSCRIPTS)
async def test_a_transcript_is_booked_by_the_ladder(
    tmp_path: Path, body: bytes, content_type: str, booked: Any, tokens_per_delta: str
) -> None:
    """The backend's counts, else an estimate of the text; a whole answer is not one token."""
    sent = form((MODEL, b"m"), field("prompt", "four"))
    async with (
        FakeBackend(lambda seen: reply(body, content_type)) as up,
        running_gateway(
            tmp_path, backends={"b": backend(up.url, tokens_per_delta=tokens_per_delta)}
        ) as gateway,
    ):
        got = await post(gateway, "/v1/audio/transcriptions", content=sent, headers=FORM)
        row = await gateway.row()
    assert got.content == body
    assert (row.usage_source, row.prompt_tokens, row.completion_tokens) == booked
    assert row.outcome == "succeeded"


@pytest.mark.parametrize("answer", TRANSCRIPTS[1:2] + TRANSCRIPTS[3:4])
async def test_no_tokenizer_is_asked_about_sound(tmp_path: Path, answer: Any) -> None:
    """It would count the words that go with a recording, and not the recording."""
    body, content_type, booked = answer
    async with (
        FakeBackend(lambda seen: reply(body, content_type)) as up,
        running_gateway(
            tmp_path, backends={"b": backend(up.url, flavor="vllm", speaks=("audio",))}
        ) as gateway,
    ):
        sent = form((MODEL, b"m"), field("prompt", "four"))
        await post(gateway, "/v1/audio/transcriptions", content=sent, headers=FORM)
        row = await gateway.row()
    assert (row.usage_source, row.prompt_tokens, row.completion_tokens) == booked
    assert [seen.target for seen in up.seen] == ["/v1/audio/transcriptions"]


@pytest.mark.parametrize(
    ("path", "source"),
    [
        ("/v1/images/generations", "none"), ("/v1/embeddings", "none"),
        ("/v1/audio/translations", "estimated"),
    ],
)  # fmt: skip
async def test_an_answer_too_large_to_read_is_no_ocean_of_words(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, path: str, source: str
) -> None:
    """Pictures and vectors have none; what may be words counts by its size."""
    monkeypatch.setattr("gateway.relay.tap.ANSWER_TAP_BYTES", 1000)
    async with (
        FakeBackend(lambda seen: reply(b'{"data":"%b"}' % (b"x" * 2000))) as up,
        running_gateway(tmp_path, backends={"b": backend(up.url)}) as gateway,
    ):
        await post(gateway, path, json={"model": "m", "input": "x"})
        row = await gateway.row()
    assert (row.outcome, row.usage_source) == ("succeeded", source)
    assert (row.completion_tokens is None) is (source == "none")


DELTA = b'data: {"type":"transcript.text.delta","delta":"eight by"}\n\n'
STREAMS = {
    "/v1/audio/transcriptions": (DELTA, b'data: {"type":"transcript.text.done",%b}\n\n' % USAGE),
    "/v1/audio/speech": (
        b'data: {"type":"speech.audio.delta","audio":"AAAA"}\n\n',
        b'data: {"type":"speech.audio.done",%b}\n\n' % USAGE,
    ),
    "/v1/images/generations": (
        b'event: image_generation.partial_image\n'
        b'data: {"type":"image_generation.partial_image","b64_json":"AAAA"}\n\n',
        b'event: image_generation.completed\n'
        b'data: {"type":"image_generation.completed","b64_json":"AAAA",%b}\n\n' % USAGE,
    ),
    "/v1/images/edits": (b'data: {"type":"image_edit.completed",%b}\n\n' % USAGE,),
}  # fmt: skip


@pytest.mark.parametrize("path", STREAMS)
async def test_streams_of_events_are_booked_by_their_last(tmp_path: Path, path: str) -> None:
    """JSON or form may ask for one; its end is an event of its own."""
    is_form = path.endswith(("edits", "transcriptions"))
    how: dict[str, Any] = {"json": {"model": "m", "stream": True}}
    if path.endswith("speech"):
        how = {"json": {"model": "m", "stream_format": "sse"}}
    if is_form:
        how = {"content": form((MODEL, b"m"), field("stream", "true")), "headers": FORM}
    async with (
        FakeBackend(lambda seen: sse(*STREAMS[path])) as up,
        running_gateway(tmp_path, backends={"b": backend(up.url)}) as gateway,
    ):
        got = await post(gateway, path, **how)
        row = await gateway.row()
    assert got.content == b"".join(STREAMS[path])
    assert got.headers["x-accel-buffering"] == "no"
    assert (row.outcome, row.stream, row.usage_source) == ("succeeded", 1, "backend")
    assert (row.prompt_tokens, row.completion_tokens) == (14, 45)
    assert row.finish_reason in ("done", "completed")


async def test_a_stream_of_events_that_breaks_ends_with_an_error(tmp_path: Path) -> None:
    """In OpenAI's form, and booked from what went by."""
    async with (
        FakeBackend(lambda seen: sse(DELTA, Cut())) as up,
        running_gateway(tmp_path, backends={"b": backend(up.url)}) as gateway,
    ):
        sent = form((MODEL, b"m"), field("stream", "true"))
        got = await post(gateway, "/v1/audio/transcriptions", content=sent, headers=FORM)
        row = await gateway.row()
    assert got.content.startswith(DELTA + b'data: {"error":')
    assert (row.outcome, row.usage_source, row.completion_tokens) == ("failed", "estimated", 2)


async def test_a_client_that_leaves_ends_the_sound(tmp_path: Path) -> None:
    """Within a second the backend sees its connection closed, and the row says aborted."""
    gate = Gate()
    answer = Reply(headers=SOUND, pieces=[b"la", gate], framing="chunked")
    async with (
        FakeBackend(lambda seen: answer) as up,
        running_gateway(tmp_path, backends={"b": backend(up.url)}) as gateway,
    ):
        async with (
            httpx.AsyncClient(base_url=gateway.base) as client,
            client.stream("POST", "/v1/audio/speech", json={"model": "m"}) as stream,
        ):
            assert await anext(stream.aiter_raw()) == b"la"
        async with asyncio.timeout(1):
            await up.hung_up.wait()
        row = await gateway.row()
    assert (row.outcome, row.error_type) == ("aborted", "client_left")


SOUND_FILE = b"sound" * 9000
OTHERS = [
    ((FILE, b"S" + SOUND_FILE[1:]), (MODEL, b"m")),
    ((FILE, SOUND_FILE[:-1] + b"D"), (MODEL, b"m")),
    ((FILE, SOUND_FILE + SOUND_FILE), (MODEL, b"m")),
    ((FILE, SOUND_FILE), (MODEL, b"n")),
    ((FILE, b"another one"), (FILE, SOUND_FILE), (MODEL, b"m")),
    ((FILE, b"one"), (FILE, SOUND_FILE), (MODEL, b"m")),
]


async def test_the_same_form_again_has_the_same_hash_whatever_its_boundary(tmp_path: Path) -> None:
    """An SDK that repeats an upload draws another boundary; any other form is another request."""
    one = ((FILE, SOUND_FILE), (MODEL, b"m"))
    hashes = []
    async with (
        FakeBackend(lambda seen: reply(b"{}")) as up,
        running_gateway(tmp_path, backends={"b": backend(up.url, models=("m", "n"))}) as gateway,
    ):
        for number, parts in enumerate((one, *OTHERS, one)):
            boundary = b"b0und%d" % number
            body = form(*parts, boundary=boundary)
            headers = {"content-type": f"multipart/form-data; boundary={boundary.decode()}"}
            await post(gateway, "/v1/audio/transcriptions", content=body, headers=headers)
            hashes.append((await gateway.row(number)).body_hash)
    assert hashes[0] == hashes[-1]
    assert len(set(hashes)) == 1 + len(OTHERS)
