"""Kept states under random use: whatever a prompt is resumed from, it is as if read anew."""

import random
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, ClassVar

import pytest
import torch
from decoding import chosen_in
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)
from kept_engines import (
    GREEDY,
    Cold,
    anew,
    cold,
    delta_of,
    digest,
    is_same,
    read_on,
    rows,
    taken,
    tiny_engine,
)

from worker.engine import Engine
from worker.prefill import plan
from worker.sampling.chooser import Chooser, Chosen
from worker.state import kept as kept_module
from worker.state import residents
from worker.state.ask import Ask
from worker.state.keeping import Keeping
from worker.state.lineage import Exactness
from worker.state.slot import FrozenSlot, Slot
from worker.state.start import common_prefix

CHUNK = 16
LONGEST, WRITTEN = 150, 10
CLOSE = 1e-3  # rows of another chunk shape; another token's differ by about 1

Colds = dict[tuple[tuple[int, ...], tuple[int, ...]], Cold]
STEPS: Counter[str] = Counter()  # by rule
FROM: Counter[str] = Counter()  # where prompts were resumed, by source


@dataclass(eq=False)
class Running:
    """A run that is not over. `aside`: its state, where it has given up its slot."""

    slot: Slot
    prompt: tuple[int, ...]
    salt: str | None
    cuts: tuple[int, ...]
    start: Any
    chosen: list[Chosen] = field(default_factory=list)
    aside: FrozenSlot | None = None

    @property
    def is_reading(self) -> bool:
        return not self.chosen


def counted(step: Callable[..., None]) -> Callable[..., None]:
    """Counts how often a rule was tried to the end."""

    def run(self: "KeptMachine", *given: Any, **named: Any) -> None:
        self.is_stepping = True
        step(self, *given, **named)
        self.is_stepping = False
        STEPS[step.__name__] += 1

    run.__name__ = step.__name__
    return run


