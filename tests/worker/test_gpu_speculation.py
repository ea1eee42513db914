"""The parts of the check of a GPU that concern speculation: each finds the faults that it is for.

A fault is planted in the engine, a part runs on the CPU with tiny shapes, and what was found wrong
is looked at. That nothing is found where nothing is planted, `test_gpu_check` shows.
"""

from collections.abc import Callable, Sequence
from dataclasses import replace
from statistics import mean
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from bench.gpu import attention, guesses, prices, rounds
from bench.gpu.engines import GREEDY, SEEDED, Following
from bench.gpu.guesses import Steady
from bench.gpu.models import RandomTensors, build, small
from bench.gpu.near_ties import flips_of, gaps_in_ulps, sum_of
from bench.gpu.notes import Check, Note, Notes, Number, Stage, worst
from bench.gpu.tree_shapes import KINDS, parents_of, path_to
from worker import engine
from worker.kernels import flash, sdpa
from worker.kernels.attention import Rows
from worker.kernels.delta_rule import DeltaInputs, rows
from worker.kernels.sdpa import SdpaAttention
from worker.kernels.tree import Tree
from worker.models import delta
from worker.models.decoder import Decoder
from worker.speculation.calibration import Calibration
from worker.speculation.tree import DraftTree
from worker.speculation.walk import Choose, Take, walk
from worker.state.cache import DeltaCache, SequenceCache
from worker.state.kv import KvCache

STAGE = Stage(torch.device("cpu"), is_tiny=True)
NO_MASK = np.empty(0, dtype=np.int64)
Patch = pytest.MonkeyPatch


def _found(part: Callable[[Stage, Notes], None]) -> list[Note]:
    found: list[Note] = []
    part(STAGE, Notes(found.append))
    return found


def _wrong(part: Callable[[Stage, Notes], None]) -> set[str]:
    """What does not hold."""
    checks = [note for note in _found(part) if isinstance(note, Check)]
    assert len(checks) > 8
    return {check.what for check in checks if not check.holds}


# G2.


def _everything_is_seen(patch: Patch) -> None:
    real = sdpa._tree_mask
    patch.setattr(sdpa, "_tree_mask", lambda *some: torch.ones_like(real(*some)))


def _windows_count_rows(patch: Patch) -> None:
    real = sdpa._tree_mask

    def by_row(tree: Tree, window: int, length: int) -> Tensor:
        positions = torch.arange(tree.count) + tree.start
        return real(replace(tree, positions=positions), window, length)

    patch.setattr(sdpa, "_tree_mask", by_row)


def _merge_forgets_the_tree(patch: Patch) -> None:
    patch.setattr(flash, "merged", lambda one, one_sum, other, other_sum: one)


def _kernel_gives_no_numbers(patch: Patch) -> None:
    real = SdpaAttention.attend

    def attend(kernel: SdpaAttention, q: Tensor, sight: Any, kv: KvCache, some: Rows) -> Tensor:
        out = real(kernel, q, sight, kv, some)
        return out * torch.nan if some.count == 17 else out

    patch.setattr(SdpaAttention, "attend", attend)


@pytest.mark.parametrize(
    ("fault", "kernel", "windows"),
    [
        (_everything_is_seen, "sdpa", {0, 16, 512}),
        (_windows_count_rows, "sdpa", {16}),
        (_merge_forgets_the_tree, "merge", {0}),
        (_kernel_gives_no_numbers, "sdpa", {0, 16, 512}),
    ],
)
def test_g2_finds_what_is_wrong_with_a_tree(
    monkeypatch: Patch, fault: Callable[[Patch], None], kernel: str, windows: set[int]
):
    fault(monkeypatch)
    wrong = _wrong(attention.run)
    for dtype in ("float32", "bfloat16"):
        name = f"{kernel} {dtype}, 9/3 heads of 64, trees, window"
        assert {what for what in wrong if what.startswith(name)} == {f"{name} {w}" for w in windows}
    if kernel == "merge":
        assert not any(what.startswith("sdpa") for what in wrong)


@pytest.mark.parametrize("count", attention.ROW_COUNTS)
def test_trees_of_the_check_are_in_depth_first_order_and_of_every_shape(count: int):
    for kind in KINDS:
        parents = parents_of(kind, count)
        assert len(parents) == count
        for row in range(1, count):  # on the row before it, or on one above that
            assert parents[row] in path_to(row - 1, parents)
    if count > 8:
        shape = parents_of("random", count)
        children = [shape.count(row) for row in range(count)]
        deepest = max(len(path_to(row, shape)) for row in range(count))
        assert max(children) > 1 and 3 < deepest < count


