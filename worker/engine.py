"""The model, its slots and the choice of the next token: one step of one sequence.

Knows no client, no queue and no text; the loop says which sequence goes on.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from proto.worker_settings import Launch
from worker import prefill
from worker.embedding.embedder import Embedder
from worker.faults import StartFault
from worker.kernels.attention import Prefill, Step
from worker.kernels.choice import Heads, choose
from worker.kernels.precision import compute_fp32_in_full
from worker.loading.locate import Checkpoint
from worker.loading.pooling import Pooling
from worker.models.config import SamplingDefaults
from worker.models.decoder import Decoder
from worker.models.layouts import Layout
from worker.models.registry import NAMED_DEFAULTS
from worker.sampling.chooser import Chooser, Chosen
from worker.sampling.params import Sampling
from worker.settings import Machine, max_len_of
from worker.state.slot import Slot


@dataclass(frozen=True, slots=True)
class EngineFacts:
    """What others may know of the model. `attention`: its kernel. `max_len`, `chunk`: in tokens."""

    family: str
    layout: str
    device: str
    attention: str
    max_len: int
    chunk: int
    slots: int
    lanes: int
    end_ids: frozenset[int]
    defaults: SamplingDefaults


@dataclass(frozen=True, slots=True)
class SharedPrompt:
    """The state behind a prompt. `row`: the final norm's output of its last token, (1, hidden)."""

    tensors: tuple[Tensor, ...]
    row: Tensor


