"""R35: a kept connection that turns out dead is redone once, if no byte of an answer came."""

import asyncio
import contextlib
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.gateway.cases.samples import SAMPLES, Sample
from tests.gateway.cases.scripted import Link, speaking
from tests.gateway.cases.stage import error_code, settle, stage

ENDS: dict[str, Callable[[Link], None]] = {"closes": Link.close, "resets": Link.reset}


@pytest.mark.parametrize("sample", SAMPLES, ids=str)
async def test_a_request_that_met_a_dead_connection_is_sent_once_more(
    tmp_path: Path, sample: Sample
) -> None:
    """R35: the backend ends the connection at the moment when the next request arrives."""
    alive = speaking(sample)

    async def script(link: Link) -> None:
        if len(link.asked) == 1:
            await alive(link)
            return
        ways[len(on.up.links) % 2](link)
        await link.stay()

    ways = list(ENDS.values())
    async with stage(tmp_path, sample, script) as on:
        for number, is_stream in enumerate((True, False, False, True, True)):
            answer = await on.ask(is_stream=is_stream)
            row = await on.row(number)
            assert answer.body == (sample.stream if is_stream else sample.whole)
            assert row.outcome == "succeeded"
            assert on.up.asked[-1].body == sample.body(is_stream=is_stream)
        assert len(on.gateway.books.rows) == 5
        assert [len(link.asked) for link in on.up.links] == [2, 2, 2, 2, 1]


@pytest.mark.parametrize("end", ENDS)
async def test_a_fresh_connection_that_dies_is_an_error(tmp_path: Path, end: str) -> None:
    """R35, P3: what was sent on a fresh connection is never repeated."""
    sample = SAMPLES[0]

    async def script(link: Link) -> None:
        ENDS[end](link)
        await link.stay()

    async with stage(tmp_path, sample, script) as on:
        answer = await on.ask()
        assert len(on.up.asked) == 1
    assert (answer.status, error_code("chat", answer.body)) == (502, "upstream_failed")


async def test_the_second_try_is_the_last(tmp_path: Path) -> None:
    """R35: the kept connection is dead, and the fresh one dies: two attempts, one error."""
    sample = SAMPLES[0]

    async def script(link: Link) -> None:
        if not is_dying:
            await speaking(sample)(link)
            return
        link.close()
        await link.stay()

    is_dying = False
    async with stage(tmp_path, sample, script) as on:
        await on.ask()
        is_dying = True
        answer = await on.ask()
        row = await on.row(1)
        assert len(on.up.asked) == 3
    assert (answer.status, row.outcome) == (502, "failed")


async def test_an_idle_connection_that_was_closed_is_not_used(tmp_path: Path) -> None:
    """R35: the backend closes its idle connections between two calls."""
    sample = SAMPLES[0]
    async with stage(tmp_path, sample, speaking(sample)) as on:
        for number in range(3):
            assert (await on.ask()).status == 200
            on.up.links[-1].close()
            async with asyncio.timeout(1):
                await on.up.links[-1].gone.wait()
            await settle()
            assert len(on.up.links) == number + 1
    assert all(len(link.asked) == 1 for link in on.up.links)


async def test_silence_on_a_kept_connection_is_not_death(tmp_path: Path) -> None:
    """R35: a clock that fires says nothing about the connection: no second attempt."""
    sample = SAMPLES[0]

    async def script(link: Link) -> None:
        if len(on.up.asked) == 1:
            await speaking(sample)(link)
            return
        with contextlib.suppress(TimeoutError):
            await link.stay()

    async with stage(tmp_path, sample, script, first_event_s=0.1) as on:
        await on.ask()
        answer = await on.ask()
        assert (answer.status, len(on.up.asked)) == (504, 2)
