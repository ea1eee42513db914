"""R44: what nobody has heard of is relayed whole and in order, and its row is closed."""

from pathlib import Path
from typing import Any

import pytest

from tests.gateway.cases.samples import (
    FINAL_RESPONSE,
    MESSAGES,
    RESPONSE_EVENTS,
    RESPONSES,
    TOKENS,
    block_delta,
    dump,
    numbered,
    typed,
)
from tests.gateway.cases.scripted import speaking, streaming
from tests.gateway.cases.stage import call, stage

UNKNOWN: dict[str, Any] = {"id": "zap_1", "type": "zap_call", "status": "completed", "zap": [1.50]}
INPUT = [
    {"type": "zap_call", "id": "zap_0", "x": {"y": None}},
    {"type": "message", "role": "critic", "content": [{"type": "input_smell", "smell": "東"}]},
    {"no": "type"}, 7, None,
]  # fmt: skip
TOOLS = [{"type": "namespace", "name": "n", "tools": []}, {"type": "zap", "strength": 1e3}]


async def test_unknown_input_goes_up_in_its_bytes(tmp_path: Path) -> None:
    """R44: items, parts, roles and tools of kinds we do not know."""
    body = dump({"model": "m", "input": INPUT, "tools": TOOLS, "include": ["zap.encrypted"]})
    async with stage(tmp_path, RESPONSES, speaking(RESPONSES)) as on:
        answer = await call(on.port, "/v1/responses", body)
        row = await on.row()
        assert on.up.asked[0].body == body
    assert answer.body == RESPONSES.whole
    assert (row.outcome, row.completion_tokens) == ("succeeded", 13)


async def test_unknown_output_comes_down_in_its_bytes(tmp_path: Path) -> None:
    """R44: an item and events of a kind we do not know, in the middle of a stream."""
    final = {**FINAL_RESPONSE, "output": [*FINAL_RESPONSE["output"], UNKNOWN, 7, None]}
    events = numbered(
        *RESPONSE_EVENTS[:-1],
        {"type": "response.output_item.added", "output_index": 2, "item": UNKNOWN},
        {"type": "response.zap.delta", "output_index": 2, "item_id": "zap_1", "delta": {"z": 1}},
        {"type": "response.output_item.done", "output_index": 2, "item": UNKNOWN},
        {"type": "response.completed", "response": final},
    )
    async with stage(tmp_path, RESPONSES, streaming(*events)) as on:
        answer = await on.ask()
        row = await on.row()
    assert answer.body == b"".join(events)
    assert RESPONSES.grammar.check(answer.body).ending == "finished"
    assert {name: getattr(row, name) for name in TOKENS} == TOKENS
    assert row.outcome == "succeeded"


@pytest.mark.parametrize("status", ["completed", "incomplete", "failed", None])
async def test_a_terminal_event_of_another_name_is_the_end(
    tmp_path: Path, status: str | None
) -> None:
    """R44: `response.done` in place of `response.completed`, with a status and without."""
    response = {**FINAL_RESPONSE, "status": status}
    if status is None:
        del response["status"]
    if status == "failed":
        response["error"] = {"code": "server_error", "message": "it broke"}
    events = numbered(*RESPONSE_EVENTS[:-1], {"type": "response.done", "response": response})
    async with stage(tmp_path, RESPONSES, streaming(*events)) as on:
        answer = await on.ask()
        row = await on.row()
    assert (answer.body, answer.is_whole) == (b"".join(events), True)
    if status is not None:
        assert row.outcome == ("failed" if status == "failed" else "succeeded")
    assert row.outcome is not None
    assert {name: getattr(row, name) for name in TOKENS} == TOKENS


async def test_unknown_blocks_and_events_of_a_message_pass(tmp_path: Path) -> None:
    """R44, on the Messages surface: blocks, deltas and events yet to be invented."""
    events = (
        *MESSAGES.events[:-2],
        typed({"type": "content_block_start", "index": 2,
               "content_block": {"type": "zap", "zap": 1}}),
        block_delta(2, {"type": "zap_delta", "zap": {"text": 1}}),
        typed({"type": "content_block_stop", "index": 2}),
        typed({"type": "zap_event", "delta": "no object"}),
        *MESSAGES.events[-2:],
    )  # fmt: skip
    async with stage(tmp_path, MESSAGES, streaming(*events)) as on:
        answer = await on.ask()
        row = await on.row()
    assert answer.body == b"".join(events)
    assert MESSAGES.grammar.check(answer.body).ending == "finished"
    assert {name: getattr(row, name) for name in TOKENS} == TOKENS
    assert row.outcome == "succeeded"
