"""Our logits against transformers', which is the first oracle of the engine."""

from pathlib import Path

import pytest
import torch
from gguf import GGUFReader
from near_ties import compared
from tiny_checkpoints import (
    KINDS,
    build,
    logits_in_chunks,
    logits_in_steps,
    write_gguf_twin,
    write_tiny,
)
from transformers import LlamaConfig, LlamaForCausalLM
from transformers.modeling_gguf_pytorch_utils import load_gguf_checkpoint

from worker.kernels.attention import Prefill, Step
from worker.kernels.product import product_of
from worker.loading.gguf import GgufFile
from worker.models.decoder import Decoder, Taps
from worker.models.layers import Head
from worker.text.tokenizer import tokenizer_from_gguf

TINY_TOLERANCE = 1e-5
EMBEDDED_TOLERANCE = 1e-3
LENGTH = 150  # tokens; beyond the original context of the scaled variants


def _ids(vocab: int = 512, length: int = LENGTH) -> torch.Tensor:
    return torch.randint(0, vocab, (length,), generator=torch.Generator().manual_seed(1))


def _assert_equal(ours: torch.Tensor, theirs: torch.Tensor, tolerance: float) -> None:
    assert (ours - theirs).abs().max().item() <= tolerance
    assert torch.equal(ours.argmax(-1), theirs.argmax(-1))


@pytest.mark.parametrize("kind", KINDS)
def test_every_way_of_forwarding_gives_the_logits_of_transformers(kind: str, tmp_path: Path):
    theirs_model = write_tiny(kind, tmp_path)
    ids = _ids()
    with torch.inference_mode():
        theirs = theirs_model(ids[None]).logits[0]
    # The oracle must be able to tell tokens apart, or every model would pass.
    assert theirs.std() > 1e4 * TINY_TOLERANCE
    model = build(tmp_path)
    _assert_equal(logits_in_chunks(model, ids, LENGTH), theirs, TINY_TOLERANCE)
    for chunk in (1, 7, 64):
        _assert_equal(logits_in_chunks(model, ids, chunk), theirs, TINY_TOLERANCE)
    _assert_equal(logits_in_steps(model, ids), theirs, TINY_TOLERANCE)


@pytest.mark.parametrize("kind", ["llama", "qwen3_5"])
def test_b56_taps_are_what_transformers_has_after_the_same_layers(kind: str, tmp_path: Path):
    theirs_model = write_tiny(kind, tmp_path)
    model, ids = build(tmp_path), _ids()
    layers = (2, 0, 1)
    cache, taps = model.new_cache(LENGTH), Taps(layers)
    cache.reserve(LENGTH)
    with torch.inference_mode():
        theirs = theirs_model(ids[None], output_hidden_states=True).hidden_states
        model.forward(ids, cache, Prefill(0, LENGTH), taps)
    expected = torch.cat([theirs[layer + 1][0] for layer in layers], dim=-1)
    assert (taps.joined() - expected).abs().max() <= TINY_TOLERANCE


@pytest.mark.parametrize(
    "kind",
    ["llama", "llama_tied", "qwen2", "qwen3", "gemma3", "qwen3_5", "qwen3_5_moe", "qwen3_next"],
)
def test_b51_b52_b53_a_gguf_gives_the_logits_of_its_safetensors_twin(kind: str, tmp_path: Path):
    folder, file = tmp_path / "folder", tmp_path / "twin.gguf"
    # What GGUF files of the family cannot say is as it always is there.
    usual = {"gemma3": {"query_pre_attn_scalar": 16, "num_hidden_layers": 6, "layer_types": None}}
    if kind == "qwen3_next":
        usual[kind] = {"mlp_only_layers": []}
    write_gguf_twin(write_tiny(kind, folder, **usual.get(kind, {})), file)
    ids = _ids()
    ours = logits_in_chunks(build(folder), ids, 64)
    twin = logits_in_chunks(build(file), ids, 64)
    assert torch.equal(twin, ours)


