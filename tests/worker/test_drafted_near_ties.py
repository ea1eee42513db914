"""The embedded model below fp32: drafted text differs from plain text at near ties alone."""

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest
from decoding import opened, read, write_on
from drafters import ALL_FREE, Guessing, random_trees
from near_ties import NEAR_TIE_ULPS, Comparison, ulp

from proto.worker_settings import Launch, WeightLayout, WorkerSettings
from worker.build import build_engine
from worker.engine import Engine
from worker.loading.locate import open_checkpoint
from worker.sampling.chooser import Chooser, Chosen, Logits
from worker.sampling.params import Sampling
from worker.settings import Machine
from worker.speculation.cut import Bounds
from worker.speculation.drafting import Drafting
from worker.speculation.speculation import Speculation
from worker.text.tokenizer import tokenizer_from_gguf

GREEDY = Sampling(temperature=0.0, top_p=1.0, top_k=0, min_p=0.0, seed=0)
PROMPTS = (
    "The capital of France is",
    "def fibonacci(n):\n    if n < 2:\n        return n\n",
    "Once upon a time a fox and a crow lived in a wood.",
    "1, 2, 4, 8, 16,",
    "Dear Sir or Madam,\n\nthank you for your letter of last week.",
    "| name | age |\n|---|---|\n| Ann | 31 |\n",
)
TOKENS, FEW = 100, 20  # of each text


class Watching(Chooser):
    """Chooses greedily and notes by how many steps of bf16 the second token was behind."""

    def __init__(self, prompt: Sequence[int]) -> None:
        super().__init__(GREEDY, prompt)
        self.gaps: list[float] = []

    def choose(self, logits: Logits, masked: np.ndarray) -> Chosen:
        second, first = np.partition(logits, -2)[-2:]
        self.gaps.append(float(first - second) / ulp(float(first)))
        return super().choose(logits, masked)


class Following(Chooser):
    """Writes a given text, and notes what it would have chosen."""

    def __init__(self, prompt: Sequence[int], text: Sequence[int]) -> None:
        super().__init__(GREEDY, prompt)
        self.own: list[int] = []
        self._text = text

    def choose(self, logits: Logits, masked: np.ndarray) -> Chosen:
        self.own.append(super().choose(logits, masked).token)
        return Chosen(self._text[len(self.own) - 1])


def _draft(engine: Engine, drafters: Sequence[Guessing]) -> None:
    engine._speculation = Speculation(ALL_FREE, Bounds(32), lambda: drafters)
    for slot in engine.kept._idle:
        slot.drafting = Drafting(drafters, (), lambda: 0.0)


def _write(engine: Engine, prompt: tuple[int, ...], chooser: Chooser, count: int) -> list[int]:
    slot = opened(engine, prompt, chooser)
    written = [read(engine, slot), *write_on(engine, slot, count - 1)]
    engine.close(slot)
    return written


def _compared(engine: Engine, prompt: tuple[int, ...], count: int) -> Comparison:
    _draft(engine, ())
    plain = Watching(prompt)
    text = _write(engine, prompt, plain, count)
    guess = Guessing(random_trees([*prompt, *text]))
    _draft(engine, [guess])
    drafted = Following(prompt, text)
    assert _write(engine, prompt, drafted, count) == text
    flips = [
        gap for gap, own, token in zip(plain.gaps, drafted.own, text, strict=True) if own != token
    ]
    near = sum(gap <= NEAR_TIE_ULPS for gap in plain.gaps)
    return Comparison(len(text), near, len(flips), max(flips, default=0.0))


@pytest.mark.model
@pytest.mark.parametrize(
    ("layout", "count"),
    [
        ("bf16", FEW),
        *(
            pytest.param(layout, TOKENS, marks=pytest.mark.long)
            for layout in ("bf16", "mixed", "q4")
        ),
    ],
)
def test_x13_drafted_text_of_the_embedded_model_is_the_plain_one_but_for_near_ties(
    embedded_model: Path, layout: WeightLayout, count: int
):
    checkpoint = open_checkpoint(embedded_model)
    settings = WorkerSettings(model=str(embedded_model), weights=layout, max_len=512)
    engine = build_engine(
        Launch(settings, "m", str(embedded_model), "", ""),
        Machine("cpu", threads=2, chunk=256, lanes=1, slots=1),
        checkpoint,
        masked_ids=(),
        end_ids=(),
    )
    assert checkpoint.text.gguf_keys is not None
    tokenizer = tokenizer_from_gguf(checkpoint.text.gguf_keys)
    found = [_compared(engine, tuple(tokenizer.encode(prompt)), count) for prompt in PROMPTS]
    rows, near = sum(one.rows for one in found), sum(one.near_ties for one in found)
    flips, worst = sum(one.flips for one in found), max(one.worst_ulps for one in found)
    print(f"{layout}: {rows} rows, {near} near ties, {flips} flips, worst {worst:.2f} ulps")
    assert all(one.holds() for one in found)
