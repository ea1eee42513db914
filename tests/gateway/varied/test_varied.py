"""Many requests, no two alike, each sent twice: straight to a backend, and through the gateway.

Status and body bytes must be the same both ways, every documented rule about headers must hold, and
the ledger must have booked what the backend reported. TANDEM_VARIED_SEED draws other requests.
"""

import os
from functools import cache
from pathlib import Path
from random import Random

import pytest

from tests.gateway.harness import running_gateway
from tests.gateway.varied.backend import ScriptedBackend
from tests.gateway.varied.cases import CODINGS, FRAMINGS, Case, Cases
from tests.gateway.varied.framing import REPLY_FRAMINGS
from tests.gateway.varied.headers import ANSWERED, CREDENTIALS, SENT
from tests.gateway.varied.large import LARGE, large_case
from tests.gateway.varied.replies import kinds_for
from tests.gateway.varied.twice import check_books, report, send_all
from tests.gateway.varied.ways import SURFACES, settings

SEED = int(os.environ.get("TANDEM_VARIED_SEED", "20260611"))
CALLS, CALL_GROUPS = 432, 12  # with the others below: 500 requests
FILES, FILE_GROUPS = 64, 2


@cache
def dealt() -> tuple[list[Case], list[Case]]:
    """Calls of models, and calls for files: the same ones for every test of this run."""
    dealer = Cases(Random(SEED))
    calls = [dealer.deal() for _ in range(CALLS)]
    return calls, [dealer.deal_file() for _ in range(FILES)]


@pytest.mark.parametrize("group", range(CALL_GROUPS))
async def test_a_call_is_the_same_with_and_without_the_gateway(tmp_path: Path, group: int) -> None:
    """Every surface, odd bodies and headers, every framing, every kind of answer."""
    async with (
        ScriptedBackend() as backend,
        running_gateway(tmp_path, **settings(backend.url)) as gateway,
    ):
        cases = dealt()[0][group::CALL_GROUPS]
        outcomes = await send_all(cases, backend, gateway.port)
        await check_books(outcomes, gateway)
    assert not backend.faults
    assert not (differing := report(SEED, outcomes)), differing


@pytest.mark.parametrize("group", range(FILE_GROUPS))
async def test_files_and_batches_are_the_same_with_and_without_the_gateway(
    tmp_path: Path, group: int
) -> None:
    """GET, HEAD, OPTIONS, DELETE and POST without a model, to the backend that is the default."""
    async with (
        ScriptedBackend() as backend,
        running_gateway(tmp_path, **settings(backend.url, has_default=True)) as gateway,
    ):
        outcomes = await send_all(dealt()[1][group::FILE_GROUPS], backend, gateway.port)
    assert not backend.faults
    assert not (differing := report(SEED, outcomes)), differing


@pytest.mark.parametrize("form", LARGE)
async def test_a_body_of_64_mib_is_the_same_with_and_without_the_gateway(
    tmp_path: Path, form: str
) -> None:
    """The largest body that is allowed, up and down, alone on the machine."""
    async with (
        ScriptedBackend() as backend,
        running_gateway(tmp_path, **settings(backend.url)) as gateway,
    ):
        outcomes = await send_all([large_case(form)], backend, gateway.port)
    assert not (differing := report(SEED, outcomes)), differing


def test_no_kind_of_thing_is_left_to_luck() -> None:
    """Every framing, coding, header and reply that can be dealt is among the requests."""
    calls, files = dealt()
    titles = [f", {case.title.replace(' → ', ', ')}, ".replace(" after ", ", ") for case in calls]
    kinds = {kind for surface in SURFACES for kind in kinds_for(surface)}
    dealt_kinds = {*kinds, *FRAMINGS, *SENT, *ANSWERED, *REPLY_FRAMINGS, *SURFACES}
    dealt_kinds |= {f"coding {coding}" for coding in CODINGS} | {
        f"key: {key}" for key in CREDENTIALS
    }
    assert not [kind for kind in dealt_kinds if not any(f", {kind}, " in title for title in titles)]
    assert {case.request.method for case in files} == {
        b"GET",
        b"HEAD",
        b"OPTIONS",
        b"DELETE",
        b"POST",
    }
    assert len(calls) + len(files) + len(LARGE) == 500
