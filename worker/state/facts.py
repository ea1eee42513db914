"""The numbers of what is kept, for people and metrics. Knows nothing of how it is kept."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from worker.state.start import Source

# What a hit is counted as: `proto.messages.STATE_KINDS`.
KIND_OF = {
    Source.RESIDENT: "slot",
    Source.ANCHOR: "anchor",
    Source.SESSION: "session",
    Source.PREFIX: "prefix",
    Source.DISK: "disk",
    Source.SPILL: "spill",
}


@dataclass(frozen=True, slots=True)
class CacheFacts:
    """What is kept now, and what came of it since the start.

    By kind (`proto.messages.STATE_KINDS`), `skipped` by reason. A kind that is not there has none.
    """

    entries: Mapping[str, int] = field(default_factory=dict)
    size_bytes: Mapping[str, int] = field(default_factory=dict)
    hits: Mapping[str, int] = field(default_factory=dict)
    evictions: Mapping[str, int] = field(default_factory=dict)
    skipped: Mapping[str, int] = field(default_factory=dict)
    misses: int = 0
    collisions: int = 0
