"""The engine over a model that came from no file, and writing with it. Knows no part."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from bench.gpu.near_ties import gaps_in_ulps
from bench.gpu.notes import Stage
from bench.gpu.timing import settled_clock
from worker.draft.base import Drafter
from worker.engine import Engine, EngineFacts
from worker.models.config import SamplingDefaults
from worker.models.decoder import Decoder
from worker.sampling.chooser import Chooser, Chosen, Logits
from worker.sampling.params import Sampling
from worker.sampling.sampler import gumbel_noise
from worker.settings import MOST_ROWS, Machine
from worker.speculation.cut import Bounds
from worker.speculation.prices import Prices
from worker.speculation.speculation import Speculation
from worker.state.ask import Ask
from worker.state.keeping import Keeping
from worker.state.slot import Slot

GREEDY = Sampling(temperature=0.0, top_p=1.0, top_k=0, min_p=0.0, seed=0)
SEEDED = Sampling(temperature=1.0, top_p=1.0, top_k=0, min_p=0.0, seed=11)
# Rows cost nothing and a plain step is dear, so that every guess is verified in whole.
FREE = Prices(
    {256: 1e6}, {256: {"chain": {1: 1e-6}, "tree": {1: 1e-6}}}, {"chain": 0.0, "tree": 0.0}
)


def engine_of(model: Decoder, drafters: Sequence[Drafter], stage: Stage, *, chunk: int) -> Engine:
    """The engine that serves, with one slot and these drafters, every guess of which it tries."""
    config = model.config
    device: Literal["cpu", "cuda"] = "cuda" if stage.is_cuda else "cpu"
    machine = Machine(device, torch.get_num_threads(), chunk=chunk, lanes=1, slots=1)
    facts = EngineFacts(
        family=config.family.name,
        layout=model.layout.name,
        device=device,
        attention="",
        max_len=config.max_len,
        chunk=chunk,
        slots=1,
        lanes=1,
        end_ids=frozenset(),
        defaults=SamplingDefaults(),
    )
    speculation = Speculation(FREE, Bounds(MOST_ROWS), lambda: drafters)
    return Engine(model, (), machine, facts, speculation, Keeping(), settled_clock(stage))


class Following(Chooser):
    """Chooses as ever and notes it, but writes the text it is given: what comes after a token that
    was chosen otherwise can still be compared. Without a text it writes what it chooses.

    `chosen`: all choices; `gaps`: without a text, how clear each was, in ulps.
    """

    def __init__(
        self, sampling: Sampling, prompt: Sequence[int], text: Sequence[int] | None = None
    ) -> None:
        super().__init__(sampling, prompt)
        self.chosen: list[int] = []
        self.gaps: list[float] = []
        self._text = text

    def choose(self, logits: Logits, masked: NDArray[np.int64]) -> Chosen:
        """See `Chooser.choose`."""
        number = self.number
        token = super().choose(logits, masked).token
        self.chosen.append(token)
        if self._text is not None:
            return Chosen(self._text[number - 1])
        self.gaps.append(self._gap(logits, number))
        return Chosen(token)

    def _gap(self, logits: Logits, number: int) -> float:
        values = logits.astype(np.float64)
        if temperature := self.sampling.temperature:
            noise = gumbel_noise(self.sampling, number, np.arange(len(values)))
            values = values / temperature + noise
        return float(gaps_in_ulps(torch.from_numpy(values)[None]))


@dataclass(frozen=True, slots=True)
class Written:
    """`state`: what the sequence left behind, as `SequenceCache.freeze` gives it."""

    rounds: int
    state: tuple[Tensor, ...]


def read(engine: Engine, prompt: Sequence[int], chooser: Chooser) -> Slot:
    """A slot that has read the prompt and chosen the first token."""
    slot = engine.open(Ask(tuple(prompt), chooser))
    while slot.kv_len < len(prompt):
        engine.read_chunk(slot, slot.plan.chunk_end(slot.kv_len, len(prompt)))
    return slot


def write(engine: Engine, prompt: Sequence[int], chooser: Chooser, count: int) -> Written:
    """Reads the prompt and writes `count` tokens."""
    slot = read(engine, prompt, chooser)
    left, rounds = count - 1, 0
    while left:
        done = engine.round(slot, left, lambda _: True)
        left, rounds = left - len(done.tokens), rounds + 1
    state = slot.cache.freeze(slot.kv_len)
    engine.close(slot)
    return Written(rounds, state)
