"""R11: comments and pings of a backend do not keep it alive."""

import asyncio
from pathlib import Path

import pytest

from tests.gateway.cases.samples import CHAT, MESSAGES, WITH_COMPLETIONS, Sample, typed
from tests.gateway.cases.scripted import CHUNKED_SSE, Link, chunk
from tests.gateway.cases.stage import failure, stage

NOISE = {
    "comments": b": still here\n\n",
    "blank lines": b"\n\n",
    "retry": b"retry: 1000\n\n",
    "ping": typed({"type": "ping"}),
}
CASES = [(sample, "comments") for sample in WITH_COMPLETIONS] + [
    (MESSAGES, noise) for noise in ("blank lines", "retry", "ping")
]


@pytest.mark.parametrize("clock", ["first_event_s", "idle_s"])
@pytest.mark.parametrize(("sample", "noise"), CASES, ids=str)
async def test_noise_resets_no_clock(
    tmp_path: Path, sample: Sample, noise: str, clock: str
) -> None:
    """R11: nothing but noise, before the first event and in mid-stream."""
    count = sample.first_text + 1 if clock == "idle_s" else 0

    async def script(link: Link) -> None:
        await link.send(CHUNKED_SSE, *map(chunk, sample.events[:count]))
        while True:
            await link.send(chunk(NOISE[noise]))
            await link.pause(0.02)

    async with stage(tmp_path, sample, script, **{clock: 0.15}) as on:
        answer = await on.ask()
        row = await on.row()
        async with asyncio.timeout(1):
            await on.up.links[0].gone.wait()
    assert clock in failure(sample, answer)
    assert (row.outcome, row.error_type) == ("failed", clock)


async def test_noise_at_the_very_moment_of_the_limit_disturbs_nothing(tmp_path: Path) -> None:
    """R11: noise without a pause, so that some of it comes when the clock is about to fire."""

    async def script(link: Link) -> None:
        await link.send(CHUNKED_SSE, chunk(CHAT.events[0]))
        while True:
            await link.send(chunk(NOISE["comments"]))

    async with stage(tmp_path, CHAT, script, idle_s=0.0207) as on:
        for number in range(60):
            answer = await on.ask()
            row = await on.row(number)
            assert "idle_s" in failure(CHAT, answer), number
            assert (row.outcome, row.error_type) == ("failed", "idle_s"), number
