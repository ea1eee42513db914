"""A stream through a real nginx with its default proxy settings: nothing of it is held back."""

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from statistics import median

import httpx
import pytest

from tests.e2e.nginx import nginx_before
from tests.e2e.server import serving
from tests.fakes.backend import FakeBackend, Gate, sse

CONFIG = """
server: {{state_dir: STATE_DIR}}
backends:
  open: {{kind: openai, base_url: "{url}/v1", models: [m]}}
  anth: {{kind: anthropic, base_url: "{url}", models: [claude]}}
"""
FIRST_EVENT_S = 0.2
ROUNDS = 5
WITHIN_S = 10.0  # for what must come at all
HELD_S = 0.5  # nothing comes for so long: it is held back
EVENTS = {
    "/v1/chat/completions": (
        b'data: {"choices":[{"index":0,"delta":{"role":"assistant","content":"a"}}]}\n\n',
        b'data: {"choices":[{"index":0,"delta":{},"finish_reason":"stop"}]}\n\ndata: [DONE]\n\n',
    ),
    "/v1/messages": (
        b'event: message_start\ndata: {"type":"message_start","message":{"type":"message",'
        b'"content":[],"usage":{"input_tokens":3}}}\n\n',
        b'event: message_delta\ndata: {"type":"message_delta","delta":{"stop_reason":"end_turn"},'
        b'"usage":{"output_tokens":1}}\n\nevent: message_stop\ndata: {"type":"message_stop"}\n\n',
    ),
}
MODELS = {"/v1/chat/completions": "m", "/v1/messages": "claude"}


class Holding:
    """A backend's script: every stream stops behind its first event until its gate is opened."""

    def __init__(self, path: str) -> None:
        self.events = EVENTS[path]
        self.gate = Gate()

    def backend(self) -> FakeBackend:
        return FakeBackend(lambda seen: sse(self.events[0], self.gate, self.events[1]))

    async def first_sent_s(self) -> float:
        """When the first event was given to the socket, and nothing behind it."""
        await self.gate.reached.wait()
        return asyncio.get_running_loop().time()


async def first_event(pieces: AsyncIterator[bytes]) -> bytes:
    """The bytes up to the end of the first event, at least."""
    body = b""
    while b"\n\n" not in body:
        body += await anext(pieces)
    return body


@pytest.mark.parametrize("path", EVENTS)
async def test_the_first_event_passes_nginx_while_the_backend_holds_back_the_rest(
    tmp_path: Path, path: str
) -> None:
    """Default buffering, HTTP/1.0 to the gateway; the rest of the stream follows whole."""
    script = Holding(path)
    body = {"model": MODELS[path], "max_tokens": 9, "messages": [], "stream": True}
    delays_s = []
    async with script.backend() as backend, httpx.AsyncClient(timeout=WITHIN_S) as client:
        with (
            serving(tmp_path, CONFIG.format(url=backend.url)) as server,
            nginx_before(server.base, tmp_path / "nginx") as base,
        ):
            for _ in range(ROUNDS):
                script.gate = Gate()
                sent = asyncio.create_task(script.first_sent_s())
                async with client.stream("POST", base + path, json=body) as answer:
                    pieces = answer.aiter_raw()
                    received = await first_event(pieces)
                    delays_s.append(asyncio.get_running_loop().time() - await sent)
                    assert received == script.events[0]
                    script.gate.open.set()
                    async for piece in pieces:
                        received += piece
                assert answer.status_code == 200
                assert received == b"".join(script.events)
    assert median(delays_s) < FIRST_EVENT_S, delays_s


async def test_nginx_alone_does_hold_a_stream_back(tmp_path: Path) -> None:
    """The control: without the gateway's headers the first event waits for the others."""
    script = Holding("/v1/messages")
    async with script.backend() as backend, httpx.AsyncClient(timeout=WITHIN_S) as client:
        with nginx_before(backend.url, tmp_path / "nginx") as base:
            asking = asyncio.create_task(client.get(base))
            await script.first_sent_s()
            done, _ = await asyncio.wait({asking}, timeout=HELD_S)
            assert not done
            script.gate.open.set()
            answer = await asking
    assert answer.content == b"".join(script.events)
