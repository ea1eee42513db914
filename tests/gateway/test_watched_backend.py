"""The monitor before an HTTP backend: the second request, what the client sees, what is booked."""

import json
from pathlib import Path
from typing import Any

import pytest

from conductor.monitor.verdicts import (
    Block,
    CallForm,
    CloseReasoning,
    Constrain,
    Continue,
    End,
    Inject,
    MadeCall,
    PromptFacts,
    Regenerate,
    Stop,
)
from proto.chat import AnswerFormat
from proto.plan import REASONING_PART, HiddenText, Segment
from tests.fakes.backend import Gate, Reply
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

REFUSED = Reply(400, pieces=[b'{"error":{"message":"no prefix here"}}'])
CLOSE = CloseReasoning(" Enough.", "D1")


def message(answer: Any) -> Any:
    return answer.json()["choices"][0]["message"]


def modes(run: Any) -> list[tuple[str, str, str]]:
    return [(one.task, one.mode, one.reason) for one in run.findings]


@pytest.mark.parametrize("flavor", ["vllm", "sglang", "llamacpp"])
async def test_a_closed_reasoning_goes_on_as_one_answer(tmp_path: Path, flavor: Any) -> None:
    monitor = Scripted(blocks={1: CLOSE})
    first = (thought("round"), thought(" and round"), Gate())
    second = (text("So"), text(" yes"), *end(**usage(40, 2)))
    async with stage(
        tmp_path, first, second, monitor=monitor, flavor=flavor, tokens_per_delta="one"
    ) as on:
        answer = await on.ask(max_tokens=2000)
        await on.up.hung_up.wait()
        child, row = await on.gateway.row(0), await on.gateway.row(1)
    assert message(answer) == {
        "role": "assistant", "content": "So yes", "reasoning_content": "round and round",
    }  # fmt: skip
    before, after = on.sent(0), on.sent(1)
    assert after["messages"][:-1] == before["messages"]
    begun: dict[str, Any] = {
        "role": "assistant", "content": "<think>\nround and round Enough.\n</think>\n\n",
    }  # fmt: skip
    goes_on: Any = True
    if flavor == "llamacpp":
        begun = {"role": "assistant", "content": "", "reasoning_content": "round and round Enough."}
        goes_on = "content"
    assert after["messages"][-1] == begun
    assert (after["continue_final_message"], after["add_generation_prompt"]) == (goes_on, False)
    assert after["max_tokens"] == before["max_tokens"] - 2
    off = {"chat_template_kwargs": {"enable_thinking": False}}
    assert (after.items() >= off.items()) is (flavor == "llamacpp")
    assert (child.kind, child.parent_request_id, child.outcome) == (
        "continuation", row.request_id, "succeeded",
    )  # fmt: skip
    assert (child.upstream_output_tokens, child.usage_source) == (2, "backend")
    assert child.completion_tokens is None
    assert (row.upstream_output_tokens, row.completion_tokens, row.hidden_tokens) == (2, 4, 0)
    assert (row.thinking_closed_by, row.monitor_acts, row.outcome) == ("loop", 1, "succeeded")
    assert row.usage_source == "estimated" and row.prompt_tokens == 40 - 11
    assert answer.json()["usage"]["completion_tokens"] == 4
    assert on.runs[0].hidden == [HiddenText(" Enough.", REASONING_PART, len("round and round"))]


async def test_a_server_that_counts_as_it_writes_leaves_no_estimate(tmp_path: Path) -> None:
    monitor = Scripted(blocks={1: CLOSE})
    first = (
        event({"reasoning_content": "a"}, usage=usage(7, 3)),
        event({"reasoning_content": "b"}, usage=usage(7, 8)),
        Gate(),
    )
    second = (event({"content": "yes"}, usage=usage(20, 1)), *end(**usage(20, 1)))
    async with stage(tmp_path, first, second, monitor=monitor, flavor="vllm") as on:
        await on.ask()
        row = await on.gateway.row(1)
    assert on.sent()["stream_options"]["continuous_usage_stats"] is True
    assert [block.tokens for block in monitor.told if isinstance(block, Block)] == [3, 5, 1]
    assert (row.prompt_tokens, row.upstream_output_tokens, row.completion_tokens) == (7, 8, 9)
    assert (row.usage_source, row.adjusted) == ("backend", 0)


