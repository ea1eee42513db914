"""Whether memory may be taken, before it is: one function, one peak and one floor for all askers.

Knows no model and no run: who asks says how many bytes, what can be given back says so itself.

What decides is what the probe says is held, and what was promised and is not taken yet. On a CPU
that is the resident set after the heap was trimmed; an account of all pools beside it would miss
what nobody registered, and its sum could pass the peak unseen.
"""

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Literal, Protocol

import structlog

from proto.messages import METRIC_PREFIX, Metric
from proto.worker_settings import MemorySettings
from worker.faults import StartFault
from worker.limits import RECLAIMED_AT_ONCE
from worker.memory import MIB, MemoryLimits, Probe, allocator_cache, limits_of, probe_of

log = structlog.get_logger()

MEMORY_RECLAIMED = "memory.reclaimed"

# What is resident beside tensors and grows between two looks: messages, records, a heap's gaps.
# Measured near the peak: 0.6 MB over it in 40 requests.
UNCOUNTED_BYTES = 8 * MIB


class Reclaimer(Protocol):
    """Something that is kept and can be made again, or not be kept."""

    @property
    def name(self) -> str:
        """Of the step, in log and metrics."""
        ...

    def give_back(self, bytes_wanted: int) -> int:
        """Gives back its cheapest unit, or what is wanted of it if that can be divided; the bytes
        that it gave, 0 when nothing is left."""
        ...


@dataclass(frozen=True, slots=True)
class Verdict:
    """The gate's word. `fits`: take it now. `wait`: not while so much is held. `never`: not even
    alone; the most that fits then is `most_bytes`."""

    kind: Literal["fits", "wait", "never"]
    need_bytes: int
    held_bytes: int
    peak_bytes: int
    most_bytes: int

    @property
    def fits(self) -> bool:
        """Whether it may be taken."""
        return self.kind == "fits"


class MemoryGate:
    """One for each memory that tensors live in. One thread uses it, that of the loop.

    `reclaimers`: cheapest first. Made right after the start, when what is held is held for ever.
    """

    def __init__(self, probe: Probe, limits: MemoryLimits, reclaimers: Sequence[Reclaimer]) -> None:
        self.limits = limits
        self.baseline_bytes = probe.held() - probe.allocator_free()
        self.reclaimed: Counter[str] = Counter()  # bytes by step
        self._probe = probe
        self._reclaimers = tuple(reclaimers)
        self._promised: dict[str, int] = {}

    @property
    def most_bytes(self) -> int:
        """What fits when nothing else is held but what always is."""
        return max(self.limits.peak_bytes - self.baseline_bytes, 0)

    def ask(self, need_bytes: int, *, owner: str | None = None) -> Verdict:
        """Whether so many bytes may be taken now; makes room where that helps.

        `owner`: whose promise is part of the need. What can never fit gives nothing back.
        """
        assert need_bytes >= 0, "a need cannot be negative"
        if need_bytes > self.most_bytes:
            return self._verdict("never", need_bytes)
        for _ in range(RECLAIMED_AT_ONCE):
            missing = self._missing(need_bytes, owner)
            if not missing:
                return self._verdict("fits", need_bytes)
            if not self._give_back(missing):
                break
        return self._verdict("wait", need_bytes)

    def has_room(self, need_bytes: int) -> bool:
        """The same for work that is worth less than anything kept: nothing is given back for it."""
        return not self._missing(need_bytes, None)

    def promise(self, owner: str, left_bytes: int) -> None:
        """Holds free what an owner was told it may take and has not taken yet; 0 when it is done.

        To be lowered as it is taken, since from then on the probe sees it.
        """
        self._promised.pop(owner, None)
        if left_bytes > 0:
            self._promised[owner] = left_bytes

    def samples(self) -> Iterator[Metric]:
        """What the metrics say of it."""
        probe = self._probe
        kinds = {
            "held": probe.held(), "allocator_free": probe.allocator_free(), "free": probe.free()
        }  # fmt: skip
        for kind, value in kinds.items():
            yield Metric(f"{METRIC_PREFIX}memory_bytes", {"kind": kind}, value)
        for step, given in self.reclaimed.items():
            yield Metric(f"{METRIC_PREFIX}gate_reclaimed_bytes_total", {"step": step}, given)

    def _missing(self, need_bytes: int, owner: str | None) -> int:
        """Bytes too many, 0 when it fits. Charged is what the allocator has not got yet."""
        promised = sum(left for other, left in self._promised.items() if other != owner)
        charge = max(0, need_bytes + promised - self._probe.allocator_free())
        above = self._probe.held() + charge - self.limits.peak_bytes
        below = self.limits.floor_bytes - (self._probe.free() - charge)
        return max(above, below, 0) if charge else 0

    def _give_back(self, missing: int) -> bool:
        """One unit of the cheapest that has any. The cheapest is tried again after each: what a
        kept state gave may be in the allocator's hands and not be seen as free before."""
        for reclaimer in self._reclaimers:
            given = reclaimer.give_back(missing)
            if given > 0:
                self.reclaimed[reclaimer.name] += given
                log.info(
                    MEMORY_RECLAIMED,
                    step=reclaimer.name,
                    bytes=given,
                    held=self._probe.held(),
                    peak=self.limits.peak_bytes,
                )
                return True
        return False

    def _verdict(self, kind: Literal["fits", "wait", "never"], need_bytes: int) -> Verdict:
        held, peak = self._probe.held(), self.limits.peak_bytes
        return Verdict(kind, need_bytes, held, peak, self.most_bytes)


def gate_of(
    device: Literal["cpu", "cuda"], settings: MemorySettings, reclaimers: Sequence[Reclaimer]
) -> MemoryGate:
    """The gate of a device; its allocator gives back before any of `reclaimers`.

    On CUDA, states that are kept in host memory belong to another gate, of device `cpu`: giving
    them back would free nothing of the card.

    Raises: StartFault when the limits make no sense, or the weights alone are above them.
    """
    probe = probe_of(device)
    declared = limits_of(settings, probe.total())
    spared_bytes = UNCOUNTED_BYTES if device == "cpu" else 0
    limits = replace(declared, peak_bytes=declared.peak_bytes - spared_bytes)
    cache = allocator_cache(device, probe)
    cache.give_back(0)  # loading leaves much that was freed
    gate = MemoryGate(probe, limits, (cache, *reclaimers))
    if not gate.most_bytes:
        raise StartFault(
            f"The engine holds {gate.baseline_bytes // MIB} MiB before its first request, and "
            f"worker.memory.peak_mb is {declared.peak_bytes // MIB}."
        )
    return gate
