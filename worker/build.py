"""Puts the engine together from files and settings. Knows no run and no link."""

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
from worker.models.decoder import Decoder
from worker.models.layouts import Layout
from worker.models.registry import NAMED_DEFAULTS
from worker.settings import Machine, bounds_of, max_len_of
from worker.speculation.prices import UNMEASURED, Prices
from worker.state.keeping import keeping_of


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
    clock: Callable[[], float] = time.perf_counter,
) -> Engine:
    """Loads the weights and puts the engine together. Without prices all its rounds are plain.

    `masked_ids`: ids of a row of logits that have no token. `tokenizer_hash`: of the model's; a
    drafter that says which one it was made for is held to it.

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
    ticking = settled(clock, layout.device)
    return Engine(model, masked_ids, machine, facts, speculation, keeping, ticking)


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
