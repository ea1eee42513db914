"""Where a checkpoint's tensors go: the layout's dtype and the device. Knows no layer."""

from typing import Protocol

import torch
from torch import Tensor

from worker.kernels.product import Product, product_of
from worker.models.config import Activation
from worker.models.layers import GatedMlp, RmsNorm


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


class Placement:
    """Reads tensors below a prefix. `is_centred`: norms are stored as multiplier minus 1."""

    def __init__(
        self,
        source: TensorSource,
        dtype: torch.dtype,
        device: torch.device,
        *,
        is_centred: bool,
        prefix: str = "",
    ) -> None:
        self.dtype = dtype
        self.device = device
        self._source = source
        self._is_centred = is_centred
        self._prefix = prefix

    def below(self, prefix: str) -> "Placement":
        """The same for what stands below a name."""
        return Placement(
            self._source, self.dtype, self.device,
            is_centred=self._is_centred, prefix=f"{self._prefix}{prefix}.",
        )  # fmt: skip

    def has(self, name: str) -> bool:
        """Whether there is such a tensor."""
        return self._source.has(self._prefix + name)

    def weight(self, name: str, *shape: int) -> Tensor:
        """In the layout's dtype."""
        return self._source.read(self._prefix + name, shape).to(self.device, self.dtype)

    def fp32(self, name: str, *shape: int) -> Tensor:
        """As float32."""
        return self._source.read(self._prefix + name, shape).to(self.device, torch.float32)

    def product(self, name: str, outputs: int, inputs: int) -> Product:
        """A linear map without bias."""
        return product_of(self.weight(name, outputs, inputs))

    def norm(self, name: str, size: int, eps: float) -> RmsNorm:
        """A norm over the last dim."""
        return RmsNorm(self.multiplier(name, size), eps)

    def multiplier(self, name: str, size: int) -> Tensor:
        """What a norm multiplies with, as float32."""
        stored = self.fp32(name, size)
        return stored + 1.0 if self._is_centred else stored

    def mlp(self, hidden: int, width: int, activation: Activation) -> GatedMlp:
        """A gated MLP; its gate and up rows become one product."""
        gate, up = (self.weight(f"{name}_proj.weight", width, hidden) for name in ("gate", "up"))
        down = self.product("down_proj.weight", hidden, width)
        return GatedMlp(product_of(torch.cat((gate, up))), down, activation)
