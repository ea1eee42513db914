"""G1: the model on the device against the CPU in fp32, and against itself in bf16.

Knows no speed. The CPU is held against other implementations by the tests of the gate.
"""

import torch
from torch import Tensor

from bench.gpu.models import FAMILIES, RandomTensors, build, random_ids, small
from bench.gpu.near_ties import flips_of, gaps_in_ulps
from bench.gpu.notes import Notes, Stage
from worker.kernels import delta_rule
from worker.kernels.attention import Prefill, Step
from worker.kernels.delta_rule import DeltaInputs, line_reach
from worker.kernels.precision import compute_fp32_in_full
from worker.kernels.sdpa import SdpaAttention
from worker.models.config import ModelConfig
from worker.models.decoder import Decoder

CPU = torch.device("cpu")
FP32_LIMIT = 1e-4  # of logits of about 1, the largest about 4
DELTA_LIMIT = 1e-5  # relative; TF32 is off by 1e-4 and more
CHUNK = 64


def run(stage: Stage, notes: Notes) -> None:
    """All families in fp32, the delta rule without TF32, near ties in bf16."""
    _delta_rule(stage, notes)
    for kind in FAMILIES:
        _family(kind, stage, notes)
    for kind in ("qwen3", "qwen3_5_text"):
        _near_ties(kind, stage, notes)


def _delta_rule(stage: Stage, notes: Notes) -> None:
    """B55. First as an environment that asks for TF32 would have it, then as the engine does."""
    heads, rows, dim = (4, 64, 16) if stage.is_tiny else (32, 64, 128)
    source = torch.Generator().manual_seed(5)

    def random(*shape: int) -> Tensor:
        return torch.randn(shape, generator=source)

    q, k, v = random(heads, rows, dim), random(heads, rows, dim), random(heads, rows, dim)
    inputs = DeltaInputs(
        q=q / q.norm(dim=-1, keepdim=True) * dim**-0.5,
        k=k / k.norm(dim=-1, keepdim=True),
        v=v,
        beta=random(heads, rows).sigmoid(),
        g=-random(heads, rows).exp() / 8,
    )
    state = random(heads, dim, dim) * dim**-0.5
    exact = _delta_results(inputs, state, CPU, torch.float64)
    torch.set_float32_matmul_precision("high")
    rounded = _apart(inputs, state, stage, exact)
    compute_fp32_in_full()
    error = _apart(inputs, state, stage, exact)
    notes.check("delta rule in fp32 against fp64", error, DELTA_LIMIT)
    notes.number("delta_error_with_tf32", rounded)
    notes.remark(f"delta rule off by {error:.1g}, with TF32 it would be {rounded:.1g}")


def _apart(inputs: DeltaInputs, state: Tensor, stage: Stage, exact: Tensor) -> float:
    found = _delta_results(inputs, state, stage.device, torch.float32).cpu().double()
    return float((found - exact).norm() / exact.norm())


def _delta_results(
    inputs: DeltaInputs, state: Tensor, device: torch.device, dtype: torch.dtype
) -> Tensor:
    """Outputs of rows, the state behind them, and the output of a step from there, in one row."""
    names = ("q", "k", "v", "beta", "g")
    there = DeltaInputs(*(getattr(inputs, name).to(device, dtype) for name in names))
    state = state.to(device, dtype)
    count = inputs.q.shape[1]
    out, factors = delta_rule.rows(state, there, line_reach(count, device))
    behind = delta_rule.state_behind(state, factors, torch.arange(count, device=device))
    stepped, _ = delta_rule.step(behind, there.part(0, 1))
    return torch.cat([part.flatten() for part in (out, behind, stepped)])


def _family(kind: str, stage: Stage, notes: Notes) -> None:
    config = small(kind, stage)
    length = 80 if stage.is_tiny else 200  # beyond an inner chunk, and beyond windows
    there, here = (_model(config, torch.float32, device) for device in (stage.device, CPU))
    ids = random_ids(length, config.vocab_size, CPU)
    exact = in_chunks(here, ids, length)
    notes.number(f"logit_std_{kind}", float(exact.std()))
    ways = {
        "at once": in_chunks(there, ids, length),
        f"in chunks of {CHUNK}": in_chunks(there, ids, CHUNK),
        "in steps": in_steps(there, ids),
    }
    for way, logits in ways.items():
        error = float((logits - exact).abs().max())
        notes.check(f"{kind} in fp32 against the CPU, {way}", error, FP32_LIMIT)


def _near_ties(kind: str, stage: Stage, notes: Notes) -> None:
    """Prefill may choose another token than steps do only where two are almost equally likely."""
    wide = {
        "vocab_size": 32_768,
        "hidden_size": 1024,
        "intermediate_size": 3072,
        "num_hidden_layers": 8,
        "num_attention_heads": 8,
        "head_dim": 128,
        "linear_num_key_heads": 8,
        "linear_num_value_heads": 16,
        "linear_key_head_dim": 128,
        "linear_value_head_dim": 128,
    }
    config = small(kind, stage, **({} if stage.is_tiny else wide))
    # As models are trained, what a layer adds is small: else random weights would round so much
    # worse than real ones that the rule could not hold.
    model = _model(config, torch.bfloat16, stage.device, (2 * len(config.layers)) ** -0.5)
    ids = random_ids(48 if stage.is_tiny else 1000, config.vocab_size, CPU)
    plain, other = in_steps(model, ids), in_chunks(model, ids, len(ids))
    gaps, dtype = gaps_in_ulps(plain), torch.bfloat16
    flips = flips_of(gaps, plain.argmax(-1), other.argmax(-1), dtype)
    flips.tell(f"{kind} in bf16", dtype, notes)
    notes.number(f"largest_difference_{kind}", float((plain - other).abs().max()))


def _model(
    config: ModelConfig, dtype: torch.dtype, device: torch.device, branch_scale: float = 1.0
) -> Decoder:
    # Drawn on the CPU, so that both devices have the same.
    tensors = RandomTensors(config, CPU, torch.float32, branch_scale)
    return build(config, tensors, SdpaAttention(), dtype=dtype, device=device)


@torch.inference_mode()
def in_chunks(model: Decoder, ids: Tensor, chunk: int) -> Tensor:
    """Logits of every row, the ids forwarded in chunks: (rows, vocab) float32 on the CPU."""
    cache = model.new_cache(CHUNK)
    out = []
    for start in range(0, len(ids), chunk):
        part = ids[start : start + chunk].to(model.device)
        cache.reserve(start + len(part))
        hidden = model.forward(part, cache, Prefill(start, len(part)))
        out.append(model.logits(hidden).cpu())
    return torch.cat(out)


@torch.inference_mode()
def in_steps(model: Decoder, ids: Tensor) -> Tensor:
    """Logits of every row, one id at a time: (rows, vocab) float32 on the CPU."""
    cache = model.new_cache(CHUNK)
    ids = ids.to(model.device)
    out = []
    for start in range(len(ids)):
        cache.reserve(start + 1)
        hidden = model.forward(ids[start : start + 1], cache, Step(start))
        out.append(model.logits(hidden).cpu())
    return torch.cat(out)
