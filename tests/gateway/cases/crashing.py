"""A gateway with a fault of its own, for the canary's crash: a process that logs as in production.

Writes the client's reply to standard output.
"""

import asyncio
import sys
from pathlib import Path
from typing import Any, NoReturn

from gateway.observe.logs import configure
from gateway.settings.types import ClientKey, Secret
from tests.gateway.cases import canary
from tests.gateway.cases.samples import CHAT, dump
from tests.gateway.cases.scripted import speaking
from tests.gateway.cases.stage import Caller, request, stage


def crash(entry: Any) -> NoReturn:
    """Stands in for a mistake of ours, with everything about the request within reach."""
    raise RuntimeError(f"the books do not open for {entry.request_id}")


async def main(folder: Path) -> None:
    """One request that crashes."""
    keys = (ClientKey("k", secret=Secret("env:K", canary.CLIENT_KEY)),)
    body = dump({**CHAT.request, "x": canary.PROMPT})
    headers = [("x-api-key", canary.CLIENT_KEY), ("cookie", canary.COOKIE), ("connection", "close")]
    async with stage(folder, CHAT, speaking(CHAT), sections={"keys": keys}) as on:
        on.gateway.books.open = crash  # type: ignore[method-assign]
        caller = await Caller.connect(on.port)
        await caller.send(request(f"{CHAT.path}?key={canary.QUERY_KEY}", body, headers))
        sys.stdout.buffer.write(await caller.at_end())
        caller.close()


if __name__ == "__main__":
    configure()
    asyncio.run(main(Path(sys.argv[1])))
