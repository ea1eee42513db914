"""R12: a clock runs between connecting and the first event, and it ends what it finds."""

import asyncio
from pathlib import Path

import pytest

from tests.gateway.cases.samples import CHAT, WITH_COMPLETIONS, Sample
from tests.gateway.cases.scripted import CHUNKED_SSE, JSON, Link, head
from tests.gateway.cases.stage import error_code, failure, stage


@pytest.mark.parametrize("headers", ["none", "some"])
@pytest.mark.parametrize("sample", WITH_COMPLETIONS, ids=str)
async def test_silence_before_the_first_event_is_an_error_of_its_own(
    tmp_path: Path, sample: Sample, headers: str
) -> None:
    """R12: silence before the headers, and behind them; the backend's connection is closed."""

    async def script(link: Link) -> None:
        if headers == "some":
            await link.send(CHUNKED_SSE)
        await link.stay()

    async with stage(tmp_path, sample, script, first_event_s=0.1) as on:
        answer = await on.ask()
        row = await on.row()
        async with asyncio.timeout(1):
            await on.up.links[0].gone.wait()
    assert "first_event_s" in failure(sample, answer)
    if headers == "none":
        assert (answer.status, error_code(sample.surface, answer.body)) == (504, "upstream_timeout")
    assert (row.outcome, row.error_type) == ("failed", "first_event_s")
    assert (row.completion_tokens, row.usage_source) == (None, "none")


@pytest.mark.parametrize("framing", ["content-length: 500", "transfer-encoding: chunked"])
async def test_a_whole_answer_that_never_begins_is_never_ended_cleanly(
    tmp_path: Path, framing: str
) -> None:
    """R12: not streamed, headers and then nothing: an error, or a connection that breaks."""

    async def script(link: Link) -> None:
        await link.send(head(200, JSON, framing))
        await link.stay()

    async with stage(tmp_path, CHAT, script, first_event_s=0.1) as on:
        answer = await on.ask(is_stream=False)
        row = await on.row()
    assert answer.status == 504 or not answer.is_whole
    assert (row.outcome, row.error_type) == ("failed", "first_event_s")


@pytest.mark.parametrize("announced", ["0.1", "0.10", " 0.1 "])
async def test_a_whole_call_waits_no_longer_than_its_client(tmp_path: Path, announced: str) -> None:
    """R12, C12: the client's own time counts where it is shorter, and is named as such."""

    async def script(link: Link) -> None:
        await link.stay()

    wait = ("x-stainless-read-timeout", announced)
    async with stage(tmp_path, CHAT, script) as on:
        answer = await on.ask(is_stream=False, headers=[("x-stainless-timeout", "NOT_GIVEN"), wait])
        row = await on.row()
        async with asyncio.timeout(1):
            await on.up.links[0].gone.wait()
    assert (answer.status, error_code("chat", answer.body)) == (504, "upstream_timeout")
    assert b"client" in answer.body and row.error_type.startswith("client")
