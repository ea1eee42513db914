"""The backend of a soak: it answers as each request tells it to. Knows no gateway."""

import asyncio
import contextlib
import json
from typing import Any, Self

PACE_S = 0.01  # between two events of a paced stream
BIG_TEXT = "x" * 4096
USAGE = {"prompt_tokens": 7, "completion_tokens": 3}


class Upstream:
    """Listens on a free port of loopback. `open_count`: connections that are open now."""

    def __init__(self) -> None:
        self.open_count = 0
        self._tasks: set[asyncio.Task[None]] = set()

    async def __aenter__(self) -> Self:
        self._server = await asyncio.start_server(self._accept, "127.0.0.1", 0, backlog=1024)
        self.url = f"http://127.0.0.1:{self._server.sockets[0].getsockname()[1]}"
        return self

    async def __aexit__(self, *fault: object) -> None:
        self._server.close()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await self._server.wait_closed()

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._tasks.add(task)
        self.open_count += 1
        try:
            with contextlib.suppress(ConnectionError, asyncio.IncompleteReadError):
                while await self._answer(reader, writer):
                    continue
        finally:
            self.open_count -= 1
            self._tasks.discard(task)
            writer.close()

    async def _answer(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> bool:
        head = (await reader.readuntil(b"\r\n\r\n")).lower()
        length = head.partition(b"content-length: ")[2].partition(b"\r\n")[0]
        body = json.loads(await reader.readexactly(int(length or 0)) or b"{}")
        way = body.get("x_way", "whole")
        match way:
            case "cut":
                return False
            case "hang":
                await reader.read(1)  # until the gateway hangs up
                return False
            case "error":
                status = body["x_status"]
                writer.write(_framed(status, json.dumps({"error": {"message": "no"}}).encode()))
            case "stream" | "broken" | "paced":
                return await self._stream(body, reader, writer)
            case _:
                choice = {"message": {"content": body.get("x_id")}, "finish_reason": "stop"}
                answer = {"model": "m", "choices": [choice], "usage": USAGE}
                writer.write(_framed(200, json.dumps(answer).encode()))
        await writer.drain()
        return True

    async def _stream(
        self, body: Any, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> bool:
        writer.write(b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\n"
                     b"transfer-encoding: chunked\r\n\r\n")  # fmt: skip
        is_paced = body["x_way"] == "paced"
        text = BIG_TEXT if body.get("x_is_big") else "x"
        gone = asyncio.ensure_future(reader.read(1)) if is_paced else None
        if gone is not None:
            gone.add_done_callback(lambda done: done.cancelled() or done.exception())
        loop = asyncio.get_running_loop()
        due_s = loop.time()
        for number in range(body["x_events"]):
            writer.write(_event({"content": f"{body['x_id']} {number} {text}"}))
            if gone is not None:
                due_s += PACE_S  # a late one does not delay those behind it
                await asyncio.wait({gone}, timeout=max(0.0, due_s - loop.time()))
                if gone.done():
                    return False
            await writer.drain()
        if body["x_way"] == "broken":
            return False
        writer.write(_event({}, finish_reason="stop") + b"e\r\ndata: [DONE]\n\n\r\n0\r\n\r\n")
        await writer.drain()
        if gone is not None:
            gone.cancel()
        return gone is None


def _framed(status: int, body: bytes) -> bytes:
    head = b"HTTP/1.1 %d Said\r\ncontent-type: application/json\r\ncontent-length: %d\r\n\r\n"
    return head % (status, len(body)) + body


def _event(delta: dict[str, str], **choice: str) -> bytes:
    event = {"choices": [{"index": 0, "delta": delta, **choice}]}
    data = b"data: %b\n\n" % json.dumps(event).encode()
    return b"%x\r\n%b\r\n" % (len(data), data)
