"""Heartbeats in relayed streams: which bytes, where, and what they must not hide."""

import asyncio
import gzip
from pathlib import Path
from typing import Any

import httpx
import pytest

from gateway.relay.heartbeat import GLUED, PING, Heartbeat, ends_a_record
from tests.fakes.backend import FakeBackend, Gate, Reply, sse
from tests.gateway.harness import backend, running_gateway
from tests.gateway.test_relay import CHAT, STREAM

BODY = {**CHAT, "stream": True}
OPENAI, MESSAGES = "/v1/chat/completions", "/v1/messages"
GEMINI = "/v1beta/models/m:streamGenerateContent?alt=sse"
QUICK: dict[str, Any] = {"heartbeat_s": 0.05, "idle_s": 1.0, "first_event_s": 1.0}
EVENT = STREAM[1].replace(b"\r\n", b"\n")


def speaking(url: str, path: str, **settings: Any) -> Any:
    """A backend of the kind that is asked on this path."""
    kinds: dict[str, dict[str, Any]] = {
        OPENAI: {}, MESSAGES: {"kind": "anthropic"}, GEMINI: {"kind": "gemini"},
    }  # fmt: skip
    return {"b": backend(url, base_url=url, **kinds[path], **settings)}


async def silent_end(tmp_path: Path, path: str, *pieces: bytes, **settings: Any) -> tuple[Any, Any]:
    """What a client gets of a stream that stops after these pieces, and the row."""
    async with (
        FakeBackend(lambda seen: sse(*pieces, Gate())) as up,
        running_gateway(tmp_path, backends=speaking(up.url, path, **settings)) as gateway,
        httpx.AsyncClient(base_url=gateway.base, timeout=10) as client,
        asyncio.timeout(10),
    ):
        answer = await client.post(path, json=BODY)
        return answer.content, await gateway.row()


FORMS = [
    (OPENAI, b"", b"\n\n"), (GEMINI, b"", b"\n\n"), (MESSAGES, b"", PING),
    (OPENAI, b"id: 7\n", b": ka\n"), (GEMINI, b"id: 7\n", b""), (MESSAGES, b"id\n", PING),
]  # fmt: skip


@pytest.mark.parametrize(("path", "before", "beat"), FORMS)
async def test_a_silent_stream_is_kept_alive_and_still_ends_at_the_limit(
    tmp_path: Path, path: str, before: bytes, beat: bytes
) -> None:
    """R10: several beats in the surface's own form, then the error of idle_s; nothing else."""
    event = before + EVENT
    got, row = await silent_end(tmp_path, path, event, **QUICK)
    assert got.startswith(event)
    rest = got[len(event) :]
    count = 0
    while beat and rest.startswith(beat):
        rest, count = rest[len(beat) :], count + 1
    assert count >= 2 or not beat
    assert rest.startswith((b"data: {", b"event: error\n")) and b"idle_s of 1 s" in rest
    assert (row.outcome, row.error_type) == ("failed", "idle_s")


async def test_beats_begin_before_the_first_event(tmp_path: Path) -> None:
    """A backend that reads a long prompt; the clock of the first event is not put off."""
    got, row = await silent_end(tmp_path, OPENAI, **QUICK)
    assert got.startswith(b"\n\n" * 2)
    assert got.lstrip(b"\n").startswith(b'data: {"error"') and b"first_event_s of 1 s" in got
    assert row.error_type == "first_event_s"


@pytest.mark.parametrize("cut", [b"data: {", b"data: {}\n", b"event: x\n", b": ping\n", b"id: 7\n"])
async def test_no_beat_falls_into_a_record(tmp_path: Path, cut: bytes) -> None:
    """Many times the pause within a record: only our own error's blank line closes it."""
    got, _ = await silent_end(tmp_path, OPENAI, EVENT, cut, **QUICK)
    rest = got.removeprefix(EVENT + cut).removeprefix(b"\n\n")
    assert got.startswith(EVENT + cut)
    assert rest.startswith(b'data: {"error"')


async def test_without_the_setting_nothing_is_added(tmp_path: Path) -> None:
    """Off by default: the event, then the error."""
    got, _ = await silent_end(tmp_path, OPENAI, EVENT, idle_s=0.3)
    assert got.startswith(EVENT + b'data: {"error"')


async def test_nothing_is_written_into_compressed_events_or_into_json(tmp_path: Path) -> None:
    """Neither would survive it, even behind bytes that look like the end of a record."""
    replies = [
        Reply(headers={"content-type": "text/event-stream", "content-encoding": "gzip"},
              pieces=[gzip.compress(EVENT) + b"\n\n", Gate()], framing="chunked"),
        Reply(pieces=[b'{"choices":[\n\n', Gate()], framing="chunked"),
    ]  # fmt: skip
    left = [*replies]
    async with (
        FakeBackend(lambda seen: left.pop(0)) as up,
        running_gateway(tmp_path, backends=speaking(up.url, OPENAI, **QUICK)) as gateway,
        httpx.AsyncClient(base_url=gateway.base, timeout=10) as client,
    ):
        for reply in replies:
            got = b""
            with pytest.raises(httpx.RemoteProtocolError):
                async with client.stream("POST", OPENAI, json=BODY) as answer:
                    async for piece in answer.aiter_raw():
                        got += piece
            assert got == reply.pieces[0]


