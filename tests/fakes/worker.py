"""A worker without a model: speaks the link over a real ZeroMQ socket, as the test tells it to."""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import Any

import zmq
import zmq.asyncio

from proto import codec
from proto.events import FinishReason, Speculation, Timings, Usage
from proto.messages import (
    Beat,
    Cache,
    Caps,
    Delta,
    Done,
    Embed,
    Hello,
    LinkMessage,
    Metric,
    MonitorCounts,
    Queued,
    Ready,
    Submit,
)

READY = Ready(
    worker_id="w", incarnation="1", proto=codec.VERSION, model="fake", weights_hash="",
    tokenizer_hash="", template_hash="", block_size=64, hash_seed=0, slots=1, parallel=1,
    max_len=2048, max_rows=1, families=("fake",), layout="fp32", device="cpu", row_invariant=True,
    near_tie_ulps=2, lease_ms=5000, caps=Caps(),
)  # fmt: skip

Script = Callable[["FakeWorker", Submit], Awaitable[None]]
EmbedScript = Callable[["FakeWorker", Embed], Awaitable[None]]
CacheScript = Callable[["FakeWorker", Cache], Awaitable[None]]


async def say_nothing(worker: "FakeWorker", question: Embed | Cache) -> None:
    """Never answers."""


class FakeWorker:
    """Answers `Submit` by running `script`, `Embed` and `Cache` by theirs; keeps what it heard."""

    def __init__(
        self, script: Script, embed: EmbedScript = say_nothing, cache: CacheScript = say_nothing
    ) -> None:
        self.script = script
        self.embed = embed
        self.cache = cache
        self.heard: list[LinkMessage] = []
        self.ready = READY
        self.metrics: tuple[Metric, ...] = ()  # in each beat
        self.is_silent = False
        self._peer = b""

    async def send(self, message: LinkMessage) -> None:
        await self.send_bytes(codec.encode(message))

    async def send_bytes(self, data: bytes) -> None:
        await self._socket.send_multipart([self._peer, data])

    async def write(self, run: Submit, *pieces: str, first: int = 1) -> None:
        """Sends one token a piece."""
        for number, piece in enumerate(pieces, first):
            await self.send(Delta(run.run_id, number, (number,), (piece,), ("text",), (False,)))

    async def finish(
        self, run: Submit, tokens: int, reason: FinishReason = "stop", *, prompt_tokens: int = 5,
        reasoned_chars: int = 0,
    ) -> None:  # fmt: skip
        usage = Usage(
            prompt_tokens,
            tokens,
            upstream_input_tokens=prompt_tokens,
            upstream_output_tokens=tokens,
        )
        await self.send(
            Done(
                run.run_id,
                tokens,
                reason,
                usage,
                Timings(1, 2, 3, 4, 7, 5),
                Speculation(tokens, tokens),
                "none",
                MonitorCounts(),
                detail="eos",
                reasoned_chars=reasoned_chars,
            )
        )

    async def hear(self, kind: type[Any], count: int = 1) -> Any:
        """Waits for the n-th message of a kind."""
        async with asyncio.timeout(5):
            while len(found := [m for m in self.heard if isinstance(m, kind)]) < count:
                await asyncio.sleep(0.005)
        return found[count - 1]

    @contextlib.asynccontextmanager
    async def listening(self, folder: Path) -> AsyncIterator[str]:
        """Binds; yields the endpoint."""
        context = zmq.asyncio.Context()
        self._socket = context.socket(zmq.ROUTER)
        self._socket.setsockopt(zmq.LINGER, 0)
        endpoint = f"ipc://{folder}/worker.sock"
        self._socket.bind(endpoint)
        tasks = [asyncio.create_task(self._read()), asyncio.create_task(self._beat())]
        try:
            yield endpoint
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
            self._socket.close(0)
            context.term()

    async def _read(self) -> None:
        async with asyncio.TaskGroup() as runs:
            while True:
                self._peer, data = await self._socket.recv_multipart()
                message = codec.decode(data)
                if self.is_silent:
                    continue
                self.heard.append(message)
                if isinstance(message, Hello):
                    await self.send(self.ready)
                elif isinstance(message, Submit):
                    await self.send(Queued(message.run_id, 0, 0, 5, "", ""))
                    runs.create_task(self.script(self, message))  # type: ignore[arg-type]
                elif isinstance(message, Embed):
                    runs.create_task(self.embed(self, message))  # type: ignore[arg-type]
                elif isinstance(message, Cache):
                    runs.create_task(self.cache(self, message))  # type: ignore[arg-type]

    async def _beat(self) -> None:
        while True:
            if self._peer and not self.is_silent:
                await self.send(Beat("idle", metrics=self.metrics))
            await asyncio.sleep(0.2)
