"""The counts of several gateway processes, shown as one. Knows no process but its own.

Each process keeps its counts in a file of the folder they share. A number belongs to one process at
a time; who gets it after a death goes on counting where the file stands, so no counter ever falls.
The engine's worker is one for all and tells each the same: its counts are shown as the process that
is asked has heard them, or as they were shown last by another that had heard more.
"""

from __future__ import annotations

import asyncio
import json
import os
from collections.abc import Iterator
from itertools import count
from pathlib import Path
from threading import Lock
from typing import TYPE_CHECKING, Any

import structlog

from gateway.observe.metrics import FAMILIES, Metrics, Values, add_up

if TYPE_CHECKING:
    from gateway.observe.worker import WorkerCounts

log = structlog.get_logger(__name__)

WRITE_S = 1.0  # a hard kill costs the counts of so long a time
_FILES = "metrics-*.json"
_WORKER_FILES = "worker-*.json"  # the worker as it was shown last by each process
_GAUGES = frozenset(family.name for family in FAMILIES if family.kind == "gauge")


def metrics_file(folder: Path, number: int) -> Path:
    """Where process `number` keeps its counts."""
    return folder / f"metrics-{number}.json"


def forget_all(folder: Path) -> None:
    """Begins at zero."""
    for pattern in (_FILES, _WORKER_FILES):
        for path in folder.glob(f"{pattern}*"):
            path.unlink()


def retire(path: Path) -> None:
    """What was going on in a process that is dead goes on no more; what it counted stays."""
    if path.exists():
        _write(path, _lasting(read(path)))


def read(path: Path) -> Values:
    """The counts in a file; none where there is none. Raises: OSError."""
    known = _read_json(path) or {}
    return {
        name: {tuple(labels): value for labels, value in samples} for name, samples in known.items()
    }


class SharedMetrics(Metrics):
    """The counts of one process among several; `shown` are those of all."""

    def __init__(self, folder: Path, number: int) -> None:
        super().__init__()
        self._folder = folder
        self._path = metrics_file(folder, number)
        self._worker_path = folder / f"worker-{number}.json"
        self._before = _lasting(read(self._path))
        self._disk = Lock()  # one thread at a time writes
        self._turns = count(1)
        self._written_turn = 0
        self._has_left = False

    async def shown(self) -> Values:
        """The sums over all processes. What was shown is in the file before anybody sees it, so
        that the next process that is asked shows no less."""
        turn, own = self._turn()
        return await asyncio.to_thread(self._with_others, turn, own)

    async def shown_worker(self) -> WorkerCounts | None:
        """The worker that this process is connected to, as the best informed one knows it."""
        own = self.worker()
        return None if own is None else await asyncio.to_thread(self._best_known, own)

    async def keep_written(self) -> None:
        """Writes the file again and again, until it is cancelled."""
        is_failing = False
        while True:
            await asyncio.sleep(WRITE_S)
            try:
                await asyncio.to_thread(self._write, *self._turn())
            except OSError as fault:
                if not is_failing:
                    log.error("metrics.not_written", errno=fault.errno, reason=fault.strerror)
                is_failing = True
            else:
                is_failing = False

    def write(self) -> None:
        """Writes the file for the last time. Raises: OSError."""
        self._write(*self._turn())

    def leave(self) -> None:
        """The folder is not ours any more: from now on these are the counts of one process."""
        self._has_left = True

    def _turn(self) -> tuple[int, Values]:
        return next(self._turns), add_up([self._before, self.values()])

    def _write(self, turn: int, values: Values) -> None:
        with self._disk:
            if turn > self._written_turn and not self._has_left:
                _write(self._path, values)
                self._written_turn = turn

    def _with_others(self, turn: int, own: Values) -> Values:
        self._write(turn, own)
        return add_up([own, *self._others()])

    def _best_known(self, own: WorkerCounts) -> WorkerCounts:
        from gateway.observe.worker import WorkerCounts, newest

        with self._disk:
            if self._has_left:
                return own
            shown = filter(None, map(_read_json, self._folder.glob(_WORKER_FILES)))
            best = newest(own, map(WorkerCounts.from_json, shown))
            if best is own:
                _write_json(self._worker_path, own.to_json())
            return best

    def _others(self) -> Iterator[Values]:
        if self._has_left:
            return
        for path in self._folder.glob(_FILES):
            if path != self._path:
                yield read(path)


def _lasting(values: Values) -> Values:
    return {name: samples for name, samples in values.items() if name not in _GAUGES}


def _write(path: Path, values: Values) -> None:
    _write_json(path, {name: [*samples.items()] for name, samples in values.items() if samples})


def _read_json(path: Path) -> Any:
    try:
        return json.loads(path.read_bytes())
    except FileNotFoundError:
        return None


def _write_json(path: Path, known: Any) -> None:
    part = path.with_suffix(".json.part")
    descriptor = os.open(part, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    with open(descriptor, "w") as file:
        json.dump(known, file)
    part.replace(path)
