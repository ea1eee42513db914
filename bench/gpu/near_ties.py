"""The promise below fp32 and on other devices: another token only where two were nearly as good.

Knows no model.
"""

from dataclasses import asdict, dataclass

import torch
from torch import Tensor

from bench.gpu.notes import Notes, worst

BF16_MANTISSA_BITS = 7
# Steps of bf16, whatever the layout. In fp32 two may change places that are 1e-4 apart and less.
NEAR_TIE_ULPS = {torch.bfloat16: 2.0, torch.float32: 0.01}


@dataclass(frozen=True, slots=True)
class Flips:
    """`rows` compared, how many were `near_ties`, how many chose another token (`flips`).

    `worst_ulps`: the largest gap, in the plain row, of a flip; NaN where a plain row had no order.
    """

    rows: int
    near_ties: int
    flips: int
    worst_ulps: float

    def __str__(self) -> str:
        return (
            f"{self.rows} rows, {self.near_ties} near ties, {self.flips} flips, "
            f"the largest at {self.worst_ulps:.2f} ulps"
        )

    def tell(self, what: str, dtype: torch.dtype, notes: Notes) -> None:
        """Judges them, and reports all four, in words too."""
        limit = NEAR_TIE_ULPS[dtype]
        notes.check(f"{what}, gap in ulps of the worst flip", self.worst_ulps, limit)
        notes.number(what, asdict(self))
        notes.remark(f"{what}: {self}")


def flips_of(gaps: Tensor, plain: Tensor, other: Tensor, dtype: torch.dtype) -> Flips:
    """gaps: (rows,) of the plain rows, in ulps; plain, other: (rows,), the tokens chosen."""
    flipped = gaps[plain != other]
    largest = float(flipped.max()) if len(flipped) else 0.0
    if gaps.isnan().any():
        largest = torch.nan
    near = int((gaps <= NEAR_TIE_ULPS[dtype]).sum())
    return Flips(len(gaps), near, len(flipped), largest)


def gaps_in_ulps(logits: Tensor) -> Tensor:
    """How far the likeliest token is ahead of the next, in steps of bf16. logits: (rows, vocab)."""
    best, second = logits.topk(2, dim=-1).values.double().unbind(-1)
    ulp = torch.exp2(best.abs().log2().floor() - BF16_MANTISSA_BITS)
    return (best - second) / ulp


def sum_of(some: list[Flips]) -> Flips:
    """Of all of them together."""
    return Flips(
        sum(one.rows for one in some),
        sum(one.near_ties for one in some),
        sum(one.flips for one in some),
        worst(one.worst_ulps for one in some),
    )
