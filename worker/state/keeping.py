"""How much is kept of earlier sequences, by the operator's settings. Knows no tensor."""

import math
from dataclasses import dataclass

from proto.worker_settings import CacheSettings
from worker.faults import StartFault

MIB = 1024 * 1024
# Start values: what a small machine can spare, and what a machine with a GPU has.
ANCHORS_MB, ANCHORS_MB_CUDA = 256, 4_096
STORE_MB, STORE_MB_CUDA = 1_024, 8_192
GUEST_MB, GUEST_MB_CUDA = 256, 2_048


@dataclass(frozen=True, slots=True)
class Keeping:
    """Bounds in bytes. `anchor_bytes`: of all slots together; `entry_bytes`: of one snapshot.

    `is_exact`: a kept state is used only where it gives the same bits. `has_shared_prefixes`:
    system prompts may be shared between tenants.
    """

    anchor_bytes: int = ANCHORS_MB * MIB
    anchor_tail: int = 4
    store_bytes: int = STORE_MB * MIB
    entry_bytes: int = STORE_MB * MIB // 4
    guest_bytes: int = GUEST_MB * MIB
    is_exact: bool = False
    has_shared_prefixes: bool = False


def keeping_of(settings: CacheSettings, *, is_cuda: bool) -> Keeping:
    """What the settings mean here. Raises: StartFault for numbers that make no sense."""
    for name in ("anchors_mb", "anchor_tail", "store_mb", "guest_mb"):
        if (value := getattr(settings, name)) < 0:
            raise StartFault(f"worker.cache.{name} is {value}; it must be 0 or more.")
    if not 0.0 < settings.entry_share <= 1.0:
        raise StartFault(
            f"worker.cache.entry_share is {settings.entry_share}; it must be above 0, at most 1."
        )

    _check_files(settings)

    def size_bytes(given: int, here: int, cuda: int) -> int:
        return (given or (cuda if is_cuda else here)) * MIB

    store_bytes = size_bytes(settings.store_mb, STORE_MB, STORE_MB_CUDA)
    return Keeping(
        anchor_bytes=size_bytes(settings.anchors_mb, ANCHORS_MB, ANCHORS_MB_CUDA),
        anchor_tail=settings.anchor_tail,
        store_bytes=store_bytes,
        entry_bytes=int(store_bytes * settings.entry_share),
        guest_bytes=size_bytes(settings.guest_mb, GUEST_MB, GUEST_MB_CUDA),
        is_exact=settings.exact_resume,
        has_shared_prefixes=settings.shared_prefixes,
    )


def _check_files(settings: CacheSettings) -> None:
    disk, spill = settings.disk, settings.spill
    for name, value, least in (
        ("disk.max_gb", disk.max_gb, 0.0),
        ("disk.ttl_d", disk.ttl_d, 0.0),
        ("disk.min_hits", disk.min_hits, 1),
        ("spill.max_gb", spill.max_gb, 0.0),
        ("spill.ttl_h", spill.ttl_h, 0.0),
        ("spill.time_s", spill.time_s, 0.0),
    ):
        if not least <= value < math.inf:
            raise StartFault(f"worker.cache.{name} is {value}; it must be {least:g} or more.")
