"""What each weight layout makes of a linear, and what it could not pack. Knows no layer or file.

Head and embedding are no linears: they have the layout's dtype in every layout.
"""

from collections import Counter
from collections.abc import Sequence

import structlog
import torch
from torch import Tensor

from proto.worker_settings import WeightLayout
from worker.kernels.packed import SideBySide, four_bit_product, int8_product, mixed_product
from worker.kernels.product import Product, product_of
from worker.kernels.weight import Weight, group_for, joined, quantised

log = structlog.get_logger()

WEIGHTS_NOT_PACKED = "weights.not_packed"

PROBED_ROWS = 16
PROBED_COUNTS = (2, 3, 8, PROBED_ROWS)


class Layout:
    """How the weights of one model are kept. `dtype`: of what goes in and out of linears."""

    def __init__(self, name: WeightLayout, device: torch.device) -> None:
        self.dtype = torch.float32 if name == "fp32" else torch.bfloat16
        self.device = device
        self.is_packed = name in ("int8", "q4", "mixed")
        self.reads_codes = name in ("q4", "mixed")
        self._name = name
        self._packed_count = 0
        self._unpacked: Counter[str] = Counter()  # by the reason
        self._shapes: dict[tuple[str, torch.Size], Product] = {}  # one of each

    @property
    def name(self) -> WeightLayout:
        """The layout in use: `bf16` where nothing could be packed."""
        is_left = self.is_packed and not self._packed_count
        return "bf16" if is_left else self._name

    def product(self, weight: Weight, bias: Tensor | None = None) -> Product:
        """A linear in this layout, in bf16 where it cannot be packed."""
        product = self._packed(weight, bias) if self.is_packed else None
        if product is None:
            product = product_of(weight.values.to(self.device, self.dtype), bias)
        self._shapes.setdefault((type(product).__name__, weight.values.shape), product)
        return product

    def product_with_gates(self, parts: Sequence[Weight], gates: Sequence[Weight]) -> Product:
        """Rows one after the other in one linear, of which the gates are never packed.

        They say how fast a recurrent state is forgotten: their error would grow with the text.
        """
        if not self.is_packed:
            return self.product(joined([*parts, *gates]))
        kept = torch.cat([gate.values for gate in gates]).to(self.device, self.dtype)
        return SideBySide((self.product(joined(parts)), product_of(kept)))

    def log_unpacked(self) -> None:
        """One warning about what could not be packed, if anything."""
        if self._unpacked:
            log.warning(
                WEIGHTS_NOT_PACKED,
                layout=self._name,
                packed=self._packed_count,
                unpacked=self._unpacked.total(),
                reasons=dict(self._unpacked),
            )

    @torch.inference_mode()
    def is_row_invariant(self) -> bool:
        """Whether every kind and shape of linear gives a row the same bits beside any others."""
        return all(
            self._is_row_invariant(product, shape[-1])
            for (_, shape), product in self._shapes.items()
        )

    def _is_row_invariant(self, product: Product, inputs: int) -> bool:
        rows = torch.randn(PROBED_ROWS, inputs, generator=torch.Generator().manual_seed(0))
        rows = rows.to(self.device, self.dtype)
        alone = torch.cat([product(rows[i : i + 1]) for i in range(PROBED_ROWS)])
        return all(torch.equal(product(rows[:count]), alone[:count]) for count in PROBED_COUNTS)

    def _packed(self, weight: Weight, bias: Tensor | None) -> Product | None:
        """The packed form, or None, which is counted by its reason."""
        product = self._tried(weight, bias)
        if isinstance(product, str):
            self._unpacked[product] += 1
            return None
        self._packed_count += 1
        return product

    def _tried(self, weight: Weight, bias: Tensor | None) -> Product | str:
        if self._name == "int8":
            return int8_product(weight.values, bias)
        codes, inputs = weight.codes, weight.values.shape[-1]
        if codes is None:
            group = group_for(inputs)
            if group is None:
                return f"{inputs} inputs are no multiple of a group"
            codes = quantised(weight.values, group)
        return (four_bit_product if self._name == "q4" else mixed_product)(codes, bias)
