"""R36, toward clients: a request whose length can be read in two ways reaches nobody."""

from pathlib import Path

import pytest

from tests.gateway.cases.samples import CHAT
from tests.gateway.cases.scripted import LAST_CHUNK, speaking
from tests.gateway.cases.stage import STILL_OPEN, Caller, request, stage

BODY = CHAT.body(is_stream=False)
SIZE = len(BODY)
LINE = b"POST /v1/chat/completions HTTP/1.1\r\nhost: gateway\r\n"
CHUNKED = LINE + b"transfer-encoding: chunked\r\n\r\n"
SMUGGLED = request("/v1/chat/completions", BODY, [("x-smuggled", "yes")])
CHUNK = b"%x\r\n%b\r\n" % (SIZE, BODY)
CHUNKS = CHUNK + b"0\r\n\r\n"


CHUNKS_COME = "transfer-encoding: chunked"


def sized(*lines: str, body: bytes = BODY) -> bytes:
    """A request with these header lines."""
    return LINE + "".join(f"{line}\r\n" for line in lines).encode("latin-1") + b"\r\n" + body


GOOD = sized(f"content-length: {SIZE}")
TWO_WAYS = {
    "length and chunks": sized(f"content-length: {SIZE}", CHUNKS_COME, body=CHUNKS),
    "chunks and length": sized(CHUNKS_COME, f"content-length: {SIZE}", body=CHUNKS),
    "chunks and a short length": sized("content-length: 4", CHUNKS_COME, body=LAST_CHUNK),
    "two lengths": sized(f"content-length: {SIZE}", "content-length: 5"),
    "two equal lengths": sized(f"content-length: {SIZE}", f"content-length: {SIZE}"),
    "two lengths in a list": sized(f"content-length: {SIZE}, {SIZE}"),
    "a length with a sign": sized(f"content-length: +{SIZE}"),
    "a negative length": sized(f"content-length: -{SIZE}"),
    "a length in hex": sized(f"content-length: {SIZE:#x}"),
    "a length with a blank": sized(f"content-length: {SIZE // 10} {SIZE % 10}"),
    "a length beyond 64 bits": sized(f"content-length: {2**64 + SIZE}"),
    "an empty length": sized("content-length:"),
    "chunked is not last": sized("transfer-encoding: chunked, identity", body=CHUNKS),
    "chunked twice": sized("transfer-encoding: chunked, chunked", body=CHUNKS),
    "two encodings": sized(CHUNKS_COME, "transfer-encoding: identity", body=CHUNKS),
    "an unknown encoding": sized("transfer-encoding: xchunked", f"content-length: {SIZE}"),
    "an encoding in quotes": sized('transfer-encoding: "chunked"', f"content-length: {SIZE}"),
    "a blank before the colon": sized(f"content-length : {SIZE}"),
    "a tab before the colon": sized("transfer-encoding\t: chunked", f"content-length: {SIZE}"),
    "a folded line": sized("x-a: b", " c", f"content-length: {SIZE}"),
    "a blank before the first name": sized(f" content-length: {SIZE}"),
    "a bare LF": sized(f"x-a: b\ncontent-length: {SIZE}"),
    "a bare LF at the head's end": GOOD.replace(b"\r\n\r\n", b"\n\n", 1),
    "a bare CR": sized(f"x-a: b\rcontent-length: 5\r\ncontent-length: {SIZE}"),
    "a NUL in a value": sized("x-a: \0", f"content-length: {SIZE}"),
    "a NUL in a name": sized("x-\0a: b", f"content-length: {SIZE}"),
    "a line without a colon": sized("nonsense", f"content-length: {SIZE}"),
    "an empty name": sized(": nothing", f"content-length: {SIZE}"),
    "a chunk size that is no number": CHUNKED + b"zz\r\n" + BODY + b"\r\n0\r\n\r\n",
    "a chunk size with a sign": CHUNKED + b"+" + CHUNK + b"0\r\n\r\n",
    "a negative chunk size": CHUNKED + b"-1\r\n" + BODY + b"\r\n0\r\n\r\n",
    "a chunk size in 0x": CHUNKED + b"0x" + CHUNK + b"0\r\n\r\n",
    "a chunk size with a blank": CHUNKED + b" " + CHUNK + b"0\r\n\r\n",
    "an empty chunk size": CHUNKED + b"\r\n" + BODY + b"\r\n0\r\n\r\n",
    "a chunk size beyond 64 bits": CHUNKED + b"1%016x\r\n" % SIZE + BODY + b"\r\n0\r\n\r\n",
    "a chunk that is too long": CHUNKED + b"%x\r\n%bX\r\n0\r\n\r\n" % (SIZE, BODY),
    "a chunk that ends in LF": CHUNKED + b"%x\r\n%b\n0\r\n\r\n" % (SIZE, BODY),
    "a chunk without an end": CHUNKED + b"%x\r\n%b0\r\n\r\n" % (SIZE, BODY),
    "a chunk size that ends in LF": CHUNKED + b"%x\n%b\r\n0\r\n\r\n" % (SIZE, BODY),
    "a chunk size that ends in CR": CHUNKED + b"%x\r%b\r\n0\r\n\r\n" % (SIZE, BODY),
    "a last chunk that ends in LF": CHUNKED + CHUNK + b"0\n\n",
    "a bare LF in a chunk's extension": CHUNKED + b"%x;a=b\nc\r\n%b\r\n0\r\n\r\n" % (SIZE, BODY),
    "no HTTP at all": b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03\r\n\r\n",
    "a version of its own": GOOD.replace(b"HTTP/1.1", b"HTTP/1.9", 1),
    "a target with a blank": GOOD.replace(b"completions ", b"com pletions ", 1),
}  # fmt: skip


