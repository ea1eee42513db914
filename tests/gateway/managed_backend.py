"""A backend with the conductor before it, its events, and a monitor that follows a script."""

import json
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import httpx

from conductor.monitor.verdicts import GO_ON, Block, Calls, End, Finding, PromptFacts, Verdict
from gateway.backends.http import Place
from gateway.backends.http_host import HttpHost
from gateway.backends.run import Work
from gateway.conducting.hosts import Hosts
from gateway.managed import Managed
from proto.plan import MonitorPlan, MonitorTask, Plan, Segment
from tests.fakes.backend import FakeBackend, Reply, Seen, sse
from tests.gateway.harness import Running, backend, running_gateway

CHAT: dict[str, Any] = {"model": "m", "messages": [{"role": "user", "content": "hi"}]}
TOOL = {"type": "function", "function": {
    "name": "look", "parameters": {"type": "object", "properties": {"at": {"type": "string"}}},
}}  # fmt: skip
DONE = b"data: [DONE]\n\n"


def event(delta: Any = None, finish: str | None = None, **more: Any) -> bytes:
    """One chunk of a chat stream."""
    choices = [] if delta is None else [{"index": 0, "delta": delta, "finish_reason": finish}]
    body = {"id": "x", "model": "served", "choices": choices, **more}
    return b"data: " + json.dumps(body).encode() + b"\n\n"


def text(content: str) -> bytes:
    return event({"content": content})


def thought(content: str) -> bytes:
    return event({"reasoning_content": content})


def call(index: int, call_id: str | None, name: str | None, arguments: str) -> bytes:
    function = {"name": name, "arguments": arguments}
    one = {"index": index, "id": call_id, "function": function}
    return event({"tool_calls": [one]})


def end(finish: str = "stop", **usage: Any) -> tuple[bytes, ...]:
    """The finish, the usage where it is given, and the end mark."""
    counted = (event(usage=usage),) if usage else ()
    return (event({}, finish), *counted, DONE)


def usage(prompt: int, completion: int) -> dict[str, int]:
    return {"prompt_tokens": prompt, "completion_tokens": completion}


@dataclass
class Scripted:
    """A monitor: what it says to the n-th call at each point. It keeps what it was told."""

    blocks: dict[int, Verdict] = field(default_factory=dict)
    calls: dict[int, Verdict] = field(default_factory=dict)
    ends: dict[int, Verdict] = field(default_factory=dict)
    before: Verdict = GO_ON
    told: list[Any] = field(default_factory=list)
    found: list[Finding] = field(default_factory=list)

    def _say(self, kind: type, script: dict[int, Verdict], told: Any) -> Verdict:
        number = sum(isinstance(one, kind) for one in self.told)
        self.told.append(told)
        verdict = script.get(number, GO_ON)
        if verdict is not GO_ON:
            self.found.append(Finding("T", "act", "scripted"))
        return verdict

    def before_prefill(self, facts: PromptFacts) -> Verdict:
        return self._say(PromptFacts, {0: self.before}, facts)

    def on_block(self, block: Block) -> Verdict:
        return self._say(Block, self.blocks, block)

    def on_calls(self, calls: Calls) -> Verdict:
        return self._say(Calls, self.calls, calls)

    def on_end(self, end: End) -> Verdict:
        return self._say(End, self.ends, end)

    def horizon(self) -> int:
        return 64

    def take_findings(self) -> tuple[Finding, ...]:
        found, self.found = tuple(self.found), []
        return found


class Planned:
    """The host of a backend for requests with a plan: notes, and a monitor."""

    def __init__(self, place: Place, plan: Callable[[Plan], Plan]) -> None:
        self._host = HttpHost(place)
        self._plan = plan
        self.book = self._host.book
        self.runs: list[Any] = []

    async def start(self, work: Work, entry: Any, choice: int) -> Any:
        run = await self._host.start(replace(work, plan=self._plan(work.plan)), entry, choice)
        self.runs.append(run)
        return run


@dataclass
class Stage:
    """A gateway before a scripted backend. `answers`: one for each request, the last for more."""

    up: FakeBackend
    gateway: Running
    client: httpx.AsyncClient
    runs: list[Any] = field(default_factory=list)

    def sent(self, number: int = 0) -> Any:
        """The body of the n-th request at the backend."""
        return json.loads(self.up.seen[number].body)

    async def ask(self, **more: Any) -> httpx.Response:
        return await self.client.post("/v1/chat/completions", json={**CHAT, **more})

    async def stream(self, **more: Any) -> tuple[httpx.Response, list[Any]]:
        answer = await self.ask(stream=True, **more)
        lines = [line[6:] for line in answer.text.splitlines() if line.startswith("data: ")]
        return answer, [line if line == "[DONE]" else json.loads(line) for line in lines]


@asynccontextmanager
async def stage(
    tmp_path: Path,
    *answers: Reply | tuple[Any, ...],
    monitor: Any = None,
    limits: dict[str, int] | None = None,
    segments: tuple[Segment, ...] = (),
    thinking: bool = True,
    **settings: Any,
) -> AsyncIterator[Stage]:
    replies = [one if isinstance(one, Reply) else sse(*one) for one in answers]
    asked: list[Seen] = []

    def script(seen: Seen) -> Reply:
        asked.append(seen)
        return replies[min(len(asked), len(replies)) - 1]

    async with (
        FakeBackend(script) as up,
        running_gateway(
            tmp_path,
            backends={"b": backend(up.url, conductor=True, **settings)},
        ) as gateway,
        httpx.AsyncClient(base_url=gateway.base, timeout=10) as client,
    ):
        on = Stage(up, gateway, client)
        tasks = {"T": MonitorTask("act")}
        watched = None if monitor is None else MonitorPlan(tasks, **(limits or {}))

        def plan(found: Plan) -> Plan:
            return replace(found, monitor=watched, segments=segments)

        app = gateway.gateway
        make = None if monitor is None else lambda plan, facts: monitor

        class Staged(Hosts):
            def at(self, backend: Any) -> Planned:
                host = Planned(Place(backend, app.client, app.ledger.books, make), plan)
                host.runs = on.runs
                return host

        hosts = Staged(None, app.client, app.ledger.books, app.settings, {})
        app.pipeline.managed = Managed(None, hosts, 10.0, app.ledger.books, conducting=None)
        yield on
