"""Who is measured when speculation is: our engine and the peers, each drafting and not drafting.

Knows how each is asked; no rounds, no table.
"""

import time
from dataclasses import dataclass, field
from itertools import cycle
from pathlib import Path
from typing import Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from transformers import AutoModelForCausalLM, LogitsProcessor, LogitsProcessorList

from bench.engine.contenders import Following, LlamaCpp, chooser_of, read
from bench.engine.workloads import Task
from worker.engine import Engine
from worker.process import CALIBRATION_CPU_S, SAMPLES_CPU
from worker.sampling.chooser import Chosen, Logits
from worker.sampling.sampler import NEAR_TIE_ULPS
from worker.settings import MOST_ROWS
from worker.speculation.calibration import Calibration, scope_of
from worker.speculation.prices import SHAPES, Prices
from worker.speculation.round import Round

BLOCK = 8  # rounds of one way before the other goes on


@dataclass(frozen=True, slots=True)
class Written:
    """One answer. `accepted`: drafted tokens of each round that were kept; `rounds`: ours."""

    decode_s: float
    tokens: list[int]
    accepted: list[int] = field(default_factory=list)
    rounds: tuple[Round, ...] = ()

    @property
    def tokens_per_s(self) -> float:
        """Behind the first token, which counts to the prefill."""
        return (len(self.tokens) - 1) / self.decode_s


class Drafting(Protocol):
    """One engine with one model and one way of drafting."""

    name: str

    def write(self, task: Task) -> Written:
        """An answer; its own text, or the one that the task gives."""
        ...


class Ours:
    """The engine of the worker. Without prices nobody drafts."""

    def __init__(self, name: str, engine: Engine, prices: Prices | None) -> None:
        self.name = name
        self._engine = engine
        self._prices = prices

    def write(self, task: Task) -> Written:
        """See `Drafting`."""
        writing = Writing(self._engine, task, self._prices)
        while writing.go_on():
            continue
        return writing.close()


class Writing:
    """An answer of ours, a round at a time; only rounds count as its time."""

    def __init__(
        self, engine: Engine, task: Task, prices: Prices | None, chooser: Following | None = None
    ) -> None:
        if prices is not None:
            engine.use_prices(prices)
        self._engine, self._task = engine, task
        chosen_by = chooser or chooser_of(task.prompt, task.follow)
        self._slot = read(engine, task.prompt, chosen_by, is_plain=prices is None)
        self._rounds: list[Round] = []
        self._spent_s = 0.0

    def go_on(self) -> bool:
        """One more round; whether there is more to write."""
        slot, task = self._slot, self._task
        left = task.count - (len(slot.ctx) - len(task.prompt))
        if left == 0 or slot.ctx[-1] in task.ends:
            return False
        began_s = time.perf_counter()
        made = self._engine.round(slot, left, lambda chosen: chosen.token not in task.ends)
        self._spent_s += time.perf_counter() - began_s
        self._rounds.append(made)
        return True

    def close(self) -> Written:
        """What was written."""
        tokens = self._slot.ctx[len(self._task.prompt) :]
        assert self._task.follow is None or tuple(tokens) == self._task.follow
        self._engine.close(self._slot)
        accepted = [made.accepted for made in self._rounds]
        return Written(self._spent_s, tokens, accepted, tuple(self._rounds))


class Judge(Following):
    """Follows a text and notes what it would have chosen, and by how much. In steps of bf16."""

    def __init__(self, prompt: tuple[int, ...], text: tuple[int, ...]) -> None:
        super().__init__(prompt, text)
        self.own: list[int] = []
        self.gaps_ulps: list[float] = []

    def choose(self, logits: Logits, masked: NDArray[np.int64]) -> Chosen:
        """See `Chooser.choose`."""
        second, first = np.partition(logits, -2)[-2:].tolist()
        self.own.append(int(logits.argmax()))
        step = 2.0 ** (np.floor(np.log2(abs(first))) - 7)
        self.gaps_ulps.append((first - second) / step)
        return super().choose(logits, masked)


@dataclass(frozen=True, slots=True)
class Agreement:
    """Our text with guesses beside the one without. `flips`: rows with another token where the
    plain text is followed; `worst_ulps`: the widest gap of one; `first_ulps`: of the row where the
    texts first differ, None where they never do."""

    rows: int
    near_ties: int
    flips: int
    worst_ulps: float
    first_ulps: float | None

    @property
    def holds(self) -> bool:
        """Whether only near ties came out differently."""
        return max(self.worst_ulps, self.first_ulps or 0.0) <= NEAR_TIE_ULPS

    def __str__(self) -> str:
        first = "" if self.first_ulps is None else f", the text goes apart at {self.first_ulps:.2f}"
        return (
            f"{self.rows} rows, {self.near_ties} near ties, {self.flips} flips, the widest "
            f"{self.worst_ulps:.2f} steps of bf16{first}"
        )