@pytest.mark.parametrize("is_fused", [False, True])
def test_gate_and_up_of_experts_may_stand_in_one_tensor_of_a_gguf(is_fused: bool, tmp_path: Path):
    folder, file = tmp_path / "folder", tmp_path / "twin.gguf"
    write_gguf_twin(write_tiny("qwen3_5_moe", folder), file, is_fused=is_fused)
    names = {tensor.name for tensor in GGUFReader(file).tensors}
    assert ("blk.0.ffn_gate_up_exps.weight" in names) is is_fused
    ids = _ids()
    ours = logits_in_chunks(build(folder), ids, 64)
    assert torch.equal(logits_in_chunks(build(file), ids, 64), ours)


@pytest.mark.parametrize("rows", [1, 3, 64])
def test_logits_that_choose_are_fp32_products_with_the_rows_of_a_bf16_head(rows: int):
    source = torch.Generator().manual_seed(5)
    weight = torch.randn(2000, 64, generator=source).bfloat16()
    hidden = torch.randn(rows, 64, generator=source)
    logits = Head(weight, None)(hidden)
    rounded = product_of(weight)(hidden.bfloat16()).float()
    ids = rounded.topk(Head.RECOMPUTED, dim=-1).indices
    exact = (hidden.double() @ weight.double().T).gather(1, ids)
    assert (logits.gather(1, ids) - exact).abs().max() <= 1e-5
    assert torch.equal(logits.scatter(1, ids, 0.0), rounded.scatter(1, ids, 0.0))
    # A bf16 head puts many ids on one value; none of those that choose share theirs.
    assert rounded.gather(1, ids)[0].unique().numel() < Head.RECOMPUTED
    assert logits.gather(1, ids)[0].unique().numel() == Head.RECOMPUTED


def test_fp32_logits_shrink_the_flips_of_a_bf16_layout(tmp_path: Path):
    """Steps against chunks, 960 rows: fp32 where it chooses, and a head in bf16 throughout."""
    write_tiny("llama", tmp_path)
    model = build(tmp_path, "bf16")
    flips = {"fp32": 0, "bf16": 0}
    for seed in range(8):
        ids = torch.randint(0, 512, (120,), generator=torch.Generator().manual_seed(seed))
        steps, chunks = (_hidden(model, ids, chunk) for chunk in (1, 16))
        for name, head in (("fp32", model.logits), ("bf16", lambda x: _rounded(model, x))):
            chosen, other = (head(hidden).argmax(-1) for hidden in (steps, chunks))
            flips[name] += int((chosen != other).sum())
    assert flips["fp32"] < flips["bf16"], flips


@torch.inference_mode()
def _hidden(model: Decoder, ids: torch.Tensor, chunk: int) -> torch.Tensor:
    cache = model.new_cache(128)
    return torch.cat(
        [
            model.forward(ids[start : start + chunk], cache, _rows(start, ids[start:], chunk))
            for start in range(0, len(ids), chunk)
        ]
    )


def _rows(start: int, left: torch.Tensor, chunk: int) -> Prefill | Step:
    return Step(start) if chunk == 1 else Prefill(start, min(chunk, len(left)))


@torch.inference_mode()
def _rounded(model: Decoder, hidden: torch.Tensor) -> torch.Tensor:
    """Logits of a head that gives bf16 values."""
    return model._head._product(model._norm(hidden).bfloat16()).float()


@pytest.mark.model
def test_the_embedded_model_writes_what_transformers_writes(embedded_model: Path):
    theirs_model = _loaded_by_transformers(embedded_model)
    model = build(embedded_model)
    prompt = _ids(vocab=49_152, length=60)
    stepped = _greedy(model, prompt, 200)
    written = stepped.argmax(-1)
    ids = torch.cat((prompt, written[:-1]))
    with torch.inference_mode():
        theirs = theirs_model(ids[None]).logits[0]
    assert torch.equal(theirs[len(prompt) - 1 :].argmax(-1), written)
    assert (stepped - theirs[len(prompt) - 1 :]).abs().max().item() <= EMBEDDED_TOLERANCE
    for chunk in (32, 100, len(ids)):
        ours = logits_in_chunks(model, ids, chunk)
        assert (ours - theirs).abs().max().item() <= EMBEDDED_TOLERANCE


