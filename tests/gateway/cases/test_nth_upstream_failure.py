"""The Nth operation on a backend's socket fails, for every N, until a run meets no failure.

After each run: the client got its answer or one proper error, there is one row, nothing is left in
flight, and the next request works.
"""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.gateway.cases.samples import SAMPLES, Sample, dump
from tests.gateway.cases.scripted import CHUNKED_SSE, LAST_CHUNK, Link, chunk, speaking
from tests.gateway.cases.stage import Answer, Stage, call, failure, in_flight, stage
from tests.gateway.harness import running_gateway

ENDS: dict[str, Callable[[Link], None]] = {"closes": Link.close, "resets": Link.reset}


async def _must_hold(on: Stage, number: int, answer: Answer, *, is_good: bool) -> Any:
    """The invariants of a run, and of the request behind it."""
    row = await on.row(number)
    if is_good:
        assert (answer.body, row.outcome) == (on.sample.stream, "succeeded")
    else:
        failure(on.sample, answer)
        assert row.outcome == "failed"
    assert len(on.gateway.books.rows) == number + 1
    assert in_flight(on.gateway) == 0
    script, on.up.script = on.up.script, speaking(on.sample)
    assert (await on.ask()).body == on.sample.stream
    assert (await on.row(number + 1)).outcome == "succeeded"
    on.up.script = script
    return row


@pytest.mark.parametrize("end", ENDS)
@pytest.mark.parametrize("sample", SAMPLES, ids=str)
async def test_the_nth_read_fails(tmp_path: Path, sample: Sample, end: str) -> None:
    """Reads: the backend is gone behind its Nth byte: of the head each one, then every ninth."""
    said = CHUNKED_SSE + b"".join(map(chunk, sample.events)) + LAST_CHUNK
    finish = said.index(sample.events[sample.finish_at]) + len(sample.events[sample.finish_at])
    places = [*range(1, len(CHUNKED_SSE)), *range(len(CHUNKED_SSE), finish - 1, 37), len(said)]
    left = iter(places)

    async def script(link: Link) -> None:
        at = next(left)
        await link.send(said[:at])
        if at < len(said):
            ENDS[end](link)
            await link.stay()

    async with stage(tmp_path, sample, script) as on:
        for number, at in enumerate(places):
            answer = await on.ask()
            await _must_hold(on, 2 * number, answer, is_good=at == len(said))
            for link in on.up.links:
                link.close()  # so that each run has a fresh connection


@pytest.mark.parametrize("end", ENDS)
async def test_the_nth_write_fails(tmp_path: Path, end: str) -> None:
    """Writes: the backend is gone when it has taken N kilobytes of a large body."""
    sample = SAMPLES[0]
    body = dump({**sample.stream_request, "pad": "x" * 4 * 1024**2})

    sizes = (1, 10_000, 100_000, 1_000_000, 3_000_000)
    left = iter(sizes)

    async def script(link: Link) -> None:
        await link.until_received(next(left))
        ENDS[end](link)
        await link.stay()

    async with stage(tmp_path, sample, script, is_early=True) as on:
        for number in range(len(sizes)):
            on.up.script, on.up.is_early = script, True
            answer = await call(on.port, sample.stream_path, body)
            on.up.is_early = False
            row = await _must_hold(on, 2 * number, answer, is_good=False)
            assert (answer.status, row.error_type) == (502, "upstream_failed")
            for link in on.up.links:
                link.close()


@pytest.mark.parametrize("fault", ["refused", "no name", "no route", "no TLS"])
async def test_the_connect_fails(tmp_path: Path, fault: str) -> None:
    """Connects: each is a 502 of the surface, and says nothing of the address."""
    hosts = {"refused": "http://127.0.0.1:1", "no name": "http://no-such-name.invalid",
             "no route": "http://255.255.255.255:9", "no TLS": "https://127.0.0.1:1"}  # fmt: skip
    for sample in SAMPLES:
        folder = tmp_path / sample.surface
        folder.mkdir()
        backends = {"b": sample.backend(hosts[fault], connect_s=1)}
        async with running_gateway(folder, backends=backends) as gateway:
            answer = await call(gateway.port, sample.path, sample.body(is_stream=False))
            row = await gateway.row()
            assert in_flight(gateway) == 0
        said = failure(sample, answer)
        assert (answer.status, row.outcome, row.error_type) == (
            502, "failed", "upstream_failed",
        )  # fmt: skip
        assert not [part for part in ("127.0.0.1", "255.255", "no-such-name") if part in said]
        assert len(gateway.books.rows) == 1
