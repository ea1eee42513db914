"""Our logits against llama.cpp's, the second oracle: `make test-llamacpp` runs this."""

import io
import os
import subprocess
from pathlib import Path

import numpy as np
import pytest
import torch
from tiny_checkpoints import build, logits_in_chunks, write_gguf_twin, write_tiny

from worker.kernels.attention import Prefill, Step
from worker.models.decoder import Decoder

pytestmark = pytest.mark.llamacpp

PYTHON = os.environ.get("TANDEM_LLAMACPP_PYTHON", ".venv-llamacpp/bin/python")
SCRIPT = Path(__file__).with_name("llamacpp_logits.py")
# On logits that span about `RANGE`; seen: 2e-6. With its flash attention, which rounds to fp16,
# llama.cpp is 4e-3 off.
TOLERANCE = 1e-4
RANGE = 3.0
LENGTH, PREFIX = 100, 40  # tokens
VOCAB = {"qwen3_5": 248_320, "qwen3_5_moe": 248_320, "llama": 512, "qwen2": 512, "qwen3": 512}
HYBRID = {"linear_key_head_dim": 128, "linear_value_head_dim": 128}  # llama.cpp has no others


def theirs(file: Path, ids: torch.Tensor, parts: list[int]) -> torch.Tensor:
    done = subprocess.run(
        [PYTHON, str(SCRIPT), str(file), ",".join(map(str, parts))],
        input=" ".join(map(str, ids.tolist())).encode(), capture_output=True, timeout=120,
        check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr.decode()[-2000:]
    return torch.from_numpy(np.load(io.BytesIO(done.stdout)))


@torch.inference_mode()
def ours_in_steps(model: Decoder, ids: torch.Tensor) -> torch.Tensor:
    cache = model.new_cache(LENGTH)
    rows = [model.logits(model.forward(ids[:PREFIX], cache, Prefill(0, PREFIX)))]
    for at in range(PREFIX, len(ids)):
        rows.append(model.logits(model.forward(ids[at : at + 1], cache, Step(at))))
    return torch.cat(rows)


@pytest.mark.parametrize("kind", VOCAB)
def test_one_prefill_and_single_steps_give_the_logits_of_llamacpp(kind: str, tmp_path: Path):
    file, vocab = tmp_path / "model.gguf", VOCAB[kind]
    changes = HYBRID if kind.startswith("qwen3_5") else {}
    model = write_tiny(kind, tmp_path / "x", vocab_size=vocab, **changes)
    with torch.no_grad():  # the head alone says how far logits reach, and the oracle how close
        model.lm_head.weight.mul_(RANGE / 2 / _spread(model))
    write_gguf_twin(model, file, is_run=True)
    ids = torch.randint(0, vocab, (LENGTH,), generator=torch.Generator().manual_seed(1))
    loaded = build(file)
    for name, parts, made in (
        ("one prefill", [LENGTH], logits_in_chunks(loaded, ids, LENGTH)),
        ("40 + 60 steps", [PREFIX, *[1] * (LENGTH - PREFIX)], ours_in_steps(loaded, ids)),
    ):
        other = theirs(file, ids, parts)
        error = (made - other).abs().max().item()
        same = int((made.argmax(-1) == other.argmax(-1)).sum())
        reach = (other.max() - other.min()).item()
        print(f"\n{kind}, {name}: {error:.1e} of {reach:.1f}, argmax {same} of {LENGTH}")
        assert 0.8 * RANGE <= reach <= 1.5 * RANGE
        assert error <= TOLERANCE
        assert same == LENGTH


@torch.inference_mode()
def _spread(model: torch.nn.Module) -> float:
    return float(model(torch.arange(50)[None]).logits.abs().max())
