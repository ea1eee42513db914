"""What `make fuzz` found, over real sockets: each of these once went wrong."""

import asyncio
import contextlib
from pathlib import Path

import httpx
import pytest
import zstandard

from tests.fakes.backend import FakeBackend, Reply
from tests.gateway.harness import backend, running_gateway
from tests.gateway.test_relay import ANSWER, answers
from tests.gateway.test_relay_odd import raw_backend

POST = b"POST /v1/chat/completions HTTP/1.1\r\nHost: x\r\n"
CLOSE = b"GET /livez HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n"
FINISHED = b'data: {"choices":[{"delta":{"content":"x"},"finish_reason":"stop"}]}\n\n'


async def ask(port: int, *pieces: bytes, most_bytes: int = 1 << 20) -> bytes:
    """Sends these and reads to the end of the connection, or to so many bytes."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    answer = b""
    try:
        async with asyncio.timeout(10):
            with contextlib.suppress(ConnectionError):
                for piece in pieces:
                    writer.write(piece)
                    await writer.drain()
            while len(answer) < most_bytes and (piece := await reader.read(65_536)):
                answer += piece
    finally:
        writer.close()
        await asyncio.gather(writer.wait_closed(), return_exceptions=True)
    return answer


async def test_garbage_behind_a_stream_is_no_part_of_what_the_client_gets(tmp_path: Path) -> None:
    """The stream was ended twice, and the next answer on the connection began with the rest."""
    chunk = b"%x\r\n%b\r\n0\r\n\r\n" % (len(FINISHED), FINISHED)
    head = (
        b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n"
    )
    async with (
        raw_backend(head + chunk + b"\0garbage", keep_open=True) as url,
        running_gateway(tmp_path, backends={"b": backend(url)}) as gateway,
    ):
        body = b'{"model":"m","messages":[],"stream":true}'
        answer = await ask(gateway.port, POST + b"Content-Length: %d\r\n\r\n%b" % (len(body), body),
                           CLOSE)  # fmt: skip
        row = await gateway.row()
    first, end, second = answer.partition(b"\r\n0\r\n\r\n")
    assert end and first.endswith(FINISHED)
    assert second.startswith(b"HTTP/1.1 200 OK\r\n"), second
    assert row.outcome == "succeeded"


async def test_the_last_of_pipelined_requests_may_end_the_connection(tmp_path: Path) -> None:
    """`Connection: close` of the second was taken for the first's; the second had no answer."""
    async with running_gateway(tmp_path) as gateway:
        answer = await ask(gateway.port, b"GET /livez HTTP/1.1\r\nHost: x\r\n\r\n" + CLOSE)
    assert answer.count(b"HTTP/1.1 200 OK\r\n") == 2
    assert answer.count(b"connection: close\r\n") == 1


@pytest.mark.parametrize("begin", [b"0\r\nX-Trailer: ", b"5;extension="])
async def test_what_is_no_body_does_not_come_for_ever(tmp_path: Path, begin: bytes) -> None:
    """Trailers and chunk extensions were taken, and kept, without a bound."""
    async with running_gateway(tmp_path, backends={"b": backend("http://127.0.0.1:1")}) as gateway:
        answer = await ask(
            gateway.port,
            POST + b"Transfer-Encoding: chunked\r\n\r\n1\r\n{\r\n" + begin,
            *[b"a" * 65_536] * 64,
        )
    assert answer.startswith(b"HTTP/1.1 431 "), answer


async def test_a_body_in_many_small_chunks_arrives_as_it_was_sent(tmp_path: Path) -> None:
    body = b'{"model":"m","messages":[],"x":"' + bytes(65 + n % 26 for n in range(9_000)) + b'"}'
    chunks = b"".join(b"2\r\n%b\r\n" % body[at : at + 2] for at in range(0, len(body) - 1, 2))
    if len(body) % 2:
        chunks += b"1\r\n%b\r\n" % body[-1:]
    async with (
        FakeBackend(answers(Reply(pieces=[ANSWER]))) as up,
        running_gateway(tmp_path, backends={"b": backend(up.url)}) as gateway,
    ):
        sent = chunks + b"0\r\n\r\n"
        head = POST + b"Transfer-Encoding: chunked\r\nConnection: close\r\n\r\n"
        third = len(sent) // 3
        answer = await ask(gateway.port, head, sent[:third], sent[third:-third], sent[-third:])
    assert answer.startswith(b"HTTP/1.1 200 OK\r\n")
    assert up.seen[0].body == body


async def test_a_transfer_coding_that_is_not_undone_is_refused(tmp_path: Path) -> None:
    async with running_gateway(tmp_path) as gateway:
        answer = await ask(
            gateway.port, POST + b"Transfer-Encoding: gzip, chunked\r\n\r\n1\r\na\r\n0\r\n\r\n"
        )
    assert answer.startswith(b"HTTP/1.1 501 "), answer


async def test_blanks_behind_a_header_value_do_not_count(tmp_path: Path) -> None:
    """A length with one was taken for a length over the limit, when the body came later."""
    async with (
        FakeBackend(answers(Reply(pieces=[ANSWER]))) as up,
        running_gateway(tmp_path, backends={"b": backend(up.url)}) as gateway,
    ):
        head = POST + b"Connection: close\r\nExpect: 100-continue \r\nContent-Length: 27 \r\n\r\n"
        answer = await ask(gateway.port, head, b'{"model":"m",', b'"messages":[]}')
    assert b"HTTP/1.1 200 OK\r\n" in answer, answer


async def test_a_request_body_of_several_zstd_frames_is_read_whole(tmp_path: Path) -> None:
    pack = zstandard.ZstdCompressor().compress
    body = pack(b'{"model":"m",') + pack(b'"messages":[]}')
    async with (
        FakeBackend(answers(Reply(pieces=[ANSWER]))) as up,
        running_gateway(tmp_path, backends={"b": backend(up.url)}) as gateway,
        httpx.AsyncClient() as client,
    ):
        answer = await client.post(
            f"{gateway.base}/v1/chat/completions",
            content=body,
            headers={"content-encoding": "zstd"},
        )
    assert answer.status_code == 200, answer.text