@pytest.mark.parametrize("has_more", [False, True], ids=["alone", "with a request behind it"])
async def test_what_can_be_read_in_two_ways_is_read_in_none(tmp_path: Path, has_more: bool) -> None:
    """R36: 400 and close; nothing reaches the backend, of this request or of bytes behind it."""
    wrong = {}
    async with stage(tmp_path, CHAT, speaking(CHAT)) as on:
        for name, sent in TWO_WAYS.items():
            caller = await Caller.connect(on.port)
            await caller.send(sent + (SMUGGLED if has_more else b""))
            got = await caller.at_end(most_s=0.5)
            caller.close()
            is_refused = got.startswith(b"HTTP/1.1 400 ") and got.count(b"HTTP/1.1 ") == 1
            if not is_refused or STILL_OPEN in got or on.up.asked:
                reached = [asked.headers for asked in on.up.asked]
                wrong[name] = (got[:40], STILL_OPEN in got, reached)
            on.up.asked.clear()
    assert not wrong


async def test_chunks_of_an_older_version_end_the_connection(tmp_path: Path) -> None:
    """R36: HTTP/1.0 knows no chunks: whatever the answer is, nothing behind it is read."""
    old = (CHUNKED + CHUNKS).replace(b"HTTP/1.1", b"HTTP/1.0", 1)
    async with stage(tmp_path, CHAT, speaking(CHAT)) as on:
        caller = await Caller.connect(on.port)
        await caller.send(old + SMUGGLED)
        got = await caller.at_end(most_s=0.5)
        caller.close()
        assert got.count(b"HTTP/1.1 ") == 1 and STILL_OPEN not in got
        assert not any(asked.header("x-smuggled") for asked in on.up.asked)


async def test_what_can_be_read_in_one_way_is_served(tmp_path: Path) -> None:
    """R36: the same checks must not refuse what the standard allows."""
    allowed = {
        "chunks": CHUNKED + CHUNKS,
        "an extension": CHUNKED + b"%x;name=value\r\n%b\r\n0\r\n\r\n" % (SIZE, BODY),
        "capitals": CHUNKED.replace(b"chunked", b"Chunked") + CHUNKS[:2].upper() + CHUNKS[2:],
        "zeros before the size": CHUNKED + b"000" + CHUNK + b"0000\r\n\r\n",
        "blanks around a value": sized(f"content-length: \t{SIZE}\t "),
        "an empty value": sized("x-a:", f"content-length: {SIZE}"),
        "Latin-1 in a value": sized("x-a: \xe9", f"content-length: {SIZE}"),
        "a trailer": CHUNKED + CHUNK + b"0\r\nx-trailer: y\r\n\r\n",
        "two requests": sized(f"content-length: {SIZE}") * 2,
    }  # fmt: skip
    async with stage(tmp_path, CHAT, speaking(CHAT)) as on:
        for name, sent in allowed.items():
            caller = await Caller.connect(on.port)
            await caller.send(sent)
            for _ in range(1 + (name == "two requests")):
                answer = await caller.whole()
                assert (answer.status, answer.body) == (200, CHAT.whole), name
            caller.close()
        assert all(asked.body == BODY for asked in on.up.asked)
