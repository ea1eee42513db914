"""R7: every legal way to write an event-stream record is read, and none is rewritten."""

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.gateway.cases.samples import CHAT, GEMINI, TEXT, TOKENS, WITH_COMPLETIONS, Sample
from tests.gateway.cases.scripted import SSE, Lockstep, chunk, streaming
from tests.gateway.cases.stage import stage


def over_three_lines(event: bytes) -> bytes:
    """The record's JSON pretty-printed, one `data:` line for each of its lines."""
    name, _, body = event.rstrip(b"\n").rpartition(b"data: ")
    if body == b"[DONE]":
        return event
    lines = json.dumps(json.loads(body), ensure_ascii=False, indent=1).encode().splitlines()
    lines = [lines[0], b" ".join(lines[1:-1]), lines[-1]]
    return name + b"".join(b"data: " + line + b"\n" for line in lines) + b"\n"


WAYS: dict[str, Callable[[bytes], bytes]] = {
    "three data lines": over_three_lines,
    "CR": lambda event: event.replace(b"\n", b"\r"),
    "CRLF": lambda event: event.replace(b"\n", b"\r\n"),
    "no blank after the colon": lambda event: event.replace(b": ", b":", 2),
    "ids and retry": lambda event: b"id: 7\nretry: 9\n" + event,
    "blank lines between": lambda event: b"\n\n" + event + b"\n",
}
BOM = b"\xef\xbb\xbf"
UNCLOSED = "the last record unclosed"


@pytest.mark.parametrize("sample", WITH_COMPLETIONS, ids=str)
async def test_records_are_read_however_they_are_written(tmp_path: Path, sample: Sample) -> None:
    """R7: several data lines, CR and CRLF, no blank after the colon, a byte order mark."""
    streams = {way: b"".join(map(write, sample.events)) for way, write in WAYS.items()}
    streams["byte order mark"] = BOM + sample.stream
    streams[UNCLOSED] = sample.stream.removesuffix(b"\n\n")
    async with stage(tmp_path, sample, streaming()) as on:
        for number, (way, stream) in enumerate(streams.items()):
            on.up.script = streaming(stream)
            answer = await on.ask()
            row = await on.row(number)
            assert answer.body == stream and answer.is_whole, way
            if way != UNCLOSED:  # which the gateway must not close either
                assert sample.grammar.check(answer.body).text == TEXT, way
            assert {name: getattr(row, name) for name in TOKENS} == TOKENS, way
            assert (row.outcome, row.usage_source) == ("succeeded", "backend"), way


@pytest.mark.parametrize("sample", WITH_COMPLETIONS, ids=str)
async def test_a_line_end_cut_in_two_is_one_line_end(tmp_path: Path, sample: Sample) -> None:
    """R7: CRLF ends, every CR and LF in a piece of its own, inside records too."""
    stream = b"".join(map(over_three_lines, sample.events)).replace(b"\n", b"\r\n")
    pieces = stream.replace(b"\r", b"\r|").replace(b"\n", b"\n|").rstrip(b"|").split(b"|")
    lockstep = Lockstep(SSE)
    async with stage(tmp_path, sample, lockstep.script) as on, on.caller() as caller:
        link = await lockstep.link()
        await caller.head()
        got = b""
        for piece in pieces:
            await link.send(chunk(piece))
            got += await caller.piece()
        await link.send(b"0\r\n\r\n")
        row = await on.row()
    assert got == stream
    assert (row.completion_tokens, row.outcome) == (13, "succeeded")


@pytest.mark.parametrize("sample", [CHAT, GEMINI], ids=str)
async def test_a_byte_order_mark_does_not_hide_the_first_event(
    tmp_path: Path, sample: Sample
) -> None:
    """R7: the mark stands before the only record with the usage, whole and cut in pieces."""
    at = 8 if sample is CHAT else 4
    events = (sample.events[at], *sample.events[:at], *sample.events[at + 1 :])
    if sample is GEMINI:
        events = events[:1]
    stream = BOM + b"".join(events)
    async with stage(tmp_path, sample, streaming(stream)) as on:
        for number, cut in enumerate((0, 1, 2, 3, 4)):
            on.up.script = streaming(*filter(None, (stream[:cut], stream[cut:])))
            assert (await on.ask()).body == stream
            row = await on.row(number)
            assert {name: getattr(row, name) for name in TOKENS} == TOKENS, cut
