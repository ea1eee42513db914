"""How many tokens of prompt are forwarded together on this machine. Knows no model and no run.

A chunk is the longest that anything else waits for the device, so it must not take more than about
a second. It is also part of what kept states are compared by: it is chosen once, before anything is
served, and the next start reads it instead of measuring again.
"""

from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path

import structlog

from worker.measured_file import MeasuredFile

log = structlog.get_logger()

CHUNK_CHOSEN = "chunk.chosen"
CHUNK_NOT_STORED = "chunk.not_stored"

MOST_S = 1.0  # of one chunk
LEAST_TOKENS = 64  # the delta rule's own chunk; below it a forward gets no quicker
SAMPLES = 3  # the quickest counts: what else ran on the machine must not make the chunk smaller


@dataclass(frozen=True, slots=True)
class ChunkFingerprint:
    """All that the choice depends on. `default`: the chunk where it is quick enough."""

    weights_hash: str
    layout: str
    device: str
    attention: str
    threads: int
    max_len: int
    torch: str
    default: int


# Forwards a chunk of so many tokens, as late in a long prompt as there is room for; its seconds.
Reader = Callable[[int], float]


class ChunkSize:
    """The chunk of one kind of worker, kept in a folder."""

    def __init__(self, folder: Path, fingerprint: ChunkFingerprint) -> None:
        self._file = MeasuredFile(folder, asdict(fingerprint), "chunk")
        self._default = fingerprint.default

    def settle(self, read: Reader) -> int:
        """The chunk that was chosen earlier; without one, halves the default until it holds."""
        stored = self._stored()
        if stored is not None:
            return stored
        chunk, seconds = self._default, _measured(read, self._default)
        while seconds > MOST_S and chunk // 2 >= LEAST_TOKENS:
            chunk //= 2
            seconds = _measured(read, chunk)
        log.info(CHUNK_CHOSEN, tokens=chunk, default=self._default, ms=round(seconds * 1000, 1))
        try:
            self._file.write(chunk)
        except OSError as fault:
            log.warning(CHUNK_NOT_STORED, path=str(self._file.path), reason=str(fault))
        return chunk

    def _stored(self) -> int | None:
        try:
            chunk = self._file.read()
        except (OSError, ValueError, RecursionError):
            return None  # nothing is lost: it is measured again
        is_ours = type(chunk) is int and LEAST_TOKENS <= chunk <= self._default
        return chunk if is_ours else None


def _measured(read: Reader, chunk: int) -> float:
    read(chunk)  # compilers and caches are not warm
    return min(read(chunk) for _ in range(SAMPLES))
