"""The time as the ledger sees it. Knows no system clock: `gateway/app` passes one in."""

from collections.abc import Callable
from dataclasses import dataclass
from datetime import tzinfo


@dataclass(frozen=True, slots=True)
class Clock:
    """`now_ms`: wall clock, epoch ms. `now_s`: monotonic. `zone`: of the nightly work, None here's.

    The gateway gives `Clock(lambda: time.time_ns() // 1_000_000, time.monotonic)`.
    """

    now_ms: Callable[[], int]
    now_s: Callable[[], float]
    zone: tzinfo | None = None
