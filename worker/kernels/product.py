"""`x · weightᵀ + bias`, the fastest way each device has. Knows no layer and no model.

On a CPU each row's result is bit-equal whatever rows stand beside it, in every form here.
"""

from collections.abc import Callable
from typing import Protocol

import structlog
import torch
from torch import Tensor
from torch.nn.functional import linear

log = structlog.get_logger()

PACKING_UNAVAILABLE = "packing.unavailable"

FP32_ROWS = 4  # fp32 products sum differently for other numbers of rows, so they get padded
# Packed bf16 products of one and two rows cost more than of four: of 4096 x 2048 by 15 and 35 %, of
# 3072 x 576 by 5 and 11 %, the making of the four included. Smaller weights gain nothing.
BF16_ROWS = 4
BF16_REPEATED_VALUES = 2**19
CHECK_ROWS = 2
# Relative; a packed product that is farther off is not used. In fp32: far below TF32's 1e-3.
CHECK_ERRORS = {torch.bfloat16: 1e-2, torch.float32: 1e-5}


class Product(Protocol):
    """A linear map. `dtype` is that of its weight, and of what goes in and comes out."""

    dtype: torch.dtype

    def __call__(self, x: Tensor) -> Tensor:
        """x: (rows, inputs); out: (rows, outputs)."""
        ...


def product_of(weight: Tensor, bias: Tensor | None = None) -> Product:
    """The product for a weight's place and dtype. weight: (outputs, inputs)."""
    if weight.device.type != "cpu":
        return PlainProduct(weight, bias)
    product = _packed(weight, bias) or PlainProduct(weight, bias)
    return InFours(product) if weight.dtype == torch.float32 else product


class PlainProduct:
    """torch's own product."""

    def __init__(self, weight: Tensor, bias: Tensor | None) -> None:
        self.dtype = weight.dtype
        self._weight = weight
        self._bias = bias

    def __call__(self, x: Tensor) -> Tensor:
        """See `Product`."""
        return linear(x, self._weight, self._bias)


class InFours:
    """Another product over a multiple of `FP32_ROWS` rows."""

    def __init__(self, product: Product) -> None:
        self.dtype = product.dtype
        self._product = product

    def __call__(self, x: Tensor) -> Tensor:
        """See `Product`."""
        rows = x.shape[0]
        missing = -rows % FP32_ROWS
        if not missing:
            return self._product(x)
        return self._product(torch.cat((x, x[:1].expand(missing, -1))))[:rows]


class PackedProduct:
    """A product from a weight that was laid out for oneDNN once.

    torch lays a plain bf16 weight out anew at every call, which is most of the time of a single
    row; for plain fp32 it asks MKL, which takes 1.2 to 3 times as long on a CPU of another make.
    The operations are torch-private, so `_packed` checks them before they are used.
    """

    def __init__(self, weight: Tensor, bias: Tensor | None) -> None:
        self.dtype = weight.dtype
        self._packed = torch.ops.mkldnn._reorder_linear_weight(weight)
        self._bias = bias
        is_repeated = self.dtype == torch.bfloat16 and weight.numel() >= BF16_REPEATED_VALUES
        self._least_rows = BF16_ROWS if is_repeated else 1

    def __call__(self, x: Tensor) -> Tensor:
        """See `Product`."""
        rows = x.shape[0]
        if self._least_rows >= 2 * rows:
            return self._product(torch.cat((x,) * (self._least_rows // rows)))[:rows]
        return self._product(x)

    def _product(self, x: Tensor) -> Tensor:
        product: Tensor = torch.ops.mkldnn._linear_pointwise(
            x, self._packed, self._bias, "none", [], ""
        )
        return product


def _packed(weight: Tensor, bias: Tensor | None) -> Product | None:
    """The packed form, or None where this torch or this CPU has none that is right."""
    packed = tried(lambda: PackedProduct(weight, bias), weight, bias, weight.dtype)
    if isinstance(packed, str):
        log.warning(PACKING_UNAVAILABLE, reason=packed)
        return None
    return packed


def tried(
    make: Callable[[], Product],
    weight: Tensor,
    bias: Tensor | None,
    dtype: torch.dtype = torch.bfloat16,
) -> Product | str:
    """A product by a torch-private operation, once it gave what a plain one gives; else why not.

    weight: (outputs, inputs) the exact values. `dtype`: of what goes in and comes out.
    """
    shape = (CHECK_ROWS, weight.shape[1])
    x = torch.randn(shape, generator=torch.Generator().manual_seed(0)).to(dtype)
    exact_bias = None if bias is None else bias.to(weight.dtype)
    exact = linear(x.to(weight.dtype), weight, exact_bias).float()
    try:
        product = make()
        error = (product(x).float() - exact).norm() / exact.norm().clamp_min(1e-9)
    except (RuntimeError, AttributeError) as fault:
        return type(fault).__name__
    # `not <=`, since a result that is no number compares with nothing.
    if not float(error) <= CHECK_ERRORS[dtype]:
        return f"wrong result (relative error {float(error):.1e})"
    return product
