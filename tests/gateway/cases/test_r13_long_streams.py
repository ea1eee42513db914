"""R13: a stream that goes on is never cut, however long it takes."""

import asyncio
from pathlib import Path
from typing import Any

from tests.gateway.cases.samples import SAMPLES, Sample
from tests.gateway.cases.scripted import CHUNKED_SSE, LAST_CHUNK, Link, chunk
from tests.gateway.cases.stage import stage

LIMIT_S = 0.4
STEP_S = 0.08


async def test_a_steady_stream_outlives_every_clock(tmp_path: Path) -> None:
    """R13: each event well inside its limit, all of them together far beyond each."""
    await asyncio.gather(*(_outlives(tmp_path / str(sample), sample) for sample in SAMPLES))


async def _outlives(folder: Path, sample: Sample) -> None:
    before, delta, after = (
        sample.events[: sample.first_text],
        sample.events[sample.first_text],
        sample.events[sample.first_text :],
    )
    # The first delta again and again: what a client hears of it is not this test's matter.
    events = (*before, *[delta] * 8, *after)

    async def script(link: Link) -> None:
        await link.send(CHUNKED_SSE)
        for event in events:
            await link.send(chunk(event))
            await link.pause(STEP_S)
        await link.send(LAST_CHUNK)

    clocks: dict[str, Any] = {"connect_s": LIMIT_S, "first_event_s": LIMIT_S, "idle_s": LIMIT_S}
    folder.mkdir()
    async with stage(folder, sample, script, **clocks) as on:
        answer = await on.ask()
        row = await on.row()
    assert answer.body == b"".join(events) and answer.is_whole
    assert row.outcome == "succeeded" and row.total_ms > 2 * LIMIT_S * 1000
