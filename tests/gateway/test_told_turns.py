"""What an answer leaves for the next turn: status lines go, what was hidden in it stays."""

import asyncio
import json
from pathlib import Path
from typing import Any

import httpx

from conductor.profiles import StatusRules, TranscriptRules
from proto.messages import Delta, MonitorEvent, Queued, Submit
from proto.plan import REASONING_PART
from tests.fakes.worker import FakeWorker
from tests.gateway.conducted import body, conducted, is_question

LINES = StatusRules(enabled=True, min_interval_s=0)
TOOL = {"type": "function", "function": {"name": "look", "parameters": {"type": "object"}}}


async def looped(worker: FakeWorker, run: Submit) -> None:
    """Reasons, is stopped with hidden words, answers."""
    if is_question(run):
        await worker.write(run, "debug")
        return await worker.finish(run, 1)
    await worker.send(
        Delta(
            run.run_id, 1, (1, 2, 3, 4),
            ("Round and round.", "\nThat is enough.", "", "It lacks a bracket."),
            ("reasoning", "reasoning", "reasoning", "text"), (False, True, True, False),
            events=(MonitorEvent(2, "D1", "act", "loop"),),
        )
    )  # fmt: skip
    await worker.finish(run, 2)


async def streamed(client: httpx.AsyncClient, asked: dict[str, Any]) -> dict[str, str]:
    """The streamed answer as a client sends it back."""
    found = await client.post("/v1/chat/completions", json={**asked, "stream": True})
    said = {"role": "assistant", "content": "", "reasoning_content": ""}
    for line in found.text.splitlines():
        if line.startswith("data: {"):
            for choice in json.loads(line[6:])["choices"]:
                for name in ("content", "reasoning_content"):
                    said[name] += choice["delta"].get(name, "")
    return said


async def test_status_lines_are_streamed_and_gone_from_the_next_prompt(tmp_path: Path) -> None:
    async with conducted(tmp_path, looped, status=LINES) as (_, worker, client):
        reply = await streamed(client, body())
        assert reply["reasoning_content"] == (
            "› taking this as debug\nRound and round.\n› reasoning went in circles, closed it\n"
        )
        mine = {"role": "user", "content": "› this line is mine, and yours: › taking this as debug"}
        await client.post("/v1/chat/completions", json=body(reply, mine))
        later = await worker.hear(Submit, 4)
    answer, asked = later.call.messages[1:]
    assert (answer.reasoning, answer.text) == ("Round and round.", "It lacks a bracket.")
    assert asked.text == mine["content"]


async def test_no_status_line_is_written_where_none_may_be(tmp_path: Path) -> None:
    schema = {"type": "json_schema", "json_schema": {"name": "x", "schema": {"type": "object"}}}
    async with conducted(tmp_path, looped, status=LINES) as (_, __, client):
        whole = await client.post("/v1/chat/completions", json=body())
        formed = await streamed(client, body(response_format=schema))
    message = whole.json()["choices"][0]["message"]
    assert message["reasoning_content"] == formed["reasoning_content"] == "Round and round."


async def test_what_was_hidden_in_an_answer_stands_there_in_the_next_prompt(tmp_path: Path) -> None:
    async with conducted(tmp_path, looped) as (_, worker, client):
        reply = await streamed(client, body())
        assert reply["reasoning_content"] == "Round and round."
        more = {"role": "user", "content": "And the third one, does it fail as well?"}
        await client.post("/v1/chat/completions", json=body(reply, more))
        later = await worker.hear(Submit, 4)
        told = {**reply, "reasoning_content": ""}
        await client.post("/v1/chat/completions", json=body(told, more))
        without = await worker.hear(Submit, 5)
    (hidden,) = [one for one in later.plan.segments if one.kind == "hidden"]
    assert (hidden.message, hidden.part, hidden.offset) == (1, REASONING_PART, 16)
    assert hidden.text == "\nThat is enough."
    assert "hidden" not in {one.kind for one in without.plan.segments}  # its reasoning is gone


async def test_a_request_with_tools_leaves_a_block_in_its_transcript(tmp_path: Path) -> None:
    key = "sk-abcdefGHIJ0123456789"

    async def calls(worker: FakeWorker, run: Submit) -> None:
        from proto.messages import CallPart

        if is_question(run):
            await worker.write(run, "debug")
            return await worker.finish(run, 1)
        parts = (
            CallPart(1, 0, id="c2", name="look"),
            CallPart(1, 0, args=json.dumps({"key": key})),
            CallPart(1, 0, end=True),
        )
        await worker.send(Delta(run.run_id, 1, (1,), ("",), ("call",), (False,), calls=parts))
        await worker.finish(run, 1, "tool_calls")

    made = {
        "role": "assistant", "content": None,
        "tool_calls": [
            {"id": "c1", "type": "function", "function": {"name": "look", "arguments": "{}"}}
        ],
    }  # fmt: skip
    result = {"role": "tool", "tool_call_id": "c1", "content": "nothing there"}
    rules = TranscriptRules(enabled=True)
    headers = {"X-Tandem-Profile": "chat"}
    async with conducted(tmp_path, calls, transcript=rules) as (gateway, _, client):
        await client.post("/v1/chat/completions", json=body(), headers=headers)
        asked = body(made, result, tools=[TOOL])
        await client.post("/v1/chat/completions", json=asked, headers=headers)
        folder = gateway.gateway.settings.state_dir / "transcripts" / "chat"
    (path,) = folder.glob("*.txt")
    assert path.stat().st_mode & 0o777 == 0o600
    block = path.read_text()
    assert block.count("== ") == 1 and key not in block
    assert block.splitlines()[1:4] == [
        "result look: 13 characters", 'call look {"key": "sk-a…(masked)"}', "finish tool_calls",
    ]  # fmt: skip


