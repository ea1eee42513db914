"""The monitor before llama.cpp's server: what differs there from other servers.

The fields are those that the server sent and took in `tests/e2e/test_llamacpp_conductor.py`.
"""

from pathlib import Path
from typing import Any

from conductor.monitor.verdicts import Block, CallForm, CloseReasoning, Inject, Regenerate
from tests.fakes.backend import Gate
from tests.gateway.managed_backend import (
    TOOL,
    Scripted,
    call,
    end,
    event,
    stage,
    text,
    thought,
    usage,
)

CLOSE = CloseReasoning(" Enough.", "D1")
YES = (text("yes"), *end())


def timed(kind: str, content: str, written: int) -> bytes:
    """A delta with the times that the server adds to it when asked to."""
    timings = {"cache_n": 4, "prompt_n": 3, "predicted_n": written}
    return event({kind: content}, timings=timings)


async def test_it_counts_in_its_times_as_it_writes(tmp_path: Path) -> None:
    monitor = Scripted(blocks={1: CLOSE})
    role = event({"role": "assistant", "content": None})
    first = (role, timed("reasoning_content", "a", 3), timed("reasoning_content", "b", 8), Gate())
    second = (timed("content", "yes", 2), *end(**usage(20, 2)))
    async with stage(tmp_path, first, second, monitor=monitor, flavor="llamacpp") as on:
        await on.ask()
        row = await on.gateway.row(1)
    assert on.sent()["timings_per_token"] is True
    assert on.sent()["stream_options"] == {"include_usage": True}
    assert [block.tokens for block in monitor.told if isinstance(block, Block)] == [3, 5, 2]
    assert (row.prompt_tokens, row.cached_tokens) == (7, 4)
    assert (row.upstream_output_tokens, row.completion_tokens) == (8, 10)
    assert (row.usage_source, row.adjusted) == ("backend", 0)


async def test_an_answer_that_nobody_watches_is_counted_at_its_end(tmp_path: Path) -> None:
    async with stage(tmp_path, YES, flavor="llamacpp") as on:
        await on.ask()
    assert "timings_per_token" not in on.sent()


async def test_reasoning_in_tags_goes_on_in_tags(tmp_path: Path) -> None:
    # They came through a template that knows of no reasoning, and would drop the field.
    monitor = Scripted(blocks={1: CLOSE})
    first = (text("<think>\nround"), text(" and round"), Gate())
    async with stage(tmp_path, first, YES, monitor=monitor, flavor="llamacpp") as on:
        await on.ask()
    assert on.sent(1)["messages"][-1] == {
        "role": "assistant", "content": "<think>\nround and round Enough.\n</think>\n\n",
    }  # fmt: skip
    assert on.sent(1)["continue_final_message"] is True


async def test_a_nudge_stands_behind_reasoning_and_text(tmp_path: Path) -> None:
    monitor = Scripted(ends={0: Inject(" Now: ")})
    first = (thought("round"), text("Then"), *end())
    async with stage(tmp_path, first, YES, monitor=monitor, flavor="llamacpp") as on:
        await on.ask()
    begun = {"role": "assistant", "content": "Then Now: ", "reasoning_content": "round"}
    assert on.sent(1)["messages"][-1] == begun
    assert on.sent(1)["continue_final_message"] == "content"


async def test_a_nudge_where_nothing_was_reasoned_stands_behind_the_text(tmp_path: Path) -> None:
    monitor = Scripted(ends={0: Inject(" Now: ")})
    async with stage(
        tmp_path, (text("Then"), *end()), YES, monitor=monitor, flavor="llamacpp"
    ) as on:
        await on.ask()
    assert on.sent(1)["messages"][-1] == {"role": "assistant", "content": "Then Now: "}


def named(name: str) -> dict[str, Any]:
    return {"type": "function", "function": {"name": name}}


OTHER = {"type": "function", "function": {"name": "find"}}


async def test_a_named_tool_is_offered_alone_and_required(tmp_path: Path) -> None:
    good = call(0, "c", "look", '{"at":"x"}')
    async with stage(tmp_path, (good, *end("tool_calls")), flavor="llamacpp") as on:
        await on.ask(tools=[OTHER, TOOL], tool_choice=named("look"))
    names = [one["function"]["name"] for one in on.sent()["tools"]]
    assert (names, on.sent()["tool_choice"]) == (["look"], "required")


async def test_a_call_is_made_again_with_its_tool_alone(tmp_path: Path) -> None:
    bad, good = call(0, "c", "look", '{"att":"x"}'), call(0, "c", "look", '{"at":"x"}')
    monitor = Scripted(calls={0: Regenerate(0, CallForm("look"), "Mind the schema.")})
    async with stage(
        tmp_path, (bad, *end("tool_calls")), (good, *end("tool_calls")),
        monitor=monitor, flavor="llamacpp",
    ) as on:  # fmt: skip
        await on.ask(tools=[OTHER, TOOL])
    assert len(on.sent(0)["tools"]) == 2 and "tool_choice" not in on.sent(0)
    names = [one["function"]["name"] for one in on.sent(1)["tools"]]
    assert (names, on.sent(1)["tool_choice"]) == (["look"], "required")


async def test_a_name_that_nobody_offered_is_left_to_the_server(tmp_path: Path) -> None:
    bad = call(0, "c", "peek", "{}")
    monitor = Scripted(calls={0: Regenerate(0, CallForm("peek"), None)})
    async with stage(
        tmp_path, (bad, *end("tool_calls")), YES, monitor=monitor, flavor="llamacpp"
    ) as on:
        await on.ask(tools=[TOOL])
    assert on.sent(1)["tool_choice"] == named("peek")
