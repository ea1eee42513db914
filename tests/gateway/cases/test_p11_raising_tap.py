"""P11: whatever the copy for the ledger meets, the bytes flow, and the row is estimated."""

from pathlib import Path
from typing import Any

import pytest

from gateway.relay import usage
from tests.gateway.cases.samples import TEXT, TOKENS, WITH_COMPLETIONS, Sample
from tests.gateway.cases.scripted import answering, streaming
from tests.gateway.cases.stage import stage


class RaisingReader:
    """Reads an answer's objects as usual, and fails at one of them."""

    def __init__(self, reader: Any) -> None:
        self.reader = reader
        self.at = 0
        self.count = 0

    def __call__(self, *arguments: Any) -> Any:
        self.count += 1
        if self.count == self.at:
            raise RuntimeError("the reader failed")
        return self.reader(*arguments)


@pytest.mark.parametrize("sample", WITH_COMPLETIONS, ids=str)
async def test_a_tap_that_raises_at_the_nth_event_costs_only_the_usage(
    tmp_path: Path, sample: Sample, monkeypatch: pytest.MonkeyPatch
) -> None:
    """P11: for every N until a run meets no failure; the bytes are the backend's each time."""
    reader = RaisingReader(usage.reader_of(sample.surface))
    monkeypatch.setitem(usage._READERS, sample.surface, reader)
    wrong = {}
    async with stage(tmp_path, sample, streaming(*sample.events)) as on:
        while reader.count >= reader.at:
            reader.at, reader.count = reader.at + 1, 0
            answer = await on.ask()
            row = await on.row(reader.at - 1)
            assert (answer.body, answer.is_whole) == (sample.stream, True)
            if row.outcome != "succeeded" or not _is_booked(row):
                wrong[reader.at] = (row.outcome, row.usage_source, row.completion_tokens)
    assert sample.grammar.check(answer.body).text == TEXT
    assert reader.at > len(sample.events) - 2
    assert not wrong


def _is_booked(row: Any) -> bool:
    """By the backend's own last word where that was heard, else by what went by: never nothing."""
    if row.usage_source == "backend":
        return bool(row.completion_tokens == TOKENS["completion_tokens"])
    return row.usage_source in ("counted", "estimated") and row.completion_tokens > 0


@pytest.mark.parametrize("sample", WITH_COMPLETIONS, ids=str)
async def test_a_tap_that_raises_over_a_whole_answer_costs_only_the_usage(
    tmp_path: Path, sample: Sample, monkeypatch: pytest.MonkeyPatch
) -> None:
    """P11: the same where the answer is one object."""
    reader = RaisingReader(usage.reader_of(sample.surface))
    reader.at = 1
    monkeypatch.setitem(usage._READERS, sample.surface, reader)
    async with stage(tmp_path, sample, answering(sample.whole)) as on:
        answer = await on.ask(is_stream=False)
        row = await on.row()
    assert reader.count == 1
    assert (answer.body, answer.is_whole) == (sample.whole, True)
    assert row.outcome == "succeeded" and _is_booked(row)


@pytest.mark.parametrize("place", range(4))
async def test_an_event_that_no_parser_survives_passes(tmp_path: Path, place: int) -> None:
    """P11: nesting beyond every stack, in the place of an event or of its parts."""
    sample = WITH_COMPLETIONS[place]
    deep = b"data: " + b"[" * 200_000 + b"]" * 200_000 + b"\n\n"
    events = (*sample.events[:place], deep, *sample.events[place:])
    async with stage(tmp_path, sample, streaming(*events)) as on:
        answer = await on.ask()
        row = await on.row()
        after = await on.ask()
    assert answer.body == b"".join(events) == after.body
    assert row.outcome == "succeeded" and _is_booked(row)