# G3.


def _paths_are_not_gathered(patch: Patch) -> None:
    patch.setattr(KvCache, "gather", lambda cache, start, some: None)


def _another_path_is_committed(patch: Patch) -> None:
    real = DeltaCache.commit
    patch.setattr(DeltaCache, "commit", lambda cache, path: real(cache, torch.arange(len(path))))


def _the_convolution_keeps_its_tail(patch: Patch) -> None:
    real = DeltaCache.commit

    def commit(cache: DeltaCache, path: Tensor) -> None:
        tail = cache.conv.clone()
        real(cache, path)
        cache.conv.copy_(tail)

    patch.setattr(DeltaCache, "commit", commit)


def _siblings_are_seen(patch: Patch) -> None:
    def leaking(state: Tensor, inputs: DeltaInputs, reach: Tensor) -> Any:
        return rows(state, inputs, torch.ones_like(reach).tril())

    patch.setattr(delta.delta_rule, "rows", leaking)


def _a_verify_writes_to_the_state(patch: Patch) -> None:
    real = Decoder.forward

    def forward(
        model: Decoder, ids: Tensor, cache: SequenceCache, some: Rows, *taps: Any
    ) -> Tensor:
        hidden = real(model, ids, cache, some, *taps)
        if isinstance(some, Tree) and cache.delta is not None:
            cache.delta.recurrent[0, 0, 0, 0] += 1e-6
        return hidden

    patch.setattr(Decoder, "forward", forward)


def _the_walk_reads_the_row_before(patch: Patch) -> None:
    def late(tree: DraftTree, choose: Choose, take: Take) -> Any:
        return walk(tree, lambda node: choose(max(0, node - 1)), take)

    patch.setattr(engine, "walk", late)


def _nothing_is_guessed(patch: Patch) -> None:
    patch.setattr(guesses.Scripted, "propose", lambda drafter, ctx, room, chooser: None)


STATE, ENDS = "state of a committed path against steps", "state at the end"
ROWS, TEXTS = "rows, gap in ulps of the worst flip", "texts, gap in ulps of the worst flip"
HYBRID, DENSE = rounds.KINDS


@pytest.mark.parametrize(
    ("fault", "kind", "dtype", "shown"),
    [
        (_paths_are_not_gathered, DENSE, torch.bfloat16, (STATE, ENDS, TEXTS)),
        (_another_path_is_committed, HYBRID, torch.bfloat16, (STATE, ENDS, TEXTS)),
        (_the_convolution_keeps_its_tail, HYBRID, torch.bfloat16, (STATE, ENDS)),
        (_siblings_are_seen, HYBRID, torch.bfloat16, (ROWS,)),
        (_everything_is_seen, DENSE, torch.float32, (ROWS, "rows of a tree against its chains")),
        (_a_verify_writes_to_the_state, HYBRID, torch.float32, ("values that a verify changed",)),
        (_the_walk_reads_the_row_before, DENSE, torch.bfloat16, (TEXTS,)),
        (_nothing_is_guessed, DENSE, torch.float32, ("tokens a round short of 1.5",)),
    ],
)
def test_g3_finds_what_is_wrong_with_a_round(
    monkeypatch: Patch,
    fault: Callable[[Patch], None],
    kind: str,
    dtype: torch.dtype,
    shown: Sequence[str],
):
    fault(monkeypatch)
    wrong = _wrong(lambda stage, notes: rounds.check_model(kind, dtype, stage, notes))
    for what in shown:
        assert any(one.endswith(what) for one in wrong), (what, wrong)


def test_in_fp32_on_a_cpu_no_token_is_another():
    found = _found(lambda *some: rounds.check_model(HYBRID, torch.float32, *some))
    flips = [note.value for note in found if isinstance(note, Number)]
    assert [(one["rows"], one["flips"]) for one in flips] == [(121, 0), (80, 0), (80, 0)]


# The rule.


def _logits(*values: float) -> Tensor:
    return torch.tensor([values])


def test_a_gap_is_counted_in_steps_of_bf16_at_the_likeliest():
    step = 2.0**-5  # between 4 and 8
    found = [gaps_in_ulps(_logits(0.0, 4.0 + n * step, 4.0)) for n in (0, 1, 2.5)]
    assert torch.cat(found).tolist() == [0.0, 1.0, 2.5]
    assert gaps_in_ulps(_logits(-7.5, -8.0)).item() == 0.5 / step


