"""The promise of layouts below fp32: another token only where two were nearly as good."""

import math
from dataclasses import dataclass

import torch

NEAR_TIE_ULPS = 2


@dataclass(frozen=True)
class Comparison:
    """`rows` compared, how many were `near_ties`, how many had another first token (`flips`).

    `worst_ulps`: the largest gap, in the plain row, of a flip.
    """

    rows: int
    near_ties: int
    flips: int
    worst_ulps: float

    def holds(self) -> bool:
        """Whether every flip was at a near tie."""
        return self.worst_ulps <= NEAR_TIE_ULPS


def compared(plain: torch.Tensor, other: torch.Tensor) -> Comparison:
    """The first tokens of two forwards of the same ids. plain, other: (rows, vocab) float32."""
    top = plain.topk(2, dim=-1).values
    gaps = [(first - second) / ulp(first) for first, second in top.tolist()]
    flipped = (plain.argmax(-1) != other.argmax(-1)).tolist()
    flips = [gap for gap, is_flip in zip(gaps, flipped, strict=True) if is_flip]
    near = sum(gap <= NEAR_TIE_ULPS for gap in gaps)
    return Comparison(len(gaps), near, len(flips), max(flips, default=0.0))


def ulp(logit: float) -> float:
    """The step of bf16 at this logit."""
    return 2.0 ** (math.floor(math.log2(abs(logit))) - 7)
