"""R31: several choices pass with their indices, and each needs its own end."""

import json
from pathlib import Path
from typing import Any

import pytest

from tests.gateway.cases.samples import CHAT, DONE, GEMINI, Sample, chat_chunk, data, dump
from tests.gateway.cases.scripted import CHUNKED_SSE, Link, answering, chunk, streaming
from tests.gateway.cases.stage import failure, stage

N = 3
TEXTS = ("ein", "zwéi", "三")


def gemini_chunk(index: int, text: str, finish: str | None = None) -> bytes:
    candidate: dict[str, Any] = {"index": index, "content": {"parts": [{"text": text}]}}
    return data({"candidates": [candidate | ({"finishReason": finish} if finish else {})]})


CHAT_STREAM = (
    *(chat_chunk({"role": "assistant", "content": ""}, index=index) for index in range(N)),
    *(chat_chunk({"content": char}, index=index)
      for char_at in range(4) for index in (2, 0, 1)
      for char in TEXTS[index][char_at : char_at + 1]),
    *(chat_chunk({}, "stop", index) for index in (1, 0)), chat_chunk({}, "length", 2),
    *CHAT.events[-2:],
)  # fmt: skip
GEMINI_STREAM = (
    *(gemini_chunk(index, TEXTS[index]) for index in (2, 0, 1)),
    *(gemini_chunk(index, "", "STOP") for index in (1, 0)), gemini_chunk(2, "", "MAX_TOKENS"),
)  # fmt: skip
CASES = [(CHAT, CHAT_STREAM, len(CHAT_STREAM) - 3), (GEMINI, GEMINI_STREAM, 5)]


@pytest.mark.parametrize(("sample", "events", "last"), CASES, ids=["chat", "gemini"])
async def test_three_choices_pass_with_index_and_finish(
    tmp_path: Path, sample: Sample, events: tuple[bytes, ...], last: int
) -> None:
    """R31: n=3, interleaved: bytes equal, so indices and ends are."""
    async with stage(tmp_path, sample, streaming(*events)) as on:
        answer = await on.ask()
        row = await on.row()
    assert answer.body == b"".join(events)
    told = sample.grammar.check(answer.body)
    assert told.texts == dict(enumerate(TEXTS))
    assert told.finishes.keys() == {0, 1, 2}
    assert row.outcome == "succeeded"


@pytest.mark.parametrize(("sample", "events", "last"), CASES, ids=["chat", "gemini"])
@pytest.mark.parametrize("end", ["a cut", "a clean end"])
async def test_one_choice_without_its_end_is_a_failed_answer(
    tmp_path: Path, sample: Sample, events: tuple[bytes, ...], last: int, end: str
) -> None:
    """R31: two of three have finished when the backend goes: the third one's client must know."""

    async def script(link: Link) -> None:
        await link.send(CHUNKED_SSE, *map(chunk, events[:last]))
        if end == "a clean end":
            await link.send(b"0\r\n\r\n")
            return
        link.close()
        await link.stay()

    async with stage(tmp_path, sample, script) as on:
        answer = await on.ask()
        row = await on.row()
    if end == "a cut":
        failure(sample, answer)
    else:
        assert answer.body == b"".join(events[:last])
    assert row.outcome == "failed"


async def test_three_whole_choices_pass(tmp_path: Path) -> None:
    """R31: the same, not streamed."""
    body = json.loads(CHAT.whole)
    body["choices"] = [{**body["choices"][0], "index": index} for index in range(N)]
    async with stage(tmp_path, CHAT, answering(dump(body))) as on:
        answer = await on.ask(is_stream=False)
        row = await on.row()
    assert answer.body == dump(body)
    assert (row.outcome, row.completion_tokens, row.tool_calls) == ("succeeded", 13, N)


async def test_marks_behind_half_of_the_choices_are_no_end(tmp_path: Path) -> None:
    """R31: `[DONE]` does not stand for a finish reason that is missing."""
    events = (*CHAT_STREAM[: len(CHAT_STREAM) - 3], DONE)
    async with stage(tmp_path, CHAT, streaming(*events)) as on:
        assert (await on.ask()).body == b"".join(events)
        assert (await on.row()).outcome == "failed"