async def test_what_a_server_still_takes_for_reasoning_is_the_answer(tmp_path: Path) -> None:
    second = (thought("Hel"), text("</think>\n\nlo"), *end())
    async with stage(
        tmp_path, (thought("x"), Gate()), second, monitor=Scripted(blocks={0: CLOSE}), flavor="vllm"
    ) as on:
        answer = await on.ask()
    assert message(answer)["content"] == "Hello"


async def test_a_backend_that_takes_no_prefix_answers_anew_and_is_asked_no_more(
    tmp_path: Path,
) -> None:
    monitor = Scripted(blocks={0: CLOSE, 2: CLOSE})
    anew = (text("yes"), *end())
    async with stage(
        tmp_path, (thought("x"), Gate()), REFUSED, anew, (thought("y"), text("z"), *end()),
        monitor=monitor, flavor="vllm",
    ) as on:  # fmt: skip
        answer = await on.ask()
        again = await on.ask()
        rows = [await on.gateway.row(n) for n in range(4)]
    assert (answer.status_code, message(answer)["content"]) == (200, "yes")
    assert on.sent(2)["chat_template_kwargs"] == {"enable_thinking": False}
    assert len(on.sent(2)["messages"]) == 1
    assert [(row.kind, row.outcome) for row in rows[:3]] == [
        ("continuation", "failed"), ("continuation", "succeeded"), ("generation", "succeeded"),
    ]  # fmt: skip
    assert modes(on.runs[0])[-1] == ("host", "shadow", "refused") and on.runs[0].hidden == []
    assert message(again) == {"role": "assistant", "content": "z", "reasoning_content": "y"}
    assert modes(on.runs[1]) == [("T", "shadow", "scripted"), ("host", "shadow", "no_prefix")]
    assert (rows[3].monitor_acts, rows[3].monitor_shadows) == (0, 2)
    assert len(on.up.seen) == 4


async def test_a_cloud_is_never_asked_for_what_it_cannot_do(tmp_path: Path) -> None:
    monitor = Scripted(blocks={0: CLOSE})
    async with stage(tmp_path, (thought("x"), text("y"), *end()), monitor=monitor) as on:
        answer = await on.ask()
    assert message(answer)["content"] == "y" and len(on.up.seen) == 1
    assert ("host", "shadow", "no_prefix") in modes(on.runs[0])


async def test_an_empty_answer_is_asked_for_with_the_nudge(tmp_path: Path) -> None:
    monitor = Scripted(ends={0: Inject("Answer now: ")})
    async with stage(
        tmp_path, (thought("x"), *end(**usage(5, 1))), (text("yes"), *end(**usage(9, 1))),
        monitor=monitor, flavor="sglang",
    ) as on:  # fmt: skip
        answer = await on.ask()
        row = await on.gateway.row(1)
    assert message(answer)["content"] == "yes"
    assert on.sent(1)["messages"][-1]["content"] == "<think>\nx\n</think>\n\nAnswer now: "
    assert [one.is_open for one in monitor.told if isinstance(one, End)] == [True, False]
    assert on.runs[0].hidden == [HiddenText("Answer now: ", None, 0)]
    assert (row.prompt_tokens, row.completion_tokens, row.usage_source) == (5, 2, "backend")


async def test_a_cloud_gets_the_nudge_as_a_last_word(tmp_path: Path) -> None:
    monitor = Scripted(ends={0: Inject("Answer now.")})
    async with stage(tmp_path, end(), (text("yes"), *end()), monitor=monitor) as on:
        answer = await on.ask()
    assert message(answer)["content"] == "yes"
    assert on.sent(1)["messages"][-1] == {"role": "user", "content": "Answer now."}
    assert on.runs[0].hidden == []  # it does not stand in the answer
    assert "continue_final_message" not in on.sent(1)


async def test_a_nudge_that_fails_leaves_the_answer_as_it_was(tmp_path: Path) -> None:
    monitor = Scripted(ends={0: Inject("Now.")})
    async with stage(tmp_path, (thought("x"), *end()), REFUSED, monitor=monitor) as on:
        answer = await on.ask()
        row = await on.gateway.row(1)
    assert answer.status_code == 200 and message(answer)["reasoning_content"] == "x"
    assert (row.outcome, row.finish_reason) == ("succeeded", "stop")