class KeptMachine(RuleBasedStateMachine):
    """Prompts that have much in common, of two tenants, in few slots with little memory."""

    is_stepping = True
    model: ClassVar[Engine]
    cold_engine: ClassVar[Engine]
    colds: ClassVar[Colds]

    @initialize(
        slots=st.integers(1, 3),
        anchors=st.integers(0, 4),
        tail=st.integers(0, 3),
        store=st.sampled_from([0.0, 1.2, 3.0, 40.0]),
        share=st.sampled_from([0.3, 1.0]),
        guests=st.sampled_from([0.0, 3.0]),
        is_exact=st.booleans(),
        is_shared=st.booleans(),
        is_guessing=st.booleans(),
        is_colliding=st.booleans(),
    )
    def begin(
        self, slots: int, anchors: int, tail: int, store: float, share: float, guests: float,
        is_exact: bool, is_shared: bool, is_guessing: bool, is_colliding: bool,
    ) -> None:  # fmt: skip
        # A `share` of anything is counted in sequences of a usual length.
        one = self.model.cache_bytes(100)
        delta = self.model._model.new_cache(CHUNK).delta
        anchor_bytes = 1 if delta is None else delta.size_bytes
        self.keeping = Keeping(
            anchor_bytes=anchors * anchor_bytes * (slots + 1), anchor_tail=tail,
            store_bytes=int(store * one), entry_bytes=int(share * store * one),
            guest_bytes=int(guests * one), is_exact=is_exact, has_shared_prefixes=is_shared,
        )  # fmt: skip
        self.most_anchors = max(anchors, tail, 1) + 1
        self.engine = anew(
            self.model, self.keeping, slots=slots, chunk=CHUNK,
            is_drafted=True, is_guessing=is_guessing,
        )  # fmt: skip
        self.slots = slots
        if is_colliding:
            self.engine.kept._store._hash_of = lambda ids: 0
        self.running: list[Running] = []
        self.asides: list[Running] = []
        self.texts: list[tuple[str, tuple[int, ...]]] = []  # what a tenant left behind, or leaves
        self.cut_texts: set[tuple[int, ...]] = set()
        self.is_stepping = False

    # What is asked for.

    def _prompt(self, pick: int, way: str, share: float, more: int, seed: int) -> tuple[int, ...]:
        """Another prompt, or one made of what was there before."""
        fresh = tuple(random.Random(seed).choices(range(5, 500), k=LONGEST))
        if not self.texts or way == "new":
            return fresh[: 1 + int(share * (LONGEST - 1))]
        _, text = self.texts[-1 - pick % len(self.texts)]
        at = max(1, int(share * len(text)))
        if way == "extended":
            made = text + fresh[:more]
        elif way == "shorter":
            made = text[:at]
        elif way == "edited":
            made = (*text[: at - 1], 501 + seed, *text[at:])
        else:
            made = text[:at] + fresh[:more]
        return made[:LONGEST]

    prompts: ClassVar[dict[str, Any]] = {
        "pick": st.integers(0, 3),
        "way": st.sampled_from(["new", "extended", "extended", "shorter", "edited", "forked"]),
        "share": st.integers(1, 10).map(lambda tenths: tenths / 10),
        "more": st.integers(1, 60),
        "seed": st.integers(0, 3),
        "salt": st.sampled_from(["one", "one", "one", "two"]),
        "cuts": st.lists(st.sampled_from([10, 16, 24, 40, 55]), max_size=2, unique=True),
    }

    @precondition(lambda self: self.engine.free_slots)
    @rule(**prompts, is_side=st.sampled_from([False, False, False, True]))
    @counted
    def open(self, salt: str, cuts: list[int], is_side: bool, **how: Any) -> None:
        if is_side and any(run.slot is self.engine.kept._side for run in self.running):
            is_side = False
        self._open(salt, cuts, is_side=is_side, **how)

    def _open(self, salt: str, cuts: list[int], *, is_side: bool, **how: Any) -> Running:
        prompt, marks = self._prompt(**how), tuple(sorted(cuts))
        held = self._held_by(salt)
        before = digest(self.engine, has_store=False)
        slot = taken(self.engine, prompt, salt, cuts=marks, output=WRITTEN, is_side=is_side)
        if slot in self.engine.kept._guests:
            assert digest(self.engine, has_store=False) == before
        run = Running(slot, prompt, salt, marks, slot.start)
        self.running.append(run)
        self._check_start(run, held)
        self.texts.append((salt, prompt))
        return run

    @precondition(lambda self: self.engine.free_slots)
    @rule(**prompts, count=st.integers(0, WRITTEN))
    @counted
    def converse(self, salt: str, cuts: list[int], count: int, **how: Any) -> None:
        """A whole run at once."""
        run = self._open(salt, cuts, is_side=False, **how)
        self._read(run, LONGEST)
        self._write(run, count)
        self.running.remove(run)
        self.engine.close(run.slot)
        self._check_rows(run.slot)

    def _held_by(self, salt: str) -> list[tuple[int, ...]]:
        """Texts that a prompt of this tenant may be resumed from."""
        mine = [text for owner, text in self.texts if owner == salt]
        return mine + (list(self.cut_texts) if self.keeping.has_shared_prefixes else [])

    def _check_start(self, run: Running, held: list[tuple[int, ...]]) -> None:
        slot, start = run.slot, run.start
        assert start.position == slot.kv_len < len(run.prompt)
        assert tuple(slot.ctx) == run.prompt
        longest = max((common_prefix(text, run.prompt) for text in held), default=0)
        assert start.position <= longest, "resumed from what another tenant read"
        if self.keeping.is_exact:
            assert start.exactness is Exactness.GRID
        if start.exactness is Exactness.GRID:
            assert start.position == slot.lineage.grid
            made = self._cold(run.prompt, run.cuts)
            assert is_same(delta_of(slot), made.deltas[start.position])
        assert start.exactness is slot.lineage.at(start.position, slot.plan)
        self._check_rows(slot)

    def _cold(self, prompt: tuple[int, ...], cuts: tuple[int, ...]) -> Cold:
        cuts = plan(len(prompt), "", CHUNK, cuts).cuts
        if (prompt, cuts) not in self.colds:
            self.colds[prompt, cuts] = cold(self.cold_engine, prompt, cuts, WRITTEN)
        return self.colds[prompt, cuts]

    def _check_rows(self, slot: Slot) -> None:
        """Rows that are said to be of the grid have the bits of a cold reading, the others nearly
        its values."""
        length = min(slot.prompt_length, slot.kv_len)
        if not length:
            return
        made = self._cold(tuple(slot.ctx[: slot.prompt_length]), slot.plan.cuts)
        kv = slot.cache.kv.freeze(length)
        grid = min(slot.lineage.grid, length)
        assert is_same(rows(kv, grid), rows(made.kv, grid))
        for one, other in zip(kv, rows(made.kv, length), strict=True):
            torch.testing.assert_close(one, other, atol=CLOSE, rtol=CLOSE)
        for anchor in slot.anchors:
            if anchor.position in made.deltas and anchor.position <= length:
                parts, others = (anchor.recurrent, anchor.conv), made.deltas[anchor.position]
                if slot.lineage.at(anchor.position, slot.plan) is Exactness.GRID:
                    assert is_same(parts, others)
                for one, other in zip(parts, others, strict=True):
                    torch.testing.assert_close(one, other, atol=CLOSE, rtol=CLOSE)

    @rule(**prompts | {"salt": st.none()}, is_side=st.booleans(), chunks=st.integers(0, 12))
    @counted
    def b22_not_kept(
        self, salt: None, cuts: list[int], is_side: bool, chunks: int, **how: Any
    ) -> None:
        prompt, marks = self._prompt(**how), tuple(sorted(cuts))
        before = digest(self.engine)
        slot = taken(self.engine, prompt, None, cuts=marks, is_side=is_side)
        assert slot.start.position == 0
        while chunks and slot.kv_len < len(prompt):
            read_on(self.engine, slot, 1)
            chunks -= 1
        if slot.kv_len == len(prompt):
            chosen_in(self.engine, slot, 3)
        self.engine.close(slot)
        assert digest(self.engine) == before

    # What runs do.

    def _run(self, pick: int) -> Running:
        return self.running[pick % len(self.running)]

    @precondition(lambda self: any(run.is_reading for run in self.running))
    @rule(pick=st.integers(0, 3), chunks=st.integers(1, 12))
    @counted
    def read(self, pick: int, chunks: int) -> None:
        reading = [run for run in self.running if run.is_reading]
        self._read(reading[pick % len(reading)], chunks)

    def _read(self, run: Running, chunks: int) -> None:
        if run.slot.kv_len < run.slot.plan.chunk_end(run.slot.kv_len, len(run.prompt)):
            for cut in run.cuts:
                self.cut_texts.add(run.prompt[:cut])
        first = read_on(self.engine, run.slot, chunks)
        self._check_rows(run.slot)
        if first is None:
            return
        run.chosen.append(first)
        made = self._cold(run.prompt, run.cuts)
        if run.start.exactness is Exactness.GRID:
            assert is_same(run.slot.cache.kv.freeze(len(run.prompt)), made.kv)
            assert is_same(delta_of(run.slot), made.deltas[len(run.prompt)])
            assert first == made.chosen[0]
        for one, other in zip(delta_of(run.slot), made.deltas[len(run.prompt)], strict=False):
            torch.testing.assert_close(one, other, atol=CLOSE, rtol=CLOSE)
        self._check_tokens(run)

    def _check_tokens(self, run: Running) -> None:
        """Up to the first where two were as good."""
        for chosen, other in zip(run.chosen, self._cold(run.prompt, run.cuts).chosen, strict=False):
            if chosen.token != other.token:
                assert other.is_near_tie
                return

    @precondition(lambda self: any(not run.is_reading for run in self.running))
    @rule(pick=st.integers(0, 3), count=st.integers(1, 6))
    @counted
    def write(self, pick: int, count: int) -> None:
        writing = [run for run in self.running if not run.is_reading]
        self._write(writing[pick % len(writing)], count)

    def _write(self, run: Running, count: int) -> None:
        count = min(count, WRITTEN - len(run.chosen))
        if count:
            run.chosen += chosen_in(self.engine, run.slot, count)
            self.texts.append((run.salt, tuple(run.slot.ctx)))
            self._check_tokens(run)

    @precondition(lambda self: self.running)
    @rule(pick=st.integers(0, 3), is_sound=st.sampled_from([True, True, True, False]))
    @counted
    def close(self, pick: int, is_sound: bool) -> None:
        run = self._run(pick)
        self.running.remove(run)
        if not is_sound:  # a failed step may have left anything behind
            with torch.inference_mode():
                run.slot.cache.kv._keys.fill_(7.0)
                run.slot.cache.kv._values.fill_(7.0)
                if run.slot.cache.delta is not None:
                    run.slot.cache.delta.recurrent.fill_(7.0)
        self.engine.close(run.slot, is_sound=is_sound)

    @precondition(lambda self: any(not run.is_reading for run in self.running))
    @rule(pick=st.integers(0, 3))
    @counted
    def set_aside(self, pick: int) -> None:
        writing = [run for run in self.running if not run.is_reading]
        run = writing[pick % len(writing)]
        run.aside = self.engine.set_aside(run.slot)
        if run.aside is not None:
            self.running.remove(run)
            self.asides.append(run)

    @precondition(lambda self: self.asides and self.engine.free_slots)
    @rule(pick=st.integers(0, 3), is_dropped=st.booleans())
    @counted
    def take_back(self, pick: int, is_dropped: bool) -> None:
        run = self.asides.pop(pick % len(self.asides))
        assert run.aside is not None
        if is_dropped:
            self.engine.drop_aside(run.aside)
            return
        run.slot = self.engine.take_back(run.aside, run.aside.chooser)
        assert run.slot.freeze() == run.aside
        run.aside = None
        self.running.append(run)
        self._check_rows(run.slot)

    @precondition(lambda self: self.engine.free_slots and self.texts)
    @rule(pick=st.integers(0, 3), more=st.integers(0, 30),
          chunks=st.integers(1, 12))  # fmt: skip
    @counted
    def read_ahead(self, pick: int, more: int, chunks: int) -> None:
        salt, text = self.texts[-1 - pick % len(self.texts)]
        prompt = (text + tuple(random.Random(9).choices(range(5, 500), k=more)))[:LONGEST]
        slot = self.engine.open_ahead(prompt, (), salt)
        if slot is None:
            return
        for _ in range(chunks):
            if self.engine.read_ahead(slot):
                break
        self.texts.append((salt, prompt))
        self._check_rows(slot)
        self.engine.close(slot)

    @precondition(lambda self: self.engine.free_slots >= 2)
    @rule(**prompts)
    @counted
    def answer_twice(self, salt: str, cuts: list[int], **how: Any) -> None:
        """Two answers to one prompt, which is read once."""
        prompt, marks = self._prompt(**how), tuple(sorted(cuts))
        reader = Running(
            taken(self.engine, prompt, salt, cuts=marks, output=WRITTEN), prompt, salt, marks, None
        )
        first = read_on(self.engine, reader.slot)
        shared = self.engine.share(reader.slot)
        chooser = Chooser(GREEDY, prompt)
        slot = self.engine.open(Ask(prompt, chooser, marks, salt, WRITTEN, is_shared=True))
        other = Running(slot, prompt, salt, marks, None)
        other.chosen.append(self.engine.take_shared(slot, shared))
        reader.chosen.append(first)
        for run in (reader, other):
            run.start = run.slot.start
            self._check_tokens(run)
            self._check_rows(run.slot)
            self.running.append(run)
        assert other.chosen == reader.chosen
        for cut in marks:
            self.cut_texts.add(prompt[:cut])
        self.texts.append((salt, prompt))

    @precondition(lambda self: len(self.texts) > 8)
    @rule(kind=st.sampled_from(["prefix", "session", "slot", "anchor", "shrink", "oldest"]))
    @counted
    def free(self, kind: str) -> None:
        kept = self.engine.kept
        if kind == "shrink":
            before = [slot.anchors.size_bytes for slot in kept._idle]
            freed = sum(slot.anchors.shrink() for slot in kept._idle)
            assert sum(before) - freed == sum(slot.anchors.size_bytes for slot in kept._idle)
        elif kind == "oldest":
            kept._store.drop_oldest()
        else:
            self._clear(kind)

    def _clear(self, kind: str) -> None:
        before = self.engine.cache_facts().size_bytes
        freed = self.engine.clear_kept(frozenset({kind}))
        after = self.engine.cache_facts().size_bytes
        if kind in ("prefix", "session"):
            assert (after[kind], freed) == (0, before[kind])
        for run in self.running:  # whatever goes, nothing that a run uses
            self._check_rows(run.slot)

    # What is always so.

    @invariant()
    def every_slot_is_somewhere(self) -> None:
        kept = self.engine.kept
        assert len(kept._idle) + len(kept._running) == self.slots
        assert len({*kept._idle, *kept._running}) == self.slots
        asked = {run.slot for run in self.running} - {kept._side}
        assert asked == {*kept._running, *kept._guests}
        for run in self.running:
            assert len(run.slot.ctx) == run.slot.kv_len + (1 if run.chosen else 0) or (
                run.is_reading and run.slot.kv_len < len(run.slot.ctx)
            )

    @invariant()
    def bytes_are_held(self) -> None:
        kept = self.engine.kept
        assert kept._store.size_bytes <= self.keeping.store_bytes
        aside = sum(run.aside.size_bytes for run in self.asides)
        held = sum(entry.size_bytes for entry in kept._store)
        assert kept._store.size_bytes == held + aside
        for entry in kept._store:
            assert entry.size_bytes == self.engine.cache_bytes(len(entry.ids))
            assert entry.size_bytes <= self.keeping.entry_bytes
        for slot in (*kept._idle, *kept._running):
            if slot.cache.delta is not None:
                one = slot.cache.delta.size_bytes
                assert slot.anchors.size_bytes <= self.most_anchors * one

    def teardown(self) -> None:
        """All is given back, and what is left is whole."""
        if self.is_stepping:
            return  # and failed
        FROM.update(self.engine.cache_facts().hits)
        for run in self.running:
            self.engine.close(run.slot)
        for run in self.asides:
            self.engine.drop_aside(run.aside)
        self.running, self.asides = [], []
        for slot in self.engine.kept._idle:
            self._check_rows(slot)


