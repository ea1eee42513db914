"""Clients of the engine that ask at random and leave at random. Knows no process and no log."""

import asyncio
import json
import random
import time
from collections import Counter
from collections.abc import Awaitable, Callable
from typing import Any

import httpx

from tests.soak.clients import Line

WITHIN_S = 120.0  # for one request; one that takes longer is lost
MOST_PROMPT_WORDS = 300
LEAST_TOKENS, MOST_TOKENS = 65, 400  # of an answer that waits its turn
SIDE_TOKENS = 8
LEAVE_S = 4.0  # those that leave do so within this time
PAUSE_S = 2.0  # at most, after a refusal: less than it says, so that the queue stays full
WORDS = ("sea", "ship", "wind", "shore", "lamp", "north", "salt", "rope", "gull", "tide")


class Clients:
    """So many at once, until the time is up. `ends`: how requests ended; `lost`: what is wrong."""

    def __init__(self, base: str, seed: int) -> None:
        self.asked: Counter[str] = Counter()
        self.ends: Counter[str] = Counter()
        self.lost: list[str] = []
        self.estimates_shown = 0
        self._base = base
        self._random = random.Random(seed)
        self._until_s = 0.0

    async def run(self, at_once: int, seconds: float) -> None:
        """Asks for so long, and waits for what was asked."""
        self._until_s = time.monotonic() + seconds
        limits = httpx.Limits(max_connections=None, max_keepalive_connections=at_once)
        async with (
            httpx.AsyncClient(base_url=self._base, timeout=WITHIN_S, limits=limits) as client,
            asyncio.TaskGroup() as workers,
        ):
            for _ in range(at_once):
                workers.create_task(self._work(client))

    async def _work(self, client: httpx.AsyncClient) -> None:
        names, weights = [*KINDS], [weight for weight, _ in KINDS.values()]
        while time.monotonic() < self._until_s:
            (name,) = self._random.choices(names, weights)
            self.asked[name] += 1
            try:
                async with asyncio.timeout(WITHIN_S):
                    end = await KINDS[name][1](self, client)
            except (httpx.HTTPError, TimeoutError, AssertionError, ValueError, OSError) as fault:
                self.ends["LOST"] += 1
                self.lost.append(f"{name}: {type(fault).__name__}: {fault}"[:300])
                continue
            self.ends[end] += 1
            if end.startswith("refused"):
                await asyncio.sleep(self._random.uniform(0, PAUSE_S))

    def body(
        self, *, stream: bool, least: int = LEAST_TOKENS, most: int = MOST_TOKENS
    ) -> dict[str, Any]:
        """A chat request of random length that asks for a random length."""
        count = 1 + int(MOST_PROMPT_WORDS * self._random.random() ** 3)
        text = " ".join(self._random.choices(WORDS, k=count))
        tokens = self._random.randint(least, most)
        message = {"role": "user", "content": text}
        return {"model": "TandemLLM", "messages": [message], "max_tokens": tokens, "stream": stream,
                "temperature": 1, "seed": self._random.randrange(1 << 30)}  # fmt: skip

    async def ask(self, client: httpx.AsyncClient, body: dict[str, Any]) -> str:
        """Asks and reads to the end; how it ended. Raises: AssertionError."""
        answer = await client.post("/v1/chat/completions", json=body)
        if answer.status_code != 200:
            return refusal(answer)
        if body["stream"]:
            return self.end_of_stream(answer.text)
        found = answer.json()
        assert found["choices"][0]["finish_reason"] in ("stop", "length"), answer.text
        assert 1 <= found["usage"]["completion_tokens"] <= body["max_tokens"], answer.text
        return "answered"

    def end_of_stream(self, text: str) -> str:
        """How a stream ended. Raises: AssertionError for one without an end."""
        blocks = [block for block in text.split("\n\n") if block]
        self.estimates_shown += sum(block.startswith(": waiting at position") for block in blocks)
        records = [block[6:] for block in blocks if block.startswith("data: ")]
        assert all(block.startswith((": ", "data: ")) for block in blocks), text[-300:]
        assert records and records.pop() == "[DONE]", text[-300:]
        last = json.loads(records[-1])
        if "error" in last:
            assert last["error"]["code"] in ("queue_timeout", "queue_full"), last
            return f"refused in the stream, {last['error']['code']}"
        finishes = [choice["finish_reason"] for record in map(json.loads, records)
                    for choice in record["choices"] if choice["finish_reason"]]  # fmt: skip
        assert len(finishes) == 1, text[-300:]
        return "answered, streamed"

    def leaves_after_s(self) -> float:
        """When somebody loses patience."""
        return LEAVE_S * self._random.random() ** 2

    def post(self) -> bytes:
        """A streamed request as bytes."""
        data = json.dumps(self.body(stream=True)).encode()
        head = f"POST /v1/chat/completions HTTP/1.1\r\nHost: x\r\nContent-Length: {len(data)}\r\n"
        return head.encode() + b"\r\n" + data

    def line(self) -> Line:
        """A connection of its own."""
        return Line(int(self._base.rpartition(":")[2]))

    def flip(self) -> bool:
        return self._random.random() < 0.5


def refusal(answer: httpx.Response) -> str:
    """What kind of refusal it is. Raises: AssertionError for one that is not well formed."""
    code = answer.json()["error"]["code"]
    known = {("queue_full", 503), ("queue_timeout", 429)}
    assert (code, answer.status_code) in known, answer.text
    assert int(answer.headers["retry-after"]) > 0
    return f"refused, {code}"


async def _whole(clients: Clients, client: httpx.AsyncClient) -> str:
    return await clients.ask(client, clients.body(stream=False))


async def _stream(clients: Clients, client: httpx.AsyncClient) -> str:
    return await clients.ask(client, clients.body(stream=True))


async def _side(clients: Clients, client: httpx.AsyncClient) -> str:
    return await clients.ask(client, clients.body(stream=clients.flip(), least=1, most=SIDE_TOKENS))


async def _impatient(clients: Clients, client: httpx.AsyncClient) -> str:
    """In the queue, while its prompt is read or in the midst of its answer, as it falls."""
    asking = clients.ask(client, clients.body(stream=clients.flip()))
    try:
        return await asyncio.wait_for(asking, clients.leaves_after_s())
    except TimeoutError:
        return "left while waiting or reading"


async def _leaves_midst(clients: Clients, client: httpx.AsyncClient) -> str:
    """After its first text."""
    line = clients.line()
    await line.send(clients.post())
    seen = b""
    while (b"data: " not in seen and b" 200 OK" in seen[:20]) or not seen:
        piece = await line.reader.read(4096)
        if not piece:
            break
        seen += piece
    await line.leave(is_rude=clients.flip())
    return "left in the stream" if b" 200 " in seen[:20] else "left at a refusal"


async def _leaves_in_body(clients: Clients, client: httpx.AsyncClient) -> str:
    line = clients.line()
    await line.send(clients.post()[:-20])
    await asyncio.sleep(0.01)
    await line.leave(is_rude=clients.flip())
    return "left in its own request"


Ask = Callable[[Clients, httpx.AsyncClient], Awaitable[str]]
KINDS: dict[str, tuple[int, Ask]] = {  # how often, and how
    "whole": (20, _whole),
    "streamed": (30, _stream),
    "short": (15, _side),
    "impatient": (20, _impatient),
    "leaves in the stream": (10, _leaves_midst),
    "leaves in its request": (5, _leaves_in_body),
}
