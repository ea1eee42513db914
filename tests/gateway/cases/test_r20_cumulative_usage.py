"""R20: usage that is said several times replaces itself and is never added up."""

from pathlib import Path

import pytest

from tests.gateway.cases.samples import (
    CHAT,
    FINAL_RESPONSE,
    GEMINI,
    MESSAGES,
    RESPONSE_EVENTS,
    RESPONSES,
    TOKENS,
    Sample,
    chat_usage,
    data,
    gemini_answer,
    numbered,
    typed,
)
from tests.gateway.cases.scripted import streaming
from tests.gateway.cases.stage import stage


def chat_of(output: int) -> dict[str, int]:
    return {"prompt_tokens": 9, "completion_tokens": output, "total_tokens": 9 + output}


def gemini_of(output: int) -> dict[str, int]:
    return {"promptTokenCount": 9, "candidatesTokenCount": output, "totalTokenCount": 9 + output}


def beside(event: bytes, output: int) -> bytes:
    """A chat chunk with the usage so far beside its choices."""
    return event.replace(b'"model"', b'"usage": ' + str(chat_of(output)).replace("'", '"').encode()
                         + b', "model"')  # fmt: skip


_DELTA = {"type": "message_delta", "delta": {"stop_reason": None}}
_IN_PROGRESS = {**FINAL_RESPONSE, "status": "in_progress", "output": []}
STREAMS: dict[str, tuple[Sample, tuple[bytes, ...]]] = {
    "chat, in every chunk": (CHAT, (
        *(beside(event, number) for number, event in enumerate(CHAT.events[:-2])),
        *CHAT.events[-2:])),
    "chat, no choices at all": (CHAT, (
        *CHAT.events[:2], *(chat_usage().replace(b'"choices": [], ', b"") for _ in range(3)),
        *CHAT.events[2:-2], CHAT.events[-1])),
    "messages": (MESSAGES, (
        *MESSAGES.events[:-2],
        *(typed({**_DELTA, "usage": {"output_tokens": count}}) for count in (5, 9, 13)),
        *MESSAGES.events[-2:])),
    "responses": (RESPONSES, numbered(
        RESPONSE_EVENTS[0], {"type": "response.in_progress", "response": _IN_PROGRESS},
        {"type": "response.in_progress", "response": _IN_PROGRESS}, *RESPONSE_EVENTS[2:])),
    "gemini": (GEMINI, (
        *(data(gemini_answer({"text": text}, usageMetadata=gemini_of(count)))
          for count, text in enumerate(("a", "b", "c"))),
        *GEMINI.events[-1:])),
}  # fmt: skip


@pytest.mark.parametrize("name", STREAMS)
async def test_the_last_usage_counts(tmp_path: Path, name: str) -> None:
    """R20: the same cumulative usage, and a growing one, several times in one stream."""
    sample, events = STREAMS[name]
    async with stage(tmp_path, sample, streaming(*events)) as on:
        answer = await on.ask()
        row = await on.row()
    assert answer.body == b"".join(events)
    if name != "chat, no choices at all":  # which some backends do, and no document allows
        sample.grammar.check(answer.body)
    assert {name: getattr(row, name) for name in TOKENS} == TOKENS
    assert row.usage_source == "backend"


async def test_a_last_usage_of_nothing_says_nothing(tmp_path: Path) -> None:
    """R20: null, empty and foreign usages do not wipe out what was said."""
    nothing = [chat_usage().replace(b'"usage": {', b'"usage": null, "was": {')]
    for usage in ({}, {"prompt_tokens": None, "completion_tokens": "13"}, []):
        nothing.append(data({"id": "c1", "choices": [], "usage": usage}))
    events = (*CHAT.events[:-1], *nothing, CHAT.events[-1])
    async with stage(tmp_path, CHAT, streaming(*events)) as on:
        answer = await on.ask()
        row = await on.row()
    assert answer.body == b"".join(events)
    assert {name: getattr(row, name) for name in TOKENS} == TOKENS
