"""Which slot a prompt gets, and where it starts."""

from collections.abc import Sequence

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from worker.prefill import Plan, plan
from worker.speculation.drafting import Drafting
from worker.state.anchors import Anchors
from worker.state.cache import SequenceCache, empty_delta
from worker.state.kv import KvCache
from worker.state.lineage import Exactness, Lineage
from worker.state.residents import GUEST_TOKENS, LEAST_SAVED, Place, choose_place, is_next_turn
from worker.state.slot import Slot
from worker.state.start import NOTHING, Source, Start, Wanted, common_prefix

CHUNK = 32
TEXT = tuple(range(1000, 3000))
GRID, TOKEN, SESSION = Exactness.GRID, Exactness.TOKEN, Exactness.SESSION


def _slot(*, has_delta: bool = False) -> Slot:
    cpu = torch.device("cpu")
    kv = KvCache(layers=1, kv_heads=1, head_dim=1, step=1, dtype=torch.float32, device=cpu)
    delta = None
    if has_delta:
        delta = empty_delta(layers=1, state=(1, 1, 1), conv=(1, 1), dtype=torch.float32, device=cpu)
    drafting = Drafting((), (), lambda: 0.0)
    return Slot(SequenceCache(kv, delta), drafting, Anchors(most=99, tail=4))


def _holding(
    prompt: Sequence[int], written: int = 10, salt: str = "mine", *,
    has_delta: bool = False, cuts: tuple[int, ...] = (),
) -> Slot:  # fmt: skip
    """A slot behind a turn: the prompt was read, `written` tokens are forwarded behind it."""
    slot = _slot(has_delta=has_delta)
    length = len(prompt)
    slot.begin(tuple(prompt), None, _plan(length, cuts), salt)
    while slot.kv_len < length:
        slot.commit_chunk(slot.plan.chunk_end(slot.kv_len, length))
    slot.commit_choice(0)
    for token in range(1, written + 1):
        slot.commit_round(1, (token,))
    slot.end()
    return slot


def _plan(length: int, cuts: tuple[int, ...] = ()) -> Plan:
    return plan(length, "any", CHUNK, cuts)


def _wanted(prompt: Sequence[int], *, is_exact: bool = False, cuts: tuple[int, ...] = ()) -> Wanted:
    return Wanted(tuple(prompt), _plan(len(prompt), cuts), len(prompt) - 1, is_exact)


def _placed(
    prompt: Sequence[int], idle: Sequence[Slot], running: Sequence[Slot] = (), salt: str = "mine",
    *, may_visit: bool = True,
) -> Place:  # fmt: skip
    return choose_place(_wanted(prompt), salt, idle, running, may_visit=may_visit)


def test_the_conversations_own_slot_first():
    own, empty, other = _holding(TEXT[:100]), _slot(), _holding(TEXT[500:600])
    place = _placed([*own.ctx, 5, 6], [other, empty, own])
    assert place == Place(own, own, Start(110, Source.RESIDENT, SESSION), is_own=True)


def test_else_an_empty_one_which_starts_from_the_longest_of_the_others():
    near, far, empty = _holding(TEXT[:300]), _holding([*TEXT[:90], *TEXT[500:600]]), _slot()
    for idle in ([far, near, empty], [near, far, empty]):
        place = _placed([*TEXT[:120], 7, 7], idle)
        assert place == Place(empty, near, Start(120, Source.RESIDENT, TOKEN))
    # One that runs may be copied from, and is never given away.
    place = _placed([*TEXT[:280], 7], [far, empty], [near])
    assert place == Place(empty, near, Start(280, Source.RESIDENT, TOKEN))


def test_else_the_one_not_used_for_longest():
    slots = [_holding(TEXT[at : at + 200]) for at in (0, 300, 600)]
    assert _placed(TEXT[900:1100], slots) == Place(slots[0])
    assert _placed(TEXT[900:1100], slots[1:]) == Place(slots[1])
    # It may be the one that the prompt starts from; it is not its own for that.
    place = _placed([*TEXT[:80], *TEXT[900:1100]], slots)
    assert place == Place(slots[0], slots[0], Start(80, Source.RESIDENT, TOKEN))


