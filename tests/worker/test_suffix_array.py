"""Continuations are found as a plain search over all documents finds them."""

from collections import Counter
from unittest import mock

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from worker.draft import suffix_array
from worker.draft.suffix_array import AHEAD, CONTEXT, ORDER, PLACES, SuffixArray, find, sort_part

Documents = list[list[int]]


def words_of(documents: Documents) -> np.ndarray:
    """Documents with marks of several words, of any negative value, between them."""
    words = [-1] * CONTEXT
    for number, ids in enumerate(documents):
        words += [-1 - number, -7, *ids]
    return np.array(words, dtype=np.int32)


def array_of(documents: Documents, before: Documents | None = None) -> SuffixArray:
    """The array over some documents that stand behind others."""
    start = len(words_of(before or []))
    array = sort_part(words_of([*(before or []), *documents]), start, lambda: False)
    assert array is not None
    return array


def plain_find(documents: Documents, tail: list[int], least: int) -> tuple[int, Documents]:
    """What `find` promises, by looking at every place of every document."""
    for length in range(min(ORDER, len(tail)), max(least, 1) - 1, -1):
        found = [
            ids[at : at + AHEAD]
            for ids in documents
            for at in range(length, len(ids))
            if ids[at - length : at] == tail[-length:]
        ]
        if found:
            return length, found
    return 0, []


texts = st.integers(1, 4).flatmap(
    lambda most: st.lists(st.lists(st.integers(0, most), max_size=40), min_size=1, max_size=6)
)


@settings(max_examples=300, deadline=None)
@given(
    documents=texts,
    tail=st.lists(st.integers(0, 5), max_size=40),
    least=st.integers(1, 8),
    first_part=st.integers(0, 6),
    group=st.sampled_from([1, 3, 17, 2**20]),
)
def test_find_is_a_plain_search_over_all_documents(
    documents: Documents, tail: list[int], least: int, first_part: int, group: int
) -> None:
    with mock.patch.object(suffix_array, "GROUP", group), \
            mock.patch.object(suffix_array, "PLACES", 10_000):  # fmt: skip
        arrays = [
            array_of(documents[:first_part]),
            array_of(documents[first_part:], documents[:first_part]),
        ]
        length, found = find(arrays, tail, least)
    wanted_length, wanted = plain_find(documents, tail, least)
    assert length == wanted_length
    assert Counter(map(tuple, found)) == Counter(map(tuple, wanted))


@settings(max_examples=50, deadline=None)
@given(documents=texts, at=st.integers(0, 39), which=st.integers(0, 5))
def test_the_end_of_a_document_ends_a_continuation(
    documents: Documents, at: int, which: int
) -> None:
    ids = documents[which % len(documents)]
    _, found = find([array_of(documents)], ids[:at], 1)
    ends = {tuple(ids[at:]) for ids in documents for at in range(len(ids))}
    assert all(tuple(row) in ends for row in found)


def test_what_stands_in_front_of_a_document_is_no_context_of_it() -> None:
    length, found = find([array_of([[1, 2, 3], [4, 5, 6]])], [1, 2, 3, 4], 1)
    assert (length, found) == (1, [[5, 6]])


def test_what_stands_before_the_part_may_be_any_number() -> None:
    """A file's header does; room for as many ids would be 16 GB."""
    words = words_of([[1, 2, 3]])
    words[: CONTEXT + 1] = 2**31 - 1
    array = sort_part(words, CONTEXT + 1, lambda: False)
    assert array is not None and len(array._ends) == 3
    assert find([array], [1, 2], 2)[0] == 2


def test_places_with_more_of_the_same_context_come_first() -> None:
    same, other = list(range(100, 108)), list(range(20))
    documents = [[1, *same, 11], [*other, *same, 12], [*other[10:], *same, 13]]
    length, found = find([array_of(documents[:2]), array_of(documents[2:])], [*other, *same], 7)
    assert (length, [ids[0] for ids in found]) == (ORDER, [12, 13, 11])


def test_of_many_places_some_are_looked_at_evenly_over_all() -> None:
    phrase, count = list(range(2_000, 2_008)), 1_000
    documents = [[*phrase, number] for number in range(count)]
    arrays = [array_of(documents[:300]), array_of(documents[300:])]
    _, found = find(arrays, phrase, 7)
    seen = [ids[0] for ids in found]
    assert len(seen) == PLACES
    assert set(np.diff(seen)) == {count // PLACES, count // PLACES + 1}
    assert seen[-1] >= count - count // PLACES - 1


def test_large_ids_are_sorted_like_small_ones() -> None:
    """Fewer of them fit into one sort key."""
    rng = np.random.default_rng(0)
    ids = rng.choice(2**24 - 1 - np.arange(5), 3_000).tolist()
    array = array_of([ids])
    for end in range(100, 3_000, 97):
        length, found = find([array], ids[:end], 5)
        wanted_length, wanted = plain_find([ids], ids[:end], 5)
        assert length == wanted_length
        assert Counter(map(tuple, found)) == Counter(map(tuple, wanted))


def test_a_text_of_one_repeated_id_is_sorted() -> None:
    with mock.patch.object(suffix_array, "GROUP", 64):
        array = array_of([[5] * 1_000])
    length, found = find([array], [5] * 20, 7)
    assert (length, len(found)) == (ORDER, PLACES)


@pytest.mark.parametrize("tail", [[], [9], [9, 9, 9], [10**6] * 9])
def test_nothing_is_found_after_what_is_nowhere(tail: list[int]) -> None:
    assert find([array_of([[1, 2, 3]]), array_of([])], tail, 1) == (0, [])


def test_a_sort_that_nobody_waits_for_is_given_up() -> None:
    assert sort_part(words_of([[1, 2, 3]]), CONTEXT, lambda: True) is None
