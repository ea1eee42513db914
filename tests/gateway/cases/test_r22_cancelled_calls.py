"""R22: a call that was cancelled or cut is booked with the tokens so far."""

from pathlib import Path
from typing import Any

import pytest

from tests.gateway.cases.samples import (
    CHAT,
    GEMINI,
    MESSAGES,
    RESPONSE_EVENTS,
    RESPONSES,
    Sample,
    block_delta,
    chat_chunk,
    data,
    gemini_answer,
    numbered,
)
from tests.gateway.cases.scripted import CHUNKED_SSE, Link, chunk
from tests.gateway.cases.stage import failure, stage

WORDS = [f"wörd{number} " for number in range(10)]
TEXT_BYTES = sum(len(word.encode()) for word in WORDS)
TEN: dict[str, tuple[bytes, ...]] = {
    "chat": (CHAT.events[0], *(chat_chunk({"content": word}) for word in WORDS)),
    "responses": numbered(
        *RESPONSE_EVENTS[:4], *({**RESPONSE_EVENTS[4], "delta": word} for word in WORDS)
    ),
    "messages": (*MESSAGES.events[:3],
                 *(block_delta(0, {"type": "text_delta", "text": word}) for word in WORDS)),
    "gemini": tuple(data(gemini_answer({"text": word})) for word in WORDS),
}  # fmt: skip
SAMPLES = (CHAT, RESPONSES, MESSAGES, GEMINI)


@pytest.mark.parametrize("end", ["the client leaves", "the backend dies", "the backend stops"])
@pytest.mark.parametrize("sample", SAMPLES, ids=str)
async def test_ten_deltas_are_booked(tmp_path: Path, sample: Sample, end: str) -> None:
    """R22: cut after ten deltas; by deltas where a delta is a token, else by bytes."""
    for per_delta in ("one", "unknown"):
        folder = tmp_path / per_delta
        folder.mkdir()
        row = await _cut_row(folder, sample, end, per_delta)
        expected = 10 if per_delta == "one" else -(-TEXT_BYTES // 4)
        assert (row.usage_source, row.completion_tokens) == ("estimated", expected)
        assert row.outcome == ("aborted" if end == "the client leaves" else "failed")
        assert row.prompt_tokens == 21 if sample is MESSAGES else row.prompt_tokens > 0
        assert row.ttft_ms is not None


async def _cut_row(folder: Path, sample: Sample, end: str, per_delta: str) -> Any:
    async def script(link: Link) -> None:
        await link.send(CHUNKED_SSE, *map(chunk, TEN[sample.surface]))
        if end == "the backend dies":
            link.close()
        await link.stay()

    settings = {"tokens_per_delta": per_delta, "idle_s": 0.1 if "stops" in end else 5}
    async with stage(folder, sample, script, **settings) as on, on.caller() as caller:
        await caller.until(WORDS[-1].encode())
        if end == "the client leaves":
            caller.close()
        else:
            answer = await caller.whole()
            assert answer.body.startswith(b"".join(TEN[sample.surface]))
            failure(sample, answer)
        return await on.row()
