"""Keeps a gateway busy and writes down what every request should have left in the books.

Knows the chat surface and no database.
"""

import asyncio
import json
import time
from collections import defaultdict
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from itertools import count
from typing import Any

import httpx

from tests.fakes.backend import Gate, Reply, Seen, sse

AT_ONCE = 6
WITHIN_S = 60.0  # for a phase of the load
Booked = tuple[int, int, int, str]  # prompt tokens, completion tokens, stream, outcome


class Load:
    """Requests without end, every third one streamed. Use `running`.

    `booked`: by request id, what its row must say. `times_s`: by phase, how long each took.
    """

    def __init__(self, base: str) -> None:
        self.booked: dict[str, Booked] = {}
        self.times_s: defaultdict[str, list[float]] = defaultdict(list)
        self.phase = ""
        self._base = base
        self._numbers = count(1)
        self._is_over = False
        self._more = asyncio.Condition()

    async def ask_held(self, gate: Gate) -> None:
        """A streamed request that the backend holds in its middle until the gate opens."""
        async with httpx.AsyncClient(timeout=WITHIN_S) as client:
            await self._ask(client, next(self._numbers), is_stream=True, x_hold=True)
        assert gate.open.is_set()

    async def reach(self, phase: str, request_count: int) -> None:
        """Calls what comes from now on so, and waits until so many requests of it are answered."""
        self.phase = phase
        async with asyncio.timeout(WITHIN_S), self._more:
            await self._more.wait_for(lambda: len(self.times_s[phase]) >= request_count)

    @asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        """Asks until the block ends; a request that fails ends it with that failure."""
        async with (
            httpx.AsyncClient(timeout=WITHIN_S) as client,
            asyncio.TaskGroup() as workers,
        ):
            for _ in range(AT_ONCE):
                workers.create_task(self._work(client))
            try:
                yield
            finally:
                self._is_over = True

    async def _work(self, client: httpx.AsyncClient) -> None:
        while not self._is_over:
            number = next(self._numbers)
            phase, begun_s = self.phase, time.monotonic()
            await self._ask(client, number, is_stream=number % 3 == 0)
            self.times_s[phase].append(time.monotonic() - begun_s)
            async with self._more:
                self._more.notify_all()

    async def _ask(
        self, client: httpx.AsyncClient, number: int, *, is_stream: bool, **more: Any
    ) -> None:
        """One request, and what its row must say. Raises: AssertionError when it fails."""
        body = {"model": "m", "messages": [], "stream": is_stream, "x_number": number, **more}
        answer = await client.post(f"{self._base}/v1/chat/completions", json=body)
        assert answer.status_code == 200, answer.text
        assert ("[DONE]" in answer.text) is is_stream
        row = (*tokens_of(number), int(is_stream), "succeeded")
        self.booked[answer.headers["x-request-id"]] = row


def tokens_of(number: int) -> tuple[int, int]:
    """The tokens that the backend reports for a request, no two alike."""
    return 10 * number, number


def answer(seen: Seen, gate: Gate | None = None) -> Reply:
    """The backend's script. A request with `x_hold` waits at the gate in the middle of it."""
    body = json.loads(seen.body)
    prompt, completion = tokens_of(body["x_number"])
    usage = {"prompt_tokens": prompt, "completion_tokens": completion}
    choice: dict[str, Any] = {"index": 0, "finish_reason": "stop"}
    if not body["stream"]:
        whole = {"choices": [{**choice, "message": {"content": "x"}}], "usage": usage}
        return Reply(pieces=[json.dumps(whole).encode()])
    first = {"choices": [{"index": 0, "delta": {"content": "x"}}]}
    last = {"choices": [{**choice, "delta": {}}], "usage": usage}
    pieces = [f"data: {json.dumps(event)}\n\n".encode() for event in (first, last)]
    held = [gate] if gate is not None and "x_hold" in body else []
    return sse(pieces[0], *held, pieces[1], b"data: [DONE]\n\n")
