"""The embedded model through gateway, ZeroMQ and worker, as its users meet it: real processes."""

import importlib.util
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import openai
import pytest

from gateway.embedded_model import model_path
from gateway.settings.types import Settings
from tests.e2e.processes import ask_each, is_alive, metric, shown, until
from tests.e2e.server import Server, serving

pytestmark = [pytest.mark.worker, pytest.mark.model]
if importlib.util.find_spec("torch") is None:
    pytest.skip("the worker extra is not installed", allow_module_level=True)

MODEL = Path(os.environ.get("TANDEM_TEST_MODEL") or model_path(Settings().state_dir, "smollm2"))
QUESTION = [{"role": "user", "content": "What is the capital of France?"}]
LONG = [{"role": "user", "content": "Write a very long story about a ship at sea."}]


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    if not MODEL.is_file():
        pytest.skip(f"no model at {MODEL}: run `tandem fetch-model`")
    config = f"server: {{state_dir: STATE_DIR}}\nworker: {{model: '{MODEL}'}}\n"
    with serving(tmp_path_factory.mktemp("engine"), config) as running:
        yield running


@pytest.fixture
def client(server: Server) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(base_url=f"{server.base}/v1", api_key="none", max_retries=0) as sdk:
        yield sdk


def ask(base: str, **fields: Any) -> dict[str, Any]:
    body = {"model": "TandemLLM", "messages": QUESTION, "temperature": 0, **fields}
    answer = httpx.post(f"{base}/v1/chat/completions", json=body, timeout=60)
    assert answer.status_code == 200, answer.text
    result: dict[str, Any] = answer.json()
    return result


def test_curl_gets_a_sensible_answer_whole_and_streamed(server: Server) -> None:
    for stream in (False, True):
        body = {"model": "TandemLLM", "messages": QUESTION, "temperature": 0, "stream": stream}
        done = subprocess.run(
            ["curl", "-sS", f"{server.base}/v1/chat/completions", "-d", json.dumps(body)],
            capture_output=True, text=True, check=True,
        )  # fmt: skip
        if stream:
            records = [line[6:] for line in done.stdout.splitlines() if line.startswith("data: ")]
            assert records.pop() == "[DONE]"
            choices = [choice for record in records for choice in json.loads(record)["choices"]]
            text = "".join(choice["delta"].get("content", "") for choice in choices)
        else:
            text = json.loads(done.stdout)["choices"][0]["message"]["content"]
        assert "Paris" in text


def test_openai_sdk_whole(client: openai.OpenAI) -> None:
    answer = client.chat.completions.create(
        model="TandemLLM", messages=QUESTION, temperature=0  # type: ignore[arg-type]
    )  # fmt: skip
    assert "Paris" in (answer.choices[0].message.content or "")
    assert answer.choices[0].finish_reason == "stop"
    assert answer.usage is not None
    assert answer.usage.total_tokens == answer.usage.prompt_tokens + answer.usage.completion_tokens


def test_openai_sdk_streamed_equals_whole(client: openai.OpenAI, server: Server) -> None:
    whole = ask(server.base)
    pieces, usages = [], []
    for chunk in client.chat.completions.create(
        model="TandemLLM", messages=QUESTION, temperature=0, stream=True,  # type: ignore[arg-type]
        stream_options={"include_usage": True},
    ):  # fmt: skip
        pieces += [choice.delta.content or "" for choice in chunk.choices]
        usages += [chunk.usage] if chunk.usage else []
    assert "".join(pieces) == whole["choices"][0]["message"]["content"]
    assert len(usages) == 1
    assert usages[0].completion_tokens == whole["usage"]["completion_tokens"]


def test_a_raw_completion_goes_on_where_the_prompt_ends(client: openai.OpenAI) -> None:
    fields: dict[str, Any] = {
        "model": "TandemLLM", "prompt": "The capital of France is", "temperature": 0,
        "max_tokens": 4,
    }  # fmt: skip
    whole = client.completions.create(**fields).choices[0].text
    assert whole.startswith(" Paris")
    assert (
        "".join(c.choices[0].text for c in client.completions.create(**fields, stream=True))
        == whole
    )


def test_models_are_listed_and_served(client: openai.OpenAI) -> None:
    assert [model.id for model in client.models.list()] == ["TandemLLM"]
    assert client.models.retrieve("TandemLLM").owned_by == "tandem"


def test_a_seed_repeats_the_answer(server: Server) -> None:
    one, two, other = (
        ask(server.base, temperature=1, seed=seed, max_tokens=24, messages=LONG)["choices"]
        for seed in (1, 1, 2)
    )
    assert one == two != other


