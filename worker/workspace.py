"""What forwards of one model take while they run: computed from its shape, checked at start.

Knows no run. What nobody takes yet is computed; what was once taken is measured, and the larger
of the two is used.
"""

import contextlib
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

import structlog
import torch

from worker.kernels.attention import Prefill
from worker.kernels.tree import tree_rows
from worker.memory import HostProbe, allocator_cache
from worker.models.config import ModelConfig
from worker.models.decoder import Decoder
from worker.models.sizes import kv_bytes, state_bytes, workspace_bytes

log = structlog.get_logger()

WORKSPACE_MEASURED = "memory.workspace_measured"

PROC_SELF = Path("/proc/self")
RESET_PEAK = "5"  # to clear_refs: VmHWM becomes what is resident now
TRIES = 2  # the first pays for threads and compiled kernels, once and for ever


@dataclass(frozen=True, slots=True)
class Workspace:
    """Sizes of one model. `chunk`: tokens of prompt forwarded together; `most_rows`: of a verify;
    `tapped`: layers that a drafter reads. `chunk_extra`, `verify_extra`: bytes by which the
    largest chunk and verify were measured above what is computed."""

    config: ModelConfig
    dtype: torch.dtype
    chunk: int
    most_rows: int
    tapped: int = 0
    chunk_extra: int = 0
    verify_extra: int = 0

    def chunk_bytes(self, length: int) -> int:
        """A chunk of a prompt of so many tokens, with logits of its last row."""
        return self.chunk_extra + workspace_bytes(
            self.config,
            self.dtype,
            rows=min(self.chunk, length),
            logit_rows=1,
            length=length,
            tapped=self.tapped,
        )

    def verify_bytes(self, length: int) -> int:
        """The widest verify behind so many tokens, with logits of all its rows."""
        return self.verify_extra + workspace_bytes(
            self.config,
            self.dtype,
            rows=self.most_rows,
            logit_rows=self.most_rows,
            length=length + self.most_rows,
            tapped=self.tapped,
        )

    def prompt_bytes(self, *, length: int, new: int, anchors: int = 0) -> int:
        """What reading a prompt of `length` tokens and writing behind it takes in all, when room
        for `new` tokens is not there yet and so many anchors will be kept beside the end anchor.

        What drafters keep of the tokens is theirs to add.
        """
        kept = kv_bytes(self.config, self.dtype, new)
        kept += (anchors + 1) * state_bytes(self.config, self.dtype)
        return kept + self.chunk_bytes(length) + self.verify_bytes(length)


def check(workspace: Workspace, model: Decoder) -> Workspace:
    """Forwards the largest chunk and the widest verify, in a cache of their own.

    That takes `prompt_bytes` of two chunks, for which the gate is to be asked before.
    """
    chunk, rows, device = workspace.chunk, workspace.most_rows, model.device
    cache = model.new_cache(2 * chunk + rows)
    ids = torch.zeros(max(chunk, rows), dtype=torch.int64, device=device)

    @torch.inference_mode()
    def read() -> None:
        model.logits(model.forward(ids[:chunk], cache, Prefill(chunk, chunk))[-1:])

    @torch.inference_mode()
    def verify() -> None:
        tree = tree_rows(range(-1, rows - 1), start=chunk, conv_width=model.conv_width)
        model.logits(model.forward(ids[:rows], cache, tree.to(device)))
        cache.commit(chunk, range(rows))  # else what it kept would be there before the next

    took, verify_took = measured_bytes(device, read), measured_bytes(device, verify)
    plain = replace(workspace, tapped=0)  # no drafter reads along
    computed, verify_computed = plain.chunk_bytes(2 * chunk), plain.verify_bytes(chunk)
    log.info(
        WORKSPACE_MEASURED,
        chunk_computed=computed,
        chunk_measured=took,
        verify_computed=verify_computed,
        verify_measured=verify_took,
    )
    return replace(
        workspace,
        chunk_extra=max(0, (took or 0) - computed),
        verify_extra=max(0, (verify_took or 0) - verify_computed),
    )


def measured_bytes(device: torch.device, work: Callable[[], object]) -> int | None:
    """By how much the memory held grows at most while something is done; None where the system
    does not say.

    On a CPU that is the resident set, since it is what the gate goes by; torch's own count of
    bytes is lower, for a heap has gaps (measured: 4.7 of 7.8 MB for a chunk).
    """
    if device.type == "cuda":
        return min(_cuda_bytes(device, work) for _ in range(TRIES))
    with contextlib.suppress(OSError, ValueError):
        return min(_host_bytes(work) for _ in range(TRIES))
    return None


def _cuda_bytes(device: torch.device, work: Callable[[], object]) -> int:
    torch.cuda.synchronize(device)
    torch.cuda.reset_peak_memory_stats(device)
    before = torch.cuda.memory_allocated(device)
    work()
    torch.cuda.synchronize(device)
    return torch.cuda.max_memory_allocated(device) - before


def _host_bytes(work: Callable[[], object]) -> int:
    # Else what the heap has free would be used again without being seen.
    allocator_cache("cpu", HostProbe()).give_back(0)
    (PROC_SELF / "clear_refs").write_text(RESET_PEAK)
    before = _status_bytes("VmRSS")
    work()
    return max(0, _status_bytes("VmHWM") - before)


def _status_bytes(name: str) -> int:
    for line in (PROC_SELF / "status").read_text().splitlines():
        if line.startswith(f"{name}:"):
            return int(line.split()[1]) * 1024
    raise ValueError(f"no {name} in /proc/self/status")
