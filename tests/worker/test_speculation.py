"""Trees, their merge and cut, what is believed of them, and the walk: as functions of arrays."""

import math
import random
from collections.abc import Callable, Sequence
from itertools import combinations

import pytest
from drafters import ALL_FREE, Guessing, line, random_tree, staircase
from hypothesis import given, settings
from hypothesis import strategies as st
from scripted import COMPILER, TOKENIZER

from proto.chat import AnswerFormat, Call
from worker.grammar.forms import form_of
from worker.kernels.tree import tree_rows
from worker.sampling.chooser import Chooser, Chosen
from worker.sampling.params import Sampling
from worker.speculation.cut import Bounds, Cut, best_part, cut
from worker.speculation.drafting import Draft, Drafting, possible
from worker.speculation.merge import merge
from worker.speculation.odds import Odds, matched
from worker.speculation.prices import CONTEXTS, UNMEASURED, Prices, RoundPrices
from worker.speculation.round import Round
from worker.speculation.tree import DraftTree, Source, only_root, ordered
from worker.speculation.walk import walk

EACH_A_MILLISECOND = tuple(10.0 + more for more in range(64))
SLOPE = RoundPrices(10.0, EACH_A_MILLISECOND, EACH_A_MILLISECOND)
GREEDY = Sampling(temperature=0.0, top_p=1.0, top_k=0, min_p=0.0, seed=0)


@st.composite
def trees(draw: st.DrawFn, most: int = 32, vocab: int = 6) -> DraftTree:
    """Trees of every shape on the same root; few different tokens, so that they overlap."""
    coin = random.Random(draw(st.integers(0, 2**32)))
    nodes = draw(st.integers(1, most))
    return random_tree(
        coin, [1, *(coin.randrange(vocab) for _ in range(8))], nodes, 12, vocab=vocab
    )


def paths(tree: DraftTree) -> dict[tuple[int, ...], int]:
    """The tokens down to each node, and the node."""
    found: dict[tuple[int, ...], int] = {}
    above: list[tuple[int, ...]] = []
    for node, parent in enumerate(tree.parents):
        above.append((*(above[parent] if parent >= 0 else ()), tree.tokens[node]))
        found[above[node]] = node
    return found


# Trees.


def check(tree: DraftTree) -> None:
    """That a tree is one: in pre-order, its scores fall, siblings differ."""
    stack: list[int] = []
    for node, parent in enumerate(tree.parents):
        while stack and stack[-1] != parent:
            stack.pop()
        assert stack or node == 0
        stack.append(node)
        assert parent < node
        assert node == 0 or tree.scores[node] <= tree.scores[parent]
    assert len(paths(tree)) == len(tree)


@given(trees())
def test_a_tree_is_in_pre_order_and_falls_along_its_paths(tree: DraftTree):
    check(tree)


@given(trees(), st.data())
def test_reach_depths_children_and_paths_are_those_of_the_parents(
    tree: DraftTree, data: st.DataObject
):
    node = data.draw(st.integers(0, len(tree) - 1))
    line = [node]
    while tree.parents[line[-1]] >= 0:
        line.append(tree.parents[line[-1]])
    rows = tree_rows(tree.parents, start=7)
    assert {at for at in range(len(tree)) if rows.reach[node, at]} == set(line)
    assert rows.positions.tolist() == [7 + depth for depth in tree.depths()]
    assert tree.depths()[node] == len(line) - 1
    children = [at for at, parent in enumerate(tree.parents) if parent == node]
    assert list(tree.children(node)) == children
    assert all(tree.child(node, tree.tokens[child]) == child for child in children)
    assert tree.child(node, 999) is None
    leaves = [at for at in range(1, len(tree)) if at not in tree.parents]
    assert [path[-1] for path in tree.paths()] == leaves
    assert all(path == sorted(set(path)) for path in tree.paths())
    if node in leaves:
        assert list(reversed(line))[1:] in list(tree.paths())


@given(trees(), st.integers(0, 6))
def test_a_tree_within_a_depth_has_the_nodes_that_are_no_deeper(tree: DraftTree, depth: int):
    assert paths(tree.within(depth)).keys() == {p for p in paths(tree) if len(p) <= depth + 1}
    assert max(tree.within(depth).depths()) <= depth


