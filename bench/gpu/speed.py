"""G4: what tokens, prompts and verifies cost on a 9B-class hybrid. Knows no right or wrong."""

from functools import partial

import torch

from bench.gpu import prices
from bench.gpu.models import RandomTensors, build, nine_b, random_ids
from bench.gpu.notes import Notes, Stage
from bench.gpu.timing import bandwidth_gb_s, elapsed_ms, median_ms
from worker.kernels.attention import Prefill, Step
from worker.kernels.choice import Heads, choose
from worker.kernels.precision import compute_fp32_in_full
from worker.models.config import ModelConfig
from worker.models.decoder import Decoder
from worker.state.cache import SequenceCache

LAYERS = (32, 16, 8, 4)  # the whole model, or as much of it as fits
MEMORY_SHARE = 0.8  # of what is free, for the weights; loading takes some more for a while
CONTEXTS, TINY_CONTEXTS = (256, 1024, 4096, 8192, 16_384), (16, 32)
CHUNK, TINY_CHUNK = 1024, 16


def run(stage: Stage, notes: Notes) -> None:
    """Bandwidth of the memory, prefill and steps at growing contexts beside its floor, prices."""
    bandwidth = bandwidth_gb_s(stage)
    notes.number("bandwidth_gb_s", bandwidth)
    notes.remark(f"{bandwidth:,.0f} GB/s")
    model, read_bytes = nine_b_model(stage, notes)
    _measure(stage, notes, model, read_bytes=read_bytes, bandwidth=bandwidth)
    prices.measure(model, stage, notes)


def nine_b_model(stage: Stage, notes: Notes) -> tuple[Decoder, int]:
    """The hybrid in bf16, or as many of its layers as fit, and the bytes that a token reads."""
    compute_fp32_in_full()
    config, dtype = _config(stage), torch.bfloat16
    shape = Heads(config.head_count, config.kv_head_count, config.head_dim, dtype, stage.device)
    attention = choose(shape)
    tensors = RandomTensors(config, stage.device, dtype)
    model = build(config, tensors, attention, dtype=dtype, device=stage.device)
    counts = tensors.element_counts
    billions = sum(counts.values()) / 1e9
    notes.number("attention", attention.name)
    notes.number("layers", len(config.layers))
    notes.number("weights_billions", billions)
    notes.remark(f"{billions:.2f}B weights, {attention.name}")
    # Of the embedding a token reads one row.
    return model, dtype.itemsize * (sum(counts.values()) - counts["model.embed_tokens.weight"])


@torch.inference_mode()
def _measure(
    stage: Stage, notes: Notes, model: Decoder, *, read_bytes: int, bandwidth: float
) -> None:
    chunk = TINY_CHUNK if stage.is_tiny else CHUNK
    contexts = TINY_CONTEXTS if stage.is_tiny else CONTEXTS
    cache = model.new_cache(chunk)
    cache.reserve(contexts[-1] + 1)
    ids = random_ids(contexts[-1] + 1, model.config.vocab_size, stage.device)
    _forward(model, cache, ids[:chunk], Prefill(0, chunk))  # warms up what is compiled or tuned
    cache.clear()
    prefill_ms, read = 0.0, 0
    state_bytes = model.cache_bytes(0)
    for context in contexts:
        while read < context:
            rows = Prefill(read, min(chunk, context - read))
            part = ids[read : read + rows.count]
            prefill_ms += elapsed_ms(stage, partial(_forward, model, cache, part, rows))
            read += rows.count
        # The same step again and again: the row is written over, the state drifts.
        one = ids[context : context + 1]
        step_ms = median_ms(stage, partial(_forward, model, cache, one, Step(context)))
        # The state is read and written.
        moved = read_bytes + model.cache_bytes(context) + state_bytes
        floor_ms = moved / bandwidth / 1e6
        numbers = {
            "step_ms": step_ms,
            "floor_ms": floor_ms,
            "share_of_bandwidth": floor_ms / step_ms,
            "prefill_tokens_per_s": read / prefill_ms * 1000,
        }
        notes.number(f"context_{context}", numbers)
        notes.remark(
            f"at {context}: a step {step_ms:.2f} ms ({floor_ms / step_ms:.0%} of the bandwidth), "
            f"prefill so far {read / prefill_ms * 1000:,.0f} tokens/s"
        )


def _forward(
    model: Decoder, cache: SequenceCache, ids: torch.Tensor, rows: Prefill | Step
) -> torch.Tensor:
    """What the engine does: forward, and the last row's logits on the host."""
    return model.logits(model.forward(ids, cache, rows)[-1:]).cpu()


def _config(stage: Stage) -> ModelConfig:
    if not stage.is_cuda:
        return nine_b(stage, LAYERS[-1])
    free_bytes, _ = torch.cuda.mem_get_info(stage.device)
    for layers in LAYERS:
        config = nine_b(stage, layers)
        if _weight_bytes(config) <= MEMORY_SHARE * free_bytes:
            break
    return config


def _weight_bytes(config: ModelConfig) -> int:
    """About: embedding and head, and of each layer the MLP and four squares for its mixer."""
    width = config.hidden_size
    layer = 3 * width * config.intermediate_size + 4 * width * width
    return 2 * (2 * config.vocab_size * width + len(config.layers) * layer)
