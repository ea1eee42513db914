"""P4: a client that leaves stops the work, in whatever phase its request is."""

import asyncio
import json
import socket
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from tests.gateway.cases.proc import SYN_SENT, tcp_ends
from tests.gateway.cases.samples import CHAT, WITH_COMPLETIONS, Sample, chat_chunk
from tests.gateway.cases.scripted import CHUNKED_SSE, Link, ScriptedBackend, chunk
from tests.gateway.cases.stage import Caller, in_flight, request, stage
from tests.gateway.harness import Running, backend, running_gateway

LEFT = ("aborted", "client_left")
HUGE = chat_chunk({"content": "x" * 32_000})


async def until(is_so: Callable[[], Any], most_s: float = 1.0) -> None:
    """Looks again and again at what only the kernel knows."""
    async with asyncio.timeout(most_s):
        while not is_so():
            await asyncio.sleep(0.005)


async def row_within_a_second(gateway: Running, number: int = 0) -> Any:
    async with asyncio.timeout(1):
        return await gateway.row(number)


@pytest.mark.parametrize("phase", ["before headers", "before the first event", "in mid-stream"])
@pytest.mark.parametrize("sample", WITH_COMPLETIONS, ids=str)
async def test_a_stream_is_given_up_within_a_second(
    tmp_path: Path, sample: Sample, phase: str
) -> None:
    """P4: closed and reset, on every surface; the row holds what was known."""
    said = sample.events[: sample.first_text + 2] if phase == "in mid-stream" else ()
    links = asyncio.Queue[Link]()

    async def script(link: Link) -> None:
        if phase != "before headers":
            await link.send(CHUNKED_SSE, *map(chunk, said))
        links.put_nowait(link)
        await link.stay()

    async with stage(tmp_path, sample, script) as on:
        for number, leave in enumerate((Caller.close, Caller.reset)):
            async with on.caller() as caller:
                link = await links.get()
                if said:
                    await caller.until(b"\xe6\x9d\xb1")  # the last of what was said
                leave(caller)
                async with asyncio.timeout(1):
                    await link.gone.wait()
                row = await row_within_a_second(on.gateway, number)
            assert (row.outcome, row.error_type, row.stream) == (*LEFT, 1)
            assert (row.completion_tokens is not None) is bool(said)
            assert row.usage_source in (("counted", "estimated") if said else ("none",))
        assert in_flight(on.gateway) == 0


@pytest.mark.parametrize("sent", ["half a head", "half a body"])
async def test_a_request_that_never_arrived_asks_nobody(tmp_path: Path, sent: str) -> None:
    """P4: the client goes while it is still asking."""
    whole = request(*(CHAT.stream_path, CHAT.body(is_stream=True)))
    part = whole[:40] if sent == "half a head" else whole[:-40]
    async with (
        ScriptedBackend(lambda link: link.stay()) as up,
        running_gateway(tmp_path, backends={"b": CHAT.backend(up.url)}) as gateway,
    ):
        caller = await Caller.connect(gateway.port)
        await caller.send(part)
        if sent == "half a body":
            await until(lambda: in_flight(gateway) == 1)
        caller.close()
        await until(lambda: in_flight(gateway) == 0)
        if sent == "half a body":
            row = await row_within_a_second(gateway)
            assert (row.outcome, row.error_type) == LEFT
        assert not up.links


async def test_a_client_that_leaves_while_its_model_is_looked_up(tmp_path: Path) -> None:
    """P4: a name nobody knows yet is asked for at a backend that does not answer."""
    async with ScriptedBackend(lambda link: link.stay()) as slow:
        known = backend("http://127.0.0.1:1")
        unknown = backend(slow.url, models="auto")
        async with running_gateway(tmp_path, backends={"b": known, "slow": unknown}) as gateway:
            caller = await Caller.connect(gateway.port)
            body = CHAT.body(is_stream=True).replace(b'"m"', b'"nobody"')
            await slow.until(lambda: len(slow.asked) == 1)  # at the start
            await caller.ask(CHAT.stream_path, body)
            await until(lambda: in_flight(gateway) == 1)
            caller.close()
            row = await row_within_a_second(gateway)
    assert (row.outcome, row.error_type) == LEFT


