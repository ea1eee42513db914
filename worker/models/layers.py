"""The building blocks of a decoder layer. Knows no attention, no cache and no file format."""

from collections.abc import Callable
from functools import partial

import torch
from torch import Tensor
from torch.nn import functional

from worker.kernels.product import Product, product_of
from worker.models.config import Activation

ACTIVATIONS: dict[Activation, Callable[[Tensor], Tensor]] = {
    "silu": functional.silu,
    "gelu_tanh": partial(functional.gelu, approximate="tanh"),
}


class RmsNorm:
    """`x · rsqrt(mean(x²) + eps) · multiplier`, in fp32. multiplier: (size,) float32."""

    def __init__(self, multiplier: Tensor, eps: float) -> None:
        self._multiplier = multiplier
        self._shape = (multiplier.shape[-1],)
        self._eps = eps

    def __call__(self, x: Tensor) -> Tensor:
        """x: (..., size) float32; out the same."""
        return functional.rms_norm(x, self._shape, self._multiplier, self._eps)


class HeadNorms:
    """RMS norms of query and key heads side by side, each kind with its own multiplier."""

    def __init__(self, query: Tensor, key: Tensor, *, heads: int, kv_heads: int, eps: float):
        rows = [query.expand(heads, -1), key.expand(kv_heads, -1)]
        self._multiplier = torch.cat(rows)  # (heads + kv_heads, head_dim)
        self._shape = (query.shape[-1],)
        self._eps = eps

    def __call__(self, x: Tensor) -> Tensor:
        """x: (rows, heads + kv_heads, head_dim) float32; out the same."""
        return functional.rms_norm(x, self._shape, None, self._eps) * self._multiplier


class GatedMlp:
    """`down(activation(gate(x)) · up(x))`, with gate and up in one product."""

    def __init__(self, gate_up: Product, down: Product, activation: Activation) -> None:
        self._gate_up = gate_up
        self._down = down
        self._activate = ACTIVATIONS[activation]

    def __call__(self, x: Tensor) -> Tensor:
        """x: (rows, hidden) in the layout's dtype; out the same."""
        gate, up = self._gate_up(x).chunk(2, dim=-1)
        return self._down(self._activate(gate) * up)


class Head:
    """Logits that choose are fp32: below fp32 the likeliest ids are computed again exactly.

    weight: (vocab, hidden). A bf16 head alone rounds to steps of 0.125 at logits around 20 and
    makes exact ties.
    """

    RECOMPUTED = 64  # ids a row; anything likely to be drawn is among them

    def __init__(self, weight: Tensor, cap: float | None) -> None:
        self._product = product_of(weight)
        self._rows = None if weight.dtype == torch.float32 else weight  # that ids are read from
        self._cap = cap

    def __call__(self, hidden: Tensor) -> Tensor:
        """hidden: (rows, hidden) float32 after the final norm; out: (rows, vocab) float32."""
        logits = self._logits(hidden)
        return logits if self._cap is None else (logits / self._cap).tanh() * self._cap

    def plain(self, hidden: Tensor) -> Tensor:
        """The product alone, as drafters read it: their guesses need not be exact."""
        return self._product(hidden.to(self._product.dtype)).float()

    def _logits(self, hidden: Tensor) -> Tensor:
        logits = self.plain(hidden)
        if self._rows is None:
            return logits
        ids = logits.topk(min(self.RECOMPUTED, logits.shape[-1]), dim=-1).indices
        # A product and a sum, since a batched matrix product depends on the rows beside it.
        rows = functional.embedding(ids, self._rows).float()  # (rows, RECOMPUTED, hidden)
        exact = rows.mul_(hidden[:, None]).sum(-1)
        return logits.scatter_(1, ids, exact)
