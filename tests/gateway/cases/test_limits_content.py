"""Limits inside a request: nesting, the model's name, the client's key; and of words we quote."""

import hashlib
from itertools import product
from pathlib import Path

import pytest
from structlog.testing import capture_logs

from gateway.settings.types import BackendKey, ClientKey, Secret
from proto.limits import API_KEY_BYTES, JSON_DEPTH, MODEL_NAME_CHARS, QUOTED_ERROR_CHARS
from tests.gateway.cases.pushing import FLAT_BYTES, push
from tests.gateway.cases.samples import CHAT, SAMPLES, Sample
from tests.gateway.cases.scripted import answering, speaking
from tests.gateway.cases.stage import call, error_code, request, stage

STEPS = (-1, 0, 1)


def nested(sample: Sample, levels: int) -> bytes:
    """A body whose deepest value stands so many levels deep; the body itself is the first."""
    inside = b'{"a":[' * (levels // 2) if levels % 2 else b'{"a":[' * (levels // 2 - 1) + b'{"a":'
    closing = bytes({ord("{"): ord("}"), ord("["): ord("]")}.get(c, 0) for c in reversed(inside))
    opened = inside if inside.endswith(b"[") else inside + b"1"
    deep = opened + closing.replace(b"\0", b"")
    body = sample.body(is_stream=False)[:-1] + b', "deep": ' + deep + b"}"
    assert max(_levels(body)) == levels
    return body


def _levels(body: bytes) -> list[int]:
    level, found = 0, []
    for char in body:
        level += (char in b"{[") - (char in b"}]")
        found.append(level)
    return found


@pytest.mark.parametrize("sample", SAMPLES, ids=str)
async def test_a_hundred_levels_and_no_more(tmp_path: Path, sample: Sample) -> None:
    """Section 4: JSON nesting of 100 levels, below, at and above; 400 in the surface's form."""
    async with stage(tmp_path, sample, speaking(sample)) as on:
        for step in STEPS:
            answer = await call(on.port, sample.path, nested(sample, JSON_DEPTH + step))
            assert answer.status == (400 if step > 0 else 200), step
        assert len(on.up.asked) == 2
    assert error_code(sample.surface, answer.body) and str(JSON_DEPTH).encode() in answer.body


@pytest.mark.parametrize("opener", [b"[", b'{"a":', b'[{"a":'], ids=["lists", "objects", "both"])
async def test_a_million_levels_cost_nothing(tmp_path: Path, opener: bytes) -> None:
    """Section 4: however deep, closed or not: 400, and memory stays flat."""
    body = CHAT.body(is_stream=False)[:-1] + b', "deep": ' + opener * 1_000_000
    async with stage(tmp_path, CHAT, speaking(CHAT)) as on:
        pushed = await push(on.port, request(CHAT.path, body, [("connection", "close")]))
        assert not on.up.asked
    assert (pushed.status, error_code("chat", pushed.body)) == (400, "invalid_json")
    assert pushed.grown_bytes < FLAT_BYTES + 8 * len(body)


@pytest.mark.parametrize("sample", SAMPLES, ids=str)
async def test_a_models_name_of_256_characters_and_no_more(tmp_path: Path, sample: Sample) -> None:
    """Section 4: counted in characters; 400 naming the field, in a path as in a body."""
    async with stage(tmp_path, sample, speaking(sample), prefix="m") as on:
        for letter, step in product(("a", "é", "東"), STEPS):
            name = "m" + letter * (MODEL_NAME_CHARS - 1 + step)
            escaped = "".join(f"%{byte:02X}" for byte in name.encode())
            target = sample.path.replace("/m:", f"/{escaped}:")
            body = sample.body(is_stream=False).replace(b'"m"', f'"{name}"'.encode())
            answer = await call(on.port, target, body)
            assert answer.status == (400 if step > 0 else 200), (letter, step)
        assert len(on.up.asked) == 6
    assert error_code(sample.surface, answer.body) == "invalid_request"
    assert b"model" in answer.body and str(MODEL_NAME_CHARS).encode() in answer.body


WAYS = ("authorization", "x-api-key", "api-key", "x-goog-api-key", "query")


@pytest.mark.parametrize("way", WAYS)
async def test_a_key_of_512_bytes_and_no_more(tmp_path: Path, way: str) -> None:
    """Section 4: a longer key is not looked up: 401, even if it would be right."""
    known = ["k" * (API_KEY_BYTES + step) for step in STEPS]
    keys = tuple(
        ClientKey(f"k{number}", sha256=hashlib.sha256(key.encode()).hexdigest())
        for number, key in enumerate(known)
    )
    sample = SAMPLES[WAYS.index(way) % len(SAMPLES)]
    async with stage(tmp_path, sample, speaking(sample), sections={"keys": keys}) as on:
        for step, key in zip(STEPS, known, strict=True):
            shown = {"authorization": f"Bearer {key}"}.get(way, key)
            target = f"{sample.path}?key={key}" if way == "query" else sample.path
            headers = [] if way == "query" else [(way, shown)]
            answer = await call(on.port, target, sample.body(is_stream=False), headers)
            assert answer.status == (401 if step > 0 else 200), step
            assert key.encode() not in answer.body
        assert len(on.up.asked) == 2
    assert error_code(sample.surface, answer.body) == "invalid_api_key"


@pytest.mark.parametrize("step", STEPS)
async def test_words_of_a_backend_are_quoted_up_to_240_characters(
    tmp_path: Path, step: int
) -> None:
    """Section 4 and 6.1: what a refused key's answer says is logged, cut and masked, not passed."""
    words = "w" * (QUOTED_ERROR_CHARS + step)
    key = BackendKey("main", Secret("env:B", "sk-of-the-backend"))
    script = answering(words.encode() + b" sk-of-the-backend", 401)
    with capture_logs() as lines:
        async with stage(tmp_path, CHAT, script, keys=(key,)) as on:
            answer = await on.ask()
            await on.row()
    logged = [line for line in lines if line["event"] == "backend.refused_credentials"]
    assert answer.status == 502 and b"www" not in answer.body
    assert "sk-of-the-backend" not in repr(lines)
    assert "w" * min(len(words), QUOTED_ERROR_CHARS) in repr(logged)
    assert "w" * (QUOTED_ERROR_CHARS + 1) not in repr(logged)
