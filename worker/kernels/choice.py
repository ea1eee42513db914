"""Which attention runs on this machine, decided once at start. Knows no model.

A kernel that torch did not bring is tried on the device before it serves: built for another torch
or another card it may fail, or be wrong.
"""

from dataclasses import dataclass

import structlog
import torch

from worker.kernels import flash
from worker.kernels.attention import Attention, Prefill, Rows, Sight, Step
from worker.kernels.sdpa import SdpaAttention
from worker.kernels.tree import Tree, tree_rows
from worker.state.kv import KvCache

log = structlog.get_logger()

ATTENTION_UNAVAILABLE = "attention.unavailable"

# Relative to exact attention. Rounding to bf16 alone is 2e-3 off in the trials below; one key too
# many in a window, 8e-2 and more.
TRIAL_ERROR = 1e-2
TRIAL_PREFIX, TRIAL_ROWS, TRIAL_WINDOW = 150, 40, 24  # tokens; not multiples of any block
REASON_CHARS = 200


@dataclass(frozen=True, slots=True)
class Heads:
    """The shape of a cache that attention reads, and its place."""

    heads: int
    kv_heads: int
    head_dim: int
    dtype: torch.dtype
    device: torch.device


def choose(shape: Heads) -> Attention:
    """flash where the device, the layout and an installed package allow it, else sdpa."""
    if not flash.takes(dtype=shape.dtype, device=shape.device, head_dim=shape.head_dim):
        return SdpaAttention()
    try:
        candidate = flash.load()
        if candidate is None:
            return SdpaAttention()
        error = max(trial_error(candidate, shape, *trial) for trial in _trials())
    # RuntimeError: what the device says; TypeError, ValueError: a version with other arguments or
    # results.
    except (flash.BrokenPackage, RuntimeError, TypeError, ValueError) as fault:
        log.warning(ATTENTION_UNAVAILABLE, kernel="flash", reason=str(fault)[:REASON_CHARS])
        return SdpaAttention()
    if not error <= TRIAL_ERROR:  # nor NaN
        log.warning(ATTENTION_UNAVAILABLE, kernel="flash", reason="wrong result", error=error)
        return SdpaAttention()
    return candidate


def trial_error(attention: Attention, shape: Heads, rows: Rows, window: int) -> float:
    """How far a kernel is from exact attention over random rows: ‖out − exact‖ / ‖exact‖.

    Exact is sdpa in float32 on the same values, on the CPU. `window`: as in `Sight`.
    """
    source = torch.Generator().manual_seed(rows.start + window)
    length, layer = rows.start + rows.count, 1

    def random(*sizes: int) -> torch.Tensor:
        return torch.randn(sizes, generator=source).to(shape.device, shape.dtype)

    q = random(rows.count, shape.heads, shape.head_dim)
    keys, values = (random(length, shape.kv_heads, shape.head_dim) for _ in range(2))
    sight = Sight(layer, shape.head_dim**-0.5, window)
    with torch.inference_mode():
        there = rows.to(shape.device) if isinstance(rows, Tree) else rows
        out = attention.attend(q, sight, _cache(keys, values, layer), there).float().cpu()
        q, keys, values = (part.float().cpu() for part in (q, keys, values))
        exact = SdpaAttention().attend(q, sight, _cache(keys, values, layer), rows)
        return float((out - exact).norm() / exact.norm())


def _cache(keys: torch.Tensor, values: torch.Tensor, layer: int) -> KvCache:
    length, kv_heads, head_dim = keys.shape
    cache = KvCache(
        layers=layer + 1,
        kv_heads=kv_heads,
        head_dim=head_dim,
        step=length + 1,  # a row more than is read
        dtype=keys.dtype,
        device=keys.device,
    )
    cache.write(layer, 0, keys, values)
    return cache


def _trials() -> list[tuple[Rows, int]]:
    branching = tree_rows([-1, *(row // 2 for row in range(TRIAL_ROWS))], start=TRIAL_PREFIX)
    shapes = (
        Prefill(0, TRIAL_ROWS), Prefill(TRIAL_PREFIX, TRIAL_ROWS), Step(TRIAL_PREFIX), branching,
    )  # fmt: skip
    return [(rows, window) for rows in shapes for window in (0, TRIAL_WINDOW)]