def test_siblings_stand_likeliest_first():
    guessed = (Source(0), Source.LOOKUP, Source.BLOCK, Source.FORM)
    tree = ordered((5, 6, 7, 8), (-1, 0, 0, 0), (1.0, 0.1, 0.5, 0.3), guessed)
    assert tree.tokens == (5, 7, 8, 6)
    assert tree.sources == (Source(0), Source.BLOCK, Source.FORM, Source.LOOKUP)
    assert [tree.is_chain, line([1, 2, 3]).is_chain, only_root(3).is_chain] == [False, True, True]


def test_a_convolution_sees_ancestors_and_then_what_was_before_the_tree():
    def windows(width: int) -> list[list[int]]:
        return tree_rows([-1, 0, 1, 0], start=7, conv_width=width).windows.tolist()

    assert windows(4) == [[0, 1, 2, 3], [1, 2, 3, 4], [2, 3, 4, 5], [1, 2, 3, 6]]
    assert windows(2) == [[0, 1], [1, 2], [2, 3], [1, 4]]


# Merge.


@given(trees(), trees())
def test_x8_a_merge_has_the_paths_of_both_and_the_better_scores(one: DraftTree, other: DraftTree):
    whole, mine, its = merge(one, other), paths(one), paths(other)
    found = paths(whole)
    assert found.keys() == mine.keys() | its.keys()
    assert len(found) == len(whole)
    for path, node in found.items():
        scores = [t.scores[p[path]] for t, p in ((one, mine), (other, its)) if path in p]
        assert whole.scores[node] == max(scores)
        parent = whole.parents[node]
        assert parent < 0 or whole.scores[node] <= whole.scores[parent]


def test_a_node_of_both_trees_keeps_both_sources():
    lookup = DraftTree((1, 2), (-1, 0), (1.0, 0.5), (Source(0), Source.LOOKUP))
    assert merge(lookup, line([1, 2, 3])).sources == (
        Source(0), Source.LOOKUP | Source.BLOCK, Source.BLOCK,
    )  # fmt: skip


# Cut.


def _best_of_all(tree: DraftTree, prices: RoundPrices, most_rows: int) -> float:
    """The best value of all parts that are trees."""
    values = []
    for count in range(1, min(len(tree), most_rows)):
        for nodes in combinations(range(1, len(tree)), count):
            if all(tree.parents[node] in (0, *nodes) for node in nodes):
                expected = 1.0 + sum(tree.scores[node] for node in nodes)
                values.append(expected / prices.verify_ms(count + 1, is_chain=False))
    return max(values)


@st.composite
def price_tables(draw: st.DrawFn) -> RoundPrices:
    """Any staircase: no row count is promised to be dearer than the one before."""
    rows = tuple(draw(st.lists(st.floats(1.0, 30.0), min_size=12, max_size=12)))
    return RoundPrices(draw(st.floats(1.0, 10.0)), rows, rows)


@settings(max_examples=60)
@given(trees(most=12), price_tables(), st.integers(2, 12))
def test_x8_the_cut_is_the_best_of_all_parts(tree: DraftTree, prices: RoundPrices, most: int):
    best = best_part(tree, prices, Bounds(most))
    if not tree.drafted:
        assert best is None
        return
    assert best is not None
    assert best.value == pytest.approx(_best_of_all(tree, prices, most))
    assert len(best.tree) <= most
    check(best.tree)
    assert paths(best.tree).keys() <= paths(tree).keys()
    expected = sum(best.tree.scores)
    assert best.value == pytest.approx(expected / prices.verify_ms(len(best.tree), is_chain=False))


def _cut(tree: DraftTree, prices: RoundPrices, **changes: object) -> Cut | None:
    return cut([tree], prices, Bounds(64, **changes))


def test_x9_a_table_where_drafting_never_pays_gives_a_plain_step():
    dear = staircase(3.0, plain_ms=10.0).at(256, 64)
    sure, unsure = line(list(range(8)), score=1.0), line(list(range(8)), score=0.02)
    assert _cut(sure, dear) is not None
    assert _cut(unsure, dear, margin=1.03) is None
    assert cut([], dear, Bounds(64)) is None
    # As much a millisecond as plain, or more by less than the margin, is not enough.
    assert _cut(line([1, 2], score=0.05), RoundPrices(1.0, (1.0, 1.0), (1.0, 1.0))) is not None
    assert _cut(line([1, 2], score=0.05), RoundPrices(1.0, (1.0, 1.04), (1.0, 1.04))) is None