async def test_a_client_that_leaves_while_we_connect(tmp_path: Path) -> None:
    """P4: the backend's queue of connections is full, so ours is not answered."""
    with ExitStack() as sockets, socket.create_server(("127.0.0.1", 0), backlog=0) as full:
        port = full.getsockname()[1]
        for _ in range(4):
            filler = sockets.enter_context(socket.socket())
            filler.setblocking(False)
            filler.connect_ex(("127.0.0.1", port))

        def connecting() -> int:
            return sum(end.remote == port and end.state == SYN_SENT for end in tcp_ends(port))

        waiting = connecting()
        async with running_gateway(
            tmp_path, backends={"b": backend(f"http://127.0.0.1:{port}")}
        ) as gateway:
            caller = await Caller.connect(gateway.port)
            await caller.ask(CHAT.stream_path, CHAT.body(is_stream=True))
            await until(lambda: connecting() > waiting)
            caller.close()
            row = await row_within_a_second(gateway)
            await until(lambda: connecting() == waiting)
    assert (row.outcome, row.error_type) == LEFT


async def test_a_client_that_leaves_while_its_body_goes_up(tmp_path: Path) -> None:
    """P4: the backend takes no more of a large body."""
    body = json.dumps({"model": "m", "messages": [], "pad": "x" * 16 * 1024**2}).encode()
    started = asyncio.Event()

    async def script(link: Link) -> None:
        link.stop_reading()
        started.set()
        await asyncio.get_running_loop().create_future()

    async with (
        ScriptedBackend(script, is_early=True) as up,
        running_gateway(tmp_path, backends={"b": CHAT.backend(up.url)}) as gateway,
    ):
        caller = await Caller.connect(gateway.port)
        await caller.ask(CHAT.path, body)
        await started.wait()
        caller.close()
        row = await row_within_a_second(gateway)
        await until(lambda: not [end for end in tcp_ends(up.port)
                                 if end.remote == up.port and end.state == "01"])  # fmt: skip
    assert (row.outcome, row.error_type) == LEFT


async def test_a_client_that_takes_nothing_and_then_leaves(tmp_path: Path) -> None:
    """P4: the gateway waits for the client's socket, not for the backend."""

    async def script(link: Link) -> None:
        await link.send(CHUNKED_SSE)
        while True:
            await link.send(chunk(HUGE))

    async with (
        stage(tmp_path, CHAT, script) as on,
        on.caller(receive_bytes=4096) as caller,
    ):
        await caller.head()
        link = on.up.links[0]
        await link.is_full.wait()
        caller.reset()
        async with asyncio.timeout(1):
            await link.gone.wait()
        row = await row_within_a_second(on.gateway)
    assert (row.outcome, row.error_type) == LEFT
    assert row.completion_tokens


async def test_a_client_that_leaves_with_a_second_request_on_its_way(tmp_path: Path) -> None:
    """P4: bytes behind the request do not hide that the client has gone."""
    started = asyncio.Event()

    async def script(link: Link) -> None:
        await link.send(CHUNKED_SSE, chunk(CHAT.events[0]))
        started.set()
        await link.stay()

    async with stage(tmp_path, CHAT, script) as on:
        caller = await Caller.connect(on.port)
        await caller.send(request(*on.message()) * 2)
        await started.wait()
        await caller.head()
        caller.close()
        async with asyncio.timeout(1):
            await on.up.links[0].gone.wait()
        row = await row_within_a_second(on.gateway)
        assert len(on.up.asked) == 1
    assert (row.outcome, row.error_type) == LEFT
