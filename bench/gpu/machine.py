"""What the device is. Knows no model."""

import os

import torch

from bench.gpu.notes import Notes, Stage

GIB = 1024**3


def run(stage: Stage, notes: Notes) -> None:
    """Its name and memory. Raises: RuntimeError when torch has no such device."""
    torch.ones(1, device=stage.device).add_(1)
    if not stage.is_cuda:
        notes.number("name", "CPU")
        notes.number("threads", torch.get_num_threads())
        notes.remark(f"the CPU, {torch.get_num_threads()} threads, torch {torch.__version__}")
        return
    facts = torch.cuda.get_device_properties(stage.device)
    free_bytes, total_bytes = torch.cuda.mem_get_info(stage.device)
    notes.number("name", facts.name)
    notes.number("capability", f"{facts.major}.{facts.minor}")
    notes.number("multiprocessors", facts.multi_processor_count)
    notes.number("memory_gib", total_bytes / GIB)
    notes.number("free_gib", free_bytes / GIB)
    notes.number("cores", len(os.sched_getaffinity(0)))
    notes.remark(
        f"{facts.name}, {free_bytes / GIB:.0f} of {total_bytes / GIB:.0f} GiB free, "
        f"torch {torch.__version__}"
    )
