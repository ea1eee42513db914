"""R36, toward backends: an answer whose length can be read in two ways is none."""

import asyncio
from pathlib import Path

import pytest

from tests.gateway.cases.samples import CHAT
from tests.gateway.cases.scripted import Link, chunk, speaking
from tests.gateway.cases.stage import error_code, failure, kept_connections, stage

BODY = CHAT.whole
SIZE = len(BODY)
OK = b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\n"
CHUNKED = OK + b"transfer-encoding: chunked\r\n\r\n"
CHUNK = chunk(BODY)
CHUNKS = CHUNK + b"0\r\n\r\n"


CHUNKS_COME = "transfer-encoding: chunked"


def sized(*lines: str, body: bytes = BODY) -> bytes:
    """An answer with these header lines."""
    return OK + "".join(f"{line}\r\n" for line in lines).encode("latin-1") + b"\r\n" + body


BEFORE_THE_HEAD = {
    "length and chunks": sized(f"content-length: {SIZE}", CHUNKS_COME, body=CHUNKS),
    "chunks and length": sized(CHUNKS_COME, f"content-length: {SIZE}", body=CHUNKS),
    "two lengths": sized(f"content-length: {SIZE}", "content-length: 5"),
    "two lengths in a list": sized(f"content-length: {SIZE}, 5"),
    "a length with a sign": sized(f"content-length: +{SIZE}"),
    "a negative length": sized(f"content-length: -{SIZE}"),
    "a length beyond 64 bits": sized(f"content-length: {2**64 + SIZE}"),
    "a blank before the colon": sized(f"content-length : {SIZE}"),
    "a folded line": sized("x-a: b", " c", f"content-length: {SIZE}"),
    "a bare CR": sized(f"x-a: b\rcontent-length: 5\r\ncontent-length: {SIZE}"),
    "a NUL in a value": sized("x-a: \0", f"content-length: {SIZE}"),
    "a line without a colon": sized("nonsense", f"content-length: {SIZE}"),
    "no HTTP at all": b"SSH-2.0-OpenSSH_9.9\r\n\r\n",
    "another protocol": b"\x00\x00\x12\x04\x00\x00\x00\x00\x00\x00\x03\x00\x00\x00\x64",
    "a status of words": b"HTTP/1.1 OK\r\ncontent-length: 2\r\n\r\n{}",
    "a switch nobody asked for": b"HTTP/1.1 101 X\r\nupgrade: x\r\nconnection: upgrade\r\n\r\n",
}  # fmt: skip
IN_THE_BODY = {
    "a chunk size that is no number": b"zz\r\n",
    "a negative chunk size": b"-5\r\nabcde\r\n",
    "a chunk size in 0x": b"0x2\r\n{}\r\n",
    "an empty chunk size": b"\r\n{}\r\n",
    "a chunk size beyond 64 bits": b"10000000000000002\r\n{}\r\n",
    "a chunk that is too long": b"2\r\n{}X\r\n0\r\n\r\n",
    "a chunk without an end": b"2\r\n{}0\r\n\r\n",
}


async def test_a_head_that_can_be_read_in_two_ways_is_a_502(tmp_path: Path) -> None:
    """R36: 502 in our words, the connection closed and never used again."""
    wrong = {}
    async with stage(tmp_path, CHAT, speaking(CHAT), first_event_s=0.3, idle_s=0.3) as on:
        for number, (name, said) in enumerate(BEFORE_THE_HEAD.items()):

            async def script(link: Link, said: bytes = said) -> None:
                await link.send(said)
                await link.stay()

            on.up.script = script
            answer = await on.ask(is_stream=False)
            row = await on.row(2 * number)
            code = error_code("chat", answer.body) if answer.status == 502 else None
            on.up.script = speaking(CHAT)
            after = await on.ask(is_stream=False)
            await on.row(2 * number + 1)
            links = [len(link.asked) for link in on.up.links if not link.gone.is_set()]
            if (code, row.outcome, after.body) != ("upstream_failed", "failed", CHAT.whole):
                wrong[name] = (answer.status, answer.body[:60], row.outcome, after.status)
            if sum(links) != len(links):  # the good answer's own link, and none with a bad one
                wrong[name] = ("reused", links)
            for link in on.up.links:
                link.close()
    assert not wrong


@pytest.mark.parametrize("is_stream", [True, False], ids=["stream", "whole"])
async def test_a_body_that_breaks_its_framing_is_an_error_end(
    tmp_path: Path, is_stream: bool
) -> None:
    """R36: behind good events: the error of the surface; in a whole body: never a clean end."""
    wrong = {}
    kind = b"text/event-stream" if is_stream else b"application/json"
    said = CHAT.events[0] + CHAT.events[1] if is_stream else BODY[:50]
    links = asyncio.Queue[Link]()

    async def script(link: Link) -> None:
        await link.send(CHUNKED.replace(b"application/json", kind) + chunk(said))
        links.put_nowait(link)
        await link.stay()

    async with stage(tmp_path, CHAT, script, idle_s=0.3) as on:
        for number, (name, broken) in enumerate(IN_THE_BODY.items()):
            async with on.caller(is_stream=is_stream) as caller:
                link = await links.get()
                heard = await caller.body(len(said))
                await link.send(broken)
                answer = await caller.whole()
                row = await on.row(number)
                answer.body = heard + answer.body
            try:
                assert (row.outcome, row.error_type) == ("failed", "upstream_failed")
                if is_stream:
                    failure(CHAT, answer)
                else:
                    assert not answer.is_whole
                assert all(len(link.asked) == 1 for link in on.up.links)
                assert kept_connections(on.gateway) == 0
            except Exception as fault:  # noqa: BLE001 - every case is looked at
                wrong[name] = f"{fault!r:.300}"
    assert not wrong


@pytest.mark.parametrize("behind", [b"HTTP/1.1 200 OK\r\n", b"x", b"\r\n\r\n0\r\n"])
async def test_bytes_behind_an_answer_end_the_connection(tmp_path: Path, behind: bytes) -> None:
    """R36: what nobody asked for is nobody's answer, least of all the next client's."""

    async def script(link: Link) -> None:
        await link.send(CHUNKED + CHUNKS + behind)
        await link.stay()

    async with stage(tmp_path, CHAT, script) as on:
        for number in range(2):
            answer = await on.ask(is_stream=False)
            await on.row(number)
            assert answer.is_whole and (answer.status == 502 or answer.body == BODY)
        assert [len(link.asked) for link in on.up.links] == [1, 1]
