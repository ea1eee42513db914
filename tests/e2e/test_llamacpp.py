"""A real second backend behind the gateway: llama.cpp's servers with the embedded model's file.

`make test-llamacpp` runs this; it is not in the gate because the server is built from source.
"""

import json
import re
import subprocess
import sys
import time
from collections.abc import Iterator
from typing import Any

import httpx
import pytest

from tests.e2e.llamacpp import BINARY, free_port, native_server, python_server, started
from tests.e2e.server import Server, serving
from tests.fakes.recorder import Recorder

pytestmark = pytest.mark.llamacpp

MASKED = re.compile(
    rb'("id": ?"[^"]*"|"created": ?\d+|"timings": ?\{[^}]*\}|"(?:prompt|predicted)_\w+": ?[\d.e-]+)'
)


@pytest.fixture(scope="module", params=["python", "native"] if BINARY else ["python"])
def backend(request: pytest.FixtureRequest) -> Iterator[tuple[str, int]]:
    port = free_port()
    is_python = request.param == "python"
    command = python_server(port) if is_python else native_server(port, "-c", "1024", "-np", "1")
    with started(command, port):
        yield request.param, port


@pytest.fixture(scope="module")
def recorder(backend: tuple[str, int]) -> Iterator[Recorder]:
    with Recorder(backend[1]) as between:
        yield between


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory, recorder: Recorder) -> Iterator[Server]:
    config = (
        "server: {state_dir: STATE_DIR}\nbackends:\n  llama:\n    kind: openai\n"
        f"    flavor: llamacpp\n    base_url: http://127.0.0.1:{recorder.port}/v1\n"
        "    models: [smol]\n    tokens_per_delta: one\n    tokenize: false\n"
        "routes:\n  tiny: {targets: [{backend: llama, model: smol}]}\n"
    )
    with serving(tmp_path_factory.mktemp("relay"), config) as running:
        yield running


def chat(text: str, **more: Any) -> tuple[str, dict[str, Any]]:
    body = {"model": "smol", "messages": [{"role": "user", "content": text}],
            "max_tokens": 16, "temperature": 0, "cache_prompt": False, **more}  # fmt: skip
    return "/v1/chat/completions", body


def completion(prompt: str, **more: Any) -> tuple[str, dict[str, Any]]:
    return "/v1/completions", {
        "model": "smol", "prompt": prompt, "max_tokens": 16, "temperature": 0,
        "cache_prompt": False, **more,
    }  # fmt: skip


USAGE = {"stream": True, "stream_options": {"include_usage": True}}
REQUESTS = [
    chat("What is the capital of France?"),
    chat("What is the capital of France?", **USAGE),
    chat("Wie heißt die Hauptstadt? 日本語 😀"),
    chat("Wie heißt die Hauptstadt? 日本語 😀", **USAGE),
    chat("Count to ten.", stop=["5"]),
    chat("Count to ten.", stop=["5"], **USAGE),
    chat("Say something.", temperature=0.8, seed=7, top_p=0.9),
    chat("Say something.", temperature=0.8, seed=7, top_p=0.9, **USAGE),
    chat("A list:", presence_penalty=0.5, frequency_penalty=0.5),
    chat("x " * 200, max_tokens=4),
    chat("Give me JSON.", response_format={"type": "json_object"}, max_tokens=24),
    chat("Give me JSON.", response_format={"type": "json_object"}, max_tokens=24, **USAGE),
    chat("hi", messages=[{"role": "system", "content": "Be brief."},
                         {"role": "user", "content": "hi"}, {"role": "assistant", "content": "yo"},
                         {"role": "user", "content": "again"}]),
    completion("The capital of France is"),
    completion("The capital of France is", **USAGE),
    completion("Once upon a time", seed=3, temperature=0.7),
    completion("Once upon a time", seed=3, temperature=0.7, **USAGE),
    completion("def add(a, b):", stop=["\n\n"]),
    completion("1, 2, 3,", max_tokens=1),
    completion("ünïcödé ✓", max_tokens=8, **USAGE),
]  # fmt: skip


def usage_of(body: bytes) -> dict[str, int] | None:
    """The last usage that the backend's own bytes state."""
    found = None
    for text in re.findall(rb"^data: (\{.*\})\r?$", body, flags=re.MULTILINE) or [body]:
        found = json.loads(text).get("usage") or found
    return found


def rows(server: Server) -> dict[str, dict[str, Any]]:
    file = server.state_dir.parent / "tandem.yaml"
    done = subprocess.run(
        [sys.executable, "-m", "gateway.cli", "ledger", "export", "--format", "jsonl",
         "--config", str(file)],
        capture_output=True, text=True, check=True,
    )  # fmt: skip
    found = [json.loads(line) for line in done.stdout.splitlines()]
    return {row["request_id"]: row for row in found}


def test_twenty_requests_come_down_byte_for_byte_and_are_booked(
    server: Server, recorder: Recorder, backend: tuple[str, int]
) -> None:
    assert len(REQUESTS) == 20
    kind, port = backend
    expected: dict[str, tuple[dict[str, int] | None, int]] = {}
    for path, body in REQUESTS:
        before = len(recorder.bodies)
        via = httpx.post(f"{server.base}{path}", json=body, timeout=120)
        assert via.status_code == 200, via.text
        until_s = time.monotonic() + 5
        while len(recorder.bodies) == before and time.monotonic() < until_s:
            time.sleep(0.01)
        assert via.content == recorder.bodies[-1], "not the bytes that the backend sent"
        direct = httpx.post(f"http://127.0.0.1:{port}{path}", json=body, timeout=120)
        assert MASKED.sub(b"-", via.content) == MASKED.sub(b"-", direct.content)
        deltas = len(re.findall(rb'"(?:content|text)": ?"[^"]', via.content))
        expected[via.headers["x-request-id"]] = (usage_of(recorder.bodies[-1]), deltas)
    until_s = time.monotonic() + 10
    while len(booked := rows(server)) < 20 and time.monotonic() < until_s:
        time.sleep(0.3)
    assert booked.keys() == expected.keys()
    stated = 0
    for request_id, (usage, deltas) in expected.items():
        row = booked[request_id]
        assert row["outcome"] == "succeeded", row
        if usage is None:  # the backend said nothing: counted deltas, and said to be an estimate
            assert row["usage_source"] == "estimated"
            assert row["completion_tokens"] == deltas
            continue
        stated += 1
        assert row["usage_source"] == "backend"
        assert row["prompt_tokens"] == usage["prompt_tokens"]
        assert row["completion_tokens"] == usage["completion_tokens"]
    print(f"\n{kind}: 20 bodies equal, 20 rows; {stated} with the backend's own usage")


def test_an_alias_and_the_backends_errors_pass(server: Server, backend: tuple[str, int]) -> None:
    path, body = chat("hi", model="tiny")
    answer = httpx.post(f"{server.base}{path}", json=body, timeout=60)
    assert answer.status_code == 200
    path, body = chat("hi", temperature="warm")
    via = httpx.post(f"{server.base}{path}", json=body, timeout=60)
    direct = httpx.post(f"http://127.0.0.1:{backend[1]}{path}", json=body, timeout=60)
    assert (via.status_code, via.content) == (direct.status_code, direct.content)
    assert via.status_code >= 400
