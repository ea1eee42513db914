"""Puts the engine together from files and settings. Knows no run and no link."""

import hashlib
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

import torch

from proto.worker_settings import Launch, WorkerSettings
from worker.draft.block import BlockDrafter
from worker.draft.block_config import Origin
from worker.draft.block_model import BlockModel, load_block_model
from worker.draft.drafters import drafters_of
from worker.draft.suffix_store import SuffixStores
from worker.engine import Engine, EngineFacts, Speculation
from worker.kernels.choice import Heads, choose
from worker.kernels.precision import compute_fp32_in_full
from worker.loading.locate import Checkpoint
from worker.models.config import ModelConfig
from worker.models.decoder import Decoder
from worker.models.layouts import Layout
from worker.models.registry import NAMED_DEFAULTS
from worker.settings import Machine, bounds_of, cpu_name, max_len_of
from worker.speculation.prices import UNMEASURED, Prices
from worker.state.disk import DiskTier
from worker.state.fingerprint import Fingerprint
from worker.state.keeping import keeping_of
from worker.state.kept_files import KeptFiles
from worker.state.spill import Spill
from worker.state.state_folder import FolderBounds, StateFolder

SPILL_FOLDER = "spill"  # below the state folder
GB = 1_000_000_000
HOUR_S, DAY_S = 3_600.0, 86_400.0


def build_engine(
    launch: Launch,
    machine: Machine,
    checkpoint: Checkpoint,
    *,
    masked_ids: tuple[int, ...],
    end_ids: tuple[int, ...],
    prices: Prices = UNMEASURED,
    stores: SuffixStores | None = None,
    tokenizer_hash: str | None = None,
    keeps_files: bool = False,
    clock: Callable[[], float] = time.perf_counter,
    wall_clock: Callable[[], float] = time.time,
) -> Engine:
    """Loads the weights and puts the engine together. Without prices all its rounds are plain.

    `masked_ids`: ids of a row of logits that have no token. `tokenizer_hash`: of the model's; a
    drafter that says which one it was made for is held to it. `keeps_files`: whether kept states
    may lie in the folders that the settings name.

    Raises: LoadFault for tensors that are missing or of another shape, and for a drafter of another
        model; StartFault for settings the model cannot meet.
    """
    settings = launch.settings
    config, max_len = checkpoint.config, max_len_of(launch, machine, checkpoint.config.max_len)
    layout = Layout(settings.weights, torch.device(machine.device))
    compute_fp32_in_full()
    heads = config.head_count, config.kv_head_count, config.head_dim
    attention = choose(Heads(*heads, layout.dtype, layout.device))
    model = Decoder(config, checkpoint.tensors, attention, layout=layout, max_len=max_len)
    layout.log_unpacked()
    facts = EngineFacts(
        family=config.family.name,
        layout=layout.name,
        device=machine.device,
        attention=attention.name,
        max_len=max_len,
        chunk=machine.chunk,
        slots=machine.slots,
        lanes=machine.lanes,
        end_ids=frozenset(end_ids),
        defaults=NAMED_DEFAULTS.get(settings.model, checkpoint.sampling),
    )
    bounds = bounds_of(settings.speculation, machine.device)
    origin = Origin(checkpoint.weights_hash, tokenizer_hash)
    block = _block_model(settings, model, origin, max_len)
    limits = {"max_len": max_len, "max_rows": bounds.most_rows, "step": machine.chunk}
    speculation = Speculation(
        prices,
        bounds,
        drafters_of(
            settings,
            most_rows=bounds.most_rows,
            stores=stores,
            new_block=None if block is None else partial(BlockDrafter, block, **limits),
        ),
        drafter_bytes=(lambda length: 0) if block is None else block.cache_bytes,
        stores=stores,
        are_prompts_kept=settings.draft.lookup.store == "all",
    )
    keeping = keeping_of(settings.cache, is_cuda=machine.device == "cuda")
    files = None
    if keeps_files:
        fingerprint = _fingerprint(machine, checkpoint, layout, attention.name, tokenizer_hash)
        files = _kept_files(launch, fingerprint, config, wall_clock)
    ticking = settled(clock, layout.device)
    return Engine(model, masked_ids, machine, facts, speculation, keeping, ticking, files)


def _fingerprint(
    machine: Machine, checkpoint: Checkpoint, layout: Layout, attention: str,
    tokenizer_hash: str | None,
) -> Fingerprint:  # fmt: skip
    return Fingerprint(
        weights_hash=checkpoint.weights_hash,
        layout=layout.name,
        kv_dtype=str(layout.dtype),
        tokenizer_hash=tokenizer_hash or "",
        model=repr(checkpoint.config),
        chunk=machine.chunk,
        attention=attention,
        device=torch.cuda.get_device_name() if machine.device == "cuda" else cpu_name(),
        threads=machine.threads,
        torch=torch.__version__,
    )


def _kept_files(
    launch: Launch, fingerprint: Fingerprint, config: ModelConfig, clock: Callable[[], float]
) -> KeptFiles:
    settings, has_states = launch.settings.cache, config.delta is not None
    disk, spill = None, None
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


def _drafters_name(settings: WorkerSettings) -> str:
    """Equal only where the drafters of a slot are: then one may take back what another held."""
    folder = Path(settings.draft.block.path).expanduser() if settings.draft.block.path else None
    paths = sorted(path for path in folder.iterdir() if path.is_file()) if folder else []
    files = [(path.name, path.stat().st_size, path.stat().st_mtime_ns) for path in paths]
    parts = settings.speculation.enabled, settings.draft.lookup.enabled, files
    return hashlib.sha256(repr(parts).encode()).hexdigest()


def _block_model(
    settings: WorkerSettings, model: Decoder, origin: Origin, max_len: int
) -> BlockModel | None:
    path = settings.draft.block.path
    if not (path and settings.speculation.enabled):
        return None
    return load_block_model(Path(path).expanduser(), model, origin, max_len=max_len)


def settled(clock: Callable[[], float], device: torch.device) -> Callable[[], float]:
    """The clock, read when the device has done what it was told."""
    if device.type != "cuda":
        return clock

    def read() -> float:
        torch.cuda.synchronize(device)
        return clock()

    return read
