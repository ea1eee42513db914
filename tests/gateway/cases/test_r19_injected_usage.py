"""R19: a client that did not ask for usage is booked all the same, and sees no trace of it."""

import json
from pathlib import Path
from typing import Any

import pytest

from tests.gateway.cases.samples import CHAT, COMPLETIONS, SAMPLES, TOKENS, Sample, data
from tests.gateway.cases.scripted import CHUNKED_SSE, LAST_CHUNK, Link, answering, chunk, streaming
from tests.gateway.cases.stage import Stage, call, settle, stage

INJECT: dict[str, Any] = {"stream_usage": "inject"}
OWN_FORMS = '[1.50, "\\u00e9"]'
NOT_ASKED = ("", ', "stream_options" : null', ',"stream_options":{ }',
             ', "stream_options": {"include_usage" :false , "include_obfuscation":false}',
             ',"stream_options":{"x": ' + OWN_FORMS + "}")  # fmt: skip
BODY = '{ "model" :"m",\t"temperature": 1.0e0, "stream":true%s , "s":"\\u00e9\\/", "n" : 1 }'


def without_usage(sample: Sample) -> bytes:
    """The sample's stream without its chunk of usage alone."""
    return b"".join(sample.events[:-2] + sample.events[-1:])


async def script(link: Link) -> None:
    """A backend that states usage when it is asked to, as the public API does."""
    sample = COMPLETIONS if "chat" not in link.asked[-1].target else CHAT
    options = json.loads(link.body).get("stream_options") or {}
    is_asked = options.get("include_usage") is True
    await streaming(sample.stream if is_asked else without_usage(sample))(link)


async def ask(on: Stage, body: str) -> Any:
    return await call(on.port, on.sample.stream_path, body.encode())


@pytest.mark.parametrize("sample", [CHAT, COMPLETIONS], ids=str)
async def test_we_ask_in_place_of_the_client_and_keep_the_answer(
    tmp_path: Path, sample: Sample
) -> None:
    """R19: inject, usage not asked for: by span; exactly one frame is taken out again."""
    async with stage(tmp_path, sample, script, **INJECT) as on:
        for number, options in enumerate(NOT_ASKED):
            body = BODY % options
            answer = await ask(on, body)
            row = await on.row(number)
            assert answer.body == without_usage(sample) and answer.is_whole
            assert not sample.grammar.check(answer.body).usages
            assert {name: getattr(row, name) for name in TOKENS} == TOKENS
            assert row.usage_source == "backend"
            _only_the_option_changed(body, on.up.asked[number].body.decode())


def _only_the_option_changed(sent: str, went_up: str) -> None:
    before, after = json.loads(sent), json.loads(went_up)
    options = before.pop("stream_options", None) or {}
    assert after.pop("stream_options") == {**options, "include_usage": True}
    assert after == before
    assert OWN_FORMS not in sent or OWN_FORMS in went_up
    start = next(at for at, (a, b) in enumerate(zip(sent, went_up, strict=False)) if a != b)
    end = next(at for at, (a, b) in enumerate(zip(sent[::-1], went_up[::-1], strict=False))
               if a != b)  # fmt: skip
    changed = sent[start : max(start, len(sent) - end)]
    assert all(name not in changed for name in ("model", "temperature", '"s"', '"n"')), changed


@pytest.mark.parametrize("settings", [INJECT, {"stream_usage": "client"}], ids=str)
@pytest.mark.parametrize("sample", [CHAT, COMPLETIONS], ids=str)
async def test_a_client_that_asked_gets_its_one_chunk(
    tmp_path: Path, sample: Sample, settings: dict[str, str]
) -> None:
    """R19: the client asked: nothing is added and nothing removed."""
    body = BODY % ', "stream_options":{"include_usage": true}'
    async with stage(tmp_path, sample, script, **settings) as on:
        answer = await ask(on, body)
        row = await on.row()
        assert on.up.asked[0].body.decode() == body
    assert answer.body == sample.stream
    assert len(sample.grammar.check(answer.body).usages) == 1
    assert row.usage_source == "backend"


