"""G7: the bytes that a sequence is said to hold, against what the device counts. Knows no speed."""

from collections.abc import Callable
from functools import partial

import torch

from bench.gpu.models import WIDE, RandomTensors, build, random_ids, small
from bench.gpu.notes import Notes, Stage
from worker.kernels.attention import Prefill, Rows, Step
from worker.kernels.choice import Heads, choose
from worker.models.config import ModelConfig
from worker.models.decoder import Decoder
from worker.state.cache import SequenceCache

MIB = 1024**2
# The allocator gives blocks that are up to so much larger than was asked for.
ROUNDING_BYTES = MIB
TENSORS = 4  # keys, values, recurrent and convolution states
LONG = {**WIDE, "num_hidden_layers": 8, "max_position_embeddings": 16_384}


def run(stage: Stage, notes: Notes) -> None:
    """A dense and a hybrid model: an empty cache, a grown one, the peak between, the workspace."""
    for kind in ("llama", "qwen3_5_text"):
        config = small(kind, stage, **({} if stage.is_tiny else LONG))
        model = _model(config, stage)
        step, length = (16, 64) if stage.is_tiny else (1024, 8192)
        cache = _growing(kind, model, stage, notes, step=step, length=length)
        if stage.is_cuda:
            _workspace(kind, model, cache, stage, notes, chunk=step, length=length)
    if not stage.is_cuda:
        notes.remark("peaks and workspaces are counted on CUDA only")


def _growing(
    kind: str, model: Decoder, stage: Stage, notes: Notes, *, step: int, length: int
) -> SequenceCache:
    before = _Account(stage)
    cache = model.new_cache(step)
    empty, grown = model.cache_bytes(step), model.cache_bytes(length)
    _compare(f"{kind}, an empty cache", empty, before.held(cache), notes)
    # While it grows, the old keys and values stand beside the new.
    peak = before.peak_of(lambda: cache.reserve(length))
    _compare(f"{kind}, a cache of {length} tokens", grown, before.held(cache), notes)
    if peak is not None:
        predicted = empty + grown - model.cache_bytes(0)
        limit = predicted + TENSORS * ROUNDING_BYTES
        notes.check(f"{kind}, bytes at the peak of growth", peak, limit)
        notes.number(f"growth_peak_share_{kind}", peak / predicted)
    notes.number(f"cache_mib_{kind}", grown / MIB)
    return cache


def _compare(what: str, predicted: int, held: int, notes: Notes) -> None:
    notes.check(f"{what}, bytes off the prediction", abs(held - predicted), 0)


@torch.inference_mode()
def _workspace(
    kind: str,
    model: Decoder,
    cache: SequenceCache,
    stage: Stage,
    notes: Notes,
    *,
    chunk: int,
    length: int,
) -> None:
    """What forwarding takes beside weights and cache: a number for whoever plans memory."""
    ids = random_ids(chunk, model.config.vocab_size, stage.device)
    calls: dict[str, tuple[torch.Tensor, Rows]] = {
        "first_chunk": (ids, Prefill(0, chunk)),
        "last_chunk": (ids, Prefill(length - chunk, chunk)),
        "step": (ids[:1], Step(length - 1)),
    }
    for part, rows in calls.values():  # what libraries keep for themselves is taken once
        _forward(model, cache, part, rows)
    for name, (part, rows) in calls.items():
        taken = _Account(stage).peak_of(partial(_forward, model, cache, part, rows))
        assert taken is not None
        notes.number(f"workspace_mib_{kind}_{name}", taken / MIB)
        notes.remark(f"{kind} {name.replace('_', ' ')}: {taken / MIB:.0f} MiB of workspace")


def _forward(model: Decoder, cache: SequenceCache, ids: torch.Tensor, rows: Rows) -> torch.Tensor:
    return model.logits(model.forward(ids, cache, rows)[-1:])


class _Account:
    """The device's own count of bytes, from now on; off CUDA what the caches say they hold."""

    def __init__(self, stage: Stage) -> None:
        self._stage = stage
        self._requested, self._allocated = self._now()

    def held(self, cache: SequenceCache) -> int:
        """Bytes that were asked for and not given back."""
        if self._stage.is_cuda:
            return self._now()[0] - self._requested
        return cache.kv.size_bytes + (0 if cache.delta is None else cache.delta.size_bytes)

    def peak_of(self, work: Callable[[], object]) -> int | None:
        """The most bytes held at once during a call, what was held before it included."""
        if not self._stage.is_cuda:
            work()
            return None
        torch.cuda.reset_peak_memory_stats(self._stage.device)
        work()
        torch.cuda.synchronize(self._stage.device)
        return torch.cuda.max_memory_allocated(self._stage.device) - self._allocated

    def _now(self) -> tuple[int, int]:
        if not self._stage.is_cuda:
            return 0, 0
        stats = torch.cuda.memory_stats(self._stage.device)
        return stats["requested_bytes.all.current"], stats["allocated_bytes.all.current"]


def _model(config: ModelConfig, stage: Stage) -> Decoder:
    dtype = torch.bfloat16
    shape = Heads(config.head_count, config.kv_head_count, config.head_dim, dtype, stage.device)
    tensors = RandomTensors(config, stage.device, dtype)
    return build(config, tensors, choose(shape), dtype=dtype, device=stage.device)