@pytest.mark.parametrize(
    ("gaps", "other", "dtype", "is_right"),
    [
        ([5.0, 2.0], [1, 9], torch.bfloat16, True),
        ([5.0, 2.1], [1, 9], torch.bfloat16, False),
        ([5.0, 9.0], [1, 1], torch.bfloat16, True),
        ([5.0, 0.5], [1, 9], torch.float32, False),
        ([5.0, 0.005], [1, 9], torch.float32, True),
        ([float("nan"), 0.5], [1, 1], torch.bfloat16, False),
    ],
)
def test_another_token_is_right_at_a_near_tie_only(
    gaps: list[float], other: list[int], dtype: torch.dtype, is_right: bool
):
    one = flips_of(torch.tensor(gaps), torch.tensor([1, 1]), torch.tensor(other), dtype)
    # Others that are right, before and behind, hide nothing.
    fine = flips_of(torch.tensor([9.0]), torch.tensor([1]), torch.tensor([1]), dtype)
    for flips in (one, sum_of([fine, one]), sum_of([one, fine])):
        found: list[Note] = []
        flips.tell("rows", dtype, Notes(found.append))
        assert isinstance(found[0], Check) and found[0].holds == is_right
    assert one.flips == sum(token != 1 for token in other)


def test_no_number_is_the_worst_wherever_it_stands():
    nan = float("nan")
    assert worst([1.0, 3.0, 2.0]) == 3.0
    assert all(np.isnan(worst(some)) for some in ([nan, 1.0], [1.0, nan], [1.0, nan, 2.0]))


def test_a_text_is_followed_and_what_would_have_been_chosen_is_noted():
    logits = np.array([0.0, 2.0, 1.0], dtype=np.float32)
    following, plain = Following(GREEDY, [0], [2, 2]), Following(GREEDY, [0])
    assert [following.choose(logits.copy(), NO_MASK).token for _ in range(2)] == [2, 2]
    assert following.chosen == [1, 1]
    assert plain.choose(logits.copy(), NO_MASK).token == 1
    assert plain.gaps == [64.0]
    # What is drawn, and how clearly, is a matter of the noise as well.
    seeded = Following(SEEDED, [0])
    tokens = [seeded.choose(logits.copy(), NO_MASK).token for _ in range(50)]
    assert set(tokens) == {0, 1, 2}
    assert len(set(seeded.gaps)) == 50


# G4 and G5.


@pytest.mark.parametrize("is_forked", [False, True])
def test_a_steady_guess_is_right_as_often_as_it_is_told_to(is_forked: bool):
    text = list(range(1000, 2000))
    guess, at, tokens = Steady(text, 4.58, rows=16, is_forked=is_forked), 1, []
    for _ in range(100):
        tree = guess(text[:at], 500)
        assert (len(tree), tree.is_chain) == (16, not is_forked)
        node, right = 0, 0
        while (child := tree.child(node, text[at + right])) is not None:
            node, right = child, right + 1
        tokens.append(right + 1)
        at += right + 1
    assert mean(tokens) == pytest.approx(4.58, abs=0.01)
    assert set(tokens) == {4, 5}


def test_the_price_table_is_that_of_the_calibration_that_serves(monkeypatch: Patch):
    config = small("qwen3_5_text", STAGE)
    tensors = RandomTensors(config, STAGE.device, torch.bfloat16)
    model = build(config, tensors, SdpaAttention(), dtype=torch.bfloat16, device=STAGE.device)
    made = []
    real = Calibration.prices
    monkeypatch.setattr(Calibration, "prices", lambda one: made.append(real(one)) or made[-1])
    found = _found(lambda stage, notes: prices.measure(model, stage, notes))
    numbers = {note.name: note.value for note in found if isinstance(note, Number)}
    (table,) = made
    assert numbers["prices"] == table.to_fields()
    assert list(numbers["in_plain_steps"]) == ["256"]
    columns = numbers["in_plain_steps"]["256"]
    assert list(columns["chain"]) == ["2", "4", "8", "12", "16", "17", "20", "24", "32", "48", "64"]
    assert list(columns["tree"]) == list(columns["chain"])[1:]
    whole = (table.verify[256]["tree"][64] + table.commit["tree"]) / table.plain[256]
    assert columns["tree"]["64"] == pytest.approx(whole)