def test_stop_strings_and_limits_end_the_answer(server: Server) -> None:
    choice = ask(server.base, stop=[" Paris"])["choices"][0]
    assert choice["message"]["content"] == "The capital of France is"
    assert choice["finish_reason"] == "stop"
    cut = ask(server.base, max_tokens=3)
    assert cut["choices"][0]["finish_reason"] == "length"
    assert cut["usage"]["completion_tokens"] == 3


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"temperature": 3}, "temperature"),
        ({"tools": [{"type": "function"}]}, "tools[0]"),
        ({"messages": [{"role": "user", "content": [
            {"type": "image_url", "image_url": {"url": "data:image/png;base64,AA"}}]}]},
         "messages"),
    ],
)  # fmt: skip
def test_what_cannot_be_served_is_a_400_that_names_the_field(
    server: Server, fields: dict[str, Any], param: str
) -> None:
    body = {"model": "TandemLLM", "messages": QUESTION, **fields}
    answer = httpx.post(f"{server.base}/v1/chat/completions", json=body)
    assert answer.status_code == 400
    assert answer.json()["error"]["param"] == param


def test_a_prompt_longer_than_the_window_is_told_with_both_numbers(server: Server) -> None:
    body = {"model": "TandemLLM", "messages": [{"role": "user", "content": "word " * 9000}]}
    answer = httpx.post(f"{server.base}/v1/chat/completions", json=body, timeout=60)
    assert (answer.status_code, answer.json()["error"]["code"]) == (400, "context_length_exceeded")
    assert "8192" in answer.json()["error"]["message"].replace(",", "")


