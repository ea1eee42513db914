"""What this process or its card holds, what is free there, and how its allocator gives back.

Knows no model, no run and no cache: those ask `memory_gate`.
"""

import ctypes
from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal, Protocol

import torch

from proto.worker_settings import MemorySettings
from worker.faults import StartFault
from worker.settings import free_memory_bytes, memory_bytes, resident_bytes

MIB = 1024 * 1024
PEAK_SHARE, FLOOR_SHARE = 0.8, 0.1  # of all there is


class Probe(Protocol):
    """Reads the memory that the engine's tensors live in. All numbers are bytes."""

    def held(self) -> int:
        """What the process holds of it now."""
        ...

    def free(self) -> int:
        """What may still be taken of it, by anybody."""
        ...

    def allocator_free(self) -> int:
        """What of `held` the allocator would give to the next tensor."""
        ...


@dataclass(frozen=True, slots=True)
class MemoryLimits:
    """`peak_bytes`: the most that may be held; `floor_bytes`: what must stay free for others."""

    peak_bytes: int
    floor_bytes: int


def limits_of(settings: MemorySettings, total_bytes: int) -> MemoryLimits:
    """The limits on a device, or in a container, of so many bytes.

    Raises: StartFault for numbers that make no sense.
    """
    for key, value in (("peak_mb", settings.peak_mb), ("floor_mb", settings.floor_mb)):
        if value < 0:
            raise StartFault(f"worker.memory.{key} is {value}; it must be 0 (default) or more.")
    peak = settings.peak_mb * MIB or int(total_bytes * PEAK_SHARE)
    floor = settings.floor_mb * MIB or int(total_bytes * FLOOR_SHARE)
    if floor >= peak:
        raise StartFault(
            f"worker.memory.floor_mb is {floor // MIB}, not below worker.memory.peak_mb, which is "
            f"{peak // MIB}."
        )
    if peak + floor > total_bytes:
        raise StartFault(
            f"worker.memory.peak_mb is {peak // MIB}: with the {floor // MIB} of "
            f"worker.memory.floor_mb it is more than the {total_bytes // MIB} MiB there are."
        )
    return MemoryLimits(peak, floor)


class HostProbe:
    """The memory of a CPU: what is resident, which is what a container's limit counts.

    A new tensor is resident at once, since `torch.zeros` writes it; a freed one no longer is when
    the heap was trimmed (`AllocatorCache`). So `held` is never too small, and too large only until
    then.
    """

    def total(self) -> int:
        """All there is for this process."""
        return memory_bytes()

    def held(self) -> int:
        """See `Probe`."""
        return resident_bytes()

    def free(self) -> int:
        """See `Probe`."""
        return free_memory_bytes()

    def allocator_free(self) -> int:
        """See `Probe`. Always 0: glibc goes on counting a free block (`mallinfo2`, fordblks) after
        its pages were given back, so what it says may not be resident any more. Measured: 188 MB
        before and after a trim that took as much away from what is resident."""
        return 0


class CudaProbe:
    """The memory of one card: what torch's caching allocator has taken of it."""

    def __init__(self, device: torch.device) -> None:
        self._device = device

    def total(self) -> int:
        """All there is on the card."""
        return torch.cuda.mem_get_info(self._device)[1]

    def held(self) -> int:
        """See `Probe`."""
        return torch.cuda.memory_reserved(self._device)

    def free(self) -> int:
        """See `Probe`."""
        return torch.cuda.mem_get_info(self._device)[0]

    def allocator_free(self) -> int:
        """See `Probe`."""
        return torch.cuda.memory_reserved(self._device) - torch.cuda.memory_allocated(self._device)


def probe_of(device: Literal["cpu", "cuda"]) -> HostProbe | CudaProbe:
    """The probe of where the engine's tensors are."""
    return HostProbe() if device == "cpu" else CudaProbe(torch.device("cuda"))


class AllocatorCache:
    """The cheapest thing to give back: memory that was freed and that the allocator has kept."""

    name = "allocator"
    LEAST_BYTES = MIB  # less is noise of other threads, and would be given back for ever

    def __init__(self, probe: Probe, release: Callable[[], object]) -> None:
        self._probe = probe
        self._release = release

    def give_back(self, bytes_wanted: int) -> int:
        """All of it at once, whatever is wanted; the bytes by which less is held then."""
        before = self._probe.held()
        self._release()
        given = before - self._probe.held()
        return given if given >= self.LEAST_BYTES else 0


def allocator_cache(device: Literal["cpu", "cuda"], probe: Probe) -> AllocatorCache:
    """What the allocator of a device has kept.

    A freed tensor below 32 MiB stays in the process until `malloc_trim`, which takes 1 to 3 ms.
    The other way, a low M_MMAP_THRESHOLD that maps each tensor by itself, was measured to make a
    chunk of 256 tokens 1.3 to 2.4 times as slow, for every step then faults its pages in anew.
    """
    if device == "cuda":
        return AllocatorCache(probe, torch.cuda.empty_cache)
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)  # glibc's own; musl returns at once
    return AllocatorCache(probe, (lambda: None) if trim is None else (lambda: trim(0)))
