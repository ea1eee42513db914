"""R32: a backend that dies after its 200 never looks like a finished answer."""

import asyncio
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.gateway.cases.samples import GEMINI, WITH_COMPLETIONS, Sample
from tests.gateway.cases.scripted import CHUNKED_SSE, JSON, SSE, Link, chunk, head
from tests.gateway.cases.stage import Answer, failure, stage

ENDS: dict[str, tuple[bytes, Callable[[bytes], bytes], Callable[[Link], None]]] = {
    "chunks, closed": (CHUNKED_SSE, chunk, Link.close),
    "chunks, reset": (CHUNKED_SSE, chunk, Link.reset),
    "a length, closed": (head(200, SSE, "content-length: 999999"), bytes, Link.close),
    "no length, closed": (head(200, SSE, "connection: close"), bytes, Link.close),
}


def cuts(sample: Sample) -> Iterator[int]:
    """Before each event; in the name of its field, its data, its line's end, its blank line."""
    at = 0
    for event in sample.events:
        data = event.index(b"data:")
        yield from (at + place for place in sorted({
            0, 3, data + 3, data + 6, data + (len(event) - data) // 2,
            len(event) - 3, len(event) - 2, len(event) - 1,
        }))  # fmt: skip
        at += len(event)


@pytest.mark.parametrize("end", ENDS)
@pytest.mark.parametrize("sample", WITH_COMPLETIONS, ids=str)
async def test_a_cut_anywhere_ends_in_an_error_and_a_failed_row(
    tmp_path: Path, sample: Sample, end: str
) -> None:
    """R32: every event boundary and inside the lines; each way a connection can end."""
    start, framed, die = ENDS[end]
    places = list(cuts(sample))
    links = asyncio.Queue[Link]()

    async def script(link: Link) -> None:
        await link.send(start)
        links.put_nowait(link)
        await link.stay()

    wrong = {}
    async with stage(tmp_path, sample, script) as on:
        for number, at in enumerate(places):
            said = sample.stream[:at]
            async with on.caller() as caller:
                link = await links.get()
                await link.send(*([framed(said)] if said else []))
                heard = await caller.body(at)
                die(link)
                answer = await caller.whole()
                answer.body = heard + answer.body
                row = await on.row(number)
            try:
                _judge(sample, said, answer, row.outcome)
            except Exception as fault:  # noqa: BLE001 - every cut is looked at
                wrong[at, said[-30:]] = f"{fault!r:.300}"
    assert not wrong


def _judge(sample: Sample, said: bytes, answer: Answer, outcome: str) -> None:
    is_between = said.endswith(b"\n\n")
    if sample.grammar.read(said if is_between else said + b"\n\n").ending == "finished":
        # Everything but marks and counts was said: an error behind it would be a second end.
        assert answer.body in (said, said + b"\n\n"), answer.body[len(said) :]
        assert outcome == "succeeded"
        return
    assert answer.body.startswith(said)
    failure(sample, answer)
    assert outcome == "failed"


@pytest.mark.parametrize("framing", ["transfer-encoding: chunked", "content-length: 9999"])
async def test_a_list_that_grows_is_cut_and_never_ended_cleanly(
    tmp_path: Path, framing: str
) -> None:
    """R32: Gemini without `alt=sse` is one JSON list, in which relay can say no error."""
    sample = GEMINI
    heard_it = asyncio.Event()
    said = b"[" + sample.events[0].removeprefix(b"data: ").strip()

    async def script(link: Link) -> None:
        piece = chunk(said) if "chunked" in framing else said
        await link.send(head(200, JSON, framing), piece)
        await link.wait(heard_it)
        link.close()
        await link.stay()

    async with stage(tmp_path, sample, script) as on, on.caller(is_stream=False) as caller:
        heard = await caller.body(len(said))
        heard_it.set()
        answer = await caller.whole()
        row = await on.row()
    assert (heard, answer.body, answer.is_whole) == (said, b"", False)
    assert row.outcome == "failed"
