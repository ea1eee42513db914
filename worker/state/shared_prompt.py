"""The state behind a prompt that several runs share. Knows no run and no model."""

from dataclasses import dataclass

from torch import Tensor

from worker import prefill
from worker.state.lineage import Lineage


@dataclass(frozen=True, slots=True)
class SharedPrompt:
    """The state behind a prompt, and how it was read.

    `row`: the model's output for its last token, (1, hidden).
    """

    plan: prefill.Plan
    lineage: Lineage
    tensors: tuple[Tensor, ...]
    drafts: tuple[tuple[Tensor, ...], ...]
    row: Tensor
