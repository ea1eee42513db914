"""A gateway of its own for one test: real sockets, in the test's event loop."""

import asyncio
import contextlib
import socket
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

from gateway.app import Gateway
from gateway.ledger.command import OpenLedger
from gateway.settings.planning import read_planning
from gateway.settings.texts import Texts
from gateway.settings.types import (
    BackendSettings,
    LedgerSettings,
    ServerSettings,
    Settings,
)
from tests.fakes.books import MemoryBooks

SHIPPED = read_planning(Texts("")).planning("chat")  # profiles as they come


class Running:
    """A gateway that serves. `base` has no trailing slash."""

    def __init__(self, gateway: Gateway, books: MemoryBooks, port: int) -> None:
        self.gateway = gateway
        self.books = books
        self.port = port
        self.base = f"http://127.0.0.1:{port}"

    async def row(self, number: int = 0) -> Any:
        """The row of the n-th request, once it is closed."""
        async with asyncio.timeout(5):
            while len(self.books.rows) <= number:
                await asyncio.sleep(0.005)
        return self.books.rows[number]


@contextlib.asynccontextmanager
async def running_gateway(tmp_path: Path, **sections: Any) -> AsyncIterator[Running]:
    """Serves with these sections of the settings. `server` holds keyword arguments."""
    server = ServerSettings(
        state_dir=tmp_path / "state", **{"port": 0, **sections.pop("server", {})}
    )
    sections.setdefault("planning", SHIPPED)
    settings = Settings(server=server, ledger=LedgerSettings(), rev="test", **sections)
    books = MemoryBooks()
    gateway = Gateway(settings, OpenLedger(books))
    listener = socket.socket()
    listener.bind(("127.0.0.1", 0))
    port = listener.getsockname()[1]
    await gateway.open(listener)
    try:
        yield Running(gateway, books, port)
    finally:
        await gateway.close()
        listener.close()


def backend(url: str, **settings: Any) -> BackendSettings:
    """An OpenAI-like backend with one model named `m`."""
    return BackendSettings(
        **{"kind": "openai", "base_url": f"{url}/v1", "models": ("m",), **settings}
    )
