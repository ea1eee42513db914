"""How long something takes on a device, and how fast its memory is. Knows no model."""

import statistics
import time
from collections.abc import Callable

import torch

from bench.gpu.notes import Stage

DISCARDED = 2  # the first samples hold compilation and the allocator's growth
SAMPLES = 20
COPIED_BYTES, TINY_COPIED_BYTES = 4 * 1024**3, 64 * 1024**2  # far more than any cache


def median_ms(stage: Stage, work: Callable[[], object], *, samples: int = SAMPLES) -> float:
    """The median time of a call, what it started on the device included."""
    taken = [elapsed_ms(stage, work) for _ in range(DISCARDED + samples)]
    return statistics.median(taken[DISCARDED:])


def elapsed_ms(stage: Stage, work: Callable[[], object]) -> float:
    """The time of one call, what it started on the device included."""
    _synchronise(stage)
    began = time.perf_counter()
    work()
    _synchronise(stage)
    return (time.perf_counter() - began) * 1000


def settled_clock(stage: Stage) -> Callable[[], float]:
    """Seconds, read when the device has done what it was told."""

    def read() -> float:
        _synchronise(stage)
        return time.perf_counter()

    return read


def bandwidth_gb_s(stage: Stage) -> float:
    """Gigabytes (10^9) a second of a large copy on the device, read and written counted."""
    size = TINY_COPIED_BYTES if stage.is_tiny else COPIED_BYTES
    source = torch.randn(size // 4, device=stage.device)
    target = torch.empty_like(source)
    return 2 * size / median_ms(stage, lambda: target.copy_(source)) / 1e6


def _synchronise(stage: Stage) -> None:
    if stage.is_cuda:
        torch.cuda.synchronize(stage.device)
