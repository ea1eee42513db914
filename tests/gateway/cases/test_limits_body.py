"""Limits of a body: `server.max_body_mb` as sent and as unpacked, and the ratio of both."""

import gzip
import json
import struct
import zlib
from pathlib import Path
from random import Random

import pytest

from proto.limits import DECOMPRESSION_RATIO
from tests.gateway.cases.pushing import FLAT_BYTES, MIB, push
from tests.gateway.cases.samples import CHAT, SAMPLES, Sample
from tests.gateway.cases.scripted import chunk, speaking
from tests.gateway.cases.stage import call, error_code, request, stage

ONE_MIB = {"server": {"max_body_mb": 1}}
STEPS = (-1, 0, 1)


def padded(sample: Sample, size_bytes: int) -> bytes:
    """The sample's body with blanks behind it."""
    body = sample.body(is_stream=False)
    return body + b" " * (size_bytes - len(body))


@pytest.mark.parametrize("framing", ["length", "chunks"])
@pytest.mark.parametrize("sample", SAMPLES, ids=str)
async def test_one_below_exactly_at_and_one_above(
    tmp_path: Path, sample: Sample, framing: str
) -> None:
    """Section 4: 413 in the surface's form beyond the limit, the connection closed, one row."""
    async with stage(tmp_path, sample, speaking(sample), sections=dict(ONE_MIB)) as on:
        for step in STEPS:
            body = padded(sample, MIB + step)
            head = f"POST {sample.path} HTTP/1.1\r\nhost: x\r\n"
            if framing == "length":
                sent = f"{head}content-length: {len(body)}\r\n\r\n".encode() + body
            else:
                sent = f"{head}transfer-encoding: chunked\r\n\r\n".encode()
                sent += chunk(body[:1000]) + chunk(body[1000:]) + b"0\r\n\r\n"
            if step <= 0:
                sent = sent.replace(b"host: x\r\n", b"host: x\r\nconnection: close\r\n", 1)
            pushed = await push(on.port, sent)
            assert pushed.status == (413 if step > 0 else 200), step
            assert pushed.is_closed
        row = await on.row(2)
        assert len(on.up.asked) == 2
    assert error_code(sample.surface, pushed.body)
    assert b"max_body_mb" in pushed.body
    assert (row.status, row.outcome, row.error_type) == (413, "refused", "request_too_large")


@pytest.mark.parametrize("reads", ["at once", "at last"])
@pytest.mark.parametrize("framing", ["length", "chunks"])
async def test_a_client_that_is_still_sending_reads_the_413(
    tmp_path: Path, framing: str, reads: str
) -> None:
    """Section 4: no reset takes the answer away, not even from a client that reads it at last."""
    async with stage(tmp_path, CHAT, speaking(CHAT), sections=dict(ONE_MIB)) as on:
        for _ in range(5):
            head = f"POST {CHAT.path} HTTP/1.1\r\nhost: x\r\n"
            if framing == "length":
                start, piece = f"{head}content-length: {4 * MIB}\r\n\r\n".encode(), b" " * 65_536
            else:
                start = f"{head}transfer-encoding: chunked\r\n\r\n".encode()
                piece = chunk(b" " * 65_536)
            pushed = await push(on.port, start, piece, 40, reads=reads)
            assert pushed.status == 413 and pushed.is_closed
            assert not pushed.was_torn or reads == "at once"  # some clients give up at a reset
            assert error_code("chat", pushed.body) == "request_too_large"
        assert not on.up.asked


async def test_memory_does_not_rise_with_how_far_above(tmp_path: Path) -> None:
    """Section 4: counted while reading; 256 MiB beyond the limit cost no more than one byte."""
    async with stage(tmp_path, CHAT, speaking(CHAT), sections=dict(ONE_MIB)) as on:
        start = f"POST {CHAT.path} HTTP/1.1\r\nhost: x\r\ntransfer-encoding: chunked\r\n\r\n"
        pushed = await push(on.port, start.encode(), chunk(b" " * MIB), 256)
        assert (await on.ask(is_stream=False)).status == 200
    assert pushed.status == 413 and pushed.is_closed
    assert pushed.grown_bytes < FLAT_BYTES


