"""Products with weights of 8 and 4 bits, on a CPU. Knows no layer, no model and no file.

The operations are torch-private. Widths that they cannot have are told beforehand, since some of
them crash the process; what they compute is checked before it is used (`tried`). Each row's result
is bit-equal whatever rows stand beside it, but for `MixedProduct`, which has two kernels.
"""

from collections.abc import Sequence

import torch
from torch import Tensor

from worker.kernels.product import Product, product_of, tried
from worker.kernels.weight import Codes, rounded_to_int8

INT8_INPUTS = 16  # inputs must be a multiple; with others the operation reads beyond its rows
FOUR_BIT_OUTPUTS = 16  # outputs must be a multiple
# Rows that four bits are still faster for. The kernel works in blocks of 4 rows: measured with
# bf16 packed for oneDNN, rows 5 to 8 cost up to half as much again at 4096 x 2048, and as much at
# 3072 x 576.
FEW_ROWS = 4


class Int8Product:
    """A weight of 8 bits with one scale a row."""

    def __init__(self, quants: Tensor, scales: Tensor, bias: Tensor | None) -> None:
        self.dtype = scales.dtype
        self._quants = quants.contiguous()
        self._scales = scales
        self._bias = bias

    def __call__(self, x: Tensor) -> Tensor:
        """See `Product`."""
        out = torch._weight_int8pack_mm(x, self._quants, self._scales)
        return out if self._bias is None else out.add_(self._bias)


class FourBitProduct:
    """A weight of 4 bits with scale and zero for each group of inputs."""

    def __init__(self, codes: Codes, bias: Tensor | None) -> None:
        self.dtype = codes.scales.dtype
        self._group = codes.group
        quants = codes.quants.to(torch.int32).contiguous()
        self._packed = torch._convert_weight_to_int4pack_for_cpu(quants, 1)
        # (groups, outputs, 2)
        self._scales = torch.stack((codes.scales.T, codes.zeros.T), dim=-1).contiguous()
        self._bias = bias

    def __call__(self, x: Tensor) -> Tensor:
        """See `Product`."""
        out = torch._weight_int4pack_mm_for_cpu(x, self._packed, self._group, self._scales)
        return out if self._bias is None else out.add_(self._bias)


class MixedProduct:
    """The same weight in two forms: one for few rows, one for many."""

    def __init__(self, few: Product, many: Product) -> None:
        self.dtype = few.dtype
        self._few = few
        self._many = many

    def __call__(self, x: Tensor) -> Tensor:
        """See `Product`."""
        return self._few(x) if x.shape[0] <= FEW_ROWS else self._many(x)


class SideBySide:
    """The outputs of several products of one input, one after the other."""

    def __init__(self, products: Sequence[Product]) -> None:
        self.dtype = products[0].dtype
        self._products = products

    def __call__(self, x: Tensor) -> Tensor:
        """See `Product`."""
        return torch.cat([product(x) for product in self._products], dim=-1)


def int8_product(values: Tensor, bias: Tensor | None) -> Product | str:
    """The product with values rounded to 8 bits, or why there is none. values: (outputs, inputs)"""
    inputs = values.shape[1]
    if inputs % INT8_INPUTS:
        return f"{inputs} inputs are no multiple of {INT8_INPUTS}"
    quants, scales = rounded_to_int8(values)
    exact = quants.float() * scales.float()[:, None]
    return tried(lambda: Int8Product(quants, scales, bias), exact, bias)


def four_bit_product(codes: Codes, bias: Tensor | None) -> Product | str:
    """The product with codes, or why there is none."""
    outputs = codes.quants.shape[0]
    if outputs % FOUR_BIT_OUTPUTS:
        return f"{outputs} outputs are no multiple of {FOUR_BIT_OUTPUTS}"
    return tried(lambda: FourBitProduct(codes, bias), codes.values(), bias)


def mixed_product(codes: Codes, bias: Tensor | None) -> Product | str:
    """Codes for few rows and the values that they stand for, in bf16, for many."""
    few = four_bit_product(codes, bias)
    if isinstance(few, str):
        return few
    return MixedProduct(few, product_of(codes.values().bfloat16(), bias))