async def test_what_is_hidden_stands_in_no_count_of_an_answer_that_broke_off(
    tmp_path: Path,
) -> None:
    async def breaks(worker: FakeWorker, run: Submit) -> None:
        if is_question(run):
            await worker.write(run, "debug")
            return await worker.finish(run, 1)
        await worker.send(Queued(run.run_id, 0, 0, 20, "", "", note_tokens=7))
        await worker.send(
            Delta(
                run.run_id, 1, (1, 2, 3), ("It", " Enough.", " lacks"), ("text",) * 3,
                (False, True, False),
            )
        )  # fmt: skip

    async with conducted(tmp_path, breaks) as (gateway, _, client):
        asked = body(stream=True)
        async with client.stream("POST", "/v1/chat/completions", json=asked) as found:
            async for piece in found.aiter_text():
                if "lacks" in piece:
                    break
        rows = [await gateway.row(0), await gateway.row(1)]
    (row,) = [row for row in rows if row.kind == "generation"]
    assert (row.outcome, row.prompt_tokens, row.completion_tokens) == ("aborted", 13, 2)
    assert (row.note_tokens, row.hidden_tokens) == (7, 1)
    assert (row.upstream_input_tokens, row.upstream_output_tokens) == (20, 3)


async def test_what_turns_out_to_be_reasoning_is_told_apart_where_nothing_was_streamed(
    tmp_path: Path,
) -> None:
    async def reasons_anyway(worker: FakeWorker, run: Submit) -> None:
        if is_question(run):
            await worker.write(run, "debug")
            return await worker.finish(run, 1)
        await worker.write(run, "I s", "ee.\nH", "i.")
        reasoned = 0 if "all of it" in run.call.messages[-1].text else 7
        await worker.finish(run, 3, reasoned_chars=reasoned or 10)

    async with conducted(tmp_path, reasons_anyway) as (_, __, client):
        whole = await client.post("/v1/chat/completions", json=body())
        reply = await streamed(client, body())
        other = {"role": "user", "content": "And all of it?"}
        only = await client.post("/v1/chat/completions", json=body(reply, other))
    message = whole.json()["choices"][0]["message"]
    assert (message["reasoning_content"], message["content"]) == ("I see.", "Hi.")
    assert reply["content"] == "I see.\nHi." and not reply["reasoning_content"]
    message = only.json()["choices"][0]["message"]
    assert message["content"] == "I see.\nHi." and "reasoning_content" not in message


async def test_the_end_is_sent_when_what_the_next_turn_needs_is_stored(tmp_path: Path) -> None:
    saves, may_save = asyncio.Event(), asyncio.Event()
    async with conducted(tmp_path, looped) as (gateway, _, client):
        rooms: Any = gateway.gateway.rooms
        save = rooms.notebook.notes.save

        async def slow(records: Any) -> None:
            if any(record.kind == "hidden" for record in records):
                saves.set()
                await may_save.wait()
            await save(records)

        rooms.notebook.notes.save = slow
        asked = body(stream=True)
        async with client.stream("POST", "/v1/chat/completions", json=asked) as found:
            lines = found.aiter_lines()
            async for line in lines:
                if "bracket" in line:
                    break
            rest = asyncio.ensure_future(anext(line async for line in lines if "DONE" in line))
            async with asyncio.timeout(5):
                await saves.wait()
                await client.get("/health")  # an end that was sent would be here by now
                assert not rest.done()
                may_save.set()
                assert await rest == "data: [DONE]"


async def test_a_raw_prompt_is_not_planned(tmp_path: Path) -> None:
    async def says(worker: FakeWorker, run: Submit) -> None:
        await worker.write(run, "x")
        await worker.finish(run, 1)

    async with conducted(tmp_path, says) as (_, worker, client):
        asked = {"model": "TandemLLM", "prompt": "def f(", "suffix": "): pass"}
        found = await client.post("/v1/completions", json=asked)
        run = await worker.hear(Submit)
    assert found.status_code == 200 and "x-tandem-profile" not in found.headers
    assert [isinstance(one, Submit) for one in worker.heard].count(True) == 1
    assert run.plan.monitor is None and run.plan.segments == ()
