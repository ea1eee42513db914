"""A gateway whose conductor plans what a scripted worker answers."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import httpx

from gateway.settings.types import ConductorSettings, NotesSettings, WorkerHostSettings
from proto.messages import Submit
from tests.fakes.worker import FakeWorker, Script
from tests.gateway.harness import SHIPPED, Running, running_gateway

ASKED = "Why does the second line of my parser fail today?"


@asynccontextmanager
async def conducted(
    tmp_path: Path, script: Script, **changed: Any
) -> AsyncIterator[tuple[Running, FakeWorker, httpx.AsyncClient]]:
    """A gateway whose profile `chat` is changed in these keys."""
    chat = replace(SHIPPED.profiles["chat"], **changed)
    planning = replace(SHIPPED, profiles={**SHIPPED.profiles, "chat": chat})
    worker = FakeWorker(script)
    async with worker.listening(tmp_path) as endpoint:
        host = WorkerHostSettings(endpoint=endpoint, spawn=False, conductor=True)
        conductor = ConductorSettings(notes=NotesSettings(store="memory"))
        async with (
            running_gateway(
                tmp_path, worker=host, conductor=conductor, planning=planning
            ) as gateway,
            httpx.AsyncClient(base_url=gateway.base, timeout=10) as client,
        ):
            link = gateway.gateway.engine
            assert link is not None
            async with asyncio.timeout(5):
                await link.wait_ready()
            yield gateway, worker, client


def is_question(run: Submit) -> bool:
    return run.call.answer_format.kind == "choice"


def body(*messages: dict[str, Any], **more: Any) -> dict[str, Any]:
    first = {"role": "user", "content": ASKED}
    return {"model": "TandemLLM", "messages": [first, *messages], **more}
