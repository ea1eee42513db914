"""The folders in which kept states outlive the process, by the settings. Knows no kept state."""

import hashlib
import time
from collections.abc import Callable
from pathlib import Path

import torch

from proto.worker_settings import Launch, WorkerSettings
from worker.build import device_name
from worker.engine import EngineFacts
from worker.loading.locate import Checkpoint
from worker.settings import Machine
from worker.state.disk import DiskTier
from worker.state.fingerprint import Fingerprint
from worker.state.kept_files import KeptFiles
from worker.state.spill import Spill
from worker.state.state_folder import FolderBounds, StateFolder

SPILL_FOLDER = "spill"  # below the state folder
GB = 1_000_000_000
HOUR_S, DAY_S = 3_600.0, 86_400.0


def kept_files_of(
    launch: Launch, machine: Machine, checkpoint: Checkpoint, facts: EngineFacts,
    tokenizer_hash: str, clock: Callable[[], float] = time.time,
) -> KeptFiles:  # fmt: skip
    """The tiers that the settings ask for. `clock`: seconds since 1970."""
    settings, disk, spill = launch.settings.cache, None, None
    fingerprint = _fingerprint(machine, checkpoint, facts, tokenizer_hash)
    has_states = checkpoint.config.delta is not None
    if settings.disk.dir:
        bounds = FolderBounds(int(settings.disk.max_gb * GB), settings.disk.ttl_d * DAY_S)
        path = Path(settings.disk.dir).expanduser()
        folder = StateFolder(path, fingerprint, "disk", bounds, clock)
        disk = DiskTier(folder, min_hits=settings.disk.min_hits, has_states=has_states)
    if settings.spill.enabled:
        bounds = FolderBounds(int(settings.spill.max_gb * GB), settings.spill.ttl_h * HOUR_S)
        path = Path(launch.state_dir) / SPILL_FOLDER
        folder = StateFolder(path, fingerprint, "spill", bounds, clock)
        spill = Spill(
            folder,
            time_s=settings.spill.time_s,
            has_states=has_states,
            drafter=_drafters_name(launch.settings),
        )
    return KeptFiles(disk, spill)


def _fingerprint(
    machine: Machine, checkpoint: Checkpoint, facts: EngineFacts, tokenizer_hash: str
) -> Fingerprint:
    return Fingerprint(
        weights_hash=checkpoint.weights_hash,
        layout=facts.layout,
        kv_dtype="float32" if facts.layout == "fp32" else "bfloat16",
        tokenizer_hash=tokenizer_hash,
        model=repr(checkpoint.config),
        chunk=facts.chunk,
        attention=facts.attention,
        device=device_name(machine),
        threads=machine.threads,
        torch=torch.__version__,
    )


def _drafters_name(settings: WorkerSettings) -> str:
    """Equal only where the drafters of a slot are: then one may take back what another held."""
    folder = Path(settings.draft.block.path).expanduser() if settings.draft.block.path else None
    paths = sorted(path for path in folder.iterdir() if path.is_file()) if folder else []
    files = [(path.name, path.stat().st_size, path.stat().st_mtime_ns) for path in paths]
    parts = settings.speculation.enabled, settings.draft.lookup.enabled, files
    return hashlib.sha256(repr(parts).encode()).hexdigest()
