"""R3: comments of a backend pass to the client and disturb nobody."""

from pathlib import Path
from typing import Any

import pytest

from tests.gateway.cases.samples import TEXT, WITH_COMPLETIONS, Sample
from tests.gateway.cases.scripted import streaming
from tests.gateway.cases.stage import stage

COMMENTS = (b": hello\n\n", b":\n\n", b': {"not":"json\n\n', b": [DONE]\n\n", b":data: {}\n\n")
TOLD_BY_THE_CLOCK = {"request_id", "ts_ms", "ttft_ms", "decode_ms", "decode_tps", "total_ms"}


def facts(row: Any) -> dict[str, Any]:
    """What a row says beside its times and ids."""
    return {name: getattr(row, name) for name in row.__slots__ if name not in TOLD_BY_THE_CLOCK}


@pytest.mark.parametrize("sample", WITH_COMPLETIONS, ids=str)
async def test_comments_change_neither_text_nor_row(tmp_path: Path, sample: Sample) -> None:
    """R3: comments before, between, inside and after events."""
    noisy: list[bytes] = [COMMENTS[0]]
    for number, event in enumerate(sample.events):
        noisy += [event.replace(b"data: ", b": inside\ndata: ", 1), COMMENTS[number % 5]]
    async with stage(tmp_path, sample, streaming(*sample.events)) as on:
        await on.ask()
        plain = facts(await on.row())
        on.up.script = streaming(*noisy)
        answer = await on.ask()
        commented = facts(await on.row(1))
    assert (answer.status, answer.body, answer.is_whole) == (200, b"".join(noisy), True)
    assert sample.grammar.check(answer.body).text == TEXT
    assert commented == plain
    assert (commented["outcome"], commented["usage_source"]) == ("succeeded", "backend")
