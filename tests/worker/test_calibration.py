"""Measuring what rounds cost: what is measured, in which order, and what a table is made of."""

import itertools
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scripted import Clock

from worker.speculation.calibration import (
    Calibration,
    Cell,
    Scope,
    coarse_first,
    scope_of,
    trial_tree,
    waves,
)
from worker.speculation.prices import CONTEXTS, ROWS, Prices, prices_from
from worker.speculation.tree import DraftTree

SCOPE = scope_of(max_len=8192, most_rows=64, vocab_size=500, samples=5, limit_s=1e9)


class Machine:
    """Takes the time that a rule says, which is all its clock ever shows."""

    def __init__(self, verify_s: Callable[[int, DraftTree], float]) -> None:
        self.clock = Clock()
        self.calls = 0
        self._verify_s = verify_s

    def __call__(self, start: int, tree: DraftTree, path: Sequence[int]) -> tuple[float, float]:
        self.calls += 1
        verify_s, commit_s = self._verify_s(start, tree), 0.0005 if tree.is_chain else 0.002
        self.clock.now += verify_s + commit_s
        return verify_s * 1000, commit_s * 1000


def stairs_s(start: int, tree: DraftTree) -> float:
    """Steps at 8, 16 and 32 rows, and some more for each row and each token before it."""
    rows = len(tree)
    step = 1.0 if rows == 1 else 1.1 if rows <= 8 else 1.2 if rows <= 16 else 1.9
    return 0.010 * step + rows * start * 1e-8


def _calibrated(machine: Machine, scope: Scope = SCOPE) -> Calibration:
    calibration = Calibration(scope, machine.clock)
    while calibration.step(machine):
        continue
    return calibration


def test_every_cell_of_the_grid_is_measured():
    table = _calibrated(Machine(stairs_s)).prices()
    contexts = (256, 1024, 4096, 8128)  # so that 64 rows have a position
    assert tuple(sorted(table.plain)) == tuple(sorted(table.verify)) == contexts
    for context in contexts:
        chain, tree = table.verify[context]["chain"], table.verify[context]["tree"]
        assert tuple(sorted(chain)) == tuple(sorted(tree)) == ROWS
        for rows in ROWS:
            chained = trial_tree(Cell(context, "chain", rows), 500)[0]
            assert chain[rows] == pytest.approx(stairs_s(context, chained) * 1000)
            assert tree[rows] == pytest.approx(chain[rows])
        assert table.plain[context] == pytest.approx(chain[1] + 0.5)
    assert table.commit == {"chain": pytest.approx(0.5), "tree": pytest.approx(2.0)}
    prices_from(table.to_fields())


def test_each_cell_is_measured_as_often_as_is_kept_and_dropped():
    step = Cell(256, "plain", 1)
    some = list(waves(SCOPE))
    assert all(wave[0] == step and step not in wave[1:] for wave in some)
    cells = [cell for wave in some for cell in wave[1:]]
    assert len(set(cells)) == len(cells) == 4 * (1 + 11) + 10 - 1
    assert [len(wave) for wave in some[:-1]] == [2] + 9 * [7]
    machine = Machine(stairs_s)
    _calibrated(machine)
    assert machine.calls == 7 * (len(cells) + len(some))


def test_the_stairs_come_first_and_then_what_long_contexts_add_to_their_ends():
    cells = [cell for wave in waves(SCOPE) for cell in wave]

    def last(context: int, *rows: int) -> int:
        return max(cells.index(Cell(context, "chain", count)) for count in rows)

    assert last(256, 2) < last(256, 64) < last(256, 17) < last(256, 8, 24) < last(8128, 2)
    assert last(8128, 2, 64) < last(256, *ROWS[1:]) < last(8128, 17) < last(4096, 17)


def test_b8_the_first_two_samples_of_a_cell_are_dropped():
    seen: Counter[tuple[int, int, bool]] = Counter()

    def compiling_s(start: int, tree: DraftTree) -> float:
        seen[key := (start, len(tree), tree.is_chain)] += 1
        return 5.0 if seen[key] <= 2 else stairs_s(start, tree)

    # As few samples as there may be: one that was compiled in would be all that there is.
    scope = replace(SCOPE, contexts=(256,), samples=1)
    found = _calibrated(Machine(compiling_s), scope).prices()
    expected = _calibrated(Machine(stairs_s), scope).prices()
    assert (found.plain, found.verify) == (expected.plain, expected.verify)


