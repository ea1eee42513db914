"""R33, P2: once a byte of an answer has come, no byte of another attempt follows."""

from pathlib import Path

import pytest

from tests.gateway.cases.samples import SAMPLES, TEXT, Sample
from tests.gateway.cases.scripted import CHUNKED_SSE, Link, chunk, speaking
from tests.gateway.cases.stage import failure, stage

PLACES = ("one byte", "half the status line", "half the head", "the head", "the first delta")


def start_of(sample: Sample, place: str) -> bytes:
    """What the backend says before it dies; every attempt says it."""
    delta = b"".join(sample.events[: sample.first_text + 1])
    return {
        "one byte": b"H",
        "half the status line": b"HTTP/1.1 2",
        "half the head": CHUNKED_SSE[:-10],
        "the head": CHUNKED_SSE,
        "the first delta": CHUNKED_SSE + chunk(delta),
    }[place]


@pytest.mark.parametrize("connection", ["kept", "fresh"])
@pytest.mark.parametrize("sample", SAMPLES, ids=str)
async def test_death_behind_the_first_byte_is_never_repeated(
    tmp_path: Path, sample: Sample, connection: str
) -> None:
    """R33: on a connection that was kept and on a fresh one: one attempt, one error."""

    async def dying(link: Link) -> None:
        await link.send(start_of(sample, place))
        link.close()
        await link.stay()

    async with stage(tmp_path, sample, speaking(sample)) as on:
        for place in PLACES:
            if connection == "kept":
                on.up.script = speaking(sample)
                assert (await on.ask()).body == sample.stream
            on.up.script = dying
            asked, links = len(on.up.asked), len(on.up.links)
            answer = await on.ask()
            row = await on.row(asked)
            assert len(on.up.asked) == asked + 1, place
            assert len(on.up.links) == links + (connection == "fresh"), place
            failure(sample, answer)
            assert answer.body.count(TEXT[:6].encode()) == (place == "the first delta")
            assert (row.outcome, row.error_type) == ("failed", "upstream_failed"), place
            assert answer.status == (200 if place in PLACES[3:] else 502), place
