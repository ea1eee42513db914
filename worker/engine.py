"""The model, its slots and the choice of the next token: one step of one sequence.

Knows no client, no queue and no text; the loop says which sequence goes on.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from proto.worker_settings import Launch
from worker import prefill
from worker.faults import StartFault
from worker.kernels.attention import Prefill, Step
from worker.kernels.choice import Heads, choose
from worker.kernels.precision import compute_fp32_in_full
from worker.loading.locate import Checkpoint
from worker.models.config import SamplingDefaults
from worker.models.decoder import Decoder
from worker.models.registry import NAMED_DEFAULTS
from worker.sampling.params import Sampling
from worker.sampling.sampler import Sampler
from worker.settings import Machine, max_len_of
from worker.state.slot import Slot

DTYPES = {"bf16": torch.bfloat16, "fp32": torch.float32}


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


class Engine:
    """Owns every tensor. All its methods are called by one thread."""

    def __init__(
        self, model: Decoder, sampler: Sampler, machine: Machine, facts: EngineFacts
    ) -> None:
        self.facts = facts
        self._model = model
        self._sampler = sampler
        self._chunk = machine.chunk
        self._slot_bytes = model.cache_bytes(facts.max_len)
        self._free = [self._new_slot() for _ in range(machine.slots)]

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
        slot = self.open((0, 1))
        try:
            self.read_chunk(slot, 1, greedy, 1)
            self.read_chunk(slot, 2, greedy, 1)
            self.round(slot, greedy, 2)
        except (RuntimeError, ValueError, IndexError) as fault:
            raise StartFault(f"The model cannot write a token: {fault}.") from fault
        self.close(slot)

    def open(self, prompt: tuple[int, ...]) -> Slot:
        """Takes a free slot for a prompt, of which nothing is forwarded yet."""
        slot = self._free.pop()
        slot.reset(prompt)
        return slot

    def close(self, slot: Slot) -> None:
        """Gives the slot back."""
        self._free.append(slot)

    def plan(self, prompt: tuple[int, ...]) -> prefill.Plan:
        """Where the prompt's chunks start. A kept state would be chosen here."""
        return prefill.plan(len(prompt), self.facts.family, self._chunk)

    def read_chunk(self, slot: Slot, end: int, sampling: Sampling, number: int) -> int | None:
        """Forwards the prompt up to `end`; at the prompt's end chooses the first token."""
        start, length = slot.kv_len, len(slot.ctx)
        hidden = self._forward(slot, Prefill(start, end - start))
        slot.commit_forward(end - start)
        return self._choose(slot, hidden, sampling, number) if end == length else None

    def round(self, slot: Slot, sampling: Sampling, number: int) -> int:
        """One plain step: forwards the root and chooses the token after it."""
        hidden = self._forward(slot, Step(slot.kv_len))
        slot.commit_forward(1)
        return self._choose(slot, hidden, sampling, number)

    @torch.inference_mode()
    def _forward(self, slot: Slot, rows: Prefill | Step) -> Tensor:
        end = rows.start + rows.count
        slot.cache.reserve(end)
        ids = torch.tensor(slot.ctx[rows.start : end], device=self._model.device)
        return self._model.forward(ids, slot.cache, rows)  # (rows, hidden)

    @torch.inference_mode()
    def _choose(self, slot: Slot, hidden: Tensor, sampling: Sampling, number: int) -> int:
        logits = self._model.logits(hidden[-1:])[0]  # (vocab,)
        token = self._sampler.choose(logits.cpu().numpy(), sampling, number)
        slot.commit_choice(token)
        return token

    def _new_slot(self) -> Slot:
        return Slot(self._model.new_cache(self._chunk))

    @torch.inference_mode()
    def is_row_invariant(self) -> bool:
        """Whether a row's result is bit-equal whatever rows stand beside it (linears only)."""
        width = self._model.config.hidden_size
        rows = torch.randn(16, width, generator=torch.Generator().manual_seed(0))
        rows = rows.to(self._model.device)
        alone = torch.cat([self._model.logits(rows[i : i + 1]) for i in range(16)])
        return all(
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
    dtype, device = DTYPES[settings.weights], torch.device(machine.device)
    compute_fp32_in_full()
    shape = Heads(config.head_count, config.kv_head_count, config.head_dim, dtype, device)
    attention = choose(shape)
    model = Decoder(
        config, checkpoint.tensors, attention, dtype=dtype, device=device, max_len=max_len
    )
    facts = EngineFacts(
        family=config.family.name,
        layout=settings.weights,
        device=machine.device,
        attention=attention.name,
        max_len=max_len,
        chunk=machine.chunk,
        slots=machine.slots,
        lanes=machine.lanes,
        end_ids=frozenset(end_ids),
        defaults=NAMED_DEFAULTS.get(settings.model, checkpoint.sampling),
    )
    return Engine(model, Sampler(masked_ids), machine, facts)
