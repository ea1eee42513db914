"""A gateway whose profile has memory notes, before a worker that speaks the real link."""

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import httpx

from conductor.memory.notes import Draft, MemoryEntry, MemoryScope
from conductor.profiles import MemoryRules
from conductor.types import Settings
from gateway.conducting.memory.memories import Memories
from gateway.settings.types import (
    ConductorSettings,
    MemoryWriterSettings,
    WorkerHostSettings,
)
from gateway.store.db import Database
from gateway.store.memory_desk import KeptNote, list_notes
from proto.messages import CallPart, Delta, Submit
from tests.fakes.worker import FakeWorker, Script
from tests.gateway.harness import SHIPPED, Running, running_gateway

HERE = MemoryScope("anon", "bakery")
NEVER_S, LEAST_TURNS = 3600.0, 1
PATIENCE_S = 10.0


def planning(memory: MemoryRules, name: str = "chat", **more: Any) -> Settings:
    """The shipped profiles, of which one has memory notes and asks nobody for a kind of task."""
    profile = SHIPPED.profiles[name]
    router = replace(profile.router, enabled=False)
    profile = replace(profile, memory=memory, router=router, **more)
    return replace(SHIPPED, profiles={**SHIPPED.profiles, name: profile})


def body(*said: str, **more: Any) -> dict[str, Any]:
    """A request: a user and the assistant in turns."""
    roles = ("user", "assistant")
    messages = [{"role": roles[n % 2], "content": text} for n, text in enumerate(said)]
    return {"model": "TandemLLM", "messages": messages, **more}


@dataclass
class Stage:
    """What a test asks, and what came of it."""

    running: Running
    worker: FakeWorker
    client: httpx.AsyncClient
    folder: Path
    headers: dict[str, str]

    @property
    def memories(self) -> Memories:
        rooms: Any = self.running.gateway.rooms
        assert rooms.memories is not None
        return rooms.memories  # type: ignore[no-any-return]

    async def ask(self, *said: str, headers: dict[str, str] | None = None, **more: Any) -> Any:
        answer = await self.client.post(
            "/v1/chat/completions", json=body(*said, **more), headers=self.headers | (headers or {})
        )
        assert answer.status_code == 200, answer.text
        return answer.json()

    async def stream(self, *said: str, **more: Any) -> list[Any]:
        answer = await self.client.post(
            "/v1/chat/completions", json=body(*said, stream=True, **more), headers=self.headers
        )
        lines = [line[6:] for line in answer.text.splitlines() if line.startswith("data: ")]
        assert lines[-1] == "[DONE]"
        return [json.loads(line) for line in lines[:-1]]

    async def add(self, text: str, scope: MemoryScope = HERE) -> None:
        await self.memories.store.add([MemoryEntry(scope, Draft("fact", text), "5e55", 1)])

    def kept(self) -> list[KeptNote]:
        database = Database.open(self.folder / "state" / "tandem.sqlite", only_below=self.folder)
        try:
            return list_notes(database.reader)
        finally:
            database.close()

    async def written(self, count: int) -> list[KeptNote]:
        """The notes, once there are so many."""
        async with asyncio.timeout(PATIENCE_S):
            while len(found := self.kept()) < count:
                await asyncio.sleep(0.01)
        return found

    async def submit(self, number: int = 1) -> Submit:
        found: Submit = await self.worker.hear(Submit, number)
        return found

    def journal(self) -> list[Any]:
        """Its lines; to be read when the gateway has ended."""
        files = sorted((self.folder / "state" / "journal").glob("*.jsonl"))
        return [json.loads(line) for file in files for line in file.read_text().splitlines()]


@asynccontextmanager
async def remembering(
    tmp_path: Path, script: Script, memory: MemoryRules, *,
    name: str = "chat", quiet_s: float = NEVER_S, min_turns: int = LEAST_TURNS, **more: Any,
) -> AsyncIterator[Stage]:  # fmt: skip
    worker = FakeWorker(script)
    async with worker.listening(tmp_path) as endpoint:
        host = WorkerHostSettings(endpoint=endpoint, spawn=False, conductor=True)
        conductor = ConductorSettings(memory=MemoryWriterSettings(quiet_s, min_turns))
        async with (
            running_gateway(
                tmp_path, worker=host, conductor=conductor, planning=planning(memory, name, **more)
            ) as running,
            httpx.AsyncClient(base_url=running.base, timeout=10) as client,
        ):
            link = running.gateway.engine
            assert link is not None
            async with asyncio.timeout(5):
                await link.wait_ready()
            headers = {"X-Tandem-Project": "bakery", "X-Tandem-Profile": name}
            on = Stage(running, worker, client, tmp_path, headers)
            await on.memories.store.note_used(HERE, [0], 0)  # the tables are there now
            yield on


def saying(*pieces: str) -> Script:
    """A worker that says this, a token a piece."""

    async def say(worker: FakeWorker, run: Submit) -> None:
        await worker.write(run, *pieces)
        await worker.finish(run, len(pieces))

    return say


async def call(
    worker: FakeWorker, run: Submit, *calls: tuple[str, str], text: str = "", tokens: int = 6
) -> None:
    """A run that says a text (a token) and makes calls, of so many tokens in all."""
    parts = []
    for index, (name, arguments) in enumerate(calls):
        parts += [
            CallPart(tokens, index, f"call_{index}", name),
            CallPart(tokens, index, args=arguments),
            CallPart(tokens, index, end=True),
        ]
    kinds: Any = ("text", *("call",) * (tokens - 1))
    await worker.send(
        Delta(
            run.run_id, 1, tuple(range(1, tokens + 1)), (text, *("",) * (tokens - 1)), kinds,
            (False,) * tokens, calls=tuple(parts),
        )
    )  # fmt: skip
    await worker.finish(run, tokens, "tool_calls")