def test_a_step_of_the_staircase_is_filled_and_not_passed_for_little():
    stairs = staircase(5.0, plain_ms=10.0).at(256, 64)
    even = _cut(line(list(range(20)), score=0.99), stairs)
    steep = _cut(line(list(range(20)), score=0.7), stairs)
    assert even is not None and steep is not None
    assert (len(even.tree), len(steep.tree)) == (16, 8)


def test_only_the_row_counts_of_the_snap_or_the_whole_tree_are_verified():
    long = line(list(range(21)), score=0.9)
    free = _cut(long, SLOPE)
    assert free is not None and len(free.tree) not in (4, 16, 21)
    snapped = _cut(long, SLOPE, snap=(4, 16))
    assert snapped is not None and len(snapped.tree) in (4, 16)
    whole = _cut(line(list(range(6)), score=0.9), SLOPE, snap=(16,))
    assert whole is not None and len(whole.tree) == 6


def test_a_tree_is_priced_as_a_tree_and_a_chain_as_a_chain():
    prices = RoundPrices(10.0, (10.0,) * 8, (100.0,) * 8)
    fork = ordered((1, 2, 3, 4), (-1, 0, 0, 2), (1.0, 0.9, 0.8, 0.7), (Source(0),) * 4)
    best = best_part(fork, prices, Bounds(8))
    assert best is not None and best.tree.tokens == (1, 2)


def test_of_several_guesses_the_one_with_the_most_tokens_a_millisecond_is_cut():
    cheap, worthy = line([1, 2], score=0.9), line([1, 3, 4, 5], score=0.9)
    for offered in ([cheap, worthy], [worthy, cheap]):
        best = cut(offered, SLOPE, Bounds(64))
        assert best is not None and best.tree.tokens == worthy.tokens


@pytest.mark.parametrize("chance", [0.02, 0.1, 0.3, 0.6, 0.95])
def test_x9_a_guess_that_comes_true_now_and_then_never_costs_more_than_its_margin(chance: float):
    coin, odds, spent_ms, written = random.Random(3), Odds(), 0.0, 0
    while written < 4000:
        guess = line(list(range(9)), score=0.6)  # what is promised has nothing to do with the truth
        best = cut([odds.weighed(guess, Source.BLOCK)], SLOPE, Bounds(64, margin=1.02))
        right = next((at for at in range(8) if coin.random() > chance), 8)
        depth = 0 if best is None else best.tree.drafted
        tokens = [*range(1, 1 + min(right, depth)), 1 + depth if right > depth else 99]
        odds.learn(guess, Source.BLOCK, tokens)
        spent_ms += SLOPE.plain if best is None else best.price_ms
        written += len(tokens)
    assert written / spent_ms >= 1 / SLOPE.plain / 1.02


# Prices.


TABLE = Prices(
    {256: 10.0, 1024: 14.0},
    {256: {"chain": {1: 10.0, 9: 18.0, 17: 50.0}, "tree": {1: 11.0, 17: 51.0}},
     1024: {"chain": {1: 20.0, 17: 60.0}, "tree": {1: 20.0, 17: 60.0}}},
    {"chain": 0.0, "tree": 0.5},
)  # fmt: skip


def test_prices_are_linear_between_rows_and_in_the_logarithm_of_the_context():
    short = TABLE.at(256, 20)
    assert short.plain == 10.0
    assert [short.verify_ms(rows, is_chain=True) for rows in (1, 5, 9, 13, 17, 20)] == [
        10.0, 14.0, 18.0, 34.0, 50.0, 50.0,
    ]  # fmt: skip
    assert short.verify_ms(9, is_chain=False) == pytest.approx(31.0 + 0.5)
    middle = TABLE.at(512, 20)
    assert (middle.plain, middle.verify_ms(1, is_chain=True)) == (12.0, 15.0)
    assert TABLE.at(10, 20).plain == 10.0
    assert TABLE.at(CONTEXTS[-1], 20).plain == 14.0


# Odds.


def _after(odds: Odds, rounds: int, tree: DraftTree, written: Sequence[int]) -> float:
    for _ in range(rounds):
        odds.learn(tree, Source.BLOCK, written)
    return odds.factor(Source.BLOCK)