@pytest.fixture(scope="module", params=["llama", "qwen3_5"])
def model(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Engine:
    return tiny_engine(request.param, tmp_path_factory.mktemp(request.param))


@pytest.mark.parametrize("examples", [25, pytest.param(180, marks=pytest.mark.long)])
def test_whatever_was_kept_a_prompt_is_answered_as_if_nothing_were(
    model: Engine, examples: int, monkeypatch: pytest.MonkeyPatch, capsys: Any
):
    # Tiny prompts share few tokens.
    for module in (residents, kept_module):
        monkeypatch.setattr(module, "LEAST_SAVED", 8)
    monkeypatch.setattr(residents, "GUEST_SHARE", 0.6)
    KeptMachine.model = model
    KeptMachine.cold_engine = anew(model, slots=1, chunk=CHUNK)
    KeptMachine.colds = {}
    STEPS.clear()
    FROM.clear()
    run_state_machine_as_test(
        KeptMachine,
        settings=settings(
            max_examples=examples, stateful_step_count=40, deadline=None,
            suppress_health_check=list(HealthCheck),
        ),
    )  # fmt: skip
    with capsys.disabled():
        if examples > 25:
            print(f"\n{STEPS.total()} steps: {dict(STEPS)}; resumed: {dict(FROM)}")
    assert STEPS.total() > examples
    assert FROM.total() > (examples / 2 if examples > 25 else 0)  # few are drawn as chance has it
