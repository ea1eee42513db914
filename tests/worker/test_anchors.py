"""Anchors of one slot: which are given up, and what memory they take."""

import pytest
import torch

from worker.state import anchors as anchors_module
from worker.state.anchors import Anchors
from worker.state.cache import DeltaCache, empty_delta
from worker.state.lineage import Exactness

GRID, SESSION = Exactness.GRID, Exactness.SESSION


def _delta(value: float) -> DeltaCache:
    delta = empty_delta(
        layers=1, state=(1, 2, 2), conv=(3, 4), dtype=torch.bfloat16, device=torch.device("cpu")
    )
    delta.recurrent.fill_(value)
    delta.conv.fill_(value)
    return delta


def _kept(most: int, tail: int, *positions: int) -> Anchors:
    anchors = Anchors(most=most, tail=tail)
    for position in positions:
        anchors.keep(position, GRID, _delta(position))
    return anchors


def _positions(anchors: Anchors) -> list[int]:
    return sorted(anchor.position for anchor in anchors)


def _are_whole(anchors: Anchors) -> bool:
    """Whether each is the state of its own position: each was made of its position's number."""
    return all(
        bool((anchor.recurrent == anchor.position).all() and (anchor.conv == anchor.position).all())
        for anchor in anchors
    )


def test_the_one_whose_loss_leaves_the_smallest_gap_goes_first():
    # Of 10, 40, 50, 100 the gaps are 40, 40, 60: between equal ones the earlier goes.
    anchors = _kept(4, 1, 10, 40, 50, 100)
    anchors.keep(200, GRID, _delta(200))
    assert _positions(anchors) == [40, 50, 100, 200]
    anchors.keep(210, GRID, _delta(210))  # 50, 60, 150, 110
    assert _positions(anchors) == [50, 100, 200, 210]
    anchors.keep(211, GRID, _delta(211))  # 100, 150, 110, 11
    assert _positions(anchors) == [50, 100, 200, 211]
    assert _are_whole(anchors)


@pytest.mark.parametrize("tail", [1, 2, 4])
def test_the_newest_are_never_given_up(tail: int):
    anchors = Anchors(most=5, tail=tail)
    for position in range(10, 400, 10):
        anchors.keep(position, GRID, _delta(position))
        newest = list(range(max(10, position - 10 * (tail - 1)), position + 1, 10))
        assert _positions(anchors)[-len(newest) :] == newest
        assert len(anchors) <= 5


@pytest.mark.parametrize(("most", "tail"), [(0, 0), (0, 1), (2, 3), (3, 3)])
def test_where_all_are_of_the_newest_the_oldest_goes(most: int, tail: int):
    anchors = _kept(most, tail, 10, 20, 30, 40, 50)
    assert _positions(anchors) == [10, 20, 30, 40, 50][-max(most, tail, 1) :]


def test_the_end_of_before_is_one_of_the_others_at_its_own_place():
    anchors = _kept(3, 1, 10, 20)
    anchors.keep_end(25, SESSION, _delta(25))
    for position in (30, 40):
        anchors.keep(position, GRID, _delta(position))
    assert anchors.last == 40
    assert _positions(anchors) == [20, 25, 30, 40]  # 10 went for 40: the end is beside the limit
    anchors.keep_end(44, SESSION, _delta(44))
    # 25 stands between 20 and 30 and is the one to go; 40, the newest, is not.
    assert _positions(anchors) == [20, 30, 40, 44]
    assert anchors.at(44).exactness is SESSION
    assert _are_whole(anchors)


def test_an_end_at_a_start_takes_its_place():
    anchors = _kept(3, 1, 10, 20)
    anchors.keep_end(20, SESSION, _delta(21))
    assert _positions(anchors) == [10, 20]
    assert anchors.at(20).recurrent[0, 0, 0, 0] == 21
    anchors.keep_end(20, GRID, _delta(20))
    assert (_positions(anchors), anchors.at(20).exactness) == ([10, 20], GRID)


def test_what_is_behind_a_position_is_forgotten():
    anchors = _kept(4, 1, 10, 20, 30)
    anchors.keep_end(35, SESSION, _delta(35))
    anchors.cut(30)
    assert _positions(anchors) == [10, 20, 30]
    anchors.cut(29)
    assert _positions(anchors) == [10, 20]
    anchors.keep(15, GRID, _delta(15))  # a reading that went back
    assert _positions(anchors) == [10, 15]
    with pytest.raises(StopIteration):
        anchors.at(20)
    anchors.clear()
    assert (len(anchors), anchors.size_bytes) == (0, 0)


def test_an_anchor_is_a_copy():
    delta = _delta(10)
    anchors = Anchors(most=2, tail=1)
    anchors.keep(10, GRID, delta)
    delta.recurrent.fill_(0)
    delta.conv.fill_(0)
    assert _are_whole(anchors)


def test_buffers_are_used_again_once_the_limit_is_reached():
    anchors = _kept(3, 1, 10, 20, 30)
    anchors.keep_end(35, SESSION, _delta(35))
    limit, buffers = anchors.size_bytes, _buffers(anchors)
    assert limit == 4 * _delta(0).size_bytes
    for position in range(40, 200, 10):
        anchors.keep(position, GRID, _delta(position))
        anchors.keep_end(position + 5, SESSION, _delta(position + 5))
        if position % 30 == 0:
            anchors.cut(position - 10)
        assert anchors.size_bytes == limit
        assert _buffers(anchors) <= buffers
        assert _are_whole(anchors)
    anchors.cut(0)
    assert (len(anchors), anchors.size_bytes) == (0, limit)


def _buffers(anchors: Anchors) -> set[int]:
    return {part.data_ptr() for anchor in anchors for part in (anchor.recurrent, anchor.conv)}


def test_shrinking_frees_spare_buffers_then_what_is_not_protected():
    one = _delta(0).size_bytes
    anchors = _kept(4, 2, 10, 20, 30, 40)
    anchors.keep_end(45, SESSION, _delta(45))
    anchors.cut(40)
    assert (anchors.shrink(), _positions(anchors)) == (one, [10, 20, 30, 40])
    assert (anchors.shrink(), _positions(anchors)) == (one, [20, 30, 40])
    assert (anchors.shrink(), _positions(anchors)) == (one, [30, 40])
    assert (anchors.shrink(), _positions(anchors)) == (0, [30, 40])
    assert anchors.size_bytes == 2 * one


def test_gaps_are_measured_from_the_beginning():
    assert anchors_module._smallest_gap([10, 20, 100], 1) == 0
    assert anchors_module._smallest_gap([90, 95, 100], 1) == 1
    assert anchors_module._smallest_gap([10, 20], 2) is None
    assert anchors_module._smallest_gap([], 1) is None
