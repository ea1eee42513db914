"""R16: a call that is not streamed is cancelled like any other when its client goes."""

import asyncio
from itertools import product
from pathlib import Path

import pytest

from tests.gateway.cases.samples import WITH_COMPLETIONS, Sample
from tests.gateway.cases.scripted import JSON, Link, chunk, head
from tests.gateway.cases.stage import Caller, stage

PHASES = {
    "before headers": (),
    "behind headers": (head(200, JSON, "transfer-encoding: chunked"),),
    "in the body": (head(200, JSON, "transfer-encoding: chunked"), chunk(b'{"id":')),
}


@pytest.mark.parametrize("sample", WITH_COMPLETIONS, ids=str)
async def test_the_backend_is_let_go_within_a_second(tmp_path: Path, sample: Sample) -> None:
    """R16: the client closes or resets while the backend thinks, or has begun to answer."""
    started = asyncio.Queue[Link]()

    async def script(link: Link) -> None:
        await link.send(*PHASES[phase])
        started.put_nowait(link)
        await link.stay()

    async with stage(tmp_path, sample, script) as on:
        for number, (phase, leave) in enumerate(product(PHASES, (Caller.close, Caller.reset))):
            async with on.caller(is_stream=False) as caller:
                link = await started.get()
                leave(caller)
                async with asyncio.timeout(1):
                    await link.gone.wait()
                row = await on.row(number)
            assert (row.outcome, row.error_type, row.stream) == ("aborted", "client_left", 0), phase
        assert len(on.up.links) == 6
