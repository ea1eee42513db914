"""What our own engine was asked without a run, until it answers. Knows no socket and no surface."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import TypeVar

from proto import codec
from proto.faults import Refusal
from proto.messages import Cache, CacheInfo, Cancel, Embed, Embedded, Refused

Question = Embed | Cache
Answer = Embedded | CacheInfo
A = TypeVar("A", Embedded, CacheInfo)


class Questions:
    """Questions to one worker. `send` gives False when there is none to take the bytes."""

    def __init__(self, send: Callable[[bytes], Awaitable[bool]]) -> None:
        self._send = send
        self._open: dict[str, asyncio.Future[Answer | None]] = {}

    async def ask(self, question: Question, kind: type[A]) -> A | None:
        """The answer; None when the worker is gone, or gave one of another kind.

        Whoever stops waiting calls the question off.

        Raises: Refusal; CodecFault for what no message can hold.
        """
        data = codec.encode(question)
        future = self._open[question.req_id] = asyncio.get_running_loop().create_future()
        try:
            answer = await future if await self._send(data) else None
            return answer if isinstance(answer, kind) else None
        finally:
            del self._open[question.req_id]
            if not future.done() or future.cancelled():
                await self._send(codec.encode(Cancel(question.req_id, 1, "client left")))

    def take(self, message: Answer | Refused) -> None:
        """An answer came. One that nobody waits for was called off when it was on its way."""
        future = self._open.get(message.req_id or "")
        if future is None or future.done():
            return
        if isinstance(message, Refused):
            after_ms = message.retry_after_ms
            future.set_exception(
                Refusal(message.code, message.detail, param=message.param, retry_after_ms=after_ms)
            )
        else:
            future.set_result(message)

    def lose(self) -> None:
        """The worker is gone: nobody will answer."""
        for future in self._open.values():
            if not future.done():
                future.set_result(None)