def agreement(engine: Engine, prices: Prices, task: Task) -> Agreement:
    """Compares what is written with guesses and without, row by row."""
    plain = Ours("plain", engine, None).write(task).tokens
    guessed = Ours("guessed", engine, prices).write(task).tokens
    judges = []
    for some in (None, prices):
        follow = tuple(plain)
        judge = Judge(task.prompt, follow)
        writing = Writing(engine, Task(task.prompt, len(follow), follow), some, judge)
        while writing.go_on():
            continue
        writing.close()
        judges.append(judge)
    gaps = judges[0].gaps_ulps
    flips = [
        gap for gap, token, own in zip(gaps, plain, judges[1].own, strict=True) if token != own
    ]
    pairs = zip(gaps, plain, guessed, strict=False)  # once apart, one may be shorter
    apart = [gap for gap, one, other in pairs if one != other]
    near = sum(gap <= NEAR_TIE_ULPS for gap in gaps)
    return Agreement(
        len(gaps), near, len(flips), max(flips, default=0.0), apart[0] if apart else None
    )


def interleaved(engine: Engine, task: Task, prices: Prices) -> tuple[Written, Written]:
    """The same answer without and with drafters, a few rounds of each in turn, as other load on the
    machine then falls on both."""
    plain, drafted = Writing(engine, task, None), Writing(engine, task, prices)
    for writing in cycle((plain, drafted, drafted, plain)):
        if not all(writing.go_on() for _ in range(BLOCK)):
            break
    for writing in (plain, drafted):
        while writing.go_on():
            continue
    return plain.close(), drafted.close()


def measured_prices(engine: Engine, vocab_size: int) -> Prices:
    """What rounds cost here, measured as a worker does at its first start; of each price the least
    of two measurements, as other load only adds to it."""
    one, other = (_calibrated(engine, vocab_size) for _ in range(2))
    contexts = one.verify.keys() & other.verify.keys()
    verify = {
        context: {
            shape: {
                rows: min(ms, other.verify[context][shape][rows])
                for rows, ms in one.verify[context][shape].items()
                if rows in other.verify[context][shape]
            }
            for shape in SHAPES
        }
        for context in contexts
    }
    plain = {context: min(one.plain[context], other.plain[context]) for context in contexts}
    commit = {shape: min(one.commit[shape], other.commit[shape]) for shape in SHAPES}
    return Prices(plain, verify, commit)


def _calibrated(engine: Engine, vocab_size: int) -> Prices:
    scope = scope_of(
        max_len=engine.facts.max_len, most_rows=MOST_ROWS, vocab_size=vocab_size,
        samples=SAMPLES_CPU, limit_s=CALIBRATION_CPU_S,
    )  # fmt: skip
    calibration = Calibration(scope, time.perf_counter)
    trial = engine.trials(calibration.length)
    while calibration.step(trial):
        continue
    prices = calibration.prices()
    assert prices is not None, "there was no time to measure prices"
    return prices


def unpayable(prices: Prices) -> Prices:
    """A table in which no draft is worth its price: a row costs more than a step."""
    rows = range(1, MOST_ROWS + 1)
    verify = {
        context: {shape: {count: plain_ms * (count + 0.5) for count in rows} for shape in SHAPES}
        for context, plain_ms in prices.plain.items()
    }
    return Prices(prices.plain, verify, {"chain": 0.0, "tree": 0.0})


class LlamaCppDrafting:
    """llama.cpp, plain or with its package's prompt lookup of so many tokens."""

    def __init__(self, peer: LlamaCpp, guesses: int, *, through: str | None = None) -> None:
        lookup = f", lookup {guesses}" if guesses else ", plain"
        self.name = peer.name + lookup + ("" if through is None else f", {through}")
        self.guesses = guesses
        self._peer = peer
        self._options = {"guesses": guesses} | ({} if through is None else {"through": through})

    def write(self, task: Task) -> Written:
        """See `Drafting`."""
        follow = None if task.follow is None else list(task.follow)
        options = {**self._options, "ends": sorted(task.ends)}
        made = self._peer.write(list(task.prompt), task.count, follow, **options)
        assert follow is None or made.tokens == follow
        return Written(made.decode_s, made.tokens, made.accepted)


class TransformersDrafting:
    """transformers' `generate` with its prompt lookup, in bf16."""

    def __init__(self, folder: Path, guesses: int) -> None:
        self.name = f"transformers bf16, lookup {guesses}"
        self._guesses = guesses
        self._model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.bfloat16).eval()

    @torch.inference_mode()
    def write(self, task: Task) -> Written:
        """See `Drafting`."""
        watch = _Watch(task)
        made = self._model.generate(
            torch.tensor([task.prompt]),
            attention_mask=torch.ones(1, len(task.prompt), dtype=torch.long),
            max_new_tokens=task.count,
            prompt_lookup_num_tokens=self._guesses,
            do_sample=False,
            eos_token_id=sorted(task.ends) or None,
            pad_token_id=0,
            logits_processor=LogitsProcessorList([watch]),
        )
        end_s = time.perf_counter()
        tokens = made[0, len(task.prompt) :].tolist()
        assert task.follow is None or tuple(tokens) == task.follow
        return Written(end_s - watch.first_s, tokens)


class _Watch(LogitsProcessor):
    """Notes when the prompt had been read, and makes the text the given one."""

    def __init__(self, task: Task) -> None:
        self._task = task
        self.first_s = 0.0

    def __call__(self, input_ids: torch.Tensor, scores: torch.Tensor) -> torch.Tensor:
        self.first_s = self.first_s or time.perf_counter()
        task = self._task
        at = input_ids.shape[1] - len(task.prompt)
        if task.follow is not None and at < len(task.follow):
            scores = torch.full_like(scores, -torch.inf)
            scores[:, task.follow[at]] = 0.0
        return scores
