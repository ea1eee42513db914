"""R27, relay's part: an end without a reason is passed as it is, or made an error, and booked."""

from pathlib import Path

import pytest

from tests.gateway.cases.samples import (
    CHAT,
    COMPLETIONS,
    DONE,
    SAMPLES,
    WITH_COMPLETIONS,
    Sample,
    chat_chunk,
    data,
)
from tests.gateway.cases.scripted import CHUNKED_SSE, SSE, Link, chunk, head, streaming
from tests.gateway.cases.stage import failure, stage


@pytest.mark.parametrize("sample", WITH_COMPLETIONS, ids=str)
async def test_a_clean_end_without_a_finish_passes_and_counts_as_failed(
    tmp_path: Path, sample: Sample
) -> None:
    """R27: last chunk seen, no finish reason: not a byte of ours."""
    cut = sample.events[: sample.finish_at]
    async with stage(tmp_path, sample, streaming(*cut)) as on:
        answer = await on.ask()
        row = await on.row()
    assert (answer.body, answer.is_whole) == (b"".join(cut), True)
    assert sample.grammar.read(answer.body).ending is None
    assert (row.outcome, row.error_type) == ("failed", "no_finish_reason")
    assert row.finish_reason is None and row.completion_tokens


@pytest.mark.parametrize("sample", WITH_COMPLETIONS, ids=str)
async def test_a_length_that_is_full_is_a_clean_end(tmp_path: Path, sample: Sample) -> None:
    """R27: the same, framed by its length."""
    cut = b"".join(sample.events[: sample.finish_at])

    async def script(link: Link) -> None:
        await link.send(head(200, SSE, f"content-length: {len(cut)}"), cut)

    async with stage(tmp_path, sample, script) as on:
        answer = await on.ask()
        row = await on.row()
    assert (answer.body, answer.is_whole) == (cut, True)
    assert (row.outcome, row.error_type) == ("failed", "no_finish_reason")


@pytest.mark.parametrize("sample", WITH_COMPLETIONS, ids=str)
async def test_a_close_without_a_finish_is_broken(tmp_path: Path, sample: Sample) -> None:
    """R27: neither length nor chunks: nobody can tell an end from a death."""

    async def script(link: Link) -> None:
        await link.send(head(200, SSE, "connection: close"), *sample.events[: sample.finish_at])
        link.close()
        await link.stay()

    async with stage(tmp_path, sample, script) as on:
        answer = await on.ask()
        row = await on.row()
    failure(sample, answer)
    assert row.outcome == "failed"


@pytest.mark.parametrize("sample", [CHAT, COMPLETIONS], ids=str)
async def test_a_mark_alone_is_no_finish(tmp_path: Path, sample: Sample) -> None:
    """R27: only `[DONE]`, with text before it and without: passed, and booked as failed."""
    for number, events in enumerate(((*sample.events[: sample.finish_at], DONE), (DONE,))):
        folder = tmp_path / str(number)
        folder.mkdir()
        async with stage(folder, sample, streaming(*events)) as on:
            answer = await on.ask()
            row = await on.row()
        assert (answer.body, answer.is_whole) == (b"".join(events), True)
        assert (row.outcome, row.error_type) == ("failed", "no_finish_reason")


async def test_stop_beside_calls_and_logprobs_pass_unchanged(tmp_path: Path) -> None:
    """R27: relay mends nothing: `stop` with calls, and logprobs with odd numbers."""
    logprobs = b'"logprobs": {"content": [{"token": "G", "logprob": -1.50e-2, "bytes": [71]}]}, '
    events = (
        CHAT.events[0],
        CHAT.events[1].replace(b'"finish_reason"', logprobs + b'"finish_reason"'),
        *CHAT.events[2:7], chat_chunk({}, "stop"), *CHAT.events[8:],
    )  # fmt: skip
    async with stage(tmp_path, CHAT, streaming(*events)) as on:
        answer = await on.ask()
        row = await on.row()
    assert answer.body == b"".join(events) and logprobs in answer.body
    assert CHAT.grammar.check(answer.body).finishes == {0: "stop"}
    assert (row.outcome, row.finish_reason, row.tool_calls) == ("succeeded", "stop", 1)


@pytest.mark.parametrize("sample", SAMPLES, ids=str)
async def test_a_backend_that_breaks_off_is_an_error_end(tmp_path: Path, sample: Sample) -> None:
    """R27: the chunks never end."""

    async def script(link: Link) -> None:
        await link.send(CHUNKED_SSE, *map(chunk, sample.events[: sample.finish_at]))
        link.close()
        await link.stay()

    async with stage(tmp_path, sample, script) as on:
        answer = await on.ask()
        row = await on.row()
    failure(sample, answer)
    assert (row.outcome, row.error_type) == ("failed", "upstream_failed")


async def test_an_error_event_of_the_backend_is_its_end(tmp_path: Path) -> None:
    """R27, P5: the backend says by itself that it failed: passed once, booked as failed."""
    error = data({"error": {"message": "out of memory", "type": "server_error"}})
    events = (*CHAT.events[:3], error, DONE)
    async with stage(tmp_path, CHAT, streaming(*events)) as on:
        answer = await on.ask()
        row = await on.row()
    assert answer.body == b"".join(events)
    assert CHAT.grammar.check(answer.body).ending == "failed"
    assert (row.outcome, row.error_type) == ("failed", "upstream_error_event")
