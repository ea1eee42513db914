"""What our own engine was asked without a run, until it answers. Knows no socket and no surface."""

import asyncio
from collections.abc import Awaitable, Callable

from proto import codec
from proto.faults import Refusal
from proto.messages import Cancel, Embed, Embedded, Refused


class Questions:
    """Questions to one worker. `send` gives False when there is none to take the bytes."""

    def __init__(self, send: Callable[[bytes], Awaitable[bool]]) -> None:
        self._send = send
        self._open: dict[str, asyncio.Future[Embedded | None]] = {}

    async def ask(self, question: Embed) -> Embedded | None:
        """The answer; None when the worker is gone. Whoever stops waiting calls the question off.

        Raises: Refusal; CodecFault for what no message can hold.
        """
        data = codec.encode(question)
        answer = self._open[question.req_id] = asyncio.get_running_loop().create_future()
        try:
            return await answer if await self._send(data) else None
        finally:
            del self._open[question.req_id]
            if not answer.done() or answer.cancelled():
                await self._send(codec.encode(Cancel(question.req_id, 1, "client left")))

    def take(self, message: Embedded | Refused) -> None:
        """An answer came. One that nobody waits for was called off when it was on its way."""
        answer = self._open.get(message.req_id or "")
        if answer is None or answer.done():
            return
        if isinstance(message, Embedded):
            answer.set_result(message)
        else:
            after_ms = message.retry_after_ms
            answer.set_exception(
                Refusal(message.code, message.detail, param=message.param, retry_after_ms=after_ms)
            )

    def lose(self) -> None:
        """The worker is gone: nobody will answer."""
        for answer in self._open.values():
            if not answer.done():
                answer.set_result(None)
