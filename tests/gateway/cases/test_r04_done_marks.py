"""R4: `[DONE]` where it should not be, or not where it should: the whole answer all the same."""

from pathlib import Path

import pytest

from tests.gateway.cases.samples import CHAT, COMPLETIONS, DONE, TOKENS, Sample
from tests.gateway.cases.scripted import streaming
from tests.gateway.cases.stage import stage

MARKS = {
    "early": lambda events: (*events[:1], DONE, *events[1:]),
    "early, with blanks": lambda events: (*events[:1], b"data:  [DONE] \n\n", *events[1:]),
    "before the usage": lambda events: (*events[:-2], DONE, events[-2]),
    "twice": lambda events: (*events, DONE),
    "missing": lambda events: events[:-1],
    "with blanks": lambda events: (*events[:-1], b"data:   [DONE] \n\n"),
    "without a blank": lambda events: (*events[:-1], b"data:[DONE]\n\n"),
    "without its end": lambda events: (*events[:-1], b"data: [DONE]"),
}


@pytest.mark.parametrize("sample", [CHAT, COMPLETIONS], ids=str)
async def test_the_mark_ends_nothing_by_itself(tmp_path: Path, sample: Sample) -> None:
    """R4: bytes as they came, nothing added; one row, with the whole answer's usage."""
    async with stage(tmp_path, sample, streaming()) as on:
        for number, (mark, moved) in enumerate(MARKS.items()):
            events = moved(sample.events)
            on.up.script = streaming(*events)
            answer = await on.ask()
            row = await on.row(number)
            assert (answer.body, answer.is_whole) == (b"".join(events), True), mark
            assert {name: getattr(row, name) for name in TOKENS} == TOKENS, mark
            assert (row.outcome, row.usage_source) == ("succeeded", "backend"), mark
        assert len(on.gateway.books.rows) == len(MARKS)
