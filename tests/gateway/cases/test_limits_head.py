"""Limits of a request's head: its first line 414, its block and number of fields 431."""

from pathlib import Path

import pytest

from proto.limits import HEADER_BLOCK_BYTES, HEADER_COUNT, REQUEST_LINE_BYTES
from tests.gateway.cases.pushing import FLAT_BYTES, push
from tests.gateway.cases.samples import CHAT, SAMPLES, Sample
from tests.gateway.cases.scripted import speaking
from tests.gateway.cases.stage import error_code, request, stage

Fields = list[tuple[str, str]]
STEPS = (-1, 0, 1)
PIECE = b"a" * 64 * 1024


def head(sample: Sample, fields: Fields, target: str = "") -> bytes:
    """A whole request with these fields and no others; it asks for a close."""
    body = sample.body(is_stream=False)
    lines = [f"POST {target or sample.path} HTTP/1.1", f"content-length: {len(body)}",
             "connection: close", *(f"{name}: {value}" for name, value in fields)]  # fmt: skip
    return "\r\n".join(lines).encode() + b"\r\n\r\n" + body


def with_line(sample: Sample, size_bytes: int) -> bytes:
    """A request whose first line, without its end, has this size."""
    rest = len(f"POST {sample.path}?x= HTTP/1.1")
    return head(sample, [("host", "x")], f"{sample.path}?x={'a' * (size_bytes - rest)}")


def with_block(sample: Sample, size_bytes: int) -> bytes:
    """A request whose fields, each with the end of its line, have this size together."""
    block = head(sample, [("host", "x"), ("x-pad", "")]).partition(b"\r\n\r\n")[0]
    rest = len(block.partition(b"\r\n")[2]) + 2
    return head(sample, [("host", "x"), ("x-pad", "a" * (size_bytes - rest))])


def with_fields(sample: Sample, count: int) -> bytes:
    """A request with so many fields."""
    return head(sample, [("host", "x"), *((f"x-{number}", "") for number in range(count - 3))])


LIMITS = {
    "request line": (with_line, REQUEST_LINE_BYTES, 414),
    "header block": (with_block, HEADER_BLOCK_BYTES, 431),
    "header fields": (with_fields, HEADER_COUNT, 431),
}


@pytest.mark.parametrize("limit", LIMITS)
async def test_one_below_exactly_at_and_one_above(tmp_path: Path, limit: str) -> None:
    """Section 4: served up to the limit; beyond it refused in the surface's form, and closed."""
    make, most, status = LIMITS[limit]
    for sample in SAMPLES:
        (folder := tmp_path / str(sample)).mkdir()
        async with stage(folder, sample, speaking(sample)) as on:
            for step in STEPS:
                pushed = await push(on.port, make(sample, most + step))
                assert pushed.status == (status if step > 0 else 200), step
                assert pushed.is_closed
            assert len(on.up.asked) == 2
        assert error_code(sample.surface, pushed.body)
        assert str(most).encode() in pushed.body or b"KiB" in pushed.body  # it names the limit


@pytest.mark.parametrize("kept", [False, True], ids=["first request", "second request"])
@pytest.mark.parametrize(
    ("start", "piece", "status"),
    [
        (b"POST /v1/messages?x=", PIECE, 414),
        (b"POST /v1/messages HTTP/1.1\r\nhost: x\r\nx-pad: ", PIECE, 431),
        (b"POST /v1/messages HTTP/1.1\r\nhost: x\r\nx-", PIECE, 431),
        (b"POST /v1/messages HTTP/1.1\r\nhost: x\r\n", b"x: y\r\n" * 10_000, 431),
        (b"POST /v1/messages HTTP/1.1\r\nhost: x\r\n", b"x:\r\n" * 16_000, 431),
    ],
    ids=["line", "value", "name", "fields", "empty fields"],
)
async def test_memory_does_not_rise_with_how_far_above(
    tmp_path: Path, start: bytes, piece: bytes, status: int, kept: bool
) -> None:
    """Section 4: a head that never ends is refused at the limit, and costs no more than that."""
    async with stage(tmp_path, CHAT, speaking(CHAT)) as on:
        good = request(*on.message(is_stream=False)) if kept else b""
        pushed = await push(on.port, good + start, piece, 512)
        assert (await on.ask(is_stream=False)).status == 200
    last = pushed.reply[pushed.reply.rindex(b"HTTP/1.1 ") :] if pushed.reply else b""
    assert last.startswith(b"HTTP/1.1 %d " % status)
    assert pushed.is_closed and pushed.grown_bytes < FLAT_BYTES
    assert error_code("messages", last.partition(b"\r\n\r\n")[2])
