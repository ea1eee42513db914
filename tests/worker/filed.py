"""Engines that keep states in files: conversations by hand, and what lies in the folders."""

import os
from dataclasses import replace
from pathlib import Path

import torch
from decoding import opened, read, write_on

from proto.worker_settings import CacheSettings, DiskSettings, Launch, SpillSettings, WorkerSettings
from worker.build import build_engine
from worker.engine import Engine
from worker.loading.locate import open_checkpoint
from worker.sampling.chooser import Chooser
from worker.sampling.params import Sampling
from worker.settings import Machine
from worker.state.disk import DiskTier
from worker.state.slot import Slot
from worker.state.spill import Spill
from worker.state_folders import kept_files_of

SEEDED = Sampling(temperature=1.0, top_p=0.95, top_k=50, min_p=0.0, seed=11)
CHUNK = 32
PROMPT = tuple(range(5, 105))  # three whole chunks and a bit
TAIL = 12


class Clock:
    """Seconds since 1970, set by hand."""

    def __init__(self) -> None:
        self.now = 2_000_000_000.0

    def __call__(self) -> float:
        return self.now


def engine_of(
    model: Path, folder: Path, *, disk: DiskSettings | None = None,
    spill: SpillSettings | None = None, clock: Clock | None = None, **changes: object,
) -> Engine:  # fmt: skip
    """An engine with files below `folder`: of the disk tier, of the spill, of both or of none."""
    cache = CacheSettings(
        disk=replace(disk, dir=str(folder / "disk")) if disk else DiskSettings(),
        spill=spill or SpillSettings(enabled=False),
    )
    settings = WorkerSettings(model=str(model), weights="fp32", threads=1, cache=cache)
    launch = Launch(replace(settings, **changes), "tiny", str(model), "ipc:///x", str(folder))
    machine = Machine("cpu", threads=1, chunk=CHUNK, lanes=1, slots=2)
    checkpoint = open_checkpoint(model)
    engine = build_engine(launch, machine, checkpoint, masked_ids=(511,), end_ids=(2,))
    engine.kept.files = kept_files_of(
        launch, machine, checkpoint, engine.facts, "a tokenizer", clock or Clock()
    )
    return engine


def disk_of(engine: Engine) -> DiskTier:
    """The engine's disk tier."""
    assert engine.kept.files.disk is not None
    return engine.kept.files.disk


def spill_of(engine: Engine) -> Spill:
    """The engine's spill."""
    assert engine.kept.files.spill is not None
    return engine.kept.files.spill


def begin(
    engine: Engine, prompt: tuple[int, ...], salt: str = "a", cuts: tuple[int, ...] = ()
) -> Slot:
    """A slot for a prompt, of which nothing is read yet."""
    return opened(engine, prompt, Chooser(SEEDED, prompt), salt=salt, cuts=cuts)


def write(
    engine: Engine, prompt: tuple[int, ...], salt: str = "a", count: int = TAIL,
    cuts: tuple[int, ...] = (),
) -> list[int]:  # fmt: skip
    """An answer of `count` tokens; its slot is idle then."""
    slot = begin(engine, prompt, salt, cuts)
    written = [read(engine, slot), *write_on(engine, slot, count - 1)]
    engine.close(slot)
    return written


def source_of(engine: Engine, prompt: tuple[int, ...], salt: str = "a") -> tuple[str, int]:
    """What a prompt would start from, and where."""
    slot = begin(engine, prompt, salt)
    start = slot.start
    engine.close(slot)
    return str(start.source), start.position


def file_all(engine: Engine) -> int:
    """Lets the engine write while nobody waits; in how many steps."""
    steps = 0
    while True:
        if engine.file_away():
            steps += 1
            continue
        disk_of(engine).wait(10.0)
        if not engine.file_away():
            return steps
        steps += 1


def files_in(folder: Path) -> list[Path]:
    """All files below a folder."""
    return sorted(path for path in folder.rglob("*") if path.is_file())


def put(file: Path, content: bytes) -> None:
    """Other bytes in a file, which is as old as it was."""
    used = file.stat().st_mtime if file.exists() else Clock().now
    file.write_bytes(content)
    os.utime(file, (used, used))


def states_equal(one: Slot, other: Slot, length: int) -> bool:
    """Whether every byte of what is kept of the first tokens is the same."""
    pairs = zip(one.cache.freeze(length), other.cache.freeze(length), strict=True)
    return all(
        torch.equal(a.contiguous().view(torch.uint8), b.contiguous().view(torch.uint8))
        for a, b in pairs
    )