@torch.inference_mode()
def _greedy(model: Decoder, prompt: torch.Tensor, count: int) -> torch.Tensor:
    """The logits of `count` rows, from the prompt's last on: (count, vocab)."""
    cache = model.new_cache(512)
    hidden = model.forward(prompt, cache, Prefill(0, len(prompt)))
    rows = [model.logits(hidden[-1:])]
    for position in range(len(prompt), len(prompt) + count - 1):
        hidden = model.forward(rows[-1].argmax(-1), cache, Step(position))
        rows.append(model.logits(hidden))
    return torch.cat(rows)


def _loaded_by_transformers(path: Path) -> LlamaForCausalLM:
    # `from_pretrained(gguf_file=…)` asks for accelerate; these are the functions it calls.
    config = LlamaConfig(**load_gguf_checkpoint(path)["config"])
    model = LlamaForCausalLM(config).eval()
    tensors = load_gguf_checkpoint(path, return_tensors=True, model_to_load=model)["tensors"]
    missing, unexpected = model.load_state_dict(tensors, strict=False)
    assert missing == ["lm_head.weight"] and not unexpected  # tied
    model.tie_weights()
    return model


PROMPTS = (
    "What is the capital of France?", "Write a haiku about rain.", "What is 17 + 25?",
    "Name three fruits.", "Explain gravity to a child.", "Translate 'good morning' to Spanish.",
    "Write a Python function that adds two numbers.", "Who wrote Hamlet?",
    "Give me a recipe for pancakes.", "What is a prime number?", "Describe a sunset.",
    "List the days of the week.", "Why is the sky blue?", "Tell me a joke.",
    "What does HTTP mean?", "Write a short mail to decline an invitation.",
    "How many legs has a spider?", "Summarize the story of Cinderella.", "What is photosynthesis?",
    "Give a synonym for 'happy'.",
)  # fmt: skip


@pytest.mark.model
def test_the_embedded_model_in_bf16_writes_the_oracles_text_but_for_near_ties(
    embedded_model: Path, capsys: pytest.CaptureFixture[str]
):
    """The oracle computes in fp32 with the same weights, rounded to bf16 as ours are.

    Where a token differs the oracle's is forced, so that the whole text is compared.
    """
    oracle = _loaded_by_transformers(embedded_model).bfloat16().float()
    text = tokenizer_from_gguf(GgufFile.open(embedded_model).keys)
    model = build(embedded_model, "bf16")
    ours, theirs = [], []
    for prompt in PROMPTS:
        turn = f"<|im_start|>user\n{prompt}<|im_end|>\n<|im_start|>assistant\n"
        prompt_ids = torch.tensor(text.encode(turn))
        logits = _greedy_of(oracle, prompt_ids, 16)
        written = logits.argmax(-1)
        ids = torch.cat((prompt_ids, written[:-1]))
        theirs.append(logits)
        ours.append(_logits_behind(model, ids, len(prompt_ids)))
    found = compared(torch.cat(ours), torch.cat(theirs))
    with capsys.disabled():
        print(f"\nembedded model, bf16, {len(PROMPTS)} prompts against the oracle: {found}")
    assert found.holds()


@torch.inference_mode()
def _greedy_of(oracle: LlamaForCausalLM, prompt: torch.Tensor, count: int) -> torch.Tensor:
    """The oracle's logits of `count` rows of its own greedy text: (count, vocab)."""
    out = oracle(prompt[None], use_cache=True)
    rows = [out.logits[0, -1:]]
    while len(rows) < count:
        cache = getattr(out, "cache", None) or out.past_key_values
        name = "cache" if hasattr(out, "cache") else "past_key_values"
        out = oracle(rows[-1].argmax(-1)[None], use_cache=True, **{name: cache})
        rows.append(out.logits[0, -1:])
    return torch.cat(rows)


@torch.inference_mode()
def _logits_behind(model: Decoder, ids: torch.Tensor, prompt: int) -> torch.Tensor:
    """Our logits where the answer's tokens are chosen, one step a token: (rows, vocab)."""
    cache = model.new_cache(512)
    hidden = model.forward(ids[:prompt], cache, Prefill(0, prompt))
    rows = [model.logits(hidden[-1:])]
    for position in range(prompt, len(ids)):
        rows.append(
            model.logits(model.forward(ids[position : position + 1], cache, Step(position)))
        )
    return torch.cat(rows)
