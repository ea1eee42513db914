"""Guesses that are copied: where to copy from, how far, and how often that came true."""

import math
from collections.abc import Sequence

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from worker.draft.lookup import CopyRates, LookupDrafter
from worker.draft.ngrams import LONG, MOST_COMPARED, MOST_PLACES, SHORT, Ngrams
from worker.sampling.chooser import Chooser
from worker.sampling.params import Sampling
from worker.speculation.tree import DraftTree

CHOOSER = Chooser(Sampling(temperature=0.0, top_p=1.0, top_k=0, min_p=0.0, seed=0), ())
IDS = st.lists(st.integers(0, 3), max_size=60)


def _brute_places(ids: Sequence[int]) -> dict[int, int]:
    """Every earlier position behind the same `SHORT` ids, and how many ids are the same."""
    found: dict[int, int] = {}
    for place in range(len(ids) - 1, SHORT - 1, -1):
        same = 0
        while same < place and ids[place - 1 - same] == ids[len(ids) - 1 - same]:
            same += 1
        if same >= SHORT:
            found[place] = min(same, MOST_COMPARED)
    return found


def _checked(index: Ngrams, ids: Sequence[int]) -> None:
    known = _brute_places(ids)
    found = index.places()
    assert dict(found).items() <= known.items()
    places = [place for place, _ in found]
    assert places == sorted(places, reverse=True)
    long = [place for place, same in known.items() if same >= LONG]
    assert places == (long or list(known))[:MOST_PLACES]


@given(IDS, st.integers(0, 60), IDS)
def test_places_are_those_of_a_search_through_all_ids(
    ids: list[int], length: int, others: list[int]
):
    index = Ngrams()
    index.extend(ids)
    _checked(index, ids)
    kept = ids[:length]
    index.rewind(len(kept))
    assert index.ids == kept
    index.extend(others)
    _checked(index, [*kept, *others])


def test_in_a_text_of_one_token_the_newest_places_are_looked_at():
    index = Ngrams()
    index.extend([7] * 60)
    _checked(index, [7] * 60)


class Shelf:
    """A store with one text, which it finds whenever it is asked."""

    def __init__(self, same: int, *lines: list[int]) -> None:
        self.same, self.lines = same, list(lines)
        self.least: int | None = None

    def find(self, tail: Sequence[int], least: int) -> tuple[int, list[Sequence[int]]]:
        self.least = least
        return self.same, list(self.lines)

    def of(self, salt: str) -> "Shelf | None":
        assert salt is not None
        return self if salt == "mine" else None


def _drafter(
    rates: CopyRates | None = None, salt: str = "mine", **changes: object
) -> LookupDrafter:
    limits = {"most_rows": 64, "least_match": 3, "least_expected": 0.0, **changes}
    drafter = LookupDrafter(rates or CopyRates(), **limits)
    drafter.start(salt)
    return drafter


def _guess(drafter: LookupDrafter, ids: Sequence[int], room: int = 64) -> DraftTree | None:
    drafter.sync(ids, None)
    return drafter.propose(ids, room, CHOOSER)


def _lines(tree: DraftTree | None) -> set[tuple[int, ...]]:
    assert tree is not None
    return {tuple(tree.tokens[node] for node in path) for path in tree.paths()}


def test_what_followed_the_same_ids_is_guessed_and_no_deeper_than_there_is_room():
    text = [1, 2, 3, 4, 5, 6, 9, 1, 2, 3]
    assert _lines(_guess(_drafter(), text)) == {(4, 5, 6, 9, 1, 2, 3)}
    assert _lines(_guess(_drafter(), text, room=2)) == {(4, 5)}
    assert _guess(_drafter(), [1, 2, 3, 4, 2, 3]) is None
    assert _guess(_drafter(least_match=4), text) is None
    tree = _guess(_drafter(), text)
    assert tree is not None
    rates = [0.55, 0.62, 0.70, 0.75, 0.80, 0.88, 0.88]  # the match grows as it is copied
    assert tree.scores == pytest.approx([math.prod(rates[:depth]) for depth in range(8)])