@pytest.mark.parametrize(
    ("finish", "asked", "detail"),
    [
        ("stop", {}, "eos"),
        ("end_turn", {}, "eos"),
        ("stop", {"stop": ["x"]}, "stop"),  # it may have been that string
        ("content_filter", {}, "content_filter"),
        ("length", {}, "length"),
    ],
)
async def test_an_end_is_the_models_own_where_nothing_else_may_have_ended_it(
    tmp_path: Path, finish: str, asked: dict[str, Any], detail: str
) -> None:
    monitor = Scripted()
    async with stage(tmp_path, (text("a"), *end(finish)), monitor=monitor) as on:
        await on.ask(**asked)
    assert [one.detail for one in monitor.told if isinstance(one, End)] == [detail]


async def test_an_answer_of_which_only_the_further_request_was_counted_has_its_usage(
    tmp_path: Path,
) -> None:
    monitor = Scripted(ends={0: Inject("Now: ")})
    async with stage(tmp_path, end(), (text("yes"), *end()), monitor=monitor, flavor="vllm") as on:
        answer = await on.ask()
        row = await on.gateway.row(1)
    assert answer.json()["usage"]["completion_tokens"] == row.completion_tokens == 1
    assert (row.upstream_output_tokens, row.usage_source) == (0, "estimated")


async def test_text_that_was_kept_back_until_the_end_comes_before_the_calls(tmp_path: Path) -> None:
    monitor = Scripted(blocks={0: Continue(text="")}, ends={0: Continue(text="I look.")})
    async with stage(tmp_path, (text("I look."), GOOD, *end("tool_calls")), monitor=monitor) as on:
        _, events = await on.stream(tools=[TOOL])
    deltas = [one["choices"][0]["delta"] for one in events if one != "[DONE]" and one["choices"]]
    assert [delta["content"] for delta in deltas if delta.get("content")] == ["I look."]
    assert list(deltas[0]) == ["role", "content"] and "tool_calls" in deltas[1]


async def test_continuations_have_a_limit(tmp_path: Path) -> None:
    monitor = Scripted(ends={0: Inject("a"), 1: Inject("b")})
    async with stage(
        tmp_path, end(), monitor=monitor, limits={"continuations": 1}, flavor="vllm"
    ) as on:
        await on.ask()
    assert len(on.up.seen) == 2
    assert modes(on.runs[0])[1:] == [("T", "shadow", "scripted"), ("host", "shadow", "limit")]


async def test_hidden_text_has_a_limit(tmp_path: Path) -> None:
    monitor = Scripted(ends={0: Inject("12345")})
    async with stage(
        tmp_path, end(), monitor=monitor, limits={"hidden_tokens": 1}, flavor="vllm"
    ) as on:
        await on.ask()
    assert len(on.up.seen) == 1 and ("host", "shadow", "limit") in modes(on.runs[0])


BAD = call(0, "c1", "look", '{"att":"x"}')
GOOD = call(0, "c2", "look", '{"at":"x"}')


async def test_a_call_is_made_again_with_the_named_tool(tmp_path: Path) -> None:
    monitor = Scripted(calls={0: Regenerate(0, CallForm("look"), "Mind the schema.")})
    async with stage(
        tmp_path, (text("I look."), BAD, *end("tool_calls", **usage(9, 8))),
        (text("Again."), GOOD, *end("stop", **usage(12, 7))), monitor=monitor, flavor="vllm",
    ) as on:  # fmt: skip
        answer = await on.ask(tools=[TOOL])
        child, row = await on.gateway.row(0), await on.gateway.row(1)
    got = message(answer)
    assert got["content"] == "I look."
    assert [one["function"]["arguments"] for one in got["tool_calls"]] == ['{"at":"x"}']
    assert answer.json()["choices"][0]["finish_reason"] == "tool_calls"
    sent = on.sent(1)
    assert sent["tool_choice"] == {"type": "function", "function": {"name": "look"}}
    assert sent["messages"][-1] == {"role": "user", "content": "Mind the schema."}
    assert (child.kind, child.upstream_output_tokens) == ("regeneration", 7)
    assert row.upstream_output_tokens + child.upstream_output_tokens == (
        row.completion_tokens + row.hidden_tokens
    )
    assert row.hidden_tokens > 0 and row.adjusted == 1


async def test_a_call_that_cannot_be_made_again_is_sent_as_it_was(tmp_path: Path) -> None:
    monitor = Scripted(calls={0: Regenerate(0, CallForm("look"))})
    async with stage(tmp_path, (BAD, *end("tool_calls")), REFUSED, monitor=monitor) as on:
        answer = await on.ask(tools=[TOOL])
    assert message(answer)["tool_calls"][0]["function"]["arguments"] == '{"att":"x"}'