def test_a_start_that_spares_next_to_nothing_decides_nothing():
    near, other = _holding(TEXT[:300]), _holding(TEXT[500:700])
    for same, is_used in ((LEAST_SAVED - 1, False), (LEAST_SAVED, True)):
        place = _placed([*TEXT[:same], *TEXT[900:1200]], [other, near])
        assert (place.slot, place.donor) == (other, near if is_used else None)
    short = _holding(TEXT[900:940])  # as good as empty
    assert _placed(TEXT[1000:1100], [other, short]) == Place(short)


def test_b21_a_slot_of_another_salt_is_given_away_but_never_started_from():
    theirs = _holding(TEXT[:300], salt="theirs")
    assert _placed([*theirs.ctx, 5], [theirs]) == Place(theirs)
    empty = _slot()
    assert _placed([*theirs.ctx, 5], [theirs, empty]) == Place(empty)


def test_a_short_prompt_that_would_displace_a_long_one_is_a_guest():
    long = _holding(TEXT[:1000])
    assert _placed(TEXT[1100:1349], [long]) == Place(None)
    assert _placed(TEXT[1100:1350], [long]) == Place(long)  # a quarter of it
    assert _placed(TEXT[1100:1200], [long], may_visit=False) == Place(long)
    assert _placed(TEXT[1100:1200], [long, _slot()]).slot is not None  # nothing is displaced
    unread = _slot()  # a long prompt's run that ended before its first chunk
    unread.begin(TEXT, None, _plan(len(TEXT)), "mine")
    assert _placed(TEXT[1100:1200], [long, unread]) == Place(unread)
    place = _placed([*TEXT[:100], 5, 5], [long])
    assert place == Place(None, long, Start(100, Source.RESIDENT, TOKEN))
    # Going back in its own conversation it is no guest, unless it goes back far.
    assert _placed([*TEXT[:505], 5], [long]).slot is long
    long.prompt_length = 4 * GUEST_TOKENS + 10  # as if it held that many
    assert _placed((9,) * (GUEST_TOKENS + 1), [long]).slot is long
    assert _placed((9,) * GUEST_TOKENS, [long]).slot is None


@pytest.mark.parametrize(("same", "is_next"), [(110, True), (55, True), (54, False)])
def test_the_next_turn_has_half_of_what_is_held_in_common(same: int, is_next: bool):
    slot = _holding(TEXT[:100])
    assert is_next_turn(slot, [*slot.ctx[:same], 9999]) == is_next


# Where in a slot a prompt may start.


def test_rows_may_be_cut_anywhere_and_say_how_they_were_made():
    slot = _holding(TEXT[:100], written=20)
    for same, exactness in ((64, GRID), (96, GRID), (70, TOKEN), (100, TOKEN), (101, SESSION)):
        start = slot.start_for(_wanted([*slot.ctx[:same], 9999, 9999]))
        assert start == Start(same, Source.RESIDENT, exactness)
    assert slot.start_for(_wanted([9999, *TEXT])) == NOTHING
    # The root is chosen, not forwarded; the last token of a prompt is always forwarded.
    assert slot.start_for(_wanted([*slot.ctx, 9999])).position == 120
    assert slot.start_for(_wanted(TEXT[:96])).position == 95


def test_states_of_delta_layers_are_where_anchors_are():
    slot = _holding(TEXT[:100], written=20, has_delta=True, cuts=(40,))
    found = {
        same: slot.start_for(_wanted([*slot.ctx[:same], 9999, 9999], cuts=(40,)))
        for same in (31, 39, 40, 95, 119, 120)
    }
    assert found == {
        31: NOTHING,
        39: Start(32, Source.ANCHOR, GRID),
        40: Start(40, Source.ANCHOR, GRID),
        95: Start(64, Source.ANCHOR, GRID),
        119: Start(100, Source.ANCHOR, TOKEN),  # where the answer began
        120: Start(120, Source.SESSION, SESSION),
    }
    assert slot.start_for(_wanted(TEXT[:64], cuts=(40,))).position == 40


