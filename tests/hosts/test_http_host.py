"""The contract of hosts, against the HTTP host and a backend whose every event is scripted."""

import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from conductor.monitor.verdicts import PromptFacts
from proto.plan import MonitorPlan, Plan, Thinking
from tests.conductor.monitor.watched import tokens_of
from tests.gateway.managed_backend import call, end, stage, text, thought
from tests.hosts.cases import BROKEN, CASES, TOOLS, Case, Recorded, Shown, Writes
from tests.hosts.contract import PLAYS, Played, check

OFFERED = [
    {"type": "function", "function": {"name": tool.name, "parameters": tool.parameters}}
    for tool in TOOLS
]

PLAYS_HERE = [(*play, False) for play in PLAYS] + [(name, "act", True) for name in CASES]


def events_of(writes: Writes) -> Iterator[bytes]:
    """An event for each token, as a server sends them; a call in two."""
    yield from map(thought, tokens_of(writes.reasoning))
    yield from map(text, tokens_of(writes.text))
    for index, (name, arguments) in enumerate(writes.calls):
        yield call(index, f"c{index}", name, "")
        yield call(index, None, None, arguments)
    finish = "length" if writes.is_cut else "tool_calls" if writes.calls else "stop"
    yield from end(finish)


def conversation(case: Case) -> list[dict[str, Any]]:
    """A question, and the calls of earlier turns with their results."""
    messages: list[dict[str, Any]] = [{"role": "user", "content": "hi"}]
    for number, one in enumerate(case.past):
        function = {"name": one.name, "arguments": one.arguments}
        made = {"id": f"p{number}", "type": "function", "function": function}
        messages += [
            {"role": "assistant", "content": None, "tool_calls": [made]},
            {"role": "tool", "tool_call_id": f"p{number}", "content": one.result},
        ]
    return messages


def shown_of(choice: dict[str, Any]) -> Shown:
    message = choice["message"]
    calls = tuple(
        (one["function"]["name"], json.loads(one["function"]["arguments"]))
        for one in message.get("tool_calls") or ()
    )
    return Shown(message.get("content") or "", calls, choice["finish_reason"])


def joined(events: list[Any]) -> dict[str, Any]:
    """A streamed answer as one that is whole."""
    chunks = [one for one in events if one != "[DONE]"]
    message: dict[str, Any] = {"content": ""}
    calls: dict[int, dict[str, str]] = {}
    finish = None
    for choice in (chunk["choices"][0] for chunk in chunks if chunk["choices"]):
        finish = choice["finish_reason"] or finish
        message["content"] += choice["delta"].get("content") or ""
        for part in choice["delta"].get("tool_calls", ()):
            made = calls.setdefault(part["index"], {"name": "", "arguments": ""})
            for key, value in part["function"].items():
                made[key] += value or ""
    message["tool_calls"] = [{"function": made} for made in calls.values()]
    (usage,) = [chunk["usage"] for chunk in chunks if chunk.get("usage")]
    return {"choices": [{"message": message, "finish_reason": finish}], "usage": usage}


@pytest.mark.parametrize(("name", "mode", "stream"), PLAYS_HERE)
async def test_a_case_has_one_verdict(tmp_path: Path, name: str, mode: str, stream: bool) -> None:
    case = CASES[name]
    watches: list[Recorded] = []

    def make(plan: MonitorPlan, facts: PromptFacts) -> Recorded:
        watches.append(Recorded(plan, facts))
        return watches[-1]

    def planned(plan: Plan) -> Plan:
        thinking = Thinking(on=True, budget=case.budget)
        return replace(plan, thinking=thinking, monitor=case.plan(mode))

    answers = [(*events_of(one),) for one in (case.writes, case.then)]
    async with stage(
        tmp_path, *answers, planned=planned, make_watch=make, flavor="vllm", tokens_per_delta="one"
    ) as on:
        asked = {"messages": conversation(case), "tools": OFFERED}
        if stream:
            answer, events = await on.stream(**asked)
        else:
            answer = await on.ask(**asked)
        rows = [await on.gateway.row(n) for n in range(len(on.up.seen))]
    if answer.status_code == 502:
        assert (mode, case.shadow) == ("shadow", BROKEN)
        return
    whole = joined(events) if stream else answer.json()
    told = frozenset((one.task, one.mode) for one in on.runs[0].findings)
    written = sum(row.upstream_output_tokens or 0 for row in rows)
    shown, hidden = rows[-1].completion_tokens or 0, rows[-1].hidden_tokens or 0
    usage = whole["usage"]
    is_usage_true = usage["completion_tokens"] == shown and written == shown + hidden
    (watch,) = watches
    check(
        case, mode, Played(tuple(watch.said), told, shown_of(whole["choices"][0]),
                           is_usage_true),
    )  # fmt: skip
