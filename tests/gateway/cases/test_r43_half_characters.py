"""R43: half a surrogate pair is passed as it came, and the ledger writes its row all the same."""

import json
import sqlite3
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest

from gateway.ledger.row import fitted
from tests.e2e.server import serving
from tests.gateway.cases.samples import SAMPLES, Sample, dump
from tests.gateway.cases.scripted import ScriptedBackend, answering, speaking, streaming
from tests.gateway.cases.stage import call, error_code, stage

CONFIG = """
server: {{state_dir: STATE_DIR}}
backends:
  b: {{kind: openai, base_url: "{url}/v1", models: [m], prefix: m}}
"""
HALF = b"\\ud83d"
TOOL_RESULTS: dict[str, Any] = {
    "chat": {"messages": [{"role": "tool", "tool_call_id": "call_1", "content": "HALF"}]},
    "responses": {"input": [{"type": "function_call_output", "call_id": "c", "output": "HALF"}]},
    "messages": {"messages": [{"role": "user", "content": [
        {"type": "tool_result", "tool_use_id": "toolu_1", "content": "HALF"}]}]},
    "gemini": {"contents": [{"parts": [
        {"functionResponse": {"name": "weather", "response": {"output": "HALF"}}}]}]},
}  # fmt: skip


@pytest.mark.parametrize("sample", SAMPLES, ids=str)
async def test_half_a_pair_in_a_request_goes_up_as_it_came(tmp_path: Path, sample: Sample) -> None:
    """R43: in a tool result, in a field's name, in the user's id."""
    plain = dump({**sample.request, **TOOL_RESULTS[sample.surface]}).replace(b"HALF", HALF)
    places = [plain, *(plain[:-1] + b', "' + name + b'": "' + HALF + b'"}'
                       for name in (HALF, b"user"))]  # fmt: skip
    async with stage(tmp_path, sample, speaking(sample)) as on:
        for number, request in enumerate(places):
            answer = await call(on.port, sample.path, request)
            row = await on.row(number)
            assert on.up.asked[number].body == request
            assert (answer.status, answer.body) == (200, sample.whole)
            assert row.outcome == "succeeded" and row.body_hash
            assert fitted(asdict(row))["body_hash"] == row.body_hash


@pytest.mark.parametrize("sample", SAMPLES[:3], ids=str)
async def test_half_a_pair_as_a_models_name_is_answered_in_whole_characters(
    tmp_path: Path, sample: Sample
) -> None:
    """R43: the name is in the error, in the row and in a header; none of them breaks."""
    request = dump(sample.request).replace(b'"m"', b'"m' + HALF + b'"')
    async with stage(tmp_path, sample, speaking(sample), prefix="m") as on:
        answer = await call(on.port, sample.path, request)
        row = await on.row()
        if on.up.asked:
            assert on.up.asked[0].body == request
    assert answer.status in (200, 400, 404)
    if answer.status != 200:
        assert error_code(sample.surface, answer.body)
    row.model.encode()


@pytest.mark.parametrize("is_stream", [True, False], ids=["stream", "whole"])
@pytest.mark.parametrize("sample", SAMPLES, ids=str)
async def test_half_a_pair_in_an_answer_comes_down_as_it_came(
    tmp_path: Path, sample: Sample, is_stream: bool
) -> None:
    """R43: in the text, the model's name and the finish reason of a backend."""
    plain = sample.stream if is_stream else sample.whole
    odd = plain.replace("東".encode(), HALF).replace(b'"m-1"', b'"m' + HALF + b'"')
    assert HALF in odd
    script = streaming(odd) if is_stream else answering(odd)
    async with stage(tmp_path, sample, script) as on:
        answer = await on.ask(is_stream=is_stream)
        row = await on.row()
    assert answer.body == odd
    assert (row.outcome, row.completion_tokens) == ("succeeded", 13)
    row.served_model.encode()
    assert json.loads(json.dumps(asdict(row))) == asdict(row)


async def test_bytes_that_are_no_characters_are_a_clear_400(tmp_path: Path) -> None:
    """R43: half a pair written out as bytes is no UTF-8, so it is no JSON either."""
    sample = SAMPLES[0]
    request = dump(sample.request).replace(b"Tokyo", "\ud83d".encode("utf-8", "surrogatepass"))
    async with stage(tmp_path, sample, speaking(sample)) as on:
        answer = await call(on.port, sample.path, request)
        row = await on.row()
        assert not on.up.asked
    assert (answer.status, error_code("chat", answer.body)) == (400, "invalid_json")
    assert row.outcome == "refused"


async def test_a_real_ledger_writes_every_such_row(tmp_path: Path) -> None:
    """R43: a real process and its database: requests, names and answers with half characters."""
    sample = SAMPLES[0]
    odd = sample.whole.replace("東".encode(), HALF).replace(b'"m-1"', b'"m' + HALF + b'"')
    async with ScriptedBackend(answering(odd)) as up:
        with serving(tmp_path, CONFIG.format(url=up.url)) as server:
            port = int(server.base.rpartition(":")[2])
            plain = dump(sample.request)
            for body in (plain.replace(b"Tokyo", HALF), plain.replace(b'"m"', b'"m' + HALF + b'"')):
                assert (await call(port, sample.path, body)).status == 200
            assert server.stop() == 0
        with sqlite3.connect(server.state_dir / "ledger.sqlite") as books:
            rows = books.execute("SELECT outcome, model, served_model FROM ledger").fetchall()
        books.close()
    assert [outcome for outcome, *_ in rows] == ["succeeded"] * 2
    assert not server.said("ledger.failed") and not server.said("request.crashed")
