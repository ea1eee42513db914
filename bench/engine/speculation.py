"""What guessing tokens brings: contenders write the same work in turns, and what their rounds were.

Knows who takes part and in which order; how each writes and how it is told lives beside this file.
"""

import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from bench.engine import told, weights
from bench.engine.contenders import LlamaCpp, engine_of
from bench.engine.drafting import (
    Drafting,
    LlamaCppDrafting,
    Ours,
    TransformersDrafting,
    Written,
    agreement,
    interleaved,
    measured_prices,
    unpayable,
)
from bench.engine.workloads import Task, Workload, workloads_of
from proto.worker_settings import WeightLayout
from worker.engine import Engine
from worker.loading.locate import open_checkpoint
from worker.speculation.prices import Prices

MAX_LEN = 2048  # tokens; prices are measured behind up to so many
GUESSES = (2, 10, 16)  # of the peers' lookup; the best of them is measured on
USUAL_GUESSES = 10
PROBES = 2  # answers with each of them
PEER_ROUNDS = 2  # of transformers, which is slow
UNPAYABLE_TOKENS = 160
PAIRS: tuple[tuple[WeightLayout, str], ...] = (("bf16", "BF16"), ("q4", "Q4_1"))
PLAIN, LOOKUP, BLOCK = "tandem, plain", "tandem, lookup", "tandem, lookup and block"
REST_S = 0.02  # threads of one that still spin would slow the next


@dataclass(frozen=True, slots=True)
class Setup:
    """What a run is given. `llamacpp`: a Python that has it, `block`: the folder of a drafter, or
    None."""

    model: Path
    folder: Path
    rounds: int
    threads: int
    llamacpp: Path | None
    block: Path | None
    watch: Callable[[], None]


