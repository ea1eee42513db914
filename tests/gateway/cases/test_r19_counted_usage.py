"""R19, second half: where no usage came, the backend's own tokenizer counts, off the path."""

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest

from tests.gateway.cases.samples import CHAT, TEXT, chat_chunk
from tests.gateway.cases.scripted import Link, answering, streaming
from tests.gateway.cases.stage import stage

EVENTS = (*CHAT.events[:4], chat_chunk({}, "stop"), CHAT.events[-1])
TOKENS = 77


def texts(value: Any) -> list[str]:
    """Every text in a JSON value."""
    if isinstance(value, dict):
        value = list(value.values())
    if isinstance(value, list):
        return [text for child in value for text in texts(child)]
    return [value] if isinstance(value, str) else []


class Tokenizing:
    """A backend whose stream states no usage, and its tokenizer."""

    def __init__(self) -> None:
        self.asked: list[str] = []
        self.may_count = asyncio.Event()
        self.status = 200

    async def script(self, link: Link) -> None:
        if not link.asked[-1].target.startswith(("/tokenize", "/apply-template")):
            await streaming(*EVENTS)(link)
            return
        self.asked += texts(json.loads(link.body))
        await link.wait(self.may_count)
        answer = {
            "prompt": "as the template puts it",
            "count": TOKENS,
            "tokens": list(range(TOKENS)),
            "max_model_len": 4096,
        }
        await answering(json.dumps(answer).encode(), self.status)(link)


@pytest.mark.parametrize("flavor", ["vllm", "sglang", "llamacpp"])
async def test_the_backends_tokenizer_counts_what_nobody_stated(
    tmp_path: Path, flavor: str
) -> None:
    """R19: `counted`, with the client's answer whole before the count is asked for."""
    up = Tokenizing()
    async with stage(tmp_path, CHAT, up.script, flavor=flavor) as on:
        answer = await on.ask()
        assert answer.body == b"".join(EVENTS) and answer.is_whole
        up.may_count.set()
        row = await on.row()
    assert TEXT in up.asked
    assert (row.usage_source, row.completion_tokens) == ("counted", TOKENS)


@pytest.mark.parametrize("fault", ["error", "setting"])
async def test_where_it_cannot_count_the_row_is_estimated(tmp_path: Path, fault: str) -> None:
    """R19: a tokenizer that fails, or one that may not be asked (`tokenize: false`)."""
    up = Tokenizing()
    up.may_count.set()
    up.status = 500
    settings = {"tokenize": False} if fault == "setting" else {}
    async with stage(tmp_path, CHAT, up.script, flavor="vllm", **settings) as on:
        await on.ask()
        row = await on.row()
    assert (row.usage_source, row.completion_tokens) == ("estimated", -(-len(TEXT.encode()) // 4))
    assert fault == "error" or not up.asked
