"""G2: every attention kernel that is there, against exact attention on the CPU. Knows no model."""

import torch

from bench.gpu.notes import Notes, Stage, worst
from bench.gpu.tree_attention import Merge, tree_errors
from worker.kernels import flash
from worker.kernels.attention import Attention, Prefill, Rows, Step
from worker.kernels.choice import Heads, choose, trial_error
from worker.kernels.flash import FlashAttention
from worker.kernels.precision import compute_fp32_in_full
from worker.kernels.sdpa import SdpaAttention

# Heads, key heads and dims of heads: SmolLM2, an 8B dense model, Gemma 3, the 9B hybrid.
SHAPES = ((9, 3, 64), (32, 8, 128), (8, 4, 256), (16, 4, 256))
ROW_COUNTS = (1, 8, 16, 17, 32, 64)
WINDOWS = (0, 16, 512)
TREE_PREFIXES, TINY_TREE_PREFIXES = (1, 1000, 4000), (1, 40)
LIMITS = {torch.float32: 1e-5, torch.bfloat16: 1e-2}  # relative; TF32 would be 1e-3 off


def run(stage: Stage, notes: Notes) -> None:
    """Prefill, step and trees, with and without a window, in fp32 and bf16."""
    compute_fp32_in_full()
    kernels: list[tuple[Attention, torch.dtype]] = [
        (SdpaAttention(), torch.float32),
        (SdpaAttention(), torch.bfloat16),
    ]
    found = _flash(stage, notes)
    if found is not None:
        kernels.append((found, torch.bfloat16))
    for heads in SHAPES[:1] if stage.is_tiny else SHAPES:
        for kernel, dtype in kernels:
            _shape(kernel, Heads(*heads, dtype, stage.device), stage, notes)
        merges = [(Merge(), torch.float32), (Merge(), torch.bfloat16)]
        _trees([*kernels, *merges], heads, stage, notes)
    chosen = choose(Heads(*SHAPES[0], torch.bfloat16, stage.device)).name
    notes.number("chosen", chosen)
    notes.remark(f"the engine would choose {chosen}")


def _flash(stage: Stage, notes: Notes) -> FlashAttention | None:
    try:
        found = flash.load()
    except flash.BrokenPackage as fault:
        notes.remark(f"flash-attn is installed and broken ({fault})")
        return None
    if found is None:
        notes.remark("flash-attn is not installed: sdpa alone")
    elif not stage.is_cuda:
        notes.remark("flash-attn is installed and needs CUDA: sdpa alone")
    return found if stage.is_cuda else None


def _shape(kernel: Attention, shape: Heads, stage: Stage, notes: Notes) -> None:
    """One number for each way of reading: the worst over row counts, prefixes and windows."""
    name = _name(kernel, shape)
    prefixes = (0, 1, 40) if stage.is_tiny else (0, 1, 255)
    many: list[Rows] = [Prefill(start, count) for start in prefixes for count in ROW_COUNTS]
    single: list[Rows] = [Step(start) for start in prefixes]
    if not stage.is_tiny:
        many += [Prefill(4000, 17), Prefill(4000, 64), Prefill(1024, 1024)]
        single.append(Step(4000))
    for way, all_rows in (("prefill", many), ("step", single)):
        for window in WINDOWS:
            error = worst(trial_error(kernel, shape, rows, window) for rows in all_rows)
            notes.check(f"{name}, {way}, window {window}", error, LIMITS[shape.dtype])


def _trees(
    kernels: list[tuple[Attention, torch.dtype]],
    heads: tuple[int, int, int],
    stage: Stage,
    notes: Notes,
) -> None:
    """One number for each kernel and window: the worst over shapes of trees and prefixes."""
    errors = tree_errors(
        kernels,
        Heads(*heads, torch.float32, stage.device),
        prefixes=TINY_TREE_PREFIXES if stage.is_tiny else TREE_PREFIXES,
        row_counts=ROW_COUNTS,
        windows=WINDOWS,
    )
    for (number, window), error in errors.items():
        kernel, dtype = kernels[number]
        name = _name(kernel, Heads(*heads, dtype, stage.device))
        notes.check(f"{name}, trees, window {window}", error, LIMITS[dtype])


def _name(kernel: Attention, shape: Heads) -> str:
    kind = str(shape.dtype).removeprefix("torch.")
    return f"{kernel.name} {kind}, {shape.heads}/{shape.kv_heads} heads of {shape.head_dim}"