@pytest.mark.parametrize("sample", [CHAT, COMPLETIONS], ids=str)
async def test_without_inject_the_bytes_stay_and_usage_is_never_nothing(
    tmp_path: Path, sample: Sample
) -> None:
    """R19: not set to inject: untouched up and down, counted or estimated."""
    async with stage(tmp_path, sample, script) as on:
        answer = await ask(on, BODY % "")
        row = await on.row()
        assert on.up.asked[0].body.decode() == BODY % ""
    assert answer.body == without_usage(sample)
    assert row.usage_source in ("counted", "estimated")
    assert row.completion_tokens and row.prompt_tokens is not None


@pytest.mark.parametrize("sample", SAMPLES, ids=str)
async def test_other_calls_are_left_alone(tmp_path: Path, sample: Sample) -> None:
    """R19: inject is for streams of chat and completions."""
    is_stream = sample is not CHAT
    script = streaming(*sample.events) if is_stream else answering(sample.whole)
    async with stage(tmp_path, sample, script, **INJECT) as on:
        answer = await on.ask(is_stream=is_stream)
        assert on.up.asked[0].body == sample.body(is_stream=is_stream)
    assert answer.body == (sample.stream if is_stream else sample.whole)


async def test_usage_beside_choices_and_choices_without_usage_pass(tmp_path: Path) -> None:
    """R19: the frame that is taken out has no choices and a usage; others only look like it."""
    filters = data({"id": "c1", "choices": [], "usage": None, "prompt_filter_results": []})
    usage = b'"usage": {"prompt_tokens": 21, "completion_tokens": 1}, "model"'
    beside = CHAT.events[1].replace(b'"model"', usage)
    null = CHAT.events[2].replace(b'"model"', b'"usage": null, "model"')
    events = (filters, CHAT.events[0], beside, null, *CHAT.events[3:])
    async with stage(tmp_path, CHAT, streaming(*events), **INJECT) as on:
        answer = await ask(on, BODY % "")
        row = await on.row()
    assert answer.body == b"".join(events[:-2] + events[-1:])
    assert row.completion_tokens == 13


@pytest.mark.parametrize("line_end", [b"\n", b"\r\n"], ids=["LF", "CRLF"])
async def test_the_frame_is_taken_out_wherever_it_is_cut(tmp_path: Path, line_end: bytes) -> None:
    """R19: the network cuts the frame of usage at every byte."""
    *events, usage, done = (event.replace(b"\n", line_end) for event in CHAT.events)
    cuts = iter(range(1, len(usage)))

    async def script(link: Link) -> None:
        at = next(cuts)
        await link.send(CHUNKED_SSE)
        for piece in (b"".join(events), usage[:at], usage[at:] + done):
            await link.send(chunk(piece))
            await settle()
        await link.send(LAST_CHUNK)

    async with stage(tmp_path, CHAT, script, **INJECT) as on:
        for at in range(1, len(usage)):
            answer = await ask(on, BODY % "")
            assert answer.body == b"".join(events) + done, at
            assert (await on.row(at - 1)).completion_tokens == 13


async def test_a_backend_that_knows_no_such_option_is_asked_again_without(tmp_path: Path) -> None:
    """R19: a 400 to what we added is repeated once without it, and never added again."""

    async def strict(link: Link) -> None:
        if b"stream_options" in link.body:
            await answering(b'{"error":{"message":"unknown field"}}', 400)(link)
        else:
            await script(link)

    async with stage(tmp_path, CHAT, strict, **INJECT) as on:
        for _ in range(2):
            answer = await ask(on, BODY % "")
            assert (answer.status, answer.body) == (200, without_usage(CHAT))
        bodies = [asked.body.decode() for asked in on.up.asked]
        await on.row(1)
        own = [row for row in on.gateway.books.rows if row.parent_request_id is None]
    assert "stream_options" in bodies[0] and bodies[1:] == [BODY % ""] * 2
    assert [row.outcome for row in own] == ["succeeded"] * 2
