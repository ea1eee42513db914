"""A gateway with budgets is killed and starts again: what was spent is, what was held is not."""

import asyncio
import json
import os
import signal
import sqlite3
import time
from pathlib import Path

import httpx

from tests.e2e.server import Server, serving
from tests.fakes.backend import FakeBackend, Gate, Reply, Seen

CONFIG = """
server: {state_dir: STATE_DIR}
backends:
  b: {kind: openai, base_url: "URL/v1", models: [m]}
prices:
  - {model: m, per_mtok: {input: 0, output: 1000000}}
keys:
  - {label: ours, secret: "env:OURS", budget: {limit: 30, window: day}}
"""
WRITTEN_S = 30.0
BODY = {"model": "m", "max_tokens": 10, "messages": []}
ANSWER = json.dumps({
    "choices": [{"index": 0, "message": {"content": "x"}, "finish_reason": "stop"}],
    "usage": {"prompt_tokens": 1, "completion_tokens": 10},
}).encode()  # fmt: skip


async def call(server: Server) -> httpx.Response:
    headers = {"authorization": "Bearer sk-ours"}
    async with httpx.AsyncClient(trust_env=False, timeout=60) as client:
        return await client.post(f"{server.base}/v1/chat/completions", json=BODY, headers=headers)


def spent(server: Server) -> int:
    """In dollars, as the ledger has it."""
    with sqlite3.connect(server.state_dir / "ledger.sqlite") as connection:
        found = connection.execute("SELECT sum(cost_micros) FROM ledger WHERE billed = 1")
        return int(found.fetchone()[0] or 0) // 1_000_000


async def test_a_killed_gateway_knows_again_what_was_spent(tmp_path: Path) -> None:
    """Two requests are booked and a third is running when it is killed: one more is admitted."""
    gate = Gate()

    def script(seen: Seen) -> Reply:
        return Reply(pieces=[gate, ANSWER] if len(up.seen) == 3 else [ANSWER])

    async with FakeBackend(script) as up:
        config = CONFIG.replace("URL", up.url)
        options = {"OURS": "sk-ours"}
        with serving(tmp_path, config, **options) as server:
            assert [(await call(server)).status_code for _ in range(2)] == [200, 200]
            until_s = time.monotonic() + WRITTEN_S
            while spent(server) < 20:
                assert time.monotonic() < until_s
                await asyncio.sleep(0.05)
            running = asyncio.create_task(call(server))
            await asyncio.wait_for(gate.reached.wait(), 30)
            assert (await call(server)).status_code == 429  # the third is held
            os.kill(server.process.pid, signal.SIGKILL)
            await asyncio.gather(running, return_exceptions=True)
            server.process.wait(30)
        with serving(tmp_path, config, **options) as server:
            assert (await call(server)).status_code == 200
            refused = await call(server)
            assert refused.status_code == 429
            assert "30 spent and 0 reserved" in refused.json()["error"]["message"]
            assert server.stop() == 0
            assert spent(server) == 30