def test_the_longest_match_wins_and_equals_share():
    text = [7, 1, 2, 3, 40, 8, 1, 2, 3, 50, 8, 1, 2, 3, 50, 9, 1, 2, 3]
    three = _guess(_drafter(), text)
    assert three is not None
    firsts = {three.tokens[node]: three.scores[node] for node in three.children(0)}
    assert firsts.keys() == {40, 50}
    assert firsts == {40: pytest.approx(0.55 / 3), 50: pytest.approx(0.55 * 2 / 3)}
    four = _guess(_drafter(), [*text[:-4], 7, 1, 2, 3])
    assert four is not None and [four.tokens[node] for node in four.children(0)] == [40]


def test_a_token_has_at_most_three_successors():
    starts = [[20 + at, 1, 2, 3, last] for at, last in enumerate((10, 11, 11, 12, 12, 13, 13))]
    tree = _guess(_drafter(), [token for start in starts for token in start] + [99, 1, 2, 3])
    assert tree is not None
    assert {tree.tokens[node] for node in tree.children(0)} == {11, 12, 13}


def test_only_a_long_copy_goes_deeper_than_usual():
    page = list(range(100, 180))
    short = _guess(_drafter(), [*page, 1, *page[:10]])
    long = _guess(_drafter(), [*page, 1, *page[:40]])
    assert short is not None and long is not None
    assert (short.drafted, long.drafted) == (16, 63)
    assert _guess(_drafter(most_rows=8), [*page, 1, *page[:40]]).drafted == 7  # type: ignore[union-attr]


@settings(max_examples=50)
@given(st.lists(st.integers(0, 2), min_size=4, max_size=80), st.integers(1, 20))
def test_scores_fall_and_every_line_was_written_before(ids: list[int], most: int):
    tree = _guess(_drafter(most_rows=most + 1), ids)
    if tree is None:
        return
    assert 0 < tree.drafted <= most
    text = ",".join(map(str, ids)) + ","
    for node in range(1, len(tree)):
        assert 0.0 < tree.scores[node] <= tree.scores[tree.parents[node]]
    for line in _lines(tree):
        assert ",".join(map(str, [*ids[-3:], *line])) in text


def test_it_declines_below_what_it_must_promise():
    text = [1, 2, 3, 4, 9, 1, 2, 3]
    promised = sum(_guess(_drafter(), text).scores[1:])  # type: ignore[union-attr]
    assert _guess(_drafter(least_expected=promised + 0.01), text) is None
    assert _guess(_drafter(least_expected=promised - 0.01), text) is not None


# Rates.


def test_a_rate_starts_as_given_and_moves_with_what_is_seen():
    rates = CopyRates()
    found = [rates.rate("local", length) for length in (3, 7, 8, 15, 16, 31, 32, 99)]
    assert found == pytest.approx([0.55, 0.80, 0.88, 0.88, 0.92, 0.92, 0.95, 0.95])
    for _ in range(20):
        rates.saw("local", 9, was_followed=False)
    assert rates.rate("local", 8) == pytest.approx(0.44)
    assert rates.rate("store", 8) == pytest.approx(0.88)
    for _ in range(10_000):
        rates.saw("local", 9, was_followed=True)
    assert 0.98 < rates.rate("local", 8) < 1.0
    for _ in range(2_500):
        rates.saw("local", 9, was_followed=False)
    assert rates.rate("local", 8) < 0.6  # old counts weigh less and less
    for was_followed in (False, True):
        for _ in range(10_000):
            rates.saw("local", 9, was_followed=was_followed)
    assert rates.rate("local", 8) > 0.9


def _seen(text: list[int], then: list[int]) -> CopyRates:
    rates = CopyRates()
    drafter = _drafter(rates)
    _guess(drafter, text)
    drafter.sync([*text, *then], None)
    return rates