def test_a_source_is_believed_by_what_came_true_of_its_scores():
    guess = line([1, 2, 3, 4], score=0.5)  # promises 0.875 tokens
    assert _after(Odds(), 1, guess, [2, 3, 4, 9]) == pytest.approx(1 + 0.15 * (3 / 0.875 - 1))
    assert _after(Odds(), 100, guess, [2, 3, 4, 9]) == 2.0
    assert _after(Odds(), 100, guess, [9, 9, 9, 9]) == 0.05
    assert _after(Odds(), 100, line([1, 2, 3], score=0.5), [2, 9]) == pytest.approx(1 / 0.75)
    odds = Odds()
    _after(odds, 50, guess, [9])
    assert odds.factor(Source.LOOKUP) == 1.0
    assert odds.weighed(guess, Source.BLOCK).scores[1] == pytest.approx(0.025, rel=0.2)
    odds.clear()
    assert odds.factor(Source.BLOCK) == 1.0


def test_only_nodes_as_deep_as_what_was_written_count():
    guess = line([1, 2, 3, 4], score=1.0)
    assert _after(Odds(), 1, guess, [2]) == 1.0  # one of one, not one of three
    hopeless = line([1, 2], score=0.04)
    assert _after(Odds(), 10, hopeless, [9]) == 1.0
    assert [matched(guess, some) for some in ([2, 3, 9], [9, 3], [2, 3, 4, 5])] == [2, 0, 3]


@pytest.mark.parametrize("wrong", [math.nan, math.inf, -1.0, 3.0])
def test_scores_that_rise_or_are_no_numbers_are_brought_into_order_and_cut(wrong: float):
    scores = (1.0, 0.5, wrong, 0.9, wrong)
    tree = DraftTree((1, 2, 3, 4, 5), (-1, 0, 1, 2, 0), scores, (Source.BLOCK,) * 5)
    odds = Odds()
    check(odds.weighed(tree, Source.BLOCK))
    for rows in range(2, 6):
        best = cut([odds.weighed(tree, Source.BLOCK)], SLOPE, Bounds(rows, margin=0.0))
        assert best is not None
        check(best.tree)
    odds.learn(tree, Source.BLOCK, [2, 3, 4])
    assert 0.05 <= odds.factor(Source.BLOCK) <= 2.0


@given(trees())
def test_believed_scores_still_fall_and_are_no_more_than_certain(tree: DraftTree):
    odds = Odds()
    odds.learn(line([1, 2], score=0.3), Source.BLOCK, [2])
    weighed = odds.weighed(tree, Source.BLOCK)
    assert max(weighed.scores) <= 1.0
    for node, parent in enumerate(weighed.parents):
        assert parent < 0 or weighed.scores[node] <= weighed.scores[parent]


def test_b6_a_source_that_was_bad_and_becomes_good_is_chosen_again_within_ten_rounds():
    odds, prices, chosen = Odds(), SLOPE, []
    for number in range(60):
        guess = line([1, 2, 3, 4, 5], score=0.8)
        weighed = odds.weighed(guess, Source.BLOCK)
        chosen.append(cut([weighed], prices, Bounds(64)) is not None)
        odds.learn(guess, Source.BLOCK, [2, 3, 4, 5, 6] if number >= 40 else [9])
    assert not any(chosen[30:40])
    assert all(chosen[50:])


# Drafting.


def test_what_ends_the_answer_is_never_guessed_nor_what_would_come_behind_it():
    tree = ordered((1, 2, 7, 7, 8), (-1, 0, 1, 0, 3), (1.0, 0.5, 0.4, 0.3, 0.2), (Source(0),) * 5)
    assert paths(possible(tree, {7}, Chooser(GREEDY, ()))).keys() == {(1,), (1, 2)}


def test_what_the_grammar_forbids_is_not_verified():
    form = form_of(Call("m", (), answer_format=AnswerFormat("regex", "ab(c|d)")), "hermes")
    assert form is not None
    a, b, c, d, z = (TOKENIZER.encode_literal(letter)[0] for letter in "abcdz")
    chooser = Chooser(GREEDY, (), matcher=COMPILER.compile(form))
    tree = ordered(
        (0, a, b, c, d, z, z, a), (-1, 0, 1, 2, 2, 2, 0, 3),
        (1.0, 0.9, 0.8, 0.7, 0.6, 0.5, 0.4, 0.3), (Source(0),) * 8,
    )  # fmt: skip
    whole = {(0,), (0, a), (0, a, b), (0, a, b, c), (0, a, b, d)}
    assert paths(possible(tree, (), chooser)).keys() == whole
    assert chooser.matcher is not None and chooser.matcher.consumed == ()
    chooser.is_free = True
    assert possible(tree, (), chooser) is tree


def _drafting(*drafters: Guessing, clock: Callable[[], float] = lambda: 0.0) -> Drafting:
    return Drafting(drafters, (), clock)


