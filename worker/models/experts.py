"""A mixture of experts in the place of an MLP. Knows no file format and no run."""

import torch
from torch import Tensor

from worker.kernels.product import Product, product_of
from worker.kernels.weight import Weight
from worker.models.config import ExpertConfig, ModelConfig
from worker.models.layers import GatedMlp
from worker.models.placement import Placement


class ExpertMlp:
    """Each row goes through the experts that its router likes best, and through a shared one."""

    def __init__(self, config: ModelConfig, experts: ExpertConfig, place: Placement) -> None:
        hidden, activation = config.hidden_size, config.family.activation
        self._chosen = experts.chosen
        self._is_summed_to_one = experts.is_summed_to_one
        self._experts = _experts(config, experts, place.below("experts"))
        self._shared = place.below("shared_expert").mlp(hidden, experts.shared_width, activation)
        # What chooses and weighs is fp32 in every layout.
        router = place.fp32("gate.weight", experts.count, hidden)
        shared_gate = place.fp32("shared_expert_gate.weight", 1, hidden)
        self._judge = product_of(torch.cat((router, shared_gate)))

    def __call__(self, x: Tensor) -> Tensor:
        """x: (rows, hidden) in the layout's dtype; out: (rows, hidden) float32."""
        judged = self._judge(x.float())
        weights, chosen = judged[:, :-1].softmax(-1).topk(self._chosen, dim=-1)
        if self._is_summed_to_one:
            weights = weights / weights.sum(-1, keepdim=True)
        out = self._shared(x).float() * judged[:, -1:].sigmoid()
        for number in torch.unique(chosen).tolist():  # in rising order, whatever rows there are
            row, place = torch.where(chosen == number)
            out[row] += self._experts[number](x[row]).float() * weights[row, place, None]
        return out


def _experts(config: ModelConfig, experts: ExpertConfig, place: Placement) -> list[GatedMlp]:
    count, width, hidden = experts.count, experts.width, config.hidden_size
    activation = config.family.activation
    if not place.has("gate_up_proj"):  # one by one, as checkpoints are published
        return [place.below(str(i)).mlp(hidden, width, activation) for i in range(count)]
    gate_up = place.linear("gate_up_proj", count, 2 * width, hidden)
    down = place.linear("down_proj", count, hidden, width)

    def product(weight: Weight, index: int) -> Product:
        return place.layout.product(weight.arranged(lambda of_all: of_all[index]))

    return [GatedMlp(product(gate_up, i), product(down, i), activation) for i in range(count)]
