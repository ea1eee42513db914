"""Embeddings of a tiny model by OpenAI's SDK, through gateway, ZeroMQ and worker as processes."""

import importlib.util
import json
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import openai
import pytest

from tests.e2e.server import Server, serving

pytestmark = pytest.mark.worker
if not all(importlib.util.find_spec(name) for name in ("torch", "transformers", "gguf")):
    pytest.skip("the worker and test-worker extras are not installed", allow_module_level=True)

TEXTS = ["The quick brown fox jumps over the lazy dog.", "Größe, 你好", "x " * 150]
CONFIG = (
    "server: {state_dir: STATE_DIR}\n"
    "worker: {model: 'MODEL', weights: fp32, threads: 1, prefill: {chunk: 32}}\n"
)


def write_model(folder: Path, pooling: str | None) -> Any:
    """A tiny Qwen 3 with a tokenizer that ends each text, as embedding models have it."""
    import torch
    from tokenizers.processors import TemplateProcessing

    from tests.worker.tiny_checkpoints import write_tiny
    from tests.worker.tiny_text import tiny_tokenizer

    model = write_tiny("qwen3", folder)
    tokenizer = tiny_tokenizer()._reading
    tokenizer.post_processor = TemplateProcessing(
        single=["$A", "<|endoftext|>"], special_tokens=[("<|endoftext|>", 0)]
    )
    (folder / "tokenizer.json").write_text(tokenizer.to_str())
    (folder / "chat_template.jinja").write_text("{{ messages[0].content }}")
    (folder / "generation_config.json").write_text(json.dumps({"eos_token_id": 2}))
    if pooling is not None:
        (folder / "1_Pooling").mkdir()
        (folder / "1_Pooling" / "config.json").write_text(json.dumps({pooling: True}))

    def theirs(text: str) -> list[float]:
        ids = tokenizer.encode(text).ids
        assert ids[-1] == 0
        with torch.inference_mode():
            state = model.model(torch.tensor([ids])).last_hidden_state[0, -1]
        vector: list[float] = (state / state.norm()).tolist()
        return vector

    return theirs


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Server, Any]]:
    folder = tmp_path_factory.mktemp("embedding")
    model = folder / "model"
    theirs = write_model(model, "pooling_mode_lasttoken")
    with serving(folder, CONFIG.replace("MODEL", str(model))) as running:
        yield running, theirs


@pytest.fixture
def client(served: tuple[Server, Any]) -> Iterator[openai.OpenAI]:
    base = served[0].base
    with openai.OpenAI(base_url=f"{base}/v1", api_key="none", max_retries=0) as sdk:
        yield sdk


def rows(server: Server) -> list[dict[str, Any]]:
    file = server.state_dir.parent / "tandem.yaml"
    done = subprocess.run(
        [sys.executable, "-m", "gateway.cli", "ledger", "export", "--format", "jsonl",
         "--config", str(file)],
        capture_output=True, text=True, check=True,
    )  # fmt: skip
    return [json.loads(line) for line in done.stdout.splitlines()]


def test_the_sdk_gets_the_vectors_of_transformers(
    client: openai.OpenAI, served: tuple[Server, Any]
) -> None:
    as_floats = client.embeddings.create(model="TandemLLM", input=TEXTS, encoding_format="float")
    packed = client.embeddings.create(model="TandemLLM", input=TEXTS)  # the SDK asks for base64
    for answer in (as_floats, packed):
        assert [entry.index for entry in answer.data] == [0, 1, 2]
        for entry, text in zip(answer.data, TEXTS, strict=True):
            assert entry.embedding == pytest.approx(served[1](text), abs=1e-5)
        assert answer.usage.prompt_tokens == answer.usage.total_tokens > 150
    single = client.embeddings.create(model="TandemLLM", input=TEXTS[1], encoding_format="float")
    assert single.data[0].embedding == as_floats.data[1].embedding


def test_the_sdk_gets_as_many_dimensions_as_it_asks_for(client: openai.OpenAI) -> None:
    whole = client.embeddings.create(model="TandemLLM", input="a").data[0].embedding
    cut = client.embeddings.create(model="TandemLLM", input="a", dimensions=8).data[0].embedding
    length = sum(number**2 for number in whole[:8]) ** 0.5
    assert (len(whole), len(cut)) == (64, 8)
    assert cut == pytest.approx([number / length for number in whole[:8]], abs=1e-6)


def test_a_text_that_does_not_fit_is_named(client: openai.OpenAI) -> None:
    with pytest.raises(openai.BadRequestError) as fault:
        client.embeddings.create(model="TandemLLM", input=["a", "x " * 600])
    assert (fault.value.code, fault.value.param) == ("context_length_exceeded", "input[1]")
    with pytest.raises(openai.BadRequestError) as fault:
        client.embeddings.create(model="TandemLLM", input=["a", "x" * 50_000])
    assert "512" in fault.value.message


def test_a_question_has_one_row(served: tuple[Server, Any]) -> None:
    answer = httpx.post(
        f"{served[0].base}/v1/embeddings", json={"model": "TandemLLM", "input": TEXTS}, timeout=60
    )
    request_id = answer.headers["x-request-id"]
    while not (found := [row for row in rows(served[0]) if row["request_id"] == request_id]):
        continue
    row = found[0]
    assert (row["kind"], row["outcome"], row["status"]) == ("embedding", "succeeded", 200)
    assert row["prompt_tokens"] == answer.json()["usage"]["prompt_tokens"]
    assert (row["completion_tokens"], row["backend"], row["path"]) == (0, "worker", "managed")


def test_a_long_answer_is_the_same_while_texts_are_embedded(
    client: openai.OpenAI, served: tuple[Server, Any]
) -> None:
    body = {
        "model": "TandemLLM", "messages": [{"role": "user", "content": "The quick brown fox"}],
        "temperature": 1, "seed": 5, "max_tokens": 300,
    }  # fmt: skip
    answers: list[str] = []

    def generate() -> None:
        answer = httpx.post(f"{served[0].base}/v1/chat/completions", json=body, timeout=60)
        answers.append(answer.json()["choices"][0]["message"]["content"])

    generate()
    generating = threading.Thread(target=generate)
    generating.start()
    asked = 0
    while generating.is_alive():
        client.embeddings.create(model="TandemLLM", input=TEXTS)
        asked += generating.is_alive()
    assert answers[0] == answers[1] != ""
    assert asked > 0


def test_a_model_without_pooling_is_not_served(tmp_path: Path) -> None:
    write_model(tmp_path / "model", None)
    with serving(tmp_path, CONFIG.replace("MODEL", str(tmp_path / "model"))) as server:
        answer = httpx.post(
            f"{server.base}/v1/embeddings", json={"model": "TandemLLM", "input": "a"}
        )
    assert (answer.status_code, answer.json()["error"]["code"]) == (404, "surface_not_served")