def test_two_of_five_samples_may_be_anything():
    seen: Counter[tuple[int, int, bool]] = Counter()

    def disturbed_s(start: int, tree: DraftTree) -> float:
        seen[key := (start, len(tree), tree.is_chain)] += 1
        return 5.0 if seen[key] in (3, 5) else stairs_s(start, tree)

    found = _calibrated(Machine(disturbed_s)).prices()
    assert found.verify == _calibrated(Machine(stairs_s)).prices().verify


def test_other_load_for_a_moment_spoils_no_cell():
    machine = Machine(stairs_s)

    def disturbed_s(start: int, tree: DraftTree) -> float:
        return stairs_s(start, tree) * (3.0 if 15 <= machine.calls < 21 else 1.0)

    machine._verify_s = disturbed_s
    calm = _calibrated(Machine(stairs_s)).prices()
    assert _calibrated(machine).prices().verify == calm.verify


def test_other_load_that_lasts_changes_no_ratio():
    machine = Machine(stairs_s)
    wave = 7 * 7  # six cells and the plain step, seven times each
    busy = range(14 + wave, 14 + 3 * wave)
    machine._verify_s = lambda *given: stairs_s(*given) * (3.0 if machine.calls - 1 in busy else 1)
    calm = _calibrated(Machine(stairs_s)).prices()
    found = _calibrated(machine).prices()
    assert found.verify == {
        context: {shape: pytest.approx(calm.verify[context][shape]) for shape in ("chain", "tree")}
        for context in calm.verify
    }


@pytest.mark.parametrize("limit_s", [0.05, 0.5, 2.0, 5.0])
def test_measuring_ends_in_time(limit_s: float):
    calibration = _calibrated(Machine(stairs_s), replace(SCOPE, limit_s=limit_s))
    slowest_s = stairs_s(8128, trial_tree(Cell(8128, "chain", 64), 500)[0])
    assert limit_s - 3 * slowest_s <= calibration.spent_s <= limit_s + slowest_s


def test_time_between_two_steps_is_not_counted():
    machine = Machine(stairs_s)
    calibration = Calibration(replace(SCOPE, limit_s=1.0), machine.clock)
    while calibration.step(machine):
        machine.clock.now += 10.0
    assert calibration.spent_s == pytest.approx(1.0, abs=0.05)


@settings(max_examples=30)
@given(st.floats(0.0, 6.0), st.sampled_from([0.3, 1.0]))
def test_whenever_the_time_is_up_the_table_never_promises_more_than_the_whole_one(
    limit_s: float, per_row: float
):
    def honest_s(start: int, tree: DraftTree) -> float:
        return 0.010 * (1 + per_row * (len(tree) - 1)) * (1 + start / 8192)

    table = _calibrated(Machine(honest_s), replace(SCOPE, limit_s=limit_s)).prices()
    if table is None:
        assert limit_s < 0.2
        return
    prices_from(table.to_fields())
    prices = table.at(256, 64)
    for rows in range(1, 65):
        tree, _ = trial_tree(Cell(256, "chain", rows), 500)
        assert prices.verify_ms(rows, is_chain=True) >= honest_s(256, tree) * 1000


def test_what_a_longer_context_and_a_fork_add_is_filled_in_for_what_was_not_measured():
    def forked_s(start: int, tree: DraftTree) -> float:
        return stairs_s(start, tree) + (0.0 if tree.is_chain else 0.001 * len(tree))

    whole = _calibrated(Machine(forked_s)).prices()
    coarse = Calibration(replace(SCOPE, contexts=(256, 8128)), (machine := Machine(forked_s)).clock)
    while not {Cell(8128, "chain", 64), Cell(256, "tree", 17)} <= set(coarse._medians()):
        coarse.step(machine)
    measured = coarse._medians()
    for rows in (8, 24):  # 24 is known of the shortest context alone
        assert Cell(256, "chain", rows) in measured and Cell(8128, "chain", rows) not in measured
        found = coarse.prices().verify[8128]
        assert found["chain"][rows] == pytest.approx(whole.verify[8128]["chain"][rows])
        fork = trial_tree(Cell(8128, "tree", rows), 500)[0]
        assert found["tree"][rows] == pytest.approx(forked_s(8128, fork) * 1000)


