"""Where a checkpoint's tensors go: into a layout, onto a device. Knows no layer."""

from typing import Protocol

import torch
from torch import Tensor

from worker.kernels.product import Product
from worker.kernels.weight import Codes, Weight, joined
from worker.models.config import Activation
from worker.models.layers import GatedMlp, RmsNorm
from worker.models.layouts import Layout


class TensorSource(Protocol):
    """A checkpoint's tensors by their transformers names, whatever file they come from.

    `has_whole_norms`: norms are stored as multipliers, also those that transformers stores minus 1.
    """

    has_whole_norms: bool

    def has(self, name: str) -> bool:
        """Whether there is such a tensor."""
        ...

    def read(self, name: str, shape: tuple[int, ...]) -> Tensor:
        """The tensor, in any float dtype. Raises: LoadFault when missing or of another shape."""
        ...

    def codes(self, name: str, shape: tuple[int, ...]) -> Codes | None:
        """The file's own 4-bit codes of a tensor that can be read, in the same order; else None."""
        ...


class Placement:
    """Reads tensors below a prefix. `is_centred`: norms are stored as multiplier minus 1."""

    def __init__(
        self,
        source: TensorSource,
        layout: Layout,
        *,
        is_centred: bool,
        prefix: str = "",
    ) -> None:
        self.layout = layout
        self._source = source
        self._is_centred = is_centred
        self._prefix = prefix

    def below(self, prefix: str) -> "Placement":
        """The same for what stands below a name."""
        return Placement(
            self._source,
            self.layout,
            is_centred=self._is_centred,
            prefix=f"{self._prefix}{prefix}.",
        )

    def has(self, name: str) -> bool:
        """Whether there is such a tensor."""
        return self._source.has(self._prefix + name)

    def weight(self, name: str, *shape: int) -> Tensor:
        """What is no linear, in the layout's dtype."""
        stored = self._source.read(self._prefix + name, shape)
        return stored.to(self.layout.device, self.layout.dtype)

    def linear(self, name: str, *shape: int) -> Weight:
        """A linear's weight, or part of one, for `Layout` to make a product of."""
        if not self.layout.is_packed:
            return Weight(self.weight(name, *shape))
        values = self._source.read(self._prefix + name, shape)
        reads_codes = self.layout.reads_codes
        codes = self._source.codes(self._prefix + name, shape) if reads_codes else None
        return Weight(values, codes)

    def fp32(self, name: str, *shape: int) -> Tensor:
        """As float32."""
        return self._source.read(self._prefix + name, shape).to(self.layout.device, torch.float32)

    def product(self, name: str, outputs: int, inputs: int) -> Product:
        """A linear map without bias."""
        return self.layout.product(self.linear(name, outputs, inputs))

    def norm(self, name: str, size: int, eps: float) -> RmsNorm:
        """A norm over the last dim."""
        return RmsNorm(self.multiplier(name, size), eps)

    def multiplier(self, name: str, size: int) -> Tensor:
        """What a norm multiplies with, as float32."""
        stored = self.fp32(name, size)
        return stored + 1.0 if self._is_centred else stored

    def mlp(self, hidden: int, width: int, activation: Activation) -> GatedMlp:
        """A gated MLP; its gate and up rows become one product."""
        sides = [self.linear(f"{name}_proj.weight", width, hidden) for name in ("gate", "up")]
        down = self.product("down_proj.weight", hidden, width)
        return GatedMlp(self.layout.product(joined(sides)), down, activation)
