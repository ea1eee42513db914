"""One training from start to end: the target writes, the drafter learns and is then tried.

What was recorded and learnt is kept, so that a session that was stopped goes on where it was.
Knows no arguments of a command and no step of learning.
"""

import json
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import product
from pathlib import Path

from safetensors.torch import save_file

from worker.draft.base import Drafter
from worker.draft.block import BlockDrafter
from worker.draft.block_config import BlockConfig, block_config_to_json
from worker.draft.block_model import load_block_model
from worker.draft.lookup import CopyRates, LookupDrafter
from worker.draft.train.evaluation import replay_all
from worker.draft.train.network import fresh_weights, with_scaled_taps
from worker.draft.train.progress import Clock
from worker.draft.train.prompts import encoded, shuffled
from worker.draft.train.recording import Recorded, Recording, Writer, is_held_out
from worker.draft.train.target import Target
from worker.draft.train.training import Recipe, Trainer, channel_scale
from worker.faults import StartFault

PROMPT_TOKENS = 256  # longer prompts are left out
SAVE_EVERY_S = 60.0
SMOOTHING = 0.02  # of the shown loss, a step
EVALUATED = 24  # held-out texts
CACHE_STEP = 256
LEAST_MATCH, LEAST_EXPECTED = 3, 0.6  # of the lookup drafter, as it is served by default
WORK, STATE = "work", "state.safetensors"

MaySay = Callable[[], bool]


@dataclass(frozen=True, slots=True)
class Plan:
    """How much of what. `record_s`, `learn_s`: seconds; `tokens`: of text at most.

    `steps`: of learning, where they count and not the time. `answer`: tokens of a text at most;
    `lanes`: texts written side by side; `max_rows`: of a verified tree.
    """

    record_s: float
    learn_s: float
    tokens: int
    steps: int | None
    answer: int
    lanes: int
    max_rows: int
    recipe: Recipe