class Speculation:
    """One run. `lines`: its report; `verdicts`: of its levels; `versions`: of the peers."""

    def __init__(self, setup: Setup) -> None:
        self.lines: list[str] = []
        self.verdicts: list[str] = []
        self.versions: dict[str, str] = {}
        self._setup = setup
        self._checkpoint = open_checkpoint(setup.model)
        self._workloads = workloads_of(self._checkpoint)

    def measure(self) -> None:
        """Everything; what is judged in bf16, copying alone in four bits too."""
        for layout, kind in PAIRS:
            is_all = layout == "bf16"
            some = [work for work in self._workloads if is_all or work.is_copy]
            with self._peer(kind) as peer:
                self._layout(layout, some, peer, is_all=is_all)

    def _layout(
        self, layout: WeightLayout, some: Sequence[Workload], peer: LlamaCpp | None, *, is_all: bool
    ) -> None:
        engine = engine_of(self._setup.model, layout, MAX_LEN)
        prices = measured_prices(engine, self._checkpoint.config.vocab_size)
        self.lines += ["", *told.staircase(layout, prices)]
        ours = [Ours(PLAIN, engine, None), Ours(LOOKUP, engine, prices)]
        for work in some:
            for form, task in (("one text", work.forced), ("own text", work.free)):
                if form == "one text" or is_all:
                    title = f"{work.name}, {form}, {layout}"
                    self._compare(title, work, task, ours, peer)
        if not is_all:
            return
        self._compare_transformers(some[0])
        for work in some:
            said = agreement(engine, prices, work.free)
            self.verdicts.append(told.agreed(f"{work.name}, own text, {layout}", said))
        one_of_each = {work.is_copy: work for work in reversed(some)}
        self._compare_unpayable(engine, tuple(one_of_each.values()), prices)
        if self._setup.block is not None:
            self._compare_block(self._setup.block, some, ours, prices)

    def _compare(
        self, title: str, work: Workload, task: Task, ours: Sequence[Drafting],
        peer: LlamaCpp | None,
    ) -> None:  # fmt: skip
        contenders, lookup = list(ours), None
        if peer is not None:
            lookup = self._best_lookup(peer, task)
            contenders += [LlamaCppDrafting(peer, 0), lookup]
        found = self._alternate(contenders, task, self._setup.rounds)
        self.lines += ["", *told.speeds(title, found, LOOKUP)]
        self.lines += ["", *told.rounds(found[LOOKUP])]
        levels = told.COPY if work.is_copy else told.FRESH
        names = {"plain": PLAIN, "peer": lookup.name if lookup else None}
        self.verdicts += told.judged(title, found, LOOKUP, names, levels)
        print(f"{title}: done", file=sys.stderr)  # a sign of life

    def _best_lookup(self, peer: LlamaCpp, task: Task) -> LlamaCppDrafting:
        """With as many guesses as suit the work best, in our loop or the package's own."""
        ways = [LlamaCppDrafting(peer, guesses) for guesses in GUESSES]
        ways.append(LlamaCppDrafting(peer, USUAL_GUESSES, through="package"))
        speeds = {way.name: 0.0 for way in ways}
        for _ in range(PROBES):
            for way in ways:
                speeds[way.name] = max(speeds[way.name], way.write(task).tokens_per_s)
        return max(ways, key=lambda way: speeds[way.name])

    def _compare_transformers(self, work: Workload) -> None:
        folder = self._setup.folder / "safetensors"
        if not folder.exists():
            weights.write_safetensors(self._setup.model, folder)
        peer = TransformersDrafting(folder, USUAL_GUESSES)
        found = self._alternate([peer], work.forced, PEER_ROUNDS)
        self.lines += ["", f"{work.name}, one text: {told.alone(peer.name, found[peer.name])}"]

    def _compare_unpayable(self, engine: Engine, some: Sequence[Workload], prices: Prices) -> None:
        """Drafters that are asked and never win, beside none."""
        dear = unpayable(prices)
        for work in some:
            task = work.forced.first(UNPAYABLE_TOKENS)
            ratios = []
            for number in range(self._setup.rounds + 1):
                plain, drafted = interleaved(engine, task, dear)
                assert not any(made.tree.drafted for made in drafted.rounds)
                if number:
                    ratios.append(drafted.tokens_per_s / plain.tokens_per_s)
                self._setup.watch()
            self.verdicts.append(told.overhead(work.name, ratios))

    def _alternate(
        self, contenders: Sequence[Drafting], task: Task, rounds: int
    ) -> dict[str, list[Written]]:
        """Rounds, every other one in the reverse order; one before them warms up."""
        found: dict[str, list[Written]] = {one.name: [] for one in contenders}
        for number in range(rounds + 1):
            for one in contenders if number % 2 else reversed(contenders):
                made = one.write(task)
                if number:
                    found[one.name].append(made)
                time.sleep(REST_S)
            self._setup.watch()
        return found

    def _compare_block(
        self, block: Path, some: Sequence[Workload], ours: Sequence[Ours], prices: Prices
    ) -> None:
        """What a block drafter adds, in text that the model writes itself."""
        drafter = Ours(BLOCK, engine_of(self._setup.model, "bf16", MAX_LEN, block), prices)
        contenders = [*ours, drafter]
        for work in some:
            title = f"{work.name}, own text, bf16"
            found = self._alternate(contenders, work.free, self._setup.rounds)
            self.lines += ["", *told.speeds(title, found, BLOCK)]
            self.lines += ["", *told.rounds(found[BLOCK])]
            levels = [level for level in told.FRESH if not work.is_copy]
            self.verdicts += told.judged(title, found, BLOCK, {"plain": PLAIN}, levels)

    @contextmanager
    def _peer(self, kind: str) -> Iterator[LlamaCpp | None]:
        python, model = self._setup.llamacpp, self._setup.model
        if python is None or not python.exists():
            yield None
            return
        path = model
        if kind in weights.FILE_TYPES:
            path = self._setup.folder / f"{kind}.gguf"
            if not path.exists():
                weights.rewrite_gguf(model, path, kind)
        peer = LlamaCpp(python, path, kind, self._setup.threads)
        self.versions["llama-cpp-python"] = peer.version
        try:
            yield peer
        finally:
            peer.close()