def test_a_machine_that_manages_no_plain_step_has_no_table():
    calibration = Calibration(SCOPE, (machine := Machine(stairs_s)).clock)
    assert calibration.prices() is None
    for _ in range(2 * 4):
        calibration.step(machine)
    assert calibration.prices() is None


def test_noise_never_makes_a_price_that_a_file_would_not_hold():
    def odd_s(start: int, tree: DraftTree) -> float:
        return 0.0 if start > 256 or len(tree) == 4 else 0.5

    scope = replace(SCOPE, contexts=(256, 1024), rows=(1, 2, 4, 8))
    calibration = Calibration(scope, (machine := Machine(odd_s)).clock)
    while Cell(1024, "chain", 8) not in calibration._medians():
        calibration.step(machine)
    assert Cell(1024, "chain", 4) not in calibration._medians()
    assert isinstance(prices_from(calibration.prices().to_fields()), Prices)
    unseen = _calibrated(Machine(lambda *_: 0.0)).prices()  # by a clock that is too coarse
    assert isinstance(prices_from(unseen.to_fields()), Prices)


@pytest.mark.parametrize(
    ("max_len", "most_rows", "contexts", "rows"),
    [
        (40_000, 64, CONTEXTS, ROWS),
        (32_768, 64, (256, 1024, 4096, 8192, 16_384, 32_704), ROWS),
        (512, 8, (256,), (1, 2, 4, 8)),
        (300, 64, (236,), ROWS),
        (100, 50, (50,), (*ROWS[:-2], 48, 50)),
        (20, 64, (1,), (1, 2, 4, 8, 12, 16, 17, 19)),
        (1024, 2, (256, 1022), (1, 2)),
        (2, 64, (1,), (1,)),
    ],
)
def test_what_is_measured_fits_into_a_sequence_and_a_verify(
    max_len: int, most_rows: int, contexts: tuple[int, ...], rows: tuple[int, ...]
):
    scope = scope_of(max_len=max_len, most_rows=most_rows, vocab_size=500, samples=1, limit_s=1e9)
    assert (scope.contexts, scope.rows) == (contexts, rows)
    machine = Machine(stairs_s)
    table = _calibrated(machine, scope).prices()
    assert max(table.verify[contexts[0]]["chain"]) == rows[-1]


@given(st.lists(st.integers(), max_size=20, unique=True))
def test_coarse_first_is_all_of_it_with_gaps_halved_each_time(items: list[int]):
    levels = coarse_first(items)
    assert sorted(item for level in levels for item in level) == sorted(items)
    for count in range(2, len(levels) + 1):
        places = sorted(items.index(item) for level in levels[:count] for item in level)
        widest = max((b - a for a, b in itertools.pairwise(places)), default=0)
        assert widest <= max(1, -(-len(items) // 2 ** (count - 2)))


@pytest.mark.parametrize("rows", ROWS)
def test_trials_have_the_shape_that_they_are_to_price(rows: int):
    chain, line = trial_tree(Cell(256, "chain", rows), 500)
    assert len(chain) == rows and chain.is_chain
    assert line == tuple(range(len(line))) and len(line) <= max(rows, 1)
    assert len(set(chain.tokens)) == rows and max(chain.tokens) < 500
    if rows > 2:
        fork, path = trial_tree(Cell(256, "tree", rows), 500)
        assert len(fork) == rows and not fork.is_chain and len(list(fork.paths())) == 2
        assert all(fork.parents[b] == a for a, b in itertools.pairwise(path))
        assert path[1] > 1  # rows move in the cache
    step, root = trial_tree(Cell(256, "plain", 1), 500)
    assert (step.drafted, root) == (0, (0,))