def _propose(drafting: Drafting, room: int = 9) -> tuple[Draft, ...]:
    return drafting.propose([3], room, Chooser(GREEDY, ()), SLOPE, Bounds(64))


def test_guesses_of_several_drafters_are_offered_alone_and_together():
    lookup = Guessing(lambda ctx, room: line([ctx[-1], 5, 6]))
    lookup.source = Source.LOOKUP
    fork = ordered((3, 5, 9, 7), (-1, 0, 1, 0), (1.0, 0.6, 0.5, 0.4), (Source.BLOCK,) * 4)
    form = Guessing(lambda ctx, room: line([ctx[-1], 8]))
    form.source = Source.FORM
    drafting = _drafting(form, lookup, Guessing(lambda *_: None), Guessing(lambda *_: fork))
    drafts = _propose(drafting)
    assert [draft.source for draft in drafts] == [Source.FORM, Source.LOOKUP, Source.BLOCK]
    offered = [paths(tree).keys() for tree in drafting.candidates(drafts)]
    forced, copied, guessed = {(3,), (3, 8)}, {(3,), (3, 5), (3, 5, 6)}, paths(fork).keys()
    whole = forced | copied | guessed
    assert offered == [forced, copied, guessed, guessed - {(3, 7)}, whole]
    tokens = [draft.tree.tokens for draft in _propose(drafting, room=1)]
    assert tokens == [(3, 8), (3, 5), (3, 5, 7)]


def test_where_there_is_no_room_nobody_is_asked():
    def guess(ctx: Sequence[int], room: int) -> DraftTree:
        raise AssertionError("for nothing")

    assert _propose(_drafting(Guessing(guess)), room=0) == ()


def test_what_is_learned_of_one_request_is_forgotten_in_the_next():
    lookup = Guessing(lambda ctx, room: line([ctx[-1], 5]))
    lookup.source = Source.LOOKUP
    drafting = _drafting(lookup, Guessing(lambda ctx, room: line([ctx[-1], 7])))
    drafts = _propose(drafting)
    for _ in range(9):
        drafting.learn(drafts, [7])
    copied, guessed, _ = drafting.candidates(drafts)
    assert copied.scores[1] < 0.5 < 0.9 < guessed.scores[1]
    drafting.start(None)
    assert drafting.candidates(drafts)[0].scores[1] == 0.9


class Costly(Guessing):
    """A drafter that takes its time, on a clock of its own. `asked`: in which rounds."""

    def __init__(self, cost_ms: float, score: float) -> None:
        super().__init__(lambda ctx, room: line([ctx[-1], 5, 6, 7], score=score))
        self.cost_ms, self.now_s, self.asked = cost_ms, 0.0, []
        self.round = 0

    def propose(self, ctx: Sequence[int], room: int, chooser: Chooser) -> DraftTree | None:
        self.now_s += self.cost_ms / 1000
        self.asked.append(self.round)
        return super().propose(ctx, room, chooser)


def _asked(cost_ms: float, score: float, *others: Guessing, rounds: int = 100) -> list[int]:
    drafter = Costly(cost_ms, score)
    drafting = _drafting(*others, drafter, clock=lambda: drafter.now_s)
    for drafter.round in range(rounds):
        _propose(drafting)
    return drafter.asked


def test_a_drafter_that_is_worth_its_time_is_always_asked():
    assert len(_asked(2.0, 0.9)) == 100
    assert len(_asked(0.1, 0.05)) == 100  # costs so little that it does not matter


def test_a_drafter_whose_promises_do_not_come_true_is_hardly_asked():
    drafter = Costly(3.0, 0.9)
    drafting = _drafting(drafter, clock=lambda: drafter.now_s)
    for drafter.round in range(100):
        drafting.learn(_propose(drafting), [99])
    assert len(drafter.asked) < 40


def test_a_drafter_that_was_not_worth_its_time_is_asked_in_the_next_request():
    drafter = Costly(30.0, 0.15)
    drafting = _drafting(drafter, clock=lambda: drafter.now_s)
    for drafter.round in range(50):
        _propose(drafting)
    assert 49 not in drafter.asked
    drafting.start(None)
    drafter.round = 50
    _propose(drafting)
    assert 50 in drafter.asked


def test_a_drafter_that_was_asked_before_prices_were_known_is_judged_by_them_afterwards():
    drafter = Costly(3.0, 0.9)
    drafting = _drafting(drafter, clock=lambda: drafter.now_s)
    unknown = UNMEASURED.at(0, 64)
    drafting.propose([3], 9, Chooser(GREEDY, ()), unknown, Bounds(64))
    for drafter.round in range(300):
        _propose(drafting)
    assert set(range(200, 300)) <= set(drafter.asked)


