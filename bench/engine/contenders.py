"""Who is measured: our engine, transformers, llama.cpp. Each answers one prompt, alone, greedy.

Knows how each is asked; no rounds, no table.
"""

import json
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from transformers import AutoModelForCausalLM, DynamicCache

from proto.worker_settings import (
    BlockSettings,
    DraftSettings,
    Launch,
    WeightLayout,
    WorkerSettings,
)
from worker.build import build_engine
from worker.engine import Engine
from worker.loading.locate import open_checkpoint
from worker.sampling.chooser import Chooser, Chosen, Logits
from worker.sampling.params import Sampling
from worker.settings import Machine
from worker.state.ask import Ask
from worker.state.slot import Slot

MAX_LEN = 1024
CHUNK = 256  # tokens that we forward together, as the worker does on a CPU
GREEDY = Sampling(temperature=0.0, top_p=1.0, top_k=0, min_p=0.0, seed=0)
SCRIPT = Path(__file__).with_name("llamacpp.py")


@dataclass(frozen=True, slots=True)
class Answer:
    """One answer. The first token counts to the prefill.

    `accepted`: drafted tokens of each round that were kept, where anything drafts.
    """

    prefill_s: float
    decode_s: float
    tokens: list[int]
    accepted: list[int] = field(default_factory=list)


class Contender(Protocol):
    """One engine with one model."""

    name: str

    def write(self, prompt: list[int], count: int, follow: list[int] | None) -> Answer:
        """`count` tokens after the prompt: its own, or those of `follow`, which it commits."""
        ...


class Following(Chooser):
    """Chooses greedily, at the full cost of it, and then takes the next token of a given text."""

    def __init__(self, prompt: Sequence[int], text: Sequence[int]) -> None:
        super().__init__(GREEDY, prompt)
        self._text = text

    def choose(self, logits: Logits, masked: NDArray[np.int64]) -> Chosen:
        """See `Chooser.choose`."""
        super().choose(logits, masked)
        return Chosen(self._text[self.number - 2])


def chooser_of(prompt: Sequence[int], follow: Sequence[int] | None) -> Chooser:
    """What writes the model's own text, or the one to follow."""
    return Chooser(GREEDY, prompt) if follow is None else Following(prompt, follow)


class Ours:
    """The engine of the worker, in this process; plain decoding."""

    def __init__(self, path: Path, layout: WeightLayout) -> None:
        self.name = f"tandem {layout}"
        self._engine = engine_of(path, layout)

    def write(self, prompt: list[int], count: int, follow: list[int] | None) -> Answer:
        """See `Contender`."""
        began_s = time.perf_counter()
        slot = read(self._engine, prompt, chooser_of(prompt, follow), is_plain=True)
        first_s = time.perf_counter()
        for left in range(count - 1, 0, -1):
            self._engine.round(slot, left, lambda _: True)
        end_s = time.perf_counter()
        tokens = slot.ctx[len(prompt) :]
        self._engine.close(slot)
        return Answer(first_s - began_s, end_s - first_s, tokens)


def read(engine: Engine, prompt: Sequence[int], chooser: Chooser, *, is_plain: bool) -> Slot:
    """A slot that holds a prompt and the first token behind it. Nobody drafts in a plain one."""
    slot, chosen = engine.open(Ask(tuple(prompt), chooser, is_side=is_plain)), None
    while chosen is None:
        chosen = engine.read_chunk(slot, slot.plan.chunk_end(slot.kv_len, len(prompt)))
    return slot


def engine_of(
    path: Path, layout: WeightLayout, max_len: int = MAX_LEN, block: Path | None = None
) -> Engine:
    """One that reads prompts as a worker on a CPU does. `block`: the folder of a drafter."""
    draft = DraftSettings(block=BlockSettings("" if block is None else str(block)))
    settings = WorkerSettings(model=str(path), weights=layout, max_len=max_len, draft=draft)
    launch = Launch(settings, "bench", str(path), "", "")
    machine = Machine("cpu", threads=0, chunk=CHUNK, lanes=1, slots=1)
    return build_engine(launch, machine, open_checkpoint(path), masked_ids=(), end_ids=())


class Transformers:
    """transformers without compilation, in a bare loop without what `generate` does beside it."""

    def __init__(self, folder: Path, layout: WeightLayout) -> None:
        self.name = f"transformers {layout}"
        dtype = {"fp32": torch.float32, "bf16": torch.bfloat16}[layout]
        self._model = AutoModelForCausalLM.from_pretrained(folder, dtype=dtype).eval()

    @torch.inference_mode()
    def write(self, prompt: list[int], count: int, follow: list[int] | None) -> Answer:
        """See `Contender`."""
        began_s = time.perf_counter()
        cache = DynamicCache(config=self._model.config)
        tokens = [self._next(prompt, cache)]
        first_s = time.perf_counter()
        while len(tokens) < count:
            if follow is not None:
                tokens[-1] = follow[len(tokens) - 1]
            tokens.append(self._next(tokens[-1:], cache))
        return Answer(first_s - began_s, time.perf_counter() - first_s, tokens)

    def _next(self, ids: list[int], cache: DynamicCache) -> int:
        made = self._model(torch.tensor([ids]), cache=cache, use_cache=True, logits_to_keep=1)
        return int(made.logits[0, -1].argmax())


class LlamaCpp:
    """llama.cpp in a process of its own. Raises: OSError, when it does not start."""

    def __init__(self, python: Path, model: Path, kind: str, threads: int) -> None:
        self.name = f"llama.cpp {kind}"
        self._process = subprocess.Popen(
            [str(python), str(SCRIPT), str(model), str(threads)],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True,
        )  # fmt: skip
        self.version = str(self._line()["version"])

    def write(
        self, prompt: list[int], count: int, follow: list[int] | None, **options: object
    ) -> Answer:
        """See `Contender`. `options`: those that the script names."""
        asked = json.dumps({"prompt": prompt, "count": count, "follow": follow, **options})
        assert self._process.stdin is not None
        self._process.stdin.write(asked + "\n")
        self._process.stdin.flush()
        return Answer(**self._line())

    def close(self) -> None:
        """Ends the process; its processor time is then known."""
        assert self._process.stdin is not None
        self._process.stdin.close()
        self._process.wait(timeout=30)

    def _line(self) -> dict[str, object]:
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line:
            sys.exit(f"bench-engine: {self.name} ended with {self._process.wait(timeout=30)}")
        made: dict[str, object] = json.loads(line)
        return made