async def test_two_tries_of_a_call_are_one_round_and_a_third_is_none(tmp_path: Path) -> None:
    again = Regenerate(0, CallForm(None))
    monitor = Scripted(calls={0: again, 1: again, 2: again})
    async with stage(tmp_path, (BAD, *end("tool_calls")), monitor=monitor) as on:
        answer = await on.ask(tools=[TOOL])
    assert answer.status_code == 200 and len(on.up.seen) == 3
    assert on.sent(1)["tool_choice"] == "required"
    assert modes(on.runs[0])[-1] == ("host", "shadow", "limit")


async def test_an_answer_is_only_made_again_before_it_was_sent(tmp_path: Path) -> None:
    schema = AnswerFormat("json_schema", {"type": "object"})
    monitor = Scripted(ends={0: Regenerate(None, schema)})
    async with stage(tmp_path, (text("x"), *end()), monitor=monitor) as on:
        await on.ask()
    assert len(on.up.seen) == 1 and ("host", "shadow", "sent") in modes(on.runs[0])
    monitor = Scripted(ends={0: Regenerate(None, schema)})
    async with stage(tmp_path / "b", end(), (text("{}"), *end()), monitor=monitor) as on:
        assert message(await on.ask())["content"] == "{}"
    assert on.sent(1)["response_format"]["json_schema"]["schema"] == {"type": "object"}


async def test_calls_are_corrected_and_cut_off_without_a_request(tmp_path: Path) -> None:
    two = (call(0, "a", "Look", "{}"), call(1, "b", "look", '{"at":"y"}'), *end("tool_calls"))
    monitor = Scripted(
        calls={0: Continue(calls=(MadeCall(0, "look", "{}"), MadeCall(1, "look", '{"at":"z"}')))}
    )
    async with stage(tmp_path, two, monitor=monitor) as on:
        calls = message(await on.ask(tools=[TOOL]))["tool_calls"]
    assert [(c["id"], c["function"]["name"], c["function"]["arguments"]) for c in calls] == [
        ("a", "look", "{}"), ("b", "look", '{"at":"z"}'),
    ]  # fmt: skip
    monitor = Scripted(calls={0: Stop("tool_calls", keep_calls=1)})
    async with stage(tmp_path / "b", two, monitor=monitor) as on:
        calls = message(await on.ask(tools=[TOOL]))["tool_calls"]
    assert [one["id"] for one in calls] == ["a"]


async def test_a_stop_ends_the_answer_where_it_is(tmp_path: Path) -> None:
    monitor = Scripted(blocks={0: Stop("length")})
    async with stage(tmp_path, (text("a"), Gate()), monitor=monitor) as on:
        answer = await on.ask()
        await on.up.hung_up.wait()
    choice = answer.json()["choices"][0]
    assert (choice["message"]["content"], choice["finish_reason"]) == ("a", "length")


async def test_text_may_be_masked(tmp_path: Path) -> None:
    monitor = Scripted(blocks={1: Continue(text="…(masked)")})
    async with stage(tmp_path, (text("key: "), text("abc"), *end()), monitor=monitor) as on:
        assert message(await on.ask())["content"] == "key: …(masked)"


async def test_a_form_is_asked_for_before_the_prompt_is_sent(tmp_path: Path) -> None:
    monitor = Scripted(before=Constrain(AnswerFormat("choice", ["a", "b"]), "answer"))
    async with stage(tmp_path, (text("a"), *end()), monitor=monitor, flavor="vllm") as on:
        await on.ask()
    assert on.sent()["structured_outputs"] == {"choice": ["a", "b"]}
    monitor = Scripted(before=Constrain(AnswerFormat("regex", "a+"), "answer"))
    async with stage(tmp_path / "b", (text("a"), *end()), monitor=monitor) as on:
        await on.ask()
    assert ("host", "shadow", "no_form") in modes(on.runs[0])


async def test_a_verdict_out_of_place_changes_nothing(tmp_path: Path) -> None:
    monitor = Scripted(blocks={0: Inject("x"), 1: Constrain(None)}, calls={})
    async with stage(
        tmp_path, (text("a"), text("b"), *end()), monitor=monitor, flavor="vllm"
    ) as on:
        assert message(await on.ask())["content"] == "ab"
    assert [one[2] for one in modes(on.runs[0]) if one[0] == "host"] == ["not_allowed", "no_form"]


