"""What a sequence keeps of its forwarded tokens, all layers. Knows no tokens and no model."""

from collections.abc import Sequence

import torch
from torch import Tensor

from worker.kernels.delta_rule import DeltaFactors, state_behind
from worker.state.kv import KvCache


class DeltaCache:
    """The state of gated delta layers, whose size does not depend on the sequence's length.

    `recurrent`: (layers, value_heads, key_dim, value_dim) float32. `conv`: (layers, tokens,
    channels), the last raw inputs of the convolution, in the layout's dtype. `factors`, `raw`: what
    each layer made of the rows of a tree; no state of a node is ever kept.
    """

    def __init__(self, recurrent: Tensor, conv: Tensor) -> None:
        self.recurrent = recurrent
        self.conv = conv
        self.factors: dict[int, DeltaFactors] = {}
        self.raw: dict[int, Tensor] = {}

    @property
    def size_bytes(self) -> int:
        """Bytes held."""
        return sum(part.numel() * part.element_size() for part in (self.recurrent, self.conv))

    def commit(self, path: Tensor) -> None:
        """Becomes the state behind a path of the tree that was forwarded last. path: (length,)."""
        for layer, (state, tail) in enumerate(zip(self.recurrent, self.conv, strict=True)):
            state.copy_(state_behind(state, self.factors.pop(layer), path))
            tail.copy_(torch.cat((tail, self.raw.pop(layer)[path]))[-len(tail) :])

    @torch.inference_mode()
    def set(self, recurrent: Tensor, conv: Tensor) -> None:
        """Becomes a copy of a state."""
        self.recurrent.copy_(recurrent)
        self.conv.copy_(conv)

    def clear(self) -> None:
        """As before the first token."""
        self.recurrent.zero_()
        self.conv.zero_()


class SequenceCache:
    """Keys and values of attention layers, and the state of delta layers where there are any."""

    def __init__(self, kv: KvCache, delta: DeltaCache | None) -> None:
        self.kv = kv
        self.delta = delta

    @property
    def size_bytes(self) -> int:
        """Bytes held."""
        return self.kv.size_bytes + (0 if self.delta is None else self.delta.size_bytes)

    def reserve(self, length: int) -> None:
        """Makes room for `length` tokens in all."""
        self.kv.reserve(length)

    @torch.inference_mode()
    def commit(self, start: int, path: Sequence[int]) -> None:
        """Keeps the rows of a path of a tree that was forwarded at `start`; drops the others."""
        self.kv.gather(start, path)
        if self.delta is not None:
            self.delta.commit(torch.tensor(path, device=self.delta.conv.device))

    def clear(self) -> None:
        """Forgets the sequence. Keys and values are written over, so they need no clearing."""
        if self.delta is not None:
            self.delta.clear()

    @torch.inference_mode()
    def freeze(self, length: int) -> tuple[Tensor, ...]:
        """Copies of what the first `length` tokens left behind; the delta state has no other."""
        kept = self.kv.freeze(length)
        if self.delta is None:
            return kept
        return (*kept, self.delta.recurrent.clone(), self.delta.conv.clone())

    @torch.inference_mode()
    def thaw(self, tensors: tuple[Tensor, ...], length: int | None = None) -> None:
        """Takes back what `freeze` gave, or its first `length` tokens.

        The state of delta layers is that behind all of it.
        """
        keys, values, *delta = tensors
        self.kv.thaw(keys, values, length)
        if self.delta is not None:
            self.delta.set(*delta)


def empty_delta(
    *,
    layers: int,
    state: tuple[int, int, int],
    conv: tuple[int, int],
    dtype: torch.dtype,
    device: torch.device,
) -> DeltaCache:
    """The state before the first token.

    `state`: value heads, key dim, value dim of a layer. `conv`: tokens and channels of a layer.
    """
    return DeltaCache(
        torch.zeros(layers, *state, dtype=torch.float32, device=device),
        torch.zeros(layers, *conv, dtype=dtype, device=device),
    )
