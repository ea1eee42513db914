"""Keys and values of one sequence, all layers. Knows no tokens and no model."""

from collections.abc import Sequence

import torch
from torch import Tensor


class KvCache:
    """A growing cache: (layers, kv_heads, capacity, head_dim) for keys and for values.

    Capacity grows in steps, so that a short run holds little and a long one copies rarely.
    """

    def __init__(
        self,
        *,
        layers: int,
        kv_heads: int,
        head_dim: int,
        step: int,
        dtype: torch.dtype,
        device: torch.device,
    ) -> None:
        self._step = step
        shape = (layers, kv_heads, step, head_dim)
        self._keys = torch.zeros(shape, dtype=dtype, device=device)
        self._values = torch.zeros(shape, dtype=dtype, device=device)

    @property
    def capacity(self) -> int:
        """Tokens that fit before the next growth."""
        return self._keys.shape[2]

    @property
    def size_bytes(self) -> int:
        """Bytes held, keys and values together."""
        return 2 * self._keys.numel() * self._keys.element_size()

    def capacity_for(self, length: int) -> int:
        """Tokens that there is room for when `length` must fit."""
        return -(-length // self._step) * self._step

    def reserve(self, length: int) -> None:
        """Makes room for `length` tokens in all."""
        if length > self.capacity:
            capacity = self.capacity_for(length)
            keys, values = _grown(self._keys, capacity), _grown(self._values, capacity)
            self._keys, self._values = keys, values  # both or, where memory is short, none

    def release(self) -> int:
        """Gives the memory back, but for one step; the bytes freed. What was held is lost."""
        before = self.size_bytes
        layers, heads, _, head_dim = self._keys.shape
        shape = layers, heads, self._step, head_dim
        self._keys, self._values = self._keys.new_zeros(shape), self._values.new_zeros(shape)
        return before - self.size_bytes

    def write(self, layer: int, start: int, keys: Tensor, values: Tensor) -> None:
        """Writes rows from position `start` on. keys, values: (rows, kv_heads, head_dim)."""
        end = start + keys.shape[0]
        self._keys[layer, :, start:end].copy_(keys.transpose(0, 1))
        self._values[layer, :, start:end].copy_(values.transpose(0, 1))

    def gather(self, start: int, rows: Sequence[int]) -> None:
        """Moves some of the rows written at `start`, in order, to the first places there."""
        if list(rows) == list(range(len(rows))):
            return
        # Rows only move down, but the copy must not read what it has written already.
        places = torch.tensor(rows, device=self._keys.device) + start
        kept = slice(start, start + len(rows))
        for part in (self._keys, self._values):
            part[:, :, kept] = part[:, :, places]

    def read(self, layer: int, length: int) -> tuple[Tensor, Tensor]:
        """Views of the first `length` rows: (kv_heads, length, head_dim) each."""
        return self._keys[layer, :, :length], self._values[layer, :, :length]

    def freeze(self, length: int, start: int = 0) -> tuple[Tensor, Tensor]:
        """Copies of the first `length` rows of all layers, or of those from `start` on."""
        rows = slice(start, length)
        return self._keys[:, :, rows].clone(), self._values[:, :, rows].clone()

    def thaw(self, keys: Tensor, values: Tensor, length: int | None = None) -> None:
        """Takes back what `freeze` gave, or its first `length` rows."""
        length = keys.shape[2] if length is None else length
        self.reserve(length)
        self._keys[:, :, :length].copy_(keys[:, :, :length])
        self._values[:, :, :length].copy_(values[:, :, :length])

    @torch.inference_mode()
    def copy_from(self, other: "KvCache", length: int) -> None:
        """Takes the first `length` rows of another cache of the same shape."""
        self.thaw(other._keys, other._values, length)


def _grown(old: Tensor, capacity: int) -> Tensor:
    layers, heads, held, head_dim = old.shape
    new = torch.zeros((layers, heads, capacity, head_dim), dtype=old.dtype, device=old.device)
    new[:, :, :held].copy_(old)
    return new