async def test_a_monitor_that_fails_is_left_out(tmp_path: Path) -> None:
    class Failing(Scripted):
        def on_block(self, block: Block) -> Any:
            super().on_block(block)
            raise RuntimeError("a detector's own fault")

    monitor = Failing()
    async with stage(tmp_path, (text("a"), text("b"), *end()), monitor=monitor) as on:
        assert message(await on.ask())["content"] == "ab"
    assert [type(one) for one in monitor.told] == [PromptFacts, Block]


async def test_a_monitor_is_told_what_there_is(tmp_path: Path) -> None:
    monitor = Scripted()
    past = [
        {"role": "user", "content": "hi"},
        {"role": "assistant", "tool_calls": [
            {"id": "p", "type": "function", "function": {"name": "look", "arguments": "{}"}}]},
        {"role": "tool", "tool_call_id": "p", "content": "seen"},
    ]  # fmt: skip
    up = (thought("t" * 8), text("answer"), GOOD, *end("tool_calls"))
    async with stage(tmp_path, up, monitor=monitor) as on:
        await on.ask(messages=past, tools=[TOOL], max_tokens=1000)
    facts, *blocks = [one for one in monitor.told if isinstance(one, (PromptFacts, Block))]
    assert [(p.name, p.arguments, p.result) for p in facts.past] == [("look", "{}", "seen")]
    assert (facts.room, facts.is_plain, facts.is_thinking) == (1000, True, True)
    assert [block.phase for block in blocks] == ["reasoning", "answer", "call"]
    assert [block.tokens for block in blocks] == [2, 2, 3]
    assert blocks[1].room == 1000 - 4
    made = monitor.told[-2]
    assert [(one.name, json.loads(one.arguments), one.is_sent) for one in made.calls] == [
        ("look", {"at": "x"}, False)
    ]


async def test_a_whole_call_before_a_cut_one_goes_out_and_the_end_is_the_limits(
    tmp_path: Path,
) -> None:
    up = (GOOD, call(1, "c3", "look", '{"at":"y'), *end("length"))
    async with stage(tmp_path, up) as on:
        choice = (await on.ask(tools=[TOOL])).json()["choices"][0]
    assert [one["id"] for one in choice["message"]["tool_calls"]] == ["c2"]
    assert choice["finish_reason"] == "length"


async def test_a_call_that_was_thrown_away_is_hidden(tmp_path: Path) -> None:
    two = (GOOD, call(1, "b", "look", '{"at":"y"}'), *end("tool_calls", **usage(9, 10)))
    monitor = Scripted(calls={0: Stop("tool_calls", keep_calls=1)})
    async with stage(tmp_path, two, monitor=monitor) as on:
        await on.ask(tools=[TOOL])
        row = await on.gateway.row()
    assert (row.upstream_output_tokens, row.hidden_tokens, row.completion_tokens) == (10, 4, 6)


async def test_one_request_without_counts_makes_the_whole_an_estimate(tmp_path: Path) -> None:
    monitor = Scripted(ends={0: Inject("Now: ")})
    first, second = (thought("x"), *end(**usage(5, 1))), (text("yes"), *end())
    async with stage(tmp_path, first, second, monitor=monitor, flavor="vllm") as on:
        await on.ask()
        row = await on.gateway.row(1)
    assert (row.usage_source, row.completion_tokens) == ("estimated", 2)


async def test_a_count_that_stands_still_adds_no_tokens(tmp_path: Path) -> None:
    up = (event({"content": "ab"}, usage=usage(7, 3)), event({"content": "c"}, usage=usage(7, 3)))
    monitor = Scripted()
    async with stage(tmp_path, (*up, *end()), monitor=monitor, flavor="vllm") as on:
        await on.ask()
    assert [block.tokens for block in monitor.told if isinstance(block, Block)] == [3, 0]


async def test_notes_of_one_message_keep_their_places_and_their_order(tmp_path: Path) -> None:
    segments = (
        Segment("a", "note", 0, "<1>"),
        Segment("b", "note", 0, "<2>"),
        Segment("c", "hidden", 0, "<0>", offset=1),
    )
    async with stage(tmp_path, (text("a"), *end()), segments=segments) as on:
        await on.ask()
    assert on.sent()["messages"][0]["content"] == "h<0>i<1><2>"
