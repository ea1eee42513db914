"""G3's single verify: rows of a tree against each path alone. Knows no engine and no round."""

import torch
from torch import Tensor

from bench.gpu.exactness import FP32_LIMIT
from bench.gpu.models import random_ids
from bench.gpu.near_ties import flips_of, gaps_in_ulps, sum_of
from bench.gpu.notes import Notes, Stage, worst
from bench.gpu.tree_shapes import leaves, parents_of, path_to
from worker.kernels.attention import Prefill, Step
from worker.kernels.tree import tree_rows
from worker.models.decoder import Decoder
from worker.state.cache import SequenceCache

TREES = (("random", 64), ("random", 17), ("chain", 32), ("star", 8))
STEP = 64


@torch.inference_mode()
def check_verify(name: str, model: Decoder, state_limit: float, stage: Stage, notes: Notes) -> None:
    """Rows = chains; nothing before a commit; what is committed = what steps leave behind."""
    start, dtype = 20 if stage.is_tiny else 300, model.dtype
    ids = random_ids(start + STEP, model.config.vocab_size, model.device)
    tree, alone = model.new_cache(STEP), model.new_cache(STEP)
    before = _read(model, alone, ids[:start])
    changed, apart, differences, flips = 0, [], [], []
    for kind, count in TREES:
        parents, tokens = parents_of(kind, count), ids[start : start + count]
        path = max((path_to(leaf, parents) for leaf in leaves(parents)), key=len)
        tree.thaw(before)
        logits = _verify(model, tree, tokens, start, parents)
        pairs = zip(before, tree.freeze(start), strict=True)
        changed += sum(int((one != other).sum()) for one, other in pairs)
        tree.commit(start, path)
        plain, state = _plain(model, alone, before, tokens, start, parents, path)
        apart += states_apart(tree.freeze(start + len(path)), state, start)
        differences.append(float((logits - plain).abs().max()))
        gaps = gaps_in_ulps(plain)
        flips.append(flips_of(gaps, plain.argmax(-1), logits.argmax(-1), dtype))
    notes.check(f"{name}, values that a verify changed", changed, 0)
    notes.check(f"{name}, state of a committed path against steps", worst(apart), state_limit)
    if dtype == torch.float32:
        difference = worst(differences)
        notes.check(f"{name}, rows of a tree against its chains", difference, FP32_LIMIT)
    sum_of(flips).tell(f"{name}, rows", dtype, notes)


def states_apart(found: tuple[Tensor, ...], plain: tuple[Tensor, ...], start: int) -> list[float]:
    """Of each tensor that a sequence left behind: ‖found − plain‖ / ‖plain‖, from `start` on."""
    pairs = list(zip(found, plain, strict=True))
    # Keys and values are (layers, heads, tokens, head_dim); the delta state knows no tokens.
    late = [(one[:, :, start:], other[:, :, start:]) for one, other in pairs[:2]]
    return [
        float((one.float() - other.float()).norm() / other.float().norm())
        for one, other in (*late, *pairs[2:])
    ]


def _read(model: Decoder, cache: SequenceCache, ids: Tensor) -> tuple[Tensor, ...]:
    cache.reserve(len(ids))
    model.forward(ids, cache, Prefill(0, len(ids)))
    return cache.freeze(len(ids))


def _verify(
    model: Decoder, cache: SequenceCache, tokens: Tensor, start: int, parents: list[int]
) -> Tensor:
    rows = tree_rows(parents, start=start, conv_width=model.conv_width).to(model.device)
    cache.reserve(start + rows.count)
    return model.logits(model.forward(tokens, cache, rows))


def _plain(
    model: Decoder,
    cache: SequenceCache,
    before: tuple[Tensor, ...],
    tokens: Tensor,
    start: int,
    parents: list[int],
    longest: list[int],
) -> tuple[Tensor, tuple[Tensor, ...]]:
    """Logits of every row as the last of its own path: in steps along the longest, whose state
    comes back too, and in one piece along the others."""
    logits: dict[int, Tensor] = {}
    for path in (path_to(leaf, parents) for leaf in leaves(parents)):
        cache.thaw(before)
        cache.reserve(start + len(path))
        hidden = model.forward(tokens[path], cache, Prefill(start, len(path)))
        logits.update(zip(path, model.logits(hidden), strict=True))
    cache.thaw(before)
    for at, row in enumerate(longest, start):
        cache.reserve(at + 1)
        logits[row] = model.logits(model.forward(tokens[[row]], cache, Step(at)))[0]
    rows = torch.stack([logits[row] for row in range(len(parents))])
    return rows, cache.freeze(start + len(longest))
