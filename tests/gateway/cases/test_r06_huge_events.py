"""R6: one event of megabytes is delivered whole, and costs no more than its size."""

import time
from pathlib import Path

import pytest

from tests.gateway.cases.samples import CHAT, SAMPLES, TEXT, Sample, chat_chunk
from tests.gateway.cases.scripted import CHUNKED_SSE, LAST_CHUNK, Link, chunk, streaming
from tests.gateway.cases.stage import Stage, stage

MIB = 1024**2


@pytest.mark.parametrize("sample", SAMPLES, ids=str)
async def test_a_data_line_of_two_mib_arrives_whole(tmp_path: Path, sample: Sample) -> None:
    """R6: the text's first delta is grown to 2 MiB."""
    grown = b"".join(sample.events).replace("Grüße ".encode(), b"x" * 2 * MIB)
    async with stage(tmp_path, sample, streaming(grown)) as on:
        answer = await on.ask()
        row = await on.row()
    assert answer.body == grown and answer.is_whole
    assert sample.grammar.check(grown).text == "x" * 2 * MIB + TEXT.removeprefix("Grüße ")
    assert (row.outcome, row.completion_tokens, row.usage_source) == ("succeeded", 13, "backend")


async def test_time_grows_with_the_size_and_no_faster(tmp_path: Path) -> None:
    """R6: six times the bytes, in small pieces, take far less than 36 times the time."""

    async def script(link: Link) -> None:
        size_bytes = int(link.body.split(b"size-")[1].split(b"-")[0])
        event = chat_chunk({"content": "x" * size_bytes})
        pieces = [event[at : at + 4096] for at in range(0, len(event), 4096)]
        await link.send(CHUNKED_SSE, *map(chunk, pieces), LAST_CHUNK)

    async with stage(tmp_path, CHAT, script) as on:
        small_s = min([await _taken_s(on, 2 * MIB) for _ in range(3)])
        large_s = min([await _taken_s(on, 12 * MIB) for _ in range(2)])
    assert large_s < 12 * small_s


async def _taken_s(on: Stage, size_bytes: int) -> float:
    body = on.message()[1].replace(b"How is the weather", b"size-%d-" % size_bytes)
    async with on.caller(body=body) as caller:
        start_s = time.process_time()
        answer = await caller.whole()
        taken_s = time.process_time() - start_s
    assert len(answer.body) > size_bytes
    return taken_s
