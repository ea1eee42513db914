"""Attention by the flash-attn package, for half-precision caches on CUDA. Knows no model.

The package is never a dependency: `load` says whether this machine has it, and nothing else here
imports it.

The cache keeps the layout of `KvCache`. The kernels want keys as (batch, length, kv_heads,
head_dim) and read them by strides, of which only the last must be 1; a layer of the cache with its
first two dims swapped is such a view, in which the rows of a head even lie side by side. Loads are
of 16 bytes, so that head_dim must be a multiple of 8; for others the package copies the whole cache
at each call.
Source: flash-attention 2.8, `flash_attn_interface.py` (flash_attn_with_kvcache) and
`csrc/flash_attn/flash_api.cpp` (set_params_fprop, mha_fwd_kvcache).
"""

from typing import Any, Protocol

import torch
from torch import Tensor

from worker.kernels.attention import Prefill, Rows, Sight, Step
from worker.kernels.sdpa import SdpaAttention
from worker.kernels.tree import Tree, attend_among, merged
from worker.state.kv import KvCache

DTYPES = (torch.bfloat16, torch.float16)
HEAD_DIM_MULTIPLE, MAX_HEAD_DIM = 8, 256
EVERYTHING = (-1, -1)  # the package's word for no window


class Kernel(Protocol):
    """`flash_attn_with_kvcache`, as far as it is used here."""

    def __call__(self, q: Tensor, k_cache: Tensor, v_cache: Tensor, **options: Any) -> Any:
        """q: (batch, rows, heads, head_dim); keys, values: (batch, length, kv_heads, head_dim).

        With `return_softmax_lse` a second tensor comes back, (batch, heads, rows) float32.
        """
        ...


class BrokenPackage(Exception):
    """The package is installed and cannot be imported, most often built for another torch."""


class FlashAttention:
    """Reads each key and value once for all query heads and rows that share it."""

    name = "flash"

    def __init__(self, kernel: Kernel) -> None:
        self._kernel = kernel
        self._masked = SdpaAttention()

    def attend(self, q: Tensor, sight: Sight, kv: KvCache, rows: Rows) -> Tensor:
        """See `Attention.attend`."""
        if isinstance(rows, Tree):
            return self._attend_tree(q, sight, kv, rows)
        first = sight.first_key(rows)
        keys, values = kv.read(sight.layer, rows.start + rows.count)
        # (1, length, kv_heads, head_dim). The length is in the shape: as an argument the package
        # would make a tensor of it on the device, at every call.
        keys, values = (part[:, first:].transpose(0, 1)[None] for part in (keys, values))
        match rows:
            case Step():
                # All that is left of the cache is in sight. A window would be right as well, but
                # keeps the package from taking the heads that share a key as rows of one product.
                options: dict[str, Any] = {"causal": False, "window_size": EVERYTHING}
            case Prefill():
                # Rows are the last of the keys: masks stand in the lower right corner. A window
                # of w tokens counts the row itself, the package's only those before it.
                window = (sight.window - 1, 0) if sight.window else EVERYTHING
                options = {"causal": True, "window_size": window}
        out: Tensor = self._kernel(q[None], keys, values, softmax_scale=sight.scale, **options)
        return out[0]

    def _attend_tree(self, q: Tensor, sight: Sight, kv: KvCache, rows: Tree) -> Tensor:
        """The package has no mask for trees: it reads the prefix, which all rows see in whole, and
        what it found is merged with what the few rows see of each other."""
        if sight.window or not rows.start:
            # Each depth has a window of its own, and the keys in it are few.
            return self._masked.attend(q, sight, kv, rows)
        keys, values = kv.read(sight.layer, rows.start + rows.count)
        prefix = (part[:, : rows.start].transpose(0, 1)[None] for part in (keys, values))
        seen, sums = self._kernel(
            q[None], *prefix, softmax_scale=sight.scale, causal=False, window_size=EVERYTHING,
            return_softmax_lse=True,
        )  # fmt: skip
        own_keys, own_values = keys[:, rows.start :], values[:, rows.start :]
        among = attend_among(q, own_keys, own_values, rows.reach, sight.scale)
        return merged(seen[0].float(), sums[0].T, *among).to(q.dtype)


def takes(*, dtype: torch.dtype, device: torch.device, head_dim: int) -> bool:
    """Whether the package has kernels for such a cache, installed or not."""
    is_size_known = head_dim % HEAD_DIM_MULTIPLE == 0 and head_dim <= MAX_HEAD_DIM
    return device.type == "cuda" and dtype in DTYPES and is_size_known


def load() -> FlashAttention | None:
    """The kernel, or None where the package is not installed. Raises: BrokenPackage."""
    try:
        from flash_attn import flash_attn_with_kvcache
    except ImportError as fault:
        if isinstance(fault, ModuleNotFoundError) and fault.name == "flash_attn":
            return None
        raise BrokenPackage(str(fault)) from fault
    return FlashAttention(flash_attn_with_kvcache)