class Session:
    """A training in a folder, which becomes a drafter's. `is_stopped`: whether to end early."""

    def __init__(
        self, out: Path, target: Target, config: BlockConfig, plan: Plan, is_stopped: MaySay
    ) -> None:
        config.check_target(target.model.config, target.origin)
        self._out = out
        self._target = target
        self._config = config
        self._plan = plan
        self._is_stopped = is_stopped
        self._recording = Recording(out / WORK)
        self._state = out / WORK / STATE

    def run(self, prompts: list[str]) -> bool:
        """Whether it came to its end. Raises: StartFault where nothing can be learnt."""
        order = shuffled(prompts, self._plan.recipe.seed)
        self._record(order)
        if self._is_stopped():
            return False
        learnt, held_out = self._split(len(order))
        trainer = self._trainer(learnt)
        if not self._state.exists():
            self._export(trainer)
            self._evaluate(held_out, "before")
        self._learn(trainer, learnt)
        self._export(trainer)
        if self._is_stopped():
            return False
        self._evaluate(held_out, "after")
        return True

    def _record(self, prompts: list[str]) -> None:
        """Lets the target write until the time, or the number of tokens, is reached."""
        plan, recording = self._plan, self._recording
        clock, before = Clock(plan.record_s, recording.seconds), recording.written
        if clock.done >= 1.0 or before >= plan.tokens:
            return

        def goes_on(written: int) -> bool:
            recording.seconds = clock.now_s
            done = max(clock.done, written / plan.tokens)
            speed = (written - before) / max(clock.here_s, 1e-3)
            clock.show("writing ", done, f"{written} tokens, {speed:.0f} a second")
            return done < 1.0 and not self._is_stopped()

        ids = list(encoded(prompts, self._target.writer, PROMPT_TOKENS))
        if not any(ids):
            raise StartFault(f"No prompt has {PROMPT_TOKENS} tokens or fewer.")
        writer = Writer(
            self._target.model,
            recording,
            ids,
            taps=self._config.taps,
            lanes=plan.lanes,
            answer=plan.answer,
            end_ids=self._target.end_ids,
            masked=self._target.masked,
            seed=plan.recipe.seed + before,
        )
        writer.write(goes_on)
        clock.end_line()

    def _split(self, prompts: int) -> tuple[list[Recorded], list[Recorded]]:
        """What is learnt from, and what the drafter is tried on: greedy answers to others."""
        learnt, held_out = [], []
        for sample in self._recording.samples:
            if not is_held_out(sample.number, prompts):
                learnt.append(sample)
            elif sample.is_greedy:
                held_out.append(sample)
        if not learnt:
            raise StartFault("Nothing was written that could be learnt from; give it more time.")
        return learnt, held_out[:EVALUATED]

    def _trainer(self, learnt: list[Recorded]) -> Trainer:
        recipe = self._plan.recipe
        return Trainer(
            self._config,
            fresh_weights(self._config, self._target.norm, recipe.seed),
            channel_scale(self._recording, learnt),
            self._target.tensors,
            recipe,
        )

    def _learn(self, trainer: Trainer, learnt: list[Recorded]) -> None:
        """Learns until the time, or the number of steps, is reached."""
        plan = self._plan
        spent_s = trainer.restore(self._state) if self._state.exists() else 0.0
        clock = Clock(plan.learn_s, spent_s)
        saved_s, loss, right = clock.here_s, 0.0, 0.0
        first = trainer.step
        while not self._is_stopped():
            done = trainer.step / plan.steps if plan.steps else clock.done
            if done >= 1.0:
                break
            lesson = trainer.learn(self._recording, learnt, done)
            share = max(SMOOTHING, 1 / (trainer.step - first))  # at first, the mean of all
            loss += share * (lesson.loss - loss)
            right += share * (lesson.first_right - right)
            facts = f"step {trainer.step}, loss {loss:.3f}, next token {right:.0%}"
            clock.show("learning", done, facts)
            if clock.here_s - saved_s > SAVE_EVERY_S:
                trainer.save(self._state, clock.now_s)
                saved_s = clock.here_s
        trainer.save(self._state, clock.now_s)
        clock.end_line()

    def _export(self, trainer: Trainer) -> None:
        """Writes the drafter in the form that is served."""
        weights = {name: value.detach() for name, value in trainer.weights.items()}
        dtype = self._target.model.dtype
        folded = with_scaled_taps(weights, trainer.scale)
        unfinished = self._out / "model.tmp"
        save_file({name: value.to(dtype) for name, value in folded.items()}, unfinished)
        fields = json.dumps(block_config_to_json(self._config), indent=2)
        (self._out / "config.json").write_text(fields, encoding="utf-8")
        unfinished.rename(self._out / "model.safetensors")

    def _evaluate(self, held_out: Sequence[Recorded], when: str) -> None:
        """Says what a round brings over texts that the drafter has not seen."""
        target, plan = self._target, self._plan
        model = load_block_model(self._out, target.model, target.origin, max_len=target.max_len)
        samples = [self._recording.load(at) for at in held_out]
        rows = plan.max_rows
        block: Drafter = BlockDrafter(model, max_len=target.max_len, max_rows=rows, step=CACHE_STEP)
        lookup: Drafter = LookupDrafter(
            CopyRates(), most_rows=rows, least_match=LEAST_MATCH, least_expected=LEAST_EXPECTED
        )
        tried = {"block": [block], "lookup": [lookup], "both": [lookup, block]}
        for (name, drafters), is_chain in product(tried.items(), (True, False)):
            found = replay_all(samples, drafters, max_rows=rows, is_chain=is_chain)
            form = "chain" if is_chain else "tree"
            print(
                f"{when} learning, {name:6} {form:5}: {found.tokens_per_round:.2f} tokens of "
                f"{found.rows_per_round:.1f} rows a round ({found.tokens} tokens in "
                f"{len(samples)} texts)",
                file=sys.stderr,
            )
