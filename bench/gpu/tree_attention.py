"""The trees of G2: every kernel against attention by its definition. Knows no model."""

from collections.abc import Iterable, Sequence
from itertools import product
from typing import Any

import torch
from torch import Tensor

from bench.gpu.tree_shapes import KINDS, parents_of, path_to
from worker.kernels.attention import Attention, Sight
from worker.kernels.choice import Heads
from worker.kernels.flash import FlashAttention
from worker.kernels.tree import attend_among, tree_rows
from worker.state.kv import KvCache

LAYER = 1


class Merge(FlashAttention):
    """Prefix and tree read apart and merged, as with flash-attn, where torch reads the prefix."""

    name = "merge"

    def __init__(self) -> None:
        super().__init__(_read_prefix)


def tree_errors(
    kernels: Sequence[tuple[Attention, torch.dtype]],
    heads: Heads,
    *,
    prefixes: Sequence[int],
    row_counts: Sequence[int],
    windows: Sequence[int],
) -> dict[tuple[int, int], float]:
    """By number of the kernel and window: the worst ‖out − exact‖ / ‖exact‖ over all trees.

    All read the same values, which bf16 holds exactly. NaN is worse than any.
    """
    found: dict[tuple[int, int], list[Tensor]] = {}
    for prefix in prefixes:
        bench = _Bench(heads, prefix, max(row_counts), {dtype for _, dtype in kernels})
        for count, kind in product(row_counts, KINDS):
            parents = parents_of(kind, count)
            for window in windows:
                errors = bench.errors(kernels, parents, window)
                for number, error in enumerate(errors):
                    found.setdefault((number, window), []).append(error)
    return {place: float(torch.stack(errors).max()) for place, errors in found.items()}


class _Bench:
    """Random queries, keys and values behind a prefix of one length."""

    def __init__(
        self, heads: Heads, prefix: int, most_rows: int, dtypes: Iterable[torch.dtype]
    ) -> None:
        source = torch.Generator(heads.device).manual_seed(prefix)
        length = prefix + most_rows

        def random(*sizes: int) -> Tensor:
            drawn = torch.randn(sizes, generator=source, device=heads.device)
            return drawn.to(torch.bfloat16)

        self._prefix = prefix
        self._q = random(most_rows, heads.heads, heads.head_dim)
        keys, values = (random(length, heads.kv_heads, heads.head_dim) for _ in range(2))
        self._caches = {dtype: _cache(keys.to(dtype), values.to(dtype)) for dtype in dtypes}
        group = heads.heads // heads.kv_heads
        self._keys, self._values = (
            part.double().repeat_interleave(group, dim=1) for part in (keys, values)
        )

    @torch.inference_mode()
    def errors(
        self, kernels: Sequence[tuple[Attention, torch.dtype]], parents: list[int], window: int
    ) -> list[Tensor]:
        """Of each kernel, one number on the device."""
        rows = tree_rows(parents, start=self._prefix).to(self._q.device)
        q = self._q[: rows.count]
        sight = Sight(LAYER, q.shape[-1] ** -0.5, window)
        exact = self._exact(q, parents, sight)
        errors = []
        for kernel, dtype in kernels:
            out = kernel.attend(q.to(dtype), sight, self._caches[dtype], rows)
            errors.append((out.double() - exact).norm() / exact.norm())
        return errors

    def _exact(self, q: Tensor, parents: list[int], sight: Sight) -> Tensor:
        """In float64, each row over the keys that it sees by the words of the definition."""
        length = self._prefix + len(parents)
        seen = _seen(parents, self._prefix, sight.window).to(q.device)
        scores = torch.einsum("ihd,jhd->hij", q.double(), self._keys[:length]) * sight.scale
        weights = scores.masked_fill(~seen, -torch.inf).softmax(-1)
        return torch.einsum("hij,jhd->ihd", weights, self._values[:length])


def _seen(parents: list[int], prefix: int, window: int) -> Tensor:
    """(rows, prefix + rows) bool: the prefix, ancestors and self, as far as the window goes."""
    seen = torch.zeros(len(parents), prefix + len(parents), dtype=torch.bool)
    for row in range(len(parents)):
        path = path_to(row, parents)
        first = max(0, prefix + len(path) - window) if window else 0
        seen[row, first:prefix] = True
        seen[row, [prefix + node for node in path[max(0, first - prefix) :]]] = True
    return seen


def _cache(keys: Tensor, values: Tensor) -> KvCache:
    length, kv_heads, head_dim = keys.shape
    shape = {"layers": LAYER + 1, "kv_heads": kv_heads, "head_dim": head_dim, "step": length}
    cache = KvCache(**shape, dtype=keys.dtype, device=keys.device)
    cache.write(LAYER, 0, keys, values)
    return cache


def _read_prefix(q: Tensor, k_cache: Tensor, v_cache: Tensor, **options: Any) -> Any:
    """What is asked of flash-attn for trees: all keys, without a mask, and the sums of weights."""
    assert not options["causal"] and options["return_softmax_lse"]
    keys, values = (part[0].transpose(0, 1) for part in (k_cache, v_cache))
    everything = torch.ones(1, keys.shape[1], dtype=torch.bool, device=q.device)
    out, sums = attend_among(q[0], keys, values, everything, options["softmax_scale"])
    return out.to(q.dtype)[None], sums.T[None]
