"""R1: pieces that cut characters in two change nothing, on any surface."""

from pathlib import Path

import pytest

from tests.gateway.cases.samples import TEXT, TOKENS, WITH_COMPLETIONS, Sample
from tests.gateway.cases.scripted import JSON, LAST_CHUNK, SSE, Lockstep, chunk
from tests.gateway.cases.stage import Stage, stage


async def play(on: Stage, lockstep: Lockstep, pieces: list[bytes], *, is_stream: bool) -> bytes:
    """The answer's body, each piece seen by the client before the next one exists."""
    async with on.caller(is_stream=is_stream) as caller:
        link = await lockstep.link()
        await caller.head()
        got = b""
        for piece in pieces:
            await link.send(chunk(piece))
            got += await caller.piece()
        await link.send(LAST_CHUNK)
        assert await caller.piece() == b"" and caller.answer.is_whole
    return got


@pytest.mark.parametrize("sample", WITH_COMPLETIONS, ids=str)
@pytest.mark.parametrize("is_stream", [True, False], ids=["stream", "whole"])
async def test_every_byte_on_its_own_gives_the_same_answer(
    tmp_path: Path, sample: Sample, is_stream: bool
) -> None:
    """R1: one byte a piece."""
    answer = sample.stream if is_stream else sample.whole
    lockstep = Lockstep(SSE if is_stream else JSON)
    async with stage(tmp_path, sample, lockstep.script) as on:
        pieces = [answer[at : at + 1] for at in range(len(answer))]
        got = await play(on, lockstep, pieces, is_stream=is_stream)
        row = await on.row()
    assert got == answer
    assert not is_stream or sample.grammar.check(got).text == TEXT
    assert {name: getattr(row, name) for name in TOKENS} == TOKENS
    assert (row.outcome, row.usage_source) == ("succeeded", "backend")


@pytest.mark.parametrize("sample", WITH_COMPLETIONS, ids=str)
async def test_two_pieces_cut_anywhere_give_the_same_text(tmp_path: Path, sample: Sample) -> None:
    """R1: the records of the text, cut in two at every byte."""
    start = sum(map(len, sample.events[: sample.first_text]))
    end = start + sum(map(len, sample.events[sample.first_text : sample.first_text + 3]))
    cuts = range(max(start, 1), end)
    lockstep = Lockstep()
    async with stage(tmp_path, sample, lockstep.script) as on:
        for number, at in enumerate(cuts):
            pieces = [sample.stream[:at], sample.stream[at:]]
            got = await play(on, lockstep, pieces, is_stream=True)
            row = await on.row(number)
            assert got == sample.stream, at
            assert (row.completion_tokens, row.outcome) == (13, "succeeded"), at
