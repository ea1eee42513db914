"""R9: label and bytes of a compressed answer agree, and it is booked like a plain one."""

import gzip
import zlib
from collections.abc import Callable
from pathlib import Path

import brotli
import pytest
import zstandard

from tests.gateway.cases.samples import SAMPLES, TEXT, TOKENS
from tests.gateway.cases.scripted import (
    JSON,
    LAST_CHUNK,
    SSE,
    Link,
    answering,
    chunk,
    head,
)
from tests.gateway.cases.stage import stage

Code = Callable[[bytes], bytes]
CODINGS: dict[str, tuple[Code, Code]] = {
    "gzip": (gzip.compress, gzip.decompress),
    "deflate": (zlib.compress, zlib.decompress),
    "br": (brotli.compress, brotli.decompress),
    "zstd": (
        zstandard.ZstdCompressor().compress,
        lambda packed: zstandard.ZstdDecompressor().decompressobj().decompress(packed),
    ),
}


@pytest.mark.parametrize("coding", CODINGS)
async def test_a_compressed_stream_is_passed_packed_and_read(tmp_path: Path, coding: str) -> None:
    """R9: a stream in gzip, deflate, br and zstd, in pieces of five bytes."""
    pack, unpack = CODINGS[coding]
    for sample in SAMPLES:
        packed = pack(sample.stream)

        async def script(link: Link, packed: bytes = packed) -> None:
            pieces = [chunk(packed[at : at + 5]) for at in range(0, len(packed), 5)]
            start = head(200, SSE, "transfer-encoding: chunked", f"content-encoding: {coding}")
            await link.send(start, *pieces, LAST_CHUNK)

        (folder := tmp_path / str(sample)).mkdir()
        async with stage(folder, sample, script) as on:
            answer = await on.ask()
            row = await on.row()
        assert (answer.header("content-encoding"), answer.body) == (coding, packed)
        assert sample.grammar.check(unpack(answer.body)).text == TEXT
        assert {name: getattr(row, name) for name in TOKENS} == TOKENS
        assert (row.outcome, row.usage_source) == ("succeeded", "backend")


@pytest.mark.parametrize("coding", [*CODINGS, "identity"])
async def test_a_compressed_whole_answer_keeps_its_label_and_length(
    tmp_path: Path, coding: str
) -> None:
    """R9: answers and error bodies; a label of plain bytes stays as it was, too."""
    sample = SAMPLES[list(CODINGS).index(coding) if coding in CODINGS else 0]
    pack, unpack = CODINGS.get(coding, (bytes, bytes))
    async with stage(tmp_path, sample, answering(b"")) as on:
        for number, status in enumerate((429, 500, 200)):
            packed = pack(sample.whole if status == 200 else b'{"error":{"message":"too many"}}')
            on.up.script = answering(packed, status, JSON, f"content-encoding: {coding}")
            answer = await on.ask(is_stream=False)
            row = await on.row(number)
            assert (answer.status, answer.header("content-encoding")) == (status, coding)
            assert answer.body == packed and answer.header("content-length") == str(len(packed))
            assert unpack(answer.body).startswith(b"{")
    assert {name: getattr(row, name) for name in TOKENS} == TOKENS
    assert row.usage_source == "backend"


async def test_bytes_that_are_not_what_their_label_says_pass_untouched(tmp_path: Path) -> None:
    """R9: plain bytes under a label, and labels nobody knows: the copy for the ledger gives up."""
    sample = SAMPLES[0]
    async with stage(tmp_path, sample, answering(b"")) as on:
        for number, coding in enumerate((*CODINGS, "exi", "gzip, br")):
            on.up.script = answering(sample.whole, 200, JSON, f"content-encoding: {coding}")
            answer = await on.ask(is_stream=False)
            row = await on.row(number)
            assert (answer.header("content-encoding"), answer.body) == (coding, sample.whole)
            assert (row.status, row.outcome) == (200, "succeeded"), coding
