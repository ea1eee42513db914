"""Requests leave no cycles: what one held is free when it ends, not when the collector comes.

The gateway's collector comes late by intention (`gateway.serve`), and a body may have 64 MiB.
"""

import asyncio
import gc
from collections import Counter
from pathlib import Path

import pytest

from gateway.door.connection import ClientConnection
from gateway.exchange import Exchange
from gateway.relay.connection import Connection
from gateway.settings.types import ClientKey, Secret
from gateway.surfaces.request import ModelRequest
from tests.gateway.harness import backend, running_gateway
from tests.soak.clients import KEY, KINDS, Clients, Line
from tests.soak.upstream import Upstream

HELD = (Exchange, ModelRequest, ClientConnection, Connection)
TIMES = 5
WITHIN_S = 10.0
SLOW = ("streamed, slow reader",)


def left() -> Counter[str]:
    """How many of the things that hold a request are alive."""
    return Counter(type(item).__name__ for item in gc.get_objects() if type(item) in HELD)


@pytest.mark.parametrize("kind", [kind for kind in KINDS if kind not in SLOW])
async def test_a_request_leaves_nothing_that_only_the_collector_frees(
    tmp_path: Path, kind: str
) -> None:
    """Each kind of request that a soak makes, however it ends."""
    keys = (ClientKey("k", secret=Secret("env:K", KEY)),)
    async with (
        Upstream() as upstream,
        running_gateway(tmp_path, backends={"b": backend(upstream.url)}, keys=keys) as gateway,
    ):
        clients = Clients(gateway.port, seed=1)
        gc.collect()
        before = left()
        gc.disable()
        try:
            for _ in range(TIMES):
                line = Line(gateway.port)
                await KINDS[kind][1](clients, line)
                await line.leave()
            async with asyncio.timeout(WITHIN_S):
                while len(gateway.books.rows) < sum(clients.booked.values()):
                    await asyncio.sleep(0.01)
                gateway.books.rows.clear()
                while gateway.gateway.door.connections:
                    await asyncio.sleep(0.01)
            await asyncio.sleep(0.05)
            found = left() - before
        finally:
            gc.enable()
        kept = gateway.gateway.client.idle_count()
    assert found == Counter({"Connection": kept} if kept else {})
