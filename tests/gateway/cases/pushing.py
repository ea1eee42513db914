"""A client that sends more than it may, and looks at what that costs. Knows no limit."""

import asyncio
from itertools import repeat

from tests.gateway.cases.proc import resident_bytes
from tests.gateway.cases.stage import READ_S, STILL_OPEN, Caller

MIB = 1024**2
FLAT_BYTES = 8 * MIB  # what a process may grow by and still count as flat


class Pushed:
    """What came of it. `was_torn`: the connection broke while the client was sending.

    `grown_bytes`: of this process, in which the gateway runs.
    """

    def __init__(self, reply: bytes, *, was_torn: bool, grown_bytes: int) -> None:
        self.reply = reply
        self.was_torn = was_torn
        self.grown_bytes = grown_bytes
        head, _, self.body = reply.partition(b"\r\n\r\n")
        self.status = int(head.split(b" ")[1]) if head.startswith(b"HTTP/1.1 ") else 0
        self.is_closed = STILL_OPEN not in reply


async def push(
    port: int, start: bytes, piece: bytes = b"", count: int = 0, *, reads: str = "at once"
) -> Pushed:
    """Sends `start`, then `count` times `piece`, until the gateway has had enough.

    `reads`: "at once", or "at last", when everything was sent.
    """
    caller = await Caller.connect(port)
    before_bytes = most_bytes = resident_bytes()
    was_torn = False

    async def send() -> None:
        nonlocal was_torn, most_bytes
        try:
            await caller.send(start)
            for more in repeat(piece, count):
                await caller.send(more)
                await asyncio.sleep(0)  # the gateway's turn
                most_bytes = max(most_bytes, resident_bytes())
        except ConnectionError:
            was_torn = True

    sending = asyncio.create_task(send())
    if reads == "at last":
        async with asyncio.timeout(READ_S):
            await sending
    reply = await caller.at_end(most_s=1.5)
    sending.cancel()
    await asyncio.gather(sending, return_exceptions=True)
    caller.close()
    most_bytes = max(most_bytes, resident_bytes())
    return Pushed(reply, was_torn=was_torn, grown_bytes=most_bytes - before_bytes)
