"""Puts the engine together from files and settings. Knows no run and no link."""

import time
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path

import torch

from proto.worker_settings import Launch, WorkerSettings
from worker.chunk_size import ChunkFingerprint, ChunkSize
from worker.draft.block import BlockDrafter
from worker.draft.block_config import Origin
from worker.draft.block_model import BlockModel, load_block_model
from worker.draft.drafters import drafters_of
from worker.draft.suffix_store import SuffixStores
from worker.engine import Engine, EngineFacts
from worker.kernels.attention import Prefill
from worker.kernels.choice import Heads, choose
from worker.kernels.precision import compute_fp32_in_full
from worker.loading.locate import Checkpoint
from worker.models.decoder import Decoder
from worker.models.layouts import Layout
from worker.models.registry import NAMED_DEFAULTS
from worker.settings import Machine, bounds_of, cpu_name, max_len_of
from worker.speculation.prices import UNMEASURED, Prices
from worker.speculation.speculation import Speculation
from worker.state.keeping import keeping_of

# A prompt in which a chunk is timed. Longer ones are read a little slower, and their cache takes
# memory that a start should not ask for.
MEASURED_LENGTH = 4096


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
    fits_chunk: bool = False,
    clock: Callable[[], float] = time.perf_counter,
) -> Engine:
    """Loads the weights and puts the engine together. Without prices all its rounds are plain.

    `masked_ids`: ids of a row of logits that have no token. `tokenizer_hash`: of the model's; a
    drafter that says which one it was made for is held to it. `fits_chunk`: a chunk that was not
    set is made smaller where it takes too long.

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
    read_clock = settled(clock, layout.device)
    if fits_chunk and not settings.prefill.chunk:
        read = partial(_time_chunk, model, max_len, read_clock)
        chunk_size = _chunk_size(launch, machine, checkpoint, attention.name, max_len)
        machine = replace(machine, chunk=chunk_size.settle(read))
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
    return Engine(model, masked_ids, machine, facts, speculation, keeping, read_clock)


def _chunk_size(
    launch: Launch, machine: Machine, checkpoint: Checkpoint, attention: str, max_len: int
) -> ChunkSize:
    fingerprint = ChunkFingerprint(
        weights_hash=checkpoint.weights_hash,
        layout=launch.settings.weights,
        device=device_name(machine),
        attention=attention,
        threads=machine.threads,
        max_len=max_len,
        torch=torch.__version__,
        default=machine.chunk,
    )
    return ChunkSize(Path(launch.state_dir) / "chunks", fingerprint)


def device_name(machine: Machine) -> str:
    """The device as its maker calls it."""
    return torch.cuda.get_device_name() if machine.device == "cuda" else cpu_name()


@torch.inference_mode()
def _time_chunk(model: Decoder, max_len: int, clock: Callable[[], float], chunk: int) -> float:
    """Seconds of one chunk at the end of a prompt of MEASURED_LENGTH tokens.

    What is read there is declared, not written: it costs the same.
    """
    count = min(chunk, max_len)
    start = max(0, min(max_len, MEASURED_LENGTH) - count)
    cache = model.new_cache(start + count)
    ids = torch.zeros(count, dtype=torch.int64, device=model.device)
    cache.reserve(start + count)
    began_s = clock()
    model.forward(ids, cache, Prefill(start, count))
    return clock() - began_s


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
