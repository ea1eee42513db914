"""What a client hears while its request waits for the engine: on which surface, and when."""

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import openai
import pytest

from gateway.backends.run import Silence
from gateway.exchange import Exchange
from gateway.routing.table import Target
from gateway.settings.types import Surface
from gateway.surfaces.answer import HEARTBEAT, MANAGED, Answer
from proto.events import (
    Event,
    Finished,
    Reading,
    TextDelta,
    Timings,
    Usage,
    Waiting,
)
from proto.messages import Progress, Queued, Submit
from tests.fakes.worker import FakeWorker
from tests.gateway.test_engine_link import BODY, engine

END = Finished("stop", "eos", Usage(5, 1), Timings())
OPEN_AFTER_S = 10.0
Step = tuple[float, Event | Silence]  # seconds since the request came, and what is heard then


class Line:
    """Takes what is written; `written`: by second, heads left out. `opened_s`: when they went."""

    is_full = False
    speaks_chunked = False

    def __init__(self) -> None:
        self.now = 100.0
        self.opened_s: float | None = None
        self.written: list[tuple[float, bytes]] = []

    def send_head(self, status: int, block: bytes, *, is_chunked: bool) -> None:
        self.opened_s = self.now - 100.0

    def send(self, *pieces: bytes) -> None:
        if data := b"".join(pieces):
            self.written.append((self.now - 100.0, data))

    def ask_for_body(self) -> None: ...
    def close_after(self) -> None: ...
    def end_answer(self) -> None: ...
    def cut_answer(self) -> None: ...


async def heard(surface: Surface, *steps: Step) -> Line:
    """What is written of a stream in which this is heard, up to its first text."""
    line = Line()
    exchange = Exchange(line, "POST", ("/", b"/", b""), [], {}, "r")
    exchange.surface = surface
    fields: Any = {"model": "m", "stream": True}
    fields |= {"prompt": "x"} if surface == "completions" else {"messages": BODY["messages"]}
    request = MANAGED[surface].parse(fields)
    answer = Answer(exchange, request, Target(None, "TandemLLM"), created=1)

    async def events() -> AsyncIterator[Event | Silence]:
        for at_s, event in steps:
            line.now = 100.0 + at_s
            yield event
        line.now += 1.0
        yield TextDelta("a")
        yield END

    await answer.stream(events(), OPEN_AFTER_S, lambda: line.now)
    first_text = next(i for i, (_, data) in enumerate(line.written) if data.startswith(b"data:"))
    line.written = line.written[:first_text]
    return line


def waits(*places: tuple[float, int, float]) -> list[Step]:
    """Estimates: when, position, seconds. Between them the silence that the link tells of."""
    told: dict[float, Event | Silence] = {at: Waiting(n, int(est * 1000)) for at, n, est in places}
    silent = {at / 2: Silence() for at in range(5, 2 * int(places[-1][0]) + 20, 5)}
    return sorted((silent | told).items())


async def test_a_chat_stream_opens_with_its_estimate_and_hears_each_later_one() -> None:
    line = await heard("chat", *waits((0, 3, 60.0), (11, 2, 40.0), (21, 1, 20.2), (31, 0, 5.0)))
    assert line.opened_s == 10.0
    assert line.written == [
        (10.0, b": waiting at position 3, about 50 s\n\n"),  # ten seconds have passed
        (11.0, b": waiting at position 2, about 40 s\n\n"),
        (21.0, b": waiting at position 1, about 20 s\n\n"),
        (31.0, b": waiting at position 0, about 5 s\n\n"),
    ]


async def test_an_estimate_that_comes_as_the_stream_opens_is_the_one_that_is_shown() -> None:
    line = await heard(
        "chat", (0.1, Waiting(1, 9000)), (10.25, Waiting(0, 2000)), (12.7, Silence())
    )
    assert line.written == [(10.25, b": waiting at position 0, about 2 s\n\n")]


async def test_an_estimate_does_not_go_below_nothing() -> None:
    line = await heard("chat", (0, Waiting(0, 1000)), (12.5, Silence()))
    assert line.written == [(12.5, b": waiting at position 0, about 0 s\n\n")]


async def test_a_long_prompt_is_followed_and_memory_is_waited_for() -> None:
    line = await heard(
        "chat",
        (9, Reading("memory_wait", 0, 5000, 0)), (11, Silence()),
        (12, Reading("prefill", 1024, 5000, 0)), (13, Reading("prefill", 2048, 5000, 0)),
    )  # fmt: skip
    assert line.written == [
        (11.0, b": waiting for memory\n\n"),
        (12.0, b": read 1,024 of 5,000 tokens\n\n"),
        (13.0, b": read 2,048 of 5,000 tokens\n\n"),
    ]


async def test_a_surface_that_shows_no_estimate_gets_its_head_and_blank_lines() -> None:
    """A comment is not every client's: only chat streams carry one."""
    line = await heard(
        "completions", *waits((0, 3, 60.0), (11, 2, 40.0), (21, 1, 20.0), (51, 0, 1))
    )
    assert line.opened_s == 10.0
    assert line.written == [(25.0, HEARTBEAT), (40.0, HEARTBEAT), (55.0, HEARTBEAT)]


@pytest.mark.parametrize("surface", ["chat", "completions"])
async def test_who_waits_for_less_hears_nothing_of_it(surface: Surface) -> None:
    line = await heard(surface, (0, Waiting(1, 9000)), (2.5, Silence()), (9.9, Waiting(0, 100)))
    assert line.opened_s == pytest.approx(10.9) and not line.written


async def test_silence_of_an_open_chat_stream_is_filled_every_fifteen_seconds() -> None:
    line = await heard("chat", *waits((0, 0, 60.0), (31, 0, 30.0)))
    assert [at for at, data in line.written if data == HEARTBEAT] == [25.0]


async def slow_start(worker: FakeWorker, run: Submit) -> None:
    for number in range(3):
        await worker.send(Queued(run.run_id, 3 - number, 7000, 5, "", ""))
        await asyncio.sleep(0.01)
    await worker.send(Progress(run.run_id, "memory_wait", 0, 5, 0))
    await worker.send(Progress(run.run_id, "prefill", 3, 5, 0))
    await worker.write(run, "Hel", "lo")
    await worker.finish(run, 2)


@pytest.mark.parametrize("surface", ["chat", "completions"])
async def test_the_openai_sdk_waits_through_all_of_it(tmp_path: Path, surface: str) -> None:
    """What is not an event is nothing to it, before the first one and everywhere."""
    async with (
        engine(tmp_path, slow_start, open_after_s=0) as (gateway, _, _),
        openai.AsyncOpenAI(base_url=f"{gateway.base}/v1", api_key="x", max_retries=0) as sdk,
    ):
        chunks: Any
        if surface == "chat":
            messages: Any = BODY["messages"]
            chunks = await sdk.chat.completions.create(
                model="TandemLLM", messages=messages, stream=True
            )
            pieces = [chunk.choices[0].delta.content async for chunk in chunks if chunk.choices]
        else:
            chunks = await sdk.completions.create(model="TandemLLM", prompt="x", stream=True)
            pieces = [chunk.choices[0].text async for chunk in chunks if chunk.choices]
    assert [piece for piece in pieces if piece] == ["Hel", "lo"]