def test_a_guess_is_compared_with_what_was_written_then():
    text = [1, 2, 3, 4, 5, 6, 7, 1, 2, 3]
    start = CopyRates()
    lengths = (3, 4, 5, 6, 7, 8)
    first = [start.rate("local", length) for length in lengths]

    def moves(then: list[int]) -> str:
        found = zip(first, [_seen(text, then).rate("local", n) for n in lengths], strict=True)
        return "".join("+" if now > was else "-" if now < was else "." for was, now in found)

    assert moves([4, 5, 9]) == "++-..."
    assert moves([9]) == moves([9, 4]) == "-....."
    assert moves([4, 5]) == "++...."  # what was not written yet is no miss
    assert moves([4, 5, 6, 7, 1, 2, 3, 99]) == "++++++"  # nor is the end of the guess


def test_a_guess_is_compared_once_and_with_its_own_sequence_only():
    text = [1, 2, 3, 4, 5, 6, 7, 1, 2, 3]
    rates = CopyRates()
    drafter = _drafter(rates)
    _guess(drafter, text)
    drafter.sync([*text, 9], None)
    once = rates.rate("local", 3)
    drafter.sync([*text, 9, 9], None)
    assert rates.rate("local", 3) == once < 0.55
    _guess(drafter, [*text, 9, 9, 1, 2, 3])
    drafter.start("mine")
    drafter.sync([4], None)
    assert rates.rate("local", 3) == once


def test_a_guess_that_was_not_verified_is_learned_from_as_well():
    text = [1, 2, 3, 4, 5, 6, 7, 1, 2, 3]
    rates = CopyRates()
    drafter = _drafter(rates, least_expected=99.0)
    assert _guess(drafter, text) is None
    drafter.sync([*text, 4], None)
    assert rates.rate("local", 3) > 0.55


# The sequence and the store.


def test_it_can_be_taken_back_and_set_to_other_ids():
    text = [1, 2, 3, 4, 5, 9, 1, 2, 3]
    drafter = _drafter()
    before = _lines(_guess(drafter, text))
    drafter.sync([*text, 8, 8, 8, 1, 2, 3], None)
    drafter.rewind(len(text))
    assert _lines(_guess(drafter, text)) == before
    drafter.rewind(0)
    assert _guess(drafter, [1, 2, 3]) is None
    other = _drafter()
    other.sync([1, 2, 3, 7, 7], None)
    other.thaw(text, drafter.freeze())
    assert _lines(_guess(other, text)) == before
    other.start("mine")
    assert _guess(other, [1, 2, 3]) is None


def test_the_store_is_asked_and_wins_by_a_longer_match():
    text = [1, 2, 3, 4, 9, 1, 2, 3]
    longer, same, none = Shelf(9, [50, 51]), Shelf(3, [50, 51]), Shelf(0)
    assert _lines(_guess(_drafter(stores=longer), text)) == {(50, 51)}
    assert longer.least == 7
    pooled = _guess(_drafter(stores=same), text)
    assert pooled is not None
    firsts = {pooled.tokens[node]: pooled.scores[node] for node in pooled.children(0)}
    assert firsts[4] == pytest.approx(2 * firsts[50])
    assert _lines(_guess(_drafter(stores=none), text)) == {(4, 9, 1, 2, 3)}
    assert _lines(_guess(_drafter(stores=longer), [1, 2])) == {(50, 51)}
    assert _lines(_guess(_drafter(stores=same), [1, 2])) == {(50, 51)}
    for salt in ("yours", None):
        assert _lines(_guess(_drafter(salt=salt, stores=longer), text)) == {(4, 9, 1, 2, 3)}


def test_matches_of_one_class_share_wherever_they_are():
    page = list(range(100, 112))
    pooled = _guess(_drafter(stores=Shelf(9, [50])), [*page, 1, *page])
    assert pooled is not None
    assert {pooled.tokens[node] for node in pooled.children(0)} == {1, 50}


@pytest.mark.parametrize("salt", ["yours", None])
def test_b22_a_slot_that_served_another_before_reads_nothing_of_its_store(salt: str | None):
    drafter = _drafter(stores=Shelf(9, [50, 51]))
    assert _lines(_guess(drafter, [1, 2])) == {(50, 51)}
    drafter.start(salt)
    assert _guess(drafter, [1, 2]) is None