async def test_a_stream_that_goes_on_is_the_backends_but_for_the_beats(tmp_path: Path) -> None:
    """Nothing is lost or moved, the row is that of the backend's stream, and beats end with it."""
    gate = Gate()
    async with (
        FakeBackend(lambda seen: sse(STREAM[0], gate, *STREAM[1:])) as up,
        running_gateway(tmp_path, backends=speaking(up.url, OPENAI, heartbeat_s=0.05)) as gateway,
        httpx.AsyncClient(base_url=gateway.base, timeout=10) as client,
        client.stream("POST", OPENAI, json=BODY) as answer,
    ):
        got = b""
        async for piece in answer.aiter_raw():
            got += piece
            if got.endswith(b"\n\n" * 3):  # the end of the first piece, and two beats
                gate.open.set()
        row = await gateway.row()
    head, _, tail = got.partition(STREAM[0])
    assert head == b"" and tail.lstrip(b"\n") == b"".join(STREAM[1:])
    assert (row.outcome, row.completion_tokens, row.finish_reason) == ("succeeded", 4, "stop")


class _Passage:
    """Carries nothing and remembers what it was told."""

    def __init__(self) -> None:
        self.told: list[Any] = []

    def begin(self, connection: Any) -> None:
        self.told.append("begin")

    def take(self, piece: bytes, *, is_last: bool) -> None:
        self.told.append(piece)

    def pause(self) -> None:
        self.told.append("pause")

    def resume(self) -> None:
        self.told.append("resume")


class _Exchange:
    surface = "chat"

    def __init__(self) -> None:
        self.written: list[bytes] = []
        self.flow: Any = None

    def use_flow(self, flow: Any) -> None:
        self.flow = flow

    def write(self, piece: bytes) -> None:
        self.written.append(piece)


class _Tapped:
    class tap:
        is_stream = True
        encoding = None


def beating(now: list[float]) -> tuple[Heartbeat, _Exchange, _Passage]:
    exchange, passage = _Exchange(), _Passage()
    stand_ins: Any = (passage, exchange, _Tapped())
    heartbeat = Heartbeat(*stand_ins, 10.0, lambda: now[0])
    connection: Any = None
    heartbeat.begin(connection)
    assert exchange.flow is heartbeat  # it is told when the client is slow
    return heartbeat, exchange, passage


def test_a_beat_is_due_after_the_pause_and_again_after_the_next() -> None:
    """Bytes of the backend start the pause anew; a slow client and the end stop it."""
    now = [0.0]
    heartbeat, exchange, passage = beating(now)
    for at, due in ((9.9, 0), (10.0, 1), (19.9, 1), (20.0, 2)):
        heartbeat.look(at)
        assert len(exchange.written) == due, at
    now[0] = 25.0
    heartbeat.take(b"data: x\n\n", is_last=False)
    heartbeat.look(34.9)
    assert len(exchange.written) == 2
    heartbeat.pause()
    heartbeat.look(99.0)
    assert len(exchange.written) == 2
    heartbeat.resume()
    heartbeat.look(99.0)
    assert len(exchange.written) == 3
    heartbeat.take(b"", is_last=True)
    heartbeat.look(999.0)
    assert len(exchange.written) == 3
    assert passage.told == ["begin", b"data: x\n\n", "pause", "resume", b""]


@pytest.mark.parametrize("end", [b"\n", b"\r\n", b"\r"])
def test_the_end_of_a_record_and_an_id_are_seen_however_they_are_cut(end: bytes) -> None:
    """Byte by byte: room is only behind the blank line; behind the `id:` the form is another."""
    stream = b"data: a" + end + end + b"id: 7" + end + b"data: b" + end + end
    now = [0.0]
    heartbeat, exchange, _ = beating(now)
    room = []
    for at in range(len(stream)):
        heartbeat.take(stream[at : at + 1], is_last=False)
        now[0] += 20.0
        before = len(exchange.written)
        heartbeat.look(now[0])
        if len(exchange.written) > before:
            room.append(stream[: at + 1])
    first = stream[: stream.index(b"id")]
    due = [first, stream]
    if end == b"\r\n":  # its CR alone would do
        due = [first[:-1], first, stream[:-1], stream]
    assert room == due
    assert exchange.written[-1] == GLUED and exchange.written[0] == b"\n\n"


@pytest.mark.parametrize("tail", [b"", b"\n", b"\r\n", b"x\n", b"x\r\n", b"x\r", b"\n\nx"])
def test_one_line_end_is_no_blank_line(tail: bytes) -> None:
    """A CRLF is one line end, not two."""
    assert not ends_a_record(tail)
