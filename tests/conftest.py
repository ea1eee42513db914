"""What all tests share: the event loop that the gateway runs on."""

from collections.abc import Callable, Mapping
from typing import Any

import uvloop


def pytest_asyncio_loop_factories(config: Any, item: Any) -> Mapping[str, Callable[[], Any]]:
    """uvloop, as in production: its transports and faults differ from asyncio's own."""
    return {"uvloop": uvloop.new_event_loop}