async def test_a_client_that_waits_to_be_told_is_told_no(tmp_path: Path) -> None:
    """Section 4: `Expect: 100-continue` with a length beyond the limit: 413 and no 100."""
    async with stage(tmp_path, CHAT, speaking(CHAT), sections=dict(ONE_MIB)) as on:
        head = f"POST {CHAT.path} HTTP/1.1\r\nhost: x\r\ncontent-length: {MIB + 1}\r\n"
        pushed = await push(on.port, f"{head}expect: 100-continue\r\n\r\n".encode())
    assert pushed.reply.startswith(b"HTTP/1.1 413") and pushed.is_closed


def packed_to(plain: bytes, size_bytes: int) -> bytes:
    """gzip of `plain` that has exactly this size: a comment in its head fills it up."""
    deflate = zlib.compressobj(9, zlib.DEFLATED, -zlib.MAX_WBITS)
    data = deflate.compress(plain) + deflate.flush()
    tail = struct.pack("<II", zlib.crc32(plain), len(plain))
    comment = size_bytes - 10 - len(data) - len(tail) - 1
    assert comment >= 0
    return b"\x1f\x8b\x08\x10\0\0\0\0\0\xff" + b"c" * comment + b"\0" + data + tail


@pytest.mark.parametrize("sample", SAMPLES, ids=str)
async def test_a_body_unpacks_to_a_hundred_times_its_size_and_no_more(
    tmp_path: Path, sample: Sample
) -> None:
    """Section 4: ratio 100 : 1, below, at and above; the packed bytes go up as they came."""
    packed_bytes = 3000
    async with stage(tmp_path, sample, speaking(sample)) as on:
        for step in STEPS:
            plain = padded(sample, packed_bytes * DECOMPRESSION_RATIO + step)
            packed = packed_to(plain, packed_bytes)
            assert gzip.decompress(packed) == plain
            answer = await call(on.port, sample.path, packed, [("content-encoding", "gzip")])
            assert answer.status == (413 if step > 0 else 200), step
            assert on.up.asked[-1].body == packed or step > 0
        assert len(on.up.asked) == 2
    assert error_code(sample.surface, answer.body) and b"100" in answer.body


@pytest.mark.parametrize("coding", ["gzip", "deflate"])
@pytest.mark.parametrize("step", STEPS)
async def test_the_same_limit_counts_after_unpacking(
    tmp_path: Path, coding: str, step: int
) -> None:
    """Section 4: a packed body below the limit whose content is at it, or beyond."""
    words = Random(1).choices([b"alpha ", b"beta ", b"gamma "], k=300_000)
    body = CHAT.body(is_stream=False)[:-1] + b', "pad": "' + b"".join(words)
    plain = body[: MIB + step - 2] + b'"}'
    assert len(plain) == MIB + step and json.loads(plain)
    packed = gzip.compress(plain) if coding == "gzip" else zlib.compress(plain)
    assert len(packed) * DECOMPRESSION_RATIO > len(plain)
    async with stage(tmp_path, CHAT, speaking(CHAT), sections=dict(ONE_MIB)) as on:
        answer = await call(on.port, CHAT.path, packed, [("content-encoding", coding)])
    assert answer.status == (413 if step > 0 else 200)


async def test_a_bomb_costs_no_memory(tmp_path: Path) -> None:
    """Section 4: 512 KiB that would be 512 MiB."""
    deflate = zlib.compressobj(9, zlib.DEFLATED, zlib.MAX_WBITS | 16)
    start = deflate.compress(b" " * MIB) + deflate.flush(zlib.Z_FULL_FLUSH)
    block = deflate.compress(b" " * MIB) + deflate.flush(zlib.Z_FULL_FLUSH)
    bomb = start + 511 * block  # after a full flush every block looks the same
    async with stage(tmp_path, CHAT, speaking(CHAT)) as on:
        sent = request(CHAT.path, bomb, [("content-encoding", "gzip"), ("connection", "close")])
        pushed = await push(on.port, sent)
        assert not on.up.asked
    assert pushed.status == 413
    assert pushed.grown_bytes < FLAT_BYTES + DECOMPRESSION_RATIO * len(bomb)
