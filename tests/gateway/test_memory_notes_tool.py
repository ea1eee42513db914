"""Memory notes that models write by a tool: the conductor answers it, and no client sees it."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from conductor.memory.tool import NAME, TOOL
from conductor.profiles import MemoryRules
from proto.chat import Message, TextPart, ToolCall
from proto.messages import CallPart, Cancel, Delta, Refused, Submit
from tests.fakes.worker import FakeWorker
from tests.gateway.harness import SHIPPED
from tests.gateway.remembering import body, call, remembering, saying

WRITES = MemoryRules(write=True)
ASKED = "How long does the suite take?"
FACT = "the suite takes ten minutes"
ARGUMENTS = json.dumps({"kind": "fact", "text": FACT})
REMEMBER = (NAME, ARGUMENTS)
LOOK = {"type": "function", "function": {"name": "look", "parameters": {"type": "object"}}}
MONITOR = SHIPPED.profiles["chat"].monitor


def own(request: Submit) -> bool:
    """Whether a run goes on behind a call of our tool."""
    return request.call.messages[-1].role == "tool"


async def remembers(worker: FakeWorker, run: Submit) -> None:
    """Calls our tool alone, then answers."""
    if not own(run):
        return await call(worker, run, REMEMBER, text="Noted.", tokens=7)
    await worker.write(run, "Ten", " minutes.")
    await worker.finish(run, 2)


def deltas(chunks: list[Any]) -> list[Any]:
    return [choice["delta"] for chunk in chunks for choice in chunk["choices"]]


async def test_a_request_with_tools_has_the_tool_behind_its_own(tmp_path: Path) -> None:
    async with remembering(tmp_path, saying("Ten."), WRITES) as on:
        await on.ask(ASKED, tools=[LOOK])
        await on.ask(ASKED)
        first, second = await on.submit(), await on.submit(2)
    assert [tool.name for tool in first.call.tools] == ["look", NAME]
    assert first.call.tools[-1] == TOOL and second.call.tools == ()
    assert not any("<tandem_memory>" in segment.text for segment in first.plan.segments)


async def test_an_answer_goes_on_behind_its_call_as_one(tmp_path: Path) -> None:
    async with remembering(tmp_path, remembers, WRITES) as on:
        chunks = await on.stream(
            ASKED, tools=[LOOK], max_tokens=100, stream_options={"include_usage": True}
        )
        (note,) = await on.written(1)
        first, second = await on.submit(), await on.submit(2)
        child, row = await on.running.row(0), await on.running.row(1)
    said = deltas(chunks)
    assert "".join(one.get("content") or "" for one in said) == "Noted.\n\nTen minutes."
    assert not any(one.get("tool_calls") for one in said)
    ends = [c["finish_reason"] for chunk in chunks for c in chunk["choices"] if c["finish_reason"]]
    assert ends == ["stop"]
    (usage,) = [chunk["usage"] for chunk in chunks if chunk.get("usage")]
    assert (usage["prompt_tokens"], usage["completion_tokens"]) == (5, 3)
    assert note.text == FACT
    assert second.call.messages == (
        *first.call.messages,
        Message("assistant", (TextPart("Noted."),), (ToolCall("call_0", NAME, ARGUMENTS),)),
        Message("tool", (TextPart("Kept."),), call_id="call_0"),
    )
    assert second.plan.segments == first.plan.segments
    assert (first.params.max_tokens, second.params.max_tokens) == (100, 99)
    assert (child.kind, child.parent_request_id, child.outcome) == (
        "continuation", row.request_id, "succeeded",
    )  # fmt: skip
    assert child.run_id not in (None, row.run_id) and child.completion_tokens is None
    assert (row.completion_tokens, row.hidden_tokens) == (3, 6)
    assert row.upstream_output_tokens + child.upstream_output_tokens == 3 + 6
    assert (row.tool_calls, row.finish_reason, row.adjusted) == (None, "stop", 1)
    lines = [line for line in on.journal() if line["event"] == "memory_write"]
    assert [(one["task"], one["reason"]) for one in lines] == [("tool", "kept")]


async def test_what_was_cut_behind_the_call_stands_there_again(tmp_path: Path) -> None:
    block = "\n<tandem_memory>\nfact: it rains\n</tandem_memory>"
    other = block.replace("rains", "snows")

    async def more(worker: FakeWorker, run: Submit) -> None:
        if run.call.messages[-1].text == "Why?":
            return await saying("Because.")(worker, run)
        if not own(run):
            return await call(worker, run, REMEMBER, text=f"Noted.{block}", tokens=7)
        await saying("Ten minutes.", other)(worker, run)

    async with remembering(tmp_path, more, WRITES) as on:
        answer = await on.ask(ASKED, tools=[LOOK])
        text = answer["choices"][0]["message"]["content"]
        await on.ask(ASKED, text, "Why?", tools=[LOOK])
        segments = (await on.submit(3)).plan.segments
        row = await on.running.row(1)
        notes = {note.text for note in await on.written(3)}
    assert notes == {FACT, "it rains", "it snows"}
    assert text == "Noted.\n\nTen minutes."
    assert [(one.kind, one.message, one.offset, one.text) for one in segments] == [
        ("hidden", 1, 6, block), ("hidden", 1, len(text), other),
    ]  # fmt: skip
    # Of the piece "Noted." with a block behind it one token: most of it is the block's.
    assert (row.completion_tokens, row.hidden_tokens) == (1, 8)


async def test_one_that_is_not_streamed_is_one_answer_too(tmp_path: Path) -> None:
    async with remembering(tmp_path, remembers, WRITES) as on:
        answer = await on.ask(ASKED, tools=[LOOK])
    (choice,) = answer["choices"]
    assert choice["message"] == {"role": "assistant", "content": "Noted.\n\nTen minutes."}
    assert (choice["finish_reason"], answer["usage"]["completion_tokens"]) == ("stop", 3)


async def test_beside_other_calls_it_is_taken_and_left_out(tmp_path: Path) -> None:
    async def both(worker: FakeWorker, run: Submit) -> None:
        await call(worker, run, ("look", '{"at":"a"}'), REMEMBER, ("look", '{"at":"b"}'))

    async with remembering(tmp_path, both, WRITES) as on:
        chunks = await on.stream(ASKED, tools=[LOOK])
        await on.written(1)
        row = await on.running.row()
        runs = [one for one in on.worker.heard if isinstance(one, Submit)]
    calls = [one for delta in deltas(chunks) for one in delta.get("tool_calls") or ()]
    assert [one["function"]["name"] for one in calls if one["function"].get("name")] == ["look"] * 2
    arguments = {0: "", 1: ""}
    for one in calls:
        arguments[one["index"]] += one["function"].get("arguments") or ""
    assert arguments == {0: '{"at":"a"}', 1: '{"at":"b"}'}
    assert len(runs) == 1 and (row.tool_calls, row.finish_reason) == (2, "tool_calls")
    assert 0 < row.hidden_tokens < row.upstream_output_tokens
    assert row.completion_tokens + row.hidden_tokens == row.upstream_output_tokens


async def test_it_goes_on_no_more_often_than_the_profile_says(tmp_path: Path) -> None:
    async def always(worker: FakeWorker, run: Submit) -> None:
        await call(worker, run, REMEMBER, text="Noted.", tokens=7)

    monitor = replace(MONITOR, continuations=1)
    async with remembering(tmp_path, always, WRITES, monitor=monitor) as on:
        answer = await on.ask(ASKED, tools=[LOOK])
        await on.running.row(1)
        runs = [one for one in on.worker.heard if isinstance(one, Submit)]
    (choice,) = answer["choices"]
    assert (choice["message"]["content"], choice["finish_reason"]) == ("Noted.\n\nNoted.", "stop")
    assert [run.plan.monitor.continuations for run in runs if run.plan.monitor] == [1, 0]


async def test_a_profile_without_continuations_has_no_such_tool(tmp_path: Path) -> None:
    monitor = replace(MONITOR, continuations=0)
    async with remembering(tmp_path, saying("Ten."), WRITES, monitor=monitor) as on:
        await on.ask(ASKED, tools=[LOOK])
        run = await on.submit()
    assert [tool.name for tool in run.call.tools] == ["look"]


async def test_a_refused_note_is_told_to_the_model_and_not_kept(tmp_path: Path) -> None:
    order = json.dumps({"kind": "fact", "text": "you must always deploy on Friday"})

    async def orders(worker: FakeWorker, run: Submit) -> None:
        if not own(run):
            return await call(worker, run, (NAME, order), (NAME, "[]"))
        await saying("Fine.")(worker, run)

    async with remembering(tmp_path, orders, WRITES) as on:
        answer = await on.ask(ASKED, tools=[LOOK])
        second = await on.submit(2)
        await on.running.row(1)
        await on.memories.finish()
        assert on.kept() == []
    assert answer["choices"][0]["message"]["content"] == "Fine."
    assert [message.text for message in second.call.messages[-2:]] == [
        "Not kept: it reads like an order; state what is.",
        "Not kept: the arguments are not of the tool's form.",
    ]


async def test_a_clients_own_tool_of_that_name_is_the_clients(tmp_path: Path) -> None:
    theirs = {"type": "function", "function": {"name": NAME}}

    async def calls(worker: FakeWorker, run: Submit) -> None:
        await call(worker, run, REMEMBER)

    async with remembering(tmp_path, calls, WRITES) as on:
        answer = await on.ask(ASKED, tools=[theirs])
        await on.memories.finish()
        assert on.kept() == []
        run = await on.submit()
    (made,) = answer["choices"][0]["message"]["tool_calls"]
    assert made["function"]["name"] == NAME and len(run.call.tools) == 1


@pytest.mark.parametrize(
    ("headers", "more"),
    [
        ({"X-Tandem-Memory": "off"}, {}),
        ({}, {"tool_choice": "required"}),
        ({}, {"tool_choice": {"type": "function", "function": {"name": "look"}}}),
        ({}, {"logprobs": True}),
        ({}, {"response_format": {"type": "json_object"}}),
    ],
)
async def test_where_nothing_is_kept_or_a_call_is_forced_there_is_no_such_tool(
    tmp_path: Path, headers: dict[str, str], more: dict[str, Any]
) -> None:
    async with remembering(tmp_path, saying("Ten."), WRITES) as on:
        await on.ask(ASKED, headers=headers, tools=[LOOK], **more)
        run = await on.submit()
    assert [tool.name for tool in run.call.tools] == ["look"]


@pytest.mark.parametrize("is_whole", [True, False])
async def test_where_the_limit_cut_the_answer_it_ends_there(tmp_path: Path, is_whole: bool) -> None:
    async def cut(worker: FakeWorker, run: Submit) -> None:
        arguments = ARGUMENTS if is_whole else ARGUMENTS[:-3]
        parts = (CallPart(2, 0, "call_0", NAME), CallPart(2, 0, args=arguments))
        parts += (CallPart(2, 0, end=True),) if is_whole else ()
        kinds: Any = ("text", "call")
        await worker.send(
            Delta(run.run_id, 1, (1, 2), ("Well.", ""), kinds, (False, False), calls=parts)
        )
        await worker.finish(run, 2, "length")

    async with remembering(tmp_path, cut, WRITES) as on:
        answer = await on.ask(ASKED, tools=[LOOK])
        await on.running.row()
        await on.memories.finish()
        assert [note.text for note in on.kept()] == [FACT] * is_whole
        runs = [one for one in on.worker.heard if isinstance(one, Submit)]
    (choice,) = answer["choices"]
    assert choice["message"] == {"role": "assistant", "content": "Well."}
    assert (choice["finish_reason"], len(runs)) == ("length", 1)


@pytest.mark.parametrize("text", ["Noted.", ""])
async def test_where_the_further_run_is_refused_the_answer_is_what_there_is(
    tmp_path: Path, text: str
) -> None:
    async def busy(worker: FakeWorker, run: Submit) -> None:
        if own(run):
            return await worker.send(Refused("busy", "queue_full", run.run_id))
        await call(worker, run, REMEMBER, text=text, tokens=7)

    async with remembering(tmp_path, busy, WRITES) as on:
        answer = await on.client.post(
            "/v1/chat/completions", json=body(ASKED, tools=[LOOK]), headers=on.headers
        )
        child = await on.running.row()
        row = await on.running.row(1)
    assert (child.outcome, child.error_type) == ("failed", "busy")
    if text:
        assert answer.json()["choices"][0]["message"]["content"] == text
        assert (row.outcome, row.finish_reason) == ("succeeded", "stop")
    else:
        assert (answer.status_code, row.outcome) == (503, "refused")


async def test_a_client_that_leaves_ends_the_further_run_and_its_row(tmp_path: Path) -> None:
    async def stalls(worker: FakeWorker, run: Submit) -> None:
        if not own(run):
            return await call(worker, run, REMEMBER, text="Noted.", tokens=7)
        put_in = Delta(run.run_id, 1, (1,), ("Go on.",), ("text",), (True,))
        await worker.send(put_in)
        await worker.write(run, "Ten", first=2)

    async with remembering(tmp_path, stalls, WRITES) as on:
        asked = body(ASKED, tools=[LOOK], stream=True)
        async with on.client.stream(
            "POST", "/v1/chat/completions", json=asked, headers=on.headers
        ) as answer:
            async for line in answer.aiter_lines():
                if "Ten" in line:
                    break
        second = await on.submit(2)
        cancelled = await on.worker.hear(Cancel)
        child, row = await on.running.row(0), await on.running.row(1)
    assert cancelled.run_id == second.run_id
    assert (child.outcome, row.outcome) == ("aborted", "aborted")
    assert (child.usage_source, row.usage_source) == ("counted", "backend")
    assert row.completion_tokens + row.hidden_tokens == (
        row.upstream_output_tokens + child.upstream_output_tokens
    )


async def test_reasoning_goes_with_the_call_and_counts_once(tmp_path: Path) -> None:
    async def thinks(worker: FakeWorker, run: Submit) -> None:
        kinds: Any = ("reasoning",)
        await worker.send(Delta(run.run_id, 1, (1,), ("Hm.",), kinds, (False,)))
        if own(run):
            await worker.write(run, "Ten.", first=2)
            return await worker.finish(run, 2)
        parts = (
            CallPart(2, 0, "call_0", NAME), CallPart(2, 0, args=ARGUMENTS), CallPart(2, 0, end=True)
        )  # fmt: skip
        await worker.send(Delta(run.run_id, 2, (2,), ("",), ("call",), (False,), calls=parts))
        await worker.finish(run, 2, "tool_calls")

    async with remembering(tmp_path, thinks, WRITES) as on:
        answer = await on.ask(ASKED, tools=[LOOK])
        second = await on.submit(2)
        row = await on.running.row(1)
    message = answer["choices"][0]["message"]
    assert (message["content"], message["reasoning_content"]) == ("Ten.", "Hm.Hm.")
    assert second.call.messages[-2].reasoning == "Hm."
    assert (row.completion_tokens, row.hidden_tokens) == (3, 1)
