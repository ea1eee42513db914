"""Transcripts: a file a session, below a folder a profile. Knows not what a block says."""

import hashlib
import os
import re
from collections.abc import Callable
from pathlib import Path

import structlog

from gateway.background import Background

log = structlog.get_logger(__name__)

DAY_MS = 86_400_000
PRUNE_EVERY_MS = 3_600_000
FILE_BYTES = 16 * 1024**2  # of a session; what comes later is left out
SUFFIX = ".txt"

_PLAIN = re.compile(r"[A-Za-z0-9_-]{1,80}")


class Transcripts:
    """Appends blocks behind everyone's back. `folder`: all of them; profiles are folders in it."""

    def __init__(self, folder: Path, background: Background, now_ms: Callable[[], int]) -> None:
        self._folder = folder
        self._background = background
        self._now_ms = now_ms
        self._pruned_ms: dict[str, int] = {}

    def add(self, *, profile: str, session: str, block: str, days: int) -> None:
        """Takes a block; files of the profile that nobody wrote to for `days` are deleted. Never
        waits and never fails. `session`: a hash."""
        now_ms = self._now_ms()
        self._background.put(lambda: self._write(profile, session, block, days, now_ms))

    def _write(self, profile: str, session: str, block: str, days: int, now_ms: int) -> None:
        folder = self._folder / _plain(profile)
        try:
            self._folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            folder.mkdir(mode=0o700, exist_ok=True)
            _append(folder / f"{_plain(session)}{SUFFIX}", block, now_ms)
            if now_ms - self._pruned_ms.get(profile, 0) >= PRUNE_EVERY_MS:
                self._pruned_ms[profile] = now_ms
                _prune(folder, now_ms - days * DAY_MS)
        except OSError as fault:
            log.error("transcript.not_written", errno=fault.errno, reason=fault.strerror)


def _append(path: Path, block: str, now_ms: int) -> None:
    flags = os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC
    descriptor = os.open(path, flags, 0o600)
    try:
        if os.fstat(descriptor).st_size < FILE_BYTES:
            os.write(descriptor, block.encode(errors="replace"))
        os.utime(descriptor, ns=(now_ms * 1_000_000, now_ms * 1_000_000))
    finally:
        os.close(descriptor)


def _prune(folder: Path, before_ms: int) -> None:
    for path in folder.glob(f"*{SUFFIX}"):
        if path.stat().st_mtime_ns < before_ms * 1_000_000:
            path.unlink(missing_ok=True)


def _plain(name: str) -> str:
    """A name that is one for a file too; another is named by its hash."""
    if _PLAIN.fullmatch(name):
        return name
    return hashlib.sha256(name.encode(errors="surrogatepass")).hexdigest()[:32]