def rows(server: Server, *options: str) -> list[dict[str, Any]]:
    file = server.state_dir.parent / "tandem.yaml"
    done = subprocess.run(
        [sys.executable, "-m", "gateway.cli", "ledger", "export", "--format", "jsonl",
         "--config", str(file), *options],
        capture_output=True, text=True,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return [json.loads(line) for line in done.stdout.splitlines()]


def test_a_client_that_leaves_stops_the_engine_within_a_second(server: Server) -> None:
    body = {"model": "TandemLLM", "messages": LONG, "temperature": 0, "stream": True,
            "max_tokens": 2000}  # fmt: skip
    with httpx.stream(
        "POST", f"{server.base}/v1/chat/completions", json=body, timeout=60
    ) as answer:
        request_id = answer.headers["x-request-id"]
        next(answer.iter_lines())
    left_s = time.monotonic()
    while not [line for line in server.said("run.finished") if '"finish": "cancelled"' in line]:
        assert time.monotonic() - left_s < 2, server.lines[-3:]
        time.sleep(0.02)
    while not (found := [row for row in rows(server) if row["request_id"] == request_id]):
        time.sleep(0.2)
    assert (found[0]["outcome"], found[0]["error_type"]) == ("aborted", "client_left")
    assert found[0]["completion_tokens"] < 2000


def test_every_request_has_one_row_with_the_engines_counts(server: Server) -> None:
    answer = httpx.post(
        f"{server.base}/v1/chat/completions",
        json={"model": "TandemLLM", "messages": QUESTION, "temperature": 0},
        timeout=60,
    )
    usage = answer.json()["usage"]
    while not (
        found := [r for r in rows(server) if r["request_id"] == answer.headers["x-request-id"]]
        ) or found[0]["outcome"] is None:  # fmt: skip
        time.sleep(0.2)
    row = found[0]
    assert row["prompt_tokens"] == row["upstream_input_tokens"] == usage["prompt_tokens"]
    assert row["completion_tokens"] == usage["completion_tokens"]
    assert row["ttft_ms"] == row["queue_ms"] + row["prompt_ms"]
    assert (row["path"], row["backend"], row["usage_source"]) == ("managed", "worker", "backend")
    assert (row["outcome"], row["finish_reason"]) == ("succeeded", "stop")
    until(lambda: metric(server, 'tandem_worker_requests_total{finish="stop"'), "its next beat")
    assert metric(server, "tandem_worker_cache_misses_total") >= 1  # the first prompt of all
    assert metric(server, "tandem_worker_ttft_ms_count") >= 1


def worker_pid(server: Server) -> int:
    line = json.loads(server.said("worker.spawned")[-1])
    return int(line["pid"])


def test_killing_the_worker_mid_stream_is_told_and_survived(server: Server) -> None:
    body = {"model": "TandemLLM", "messages": LONG, "temperature": 0, "stream": True,
            "max_tokens": 2000}  # fmt: skip
    before = worker_pid(server)
    records = []
    with httpx.stream(
        "POST", f"{server.base}/v1/chat/completions", json=body, timeout=60
    ) as answer:
        for line in answer.iter_lines():
            records += [line[6:]] if line.startswith("data: ") else []
            if len(records) == 3:
                os.kill(before, signal.SIGKILL)
    assert records[-1] == "[DONE]"
    error = json.loads(records[-2])["error"]
    assert (error["type"], error["code"]) == ("stream_error", "engine_unavailable")
    whole = httpx.post(
        f"{server.base}/v1/chat/completions", json={"model": "TandemLLM", "messages": QUESTION}
    )
    assert (whole.status_code, whole.json()["error"]["code"]) == (503, "engine_unavailable")
    assert "retry-after" in whole.headers
    server.wait_until(True)
    assert worker_pid(server) != before
    assert "Paris" in ask(server.base)["choices"][0]["message"]["content"]


def test_sigterm_lets_the_running_answer_finish(tmp_path: Path) -> None:
    if not MODEL.is_file():
        pytest.skip(f"no model at {MODEL}: run `tandem fetch-model`")
    config = f"server: {{state_dir: STATE_DIR}}\nworker: {{model: '{MODEL}'}}\n"
    body = {"model": "TandemLLM", "messages": LONG, "temperature": 0, "stream": True,
            "max_tokens": 60}  # fmt: skip
    with serving(tmp_path, config) as server:
        url = f"{server.base}/v1/chat/completions"
        with httpx.stream("POST", url, json=body, timeout=60) as answer:
            lines = answer.iter_lines()
            next(lines)
            server.process.send_signal(signal.SIGTERM)
            while httpx.get(f"{server.base}/health").status_code != 503:
                time.sleep(0.02)
            refused = httpx.post(url, json=body)
            rest = list(lines)
        assert (refused.status_code, refused.json()["error"]["code"]) == (503, "draining")
        assert "data: [DONE]" in rest and any('"finish_reason":"length"' in line for line in rest)
        assert server.process.wait(30) == 0
        outcomes = [row["outcome"] for row in rows(server) if row["kind"] == "generation"]
        assert outcomes.count("succeeded") == 1


def test_several_processes_share_one_worker_and_hear_at_once_when_it_dies(tmp_path: Path) -> None:
    """A stream of either process ends with an error, without waiting for the lease to run out."""
    if not MODEL.is_file():
        pytest.skip(f"no model at {MODEL}: run `tandem fetch-model`")
    worker = f"{{model: '{MODEL}', conductor: false}}"  # no questions among what it counts
    config = f"server: {{state_dir: STATE_DIR, workers: 2}}\nworker: {worker}\n"
    body = {"model": "TandemLLM", "messages": LONG, "stream": True, "max_tokens": 2000}
    with serving(tmp_path, config) as server:
        assert len(server.said("worker.spawned")) == 1
        with httpx.stream(
            "POST", f"{server.base}/v1/chat/completions", json=body, timeout=60
        ) as answer:
            lines = answer.iter_lines()
            next(lines)
            os.kill(worker_pid(server), signal.SIGKILL)
            assert "engine_unavailable" in "".join(lines)
        until(lambda: len(server.said("lease.taken")) == 4, "both know the next worker")
        asked = ask_each(
            server, {"model": "TandemLLM", "messages": QUESTION, "temperature": 0, "max_tokens": 4}
        )
        pid = worker_pid(server)
        until(
            lambda: shown(server, "tandem_worker_requests_total") == {float(len(asked))},
            "the worker's own count, whichever process is asked",
        )
        assert server.stop() == 0
        assert not is_alive(pid)
        assert asked <= {row["request_id"] for row in rows(server)}
    losses = [json.loads(line) for line in server.said("lease.lost")]
    assert {line["process"] for line in losses[:2]} == {1, 2}
    assert {line["reason"] for line in losses[:2]} == {"the worker was ended by SIGKILL"}


def test_a_missing_model_is_one_sentence(tmp_path: Path) -> None:
    file = tmp_path / "tandem.yaml"
    file.write_text(f"server: {{state_dir: {tmp_path / 'state'}}}\nworker: {{}}\n")
    done = subprocess.run(
        [sys.executable, "-m", "gateway.cli", "serve", "--config", str(file), "--port", "0"],
        capture_output=True, text=True,
    )  # fmt: skip
    assert done.returncode == 1
    assert "run 'tandem fetch-model smollm2'" in done.stderr
    assert len(done.stderr.splitlines()) == 1
    shutil.rmtree(tmp_path / "state", ignore_errors=True)