@pytest.mark.parametrize("has_delta", [False, True])
def test_b18_exact_starts_are_of_the_grid(has_delta: bool):
    slot = _holding(TEXT[:100], written=20, has_delta=has_delta)
    for same, position in ((120, 96), (100, 96), (95, 64), (31, 0)):
        start = slot.start_for(_wanted([*slot.ctx[:same], 9999, 9999], is_exact=True))
        assert (start.position, start.exactness) == (position, GRID)


@pytest.mark.parametrize("has_delta", [False, True])
def test_b18_what_is_read_behind_a_decode_is_never_of_the_grid_again(has_delta: bool):
    slot = _holding(TEXT[:100], written=20, has_delta=has_delta)
    prompt = (*slot.ctx[:120], *TEXT[500:600])
    wanted = _wanted(prompt)
    slot.begin(prompt, None, wanted.plan, "mine", slot.start_for(wanted))
    while slot.kv_len < len(prompt):
        slot.commit_chunk(slot.plan.chunk_end(slot.kv_len, len(prompt)))
    slot.end()
    assert slot.start_for(_wanted([*prompt, 1])).exactness is SESSION
    assert slot.start_for(_wanted([*prompt[:192], 1, 1])).exactness is SESSION
    assert slot.start_for(_wanted([*prompt, 1], is_exact=True)).position == 96


@pytest.mark.parametrize("has_delta", [False, True])
def test_after_a_resume_under_another_plan_nothing_behind_its_cut_is_of_the_grid(has_delta: bool):
    slot = _holding(TEXT[:100], written=20, has_delta=has_delta, cuts=(40,))
    prompt = (*slot.ctx[:120], *TEXT[500:600])
    wanted = _wanted(prompt)  # which is not cut at 40
    slot.begin(prompt, None, wanted.plan, "mine", slot.start_for(wanted))
    assert slot.kv_len == 120
    slot.end()
    start = slot.start_for(_wanted([*TEXT[:96], 1, 1]))
    assert (start.position, start.exactness) == (96, TOKEN)
    exact = slot.start_for(_wanted([*TEXT[:96], 1, 1], is_exact=True))
    assert (exact.position, exact.exactness) == (32, GRID)


def test_a_copy_of_a_start_holds_what_its_donor_held_up_to_there():
    for has_delta in (False, True):
        donor, slot = _holding(TEXT[:100], has_delta=has_delta), _slot(has_delta=has_delta)
        start = donor.start_for(_wanted([*TEXT[:64], 1, 1]))
        slot.copy_start(donor, start)
        assert (slot.held, slot.salt, slot.lineage) == (TEXT[:64], "mine", Lineage(64, 64))
        assert slot.start_for(_wanted([*TEXT[:64], 1, 1])) == start
        assert donor.kv_len == 110


@given(st.lists(st.integers(0, 2), max_size=8), st.lists(st.integers(0, 2), max_size=8))
def test_the_common_prefix_is_the_longest(one: list[int], other: list[int]):
    length = common_prefix(one, other)
    assert one[:length] == other[:length]
    assert one[: length + 1] != other[: length + 1] or length == min(len(one), len(other))


# How rows came to be.


@given(st.data())
def test_the_grid_is_what_was_read_from_the_beginning_in_whole_chunks(data: st.DataObject):
    made, rows, is_whole = _plan(200, (40,)), Lineage(), True
    at = grid = 0
    for _ in range(data.draw(st.integers(0, 9))):
        if at == 200:
            break
        end = made.chunk_end(at, 200)
        if data.draw(st.booleans()):
            end = data.draw(st.integers(at + 1, end))
        is_whole = is_whole and made.is_start(end)
        if is_whole:
            grid = end
        rows = rows.with_chunk(at, end, made)
        at = end
        assert rows.read == at
        assert rows.grid == grid
    cut = rows.cut(data.draw(st.integers(0, 200)), made, None)
    assert cut.grid <= rows.grid
    assert cut.read <= rows.read
    assert made.is_start(cut.grid)


def test_a_long_answer_has_anchors_too():
    slot = _holding(TEXT[:100], written=90, has_delta=True)
    behind = [anchor.position for anchor in slot.anchors if anchor.position > 100]
    assert behind == [132, 164, 190]  # a chunk apart, and the end
    start = slot.start_for(_wanted([*slot.ctx[:150], 9999, 9999]))
    assert start == Start(132, Source.SESSION, SESSION)
