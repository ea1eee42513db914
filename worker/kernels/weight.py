"""A linear's weight before it is packed: values, and 4-bit codes where its file has them.

Knows no file format, no layer and no operation that multiplies with it.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

CODES = 16
CODE_OF_ZERO = 8
INT8_MOST = 127
GROUPS = (64, 32)  # inputs with one scale, where the file says nothing: the first that fits

Arrange = Callable[[Tensor], Tensor]


@dataclass(frozen=True, slots=True)
class Codes:
    """4-bit codes in groups along the inputs: `(quants - 8) · scales + zeros`.

    quants: (..., outputs, inputs) uint8; scales, zeros: (..., outputs, groups) bfloat16, as the
    packed operation wants them.
    """

    quants: Tensor
    scales: Tensor
    zeros: Tensor

    @property
    def group(self) -> int:
        """Inputs that share a scale."""
        return self.quants.shape[-1] // self.scales.shape[-1]

    def values(self) -> Tensor:
        """What the codes stand for: (..., outputs, inputs) float32."""
        grouped = _grouped(self.quants, self.group).float() - CODE_OF_ZERO
        scaled = grouped * self.scales.float()[..., None]
        return (scaled + self.zeros.float()[..., None]).flatten(-2)

    def arranged(self, arrange: Arrange) -> "Codes":
        """The same with rows (or whole groups of inputs) put elsewhere."""
        return Codes(arrange(self.quants), arrange(self.scales), arrange(self.zeros))


@dataclass(frozen=True, slots=True)
class Weight:
    """values: (..., outputs, inputs) in any float dtype. `codes`: the file's own, if it has any."""

    values: Tensor
    codes: Codes | None = None

    def arranged(self, arrange: Arrange) -> "Weight":
        """The same with rows put elsewhere; `arrange` must not care for the number of columns."""
        codes = None if self.codes is None else self.codes.arranged(arrange)
        return Weight(arrange(self.values), codes)


def joined(parts: Sequence[Weight]) -> Weight:
    """The rows of all parts, one part after the other.

    Where some parts have codes of their file, the others get some with groups of the same size.
    """
    values = torch.cat([part.values for part in parts])
    groups = {part.codes.group for part in parts if part.codes is not None}
    if len(groups) != 1:
        return Weight(values)
    (group,) = groups
    codes = [part.codes or quantised(part.values, group) for part in parts]
    return Weight(values, joined_codes(codes))


def joined_codes(parts: Sequence[Codes]) -> Codes:
    """The rows of all parts, one part after the other. Their groups have one size."""
    return Codes(
        torch.cat([part.quants for part in parts], dim=-2),
        torch.cat([part.scales for part in parts], dim=-2),
        torch.cat([part.zeros for part in parts], dim=-2),
    )


def group_for(inputs: int) -> int | None:
    """The size of groups for so many inputs; None where none fits."""
    return next((group for group in GROUPS if inputs % group == 0), None)


def quantised(values: Tensor, group: int) -> Codes:
    """Codes for values that have none, each group from its smallest to its largest value."""
    grouped = _grouped(values, group).float()
    low, high = grouped.amin(-1), grouped.amax(-1)
    scales = (high - low) / (CODES - 1)
    zeros = (low + CODE_OF_ZERO * scales).bfloat16()
    # Codes are chosen for the scales that the packed form can hold, so that errors do not add up.
    scales = scales.clamp_min(torch.finfo(torch.bfloat16).tiny).bfloat16()
    steps = (grouped - zeros.float()[..., None]) / scales.float()[..., None]
    quants = (steps.round() + CODE_OF_ZERO).clamp(0, CODES - 1).to(torch.uint8)
    return Codes(quants.flatten(-2), scales, zeros)


def _grouped(values: Tensor, group: int) -> Tensor:
    """values: (..., inputs); out: (..., groups, group)."""
    return values.reshape(*values.shape[:-1], -1, group)


def rounded_to_int8(values: Tensor) -> tuple[Tensor, Tensor]:
    """Each row in steps of a 127th of its largest value.

    values: (outputs, inputs); out: (outputs, inputs) int8, scales (outputs,) bfloat16.
    """
    exact = values.float()
    scales = (exact.abs().amax(-1) / INT8_MOST).clamp_min(torch.finfo(torch.bfloat16).tiny)
    scales = scales.bfloat16()
    steps = (exact / scales.float()[:, None]).round()
    return steps.clamp(-INT8_MOST, INT8_MOST).to(torch.int8), scales
