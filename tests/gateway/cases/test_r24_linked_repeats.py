"""R24: a client's own retry without an idempotency key is a row of its own, linked by its body."""

import json
from pathlib import Path
from typing import Any

import pytest

from tests.gateway.cases.samples import SAMPLES, WITH_COMPLETIONS, Sample, dump
from tests.gateway.cases.scripted import speaking
from tests.gateway.cases.stage import call, stage


@pytest.mark.parametrize("sample", WITH_COMPLETIONS, ids=str)
async def test_a_repeat_is_booked_and_linked_by_its_body(tmp_path: Path, sample: Sample) -> None:
    """R24: the same body twice, then once more without streaming: three rows, one hash."""
    async with stage(tmp_path, sample, speaking(sample)) as on:
        rows = []
        for number, is_stream in enumerate((True, True, False)):
            answer = await on.ask(is_stream=is_stream)
            assert answer.status == 200
            rows.append(await on.row(number))
    assert len({row.request_id for row in rows}) == 3
    assert len({row.body_hash for row in rows}) == 1 and rows[0].body_hash
    assert [row.stream for row in rows] == [1, 1, 0]
    assert all(row.parent_request_id is None and row.billed for row in rows)


@pytest.mark.parametrize("sample", SAMPLES[:3], ids=str)
async def test_what_is_no_repeat_is_not_linked(tmp_path: Path, sample: Sample) -> None:
    """R24: order and blanks do not matter; any value does, and no text can be found again."""
    request = sample.request
    turned = json.dumps(dict(reversed(request.items())), ensure_ascii=False, indent=2)
    others: list[Any] = [{**request, "temperature": 0.5}, {**request, "model": "b/m"},
                         json.loads(dump(request).replace(b"Tokyo", b"Kyoto"))]  # fmt: skip
    async with stage(tmp_path, sample, speaking(sample)) as on:
        bodies = [dump(request), turned.encode(), *map(dump, others)]
        for body in bodies:
            assert (await call(on.port, sample.path, body)).status == 200
        hashes = [(await on.row(number)).body_hash for number in range(len(bodies))]
    # A nested value's own blanks are part of it, so only the top level is turned around.
    assert len(set(hashes[2:])) == len(others) and hashes[0] not in hashes[2:]
    assert all(len(found) == 16 for found in hashes)
