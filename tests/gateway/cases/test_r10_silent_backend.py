"""R10: a backend that falls silent is ended at the idle limit, and nothing of ours hides it."""

import asyncio
from pathlib import Path

import pytest

from tests.gateway.cases.samples import SAMPLES, WITH_COMPLETIONS, Sample
from tests.gateway.cases.scripted import CHUNKED_SSE, JSON, Link, chunk, head
from tests.gateway.cases.stage import failure, stage


@pytest.mark.parametrize("sample", WITH_COMPLETIONS, ids=str)
async def test_silence_beyond_the_limit_ends_the_stream_with_an_error(
    tmp_path: Path, sample: Sample
) -> None:
    """R10: the text begins, then nothing; relay adds no byte but the error's."""
    said = b"".join(sample.events[: sample.first_text + 2])

    async def script(link: Link) -> None:
        await link.send(CHUNKED_SSE, chunk(said))
        await link.stay()

    async with stage(tmp_path, sample, script, idle_s=0.1) as on:
        answer = await on.ask()
        row = await on.row()
        async with asyncio.timeout(1):
            await on.up.links[0].gone.wait()
    assert answer.status == 200 and answer.body.startswith(said)
    assert "idle_s" in failure(sample, answer)
    added = answer.body.removeprefix(said)
    assert added.count(b"data: ") == (2 if b"[DONE]" in added else 1)
    assert (row.outcome, row.error_type, row.status) == ("failed", "idle_s", 200)
    assert row.completion_tokens


async def test_a_whole_answer_that_stops_is_cut_and_never_ended_cleanly(tmp_path: Path) -> None:
    """R10: half a body that is no stream: no error can be said in it, so its framing breaks."""
    whole = SAMPLES[0].whole

    async def script(link: Link) -> None:
        await link.send(head(200, JSON, "transfer-encoding: chunked"), chunk(whole[:50]))
        await link.stay()

    async with stage(tmp_path, SAMPLES[0], script, idle_s=0.1) as on:
        answer = await on.ask(is_stream=False)
        row = await on.row()
    assert (answer.body, answer.is_whole) == (whole[:50], False)
    assert (row.outcome, row.error_type) == ("failed", "idle_s")
