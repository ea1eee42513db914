"""The 4-bit codes of a GGUF tensor, taken as they are. Knows no names and no layout of weights.

Source: ggml `block_q4_0`, `block_q4_1`.
"""

import numpy as np
import torch
from numpy.typing import NDArray

from worker.kernels.weight import CODE_OF_ZERO, Codes

GROUP = 32  # values of a block
QUANT_BYTES = GROUP // 2
HAS_MINIMUM = {"Q4_0": False, "Q4_1": True}  # behind the scale, in each block


def codes_of(blocks: NDArray[np.uint8], kind: str, shape: tuple[int, ...]) -> Codes | None:
    """The codes of a tensor of this type and shape, [..., out, in]; None for types without.

    Values are `d·q + m` in Q4_1 and `d·(q - 8)` in Q4_0, so scales are d and zeros m + 8d or 0;
    both are rounded to bfloat16, which is all that is lost.
    """
    if kind not in HAS_MINIMUM:
        return None
    head_bytes = 4 if HAS_MINIMUM[kind] else 2
    rows = blocks.reshape(-1, head_bytes + QUANT_BYTES)
    heads = np.ascontiguousarray(rows[:, :head_bytes]).view(np.float16).astype(np.float32)
    packed = rows[:, head_bytes:]
    # Low nibbles are the first half of a block, high nibbles the second.
    quants = np.concatenate((packed & 0x0F, packed >> 4), axis=1)
    scales = torch.from_numpy(heads[:, 0].copy())
    zeros = torch.zeros_like(scales)
    if HAS_MINIMUM[kind]:
        zeros = torch.from_numpy(heads[:, 1].copy()) + CODE_OF_ZERO * scales
    groups = (*shape[:-1], shape[-1] // GROUP)
    return Codes(
        torch.from_numpy(quants).reshape(shape),
        scales.bfloat16().reshape(groups),
        zeros.bfloat16().reshape(groups),
    )