def test_x9_a_drafter_that_is_not_worth_its_time_costs_three_of_a_hundred_at_most():
    for cost_ms in (1.0, 4.0, 30.0):
        asked = [number for number in _asked(cost_ms, 0.15, rounds=1000) if number > 10]
        assert 10 < len(asked) * cost_ms <= 0.031 * 1000 * SLOPE.plain + cost_ms


def test_a_drafter_that_has_no_guess_costs_no_more():
    silent = Costly(4.0, 0.9)
    silent._guess = lambda ctx, room: None
    drafting = _drafting(silent, clock=lambda: silent.now_s)
    for silent.round in range(1000):
        assert _propose(drafting) == ()
    assert 10 < len(silent.asked) * 4.0 <= 0.031 * 1000 * SLOPE.plain + 4.0


def test_a_single_slow_answer_does_not_silence_a_drafter_for_long():
    drafter = Costly(4.0, 0.15)
    drafting = _drafting(drafter, clock=lambda: drafter.now_s)
    for drafter.round in range(600):
        drafter.cost_ms = 400.0 if len(drafter.asked) == 1 else 4.0
        _propose(drafting)
    slow, following = drafter.asked[1:3]
    assert 100 < following - slow < 500


def test_while_a_copy_runs_a_drafter_that_would_do_worse_is_hardly_asked():
    copy = Guessing(lambda ctx, room: line([ctx[-1], *range(5, 30)], score=0.99))
    copy.source = Source.LOOKUP
    assert len(_asked(3.0, 0.9, copy)) < 15
    assert len(_asked(3.0, 0.9)) == 100


def test_b6_a_drafter_that_becomes_good_is_asked_again():
    drafter = Costly(3.0, 0.15)
    drafting = _drafting(drafter, clock=lambda: drafter.now_s)
    for drafter.round in range(200):
        if drafter.round == 100:
            drafter._guess = lambda ctx, room: line([ctx[-1], 5, 6, 7], score=0.95)
        _propose(drafting)
    late = [number for number in drafter.asked if number > 100]
    assert late[1] - 100 <= 22 and set(range(140, 200)) <= set(late)


# Walk.


def _walk(tree: DraftTree, text: Sequence[int], most: int = 99) -> tuple[tuple[int, ...], ...]:
    taken: list[int] = []

    def take(chosen: Chosen) -> bool:
        taken.append(chosen.token)
        return len(taken) < most

    def choose(node: int) -> Chosen:
        return Chosen(text[tree.depths()[node]])

    path, made = walk(tree, choose, take)
    assert [chosen.token for chosen in made] == taken
    return path, tuple(taken)


@given(trees(), st.lists(st.integers(0, 5), min_size=20, max_size=20), st.integers(1, 9))
def test_the_walk_goes_as_far_as_the_text_and_the_run_allow(
    tree: DraftTree, text: list[int], most: int
):
    path, tokens = _walk(tree, text, most)
    known = paths(tree)
    count = 0
    while count + 1 < most and (1, *text[: count + 1]) in known:
        count += 1
    assert path == tuple(known[(1, *text[:at])] for at in range(count + 1))
    assert tokens == tuple(text[: count + 1])


def test_a_miss_is_a_node_with_children_none_of_which_was_right():
    tree = line([1, 2, 3])

    def missed(text: Sequence[int], most: int = 9) -> bool:
        path, tokens = _walk(tree, text, most)
        return Round(tree, path, tokens, 0, 0, 0, 0, 0).is_missed

    assert missed([2, 9, 9])
    assert not missed([2, 3, 9])  # there was nothing behind the last node
    assert not missed([2, 9, 9], most=1)
    assert Round(tree, (0,), (9,), 0, 0, 0, 0, 0).kind == "block"
    assert Round(only_root(1), (0,), (9,), 0, 0, 0, 0, 0).kind == "plain"
    both = DraftTree((1, 2, 3), (-1, 0, 1), (1.0,) * 3, (Source(0), Source.LOOKUP, Source.BLOCK))
    assert Round(both, (0,), (9,), 0, 0, 0, 0, 0).kind == "merged"


def test_free_rows_are_free():
    assert math.isclose(ALL_FREE.at(0, 64).verify_ms(64, is_chain=False), 1e-6)