class Engine:
    """Owns every tensor. All its methods are called by one thread."""

    def __init__(
        self, model: Decoder, masked_ids: Sequence[int], machine: Machine, facts: EngineFacts
    ) -> None:
        self.facts = facts
        self._model = model
        self._masked = np.asarray(masked_ids, dtype=np.int64)
        self._chunk = machine.chunk
        self._slot_bytes = model.cache_bytes(facts.max_len)
        self._free = [self._new_slot() for _ in range(machine.slots)]
        self._side = self._new_slot()  # for short requests; what the others hold is never touched

    @property
    def free_slots(self) -> int:
        """Slots that no run holds."""
        return len(self._free)

    @property
    def kv_bytes_free(self) -> int:
        """Cache that free slots may still take, in bytes."""
        return len(self._free) * self._slot_bytes

    def check(self) -> None:
        """Writes one greedy token, so that a model that cannot run is found at start.

        Raises: StartFault.
        """
        greedy = Sampling(temperature=0.0, top_p=1.0, top_k=0, min_p=0.0, seed=0)
        slot = self.open((0, 1), Chooser(greedy, (0, 1)))
        try:
            self.read_chunk(slot, 1)
            self.read_chunk(slot, 2)
            self.round(slot)
        except (RuntimeError, ValueError, IndexError) as fault:
            raise StartFault(f"The model cannot write a token: {fault}.") from fault
        self.close(slot)

    def embedder(self, pooling: Pooling) -> Embedder:
        """What reads texts into vectors, beside the slots and never in one of them."""
        return Embedder(self._model, pooling, self._chunk)

    def open(self, prompt: tuple[int, ...], chooser: Chooser, *, is_side: bool = False) -> Slot:
        """Takes a free slot for a prompt, of which nothing is forwarded yet."""
        slot = self._side if is_side else self._free.pop()
        slot.reset(prompt, chooser)
        return slot

    def close(self, slot: Slot) -> None:
        """Gives the slot back."""
        if slot is not self._side:
            self._free.append(slot)

    def plan(self, prompt: tuple[int, ...]) -> prefill.Plan:
        """Where the prompt's chunks start. A kept state would be chosen here."""
        return prefill.plan(len(prompt), self.facts.family, self._chunk)

    def read_chunk(self, slot: Slot, end: int) -> Chosen | None:
        """Forwards the prompt up to `end`; at the prompt's end chooses the first token."""
        start, length = slot.kv_len, len(slot.ctx)
        hidden = self._forward(slot, Prefill(start, end - start))
        slot.commit_forward(end - start)
        if end < length:
            return None
        slot.prompt_row = hidden[-1:].clone()
        return self._choose(slot, hidden)

    def share(self, slot: Slot) -> SharedPrompt:
        """What others need to start behind the same prompt; right after its first token."""
        assert slot.prompt_row is not None, "the prompt must have been read"
        return SharedPrompt(slot.cache.freeze(slot.kv_len), slot.prompt_row)

    def take_shared(self, slot: Slot, shared: SharedPrompt) -> Chosen:
        """Starts behind a prompt that another slot has read: chooses the first token."""
        slot.cache.thaw(shared.tensors)
        slot.commit_forward(len(slot.ctx))
        return self._choose(slot, shared.row)

    def round(self, slot: Slot) -> Chosen:
        """One plain step: forwards the root and chooses the token after it."""
        hidden = self._forward(slot, Step(slot.kv_len))
        slot.commit_forward(1)
        return self._choose(slot, hidden)

    def inject(self, slot: Slot, ids: Sequence[int]) -> None:
        """Puts tokens behind the root that nobody chose; the last of them is the new root."""
        slot.ctx += ids
        slot.chooser.skip(len(ids))
        self._forward(slot, Prefill(slot.kv_len, len(ids)))
        slot.commit_forward(len(ids))

    @torch.inference_mode()
    def _forward(self, slot: Slot, rows: Prefill | Step) -> Tensor:
        end = rows.start + rows.count
        slot.cache.reserve(end)
        ids = torch.tensor(slot.ctx[rows.start : end], device=self._model.device)
        return self._model.forward(ids, slot.cache, rows)  # (rows, hidden)

    @torch.inference_mode()
    def _choose(self, slot: Slot, hidden: Tensor) -> Chosen:
        logits = self._model.logits(hidden[-1:])[0]  # (vocab,)
        chosen = slot.chooser.choose(logits.cpu().numpy(), self._masked)
        slot.commit_choice(chosen.token)
        return chosen

    def _new_slot(self) -> Slot:
        return Slot(self._model.new_cache(self._chunk))

    @torch.inference_mode()
    def is_row_invariant(self) -> bool:
        """Whether a row's result is bit-equal whatever rows stand beside it (linears only)."""
        width = self._model.config.hidden_size
        rows = torch.randn(16, width, generator=torch.Generator().manual_seed(0))
        rows = rows.to(self._model.device)
        alone = torch.cat([self._model.logits(rows[i : i + 1]) for i in range(16)])
        return self._model.layout.is_row_invariant() and all(
            torch.equal(self._model.logits(rows[:count]), alone[:count]) for count in (2, 3, 8, 16)
        )


def build_engine(
    launch: Launch,
    machine: Machine,
    checkpoint: Checkpoint,
    *,
    masked_ids: tuple[int, ...],
    end_ids: tuple[int, ...],
) -> Engine:
    """Loads the weights and puts the engine together.

    Raises: LoadFault for tensors that are missing or of another shape; StartFault for settings
        the model cannot meet.
    """
    settings = launch.settings
    config, max_len = checkpoint.config, max_len_of(launch, machine, checkpoint.config.max_len)
    layout = Layout(settings.weights, torch.device(machine.device))
    compute_fp32_in_full()
    heads = config.head_count, config.kv_head_count, config.head_dim
    attention = choose(Heads(*heads, layout.dtype, layout.device))
    model = Decoder(config, checkpoint.tensors, attention, layout=layout, max_len=max_len)
    layout.log_unpacked()
    facts = EngineFacts(
        family=config.family.name,
        layout=layout.name,
        device=machine.device,
        attention=attention.name,
        max_len=max_len,
        chunk=machine.chunk,
        slots=machine.slots,
        lanes=machine.lanes,
        end_ids=frozenset(end_ids),
        defaults=NAMED_DEFAULTS.get(settings.model, checkpoint.sampling),
    )
    return Engine(model, masked_ids, machine, facts)
