"""What a prompt is resumed from changes its speed alone: real engines, beside a cold reading."""

import hashlib
from collections.abc import Callable, Sequence
from dataclasses import replace
from itertools import pairwise

import pytest
import torch
from decoding import chosen_in, rounds
from drafters import ALL_FREE, Guessing, half_right
from kept_engines import (
    CHUNK,
    GREEDY,
    Cold,
    anew,
    answered,
    cold,
    delta_of,
    digest,
    hit_count,
    is_same,
    read_on,
    rows,
    taken,
    tiny_engine,
    tokens,
    turn,
)

from worker.engine import Engine
from worker.sampling.chooser import Chooser
from worker.speculation.drafting import Drafting
from worker.state import residents
from worker.state.ask import Ask
from worker.state.keeping import Keeping
from worker.state.lineage import Exactness
from worker.state.slot import Slot
from worker.state.start import NOTHING, Source

CUT = 70
PROMPT = tuple(7 + 13 * at % 490 for at in range(200))
STARTS = (32, 64, CUT, 96, 128, 160, 192)
OTHER = tuple(3 + 31 * at % 480 for at in range(300))  # begins otherwise, and goes on otherwise
ONE_SLOT = {"slots": 1}
GRID, TOKEN, SESSION = Exactness.GRID, Exactness.TOKEN, Exactness.SESSION

EngineOf = Callable[[str], Engine]


@pytest.fixture(scope="module")
def engine_of(tmp_path_factory: pytest.TempPathFactory) -> EngineOf:
    made: dict[str, Engine] = {}

    def of(family: str) -> Engine:
        if family not in made:
            made[family] = tiny_engine(family, tmp_path_factory.mktemp(family))
        return made[family]

    return of


@pytest.fixture(params=["llama", "gemma3", "qwen3_5", "qwen3_next"])
def any_model(request: pytest.FixtureRequest, engine_of: EngineOf) -> Engine:
    return engine_of(request.param)


@pytest.fixture(params=["llama", "qwen3_5"])
def model(request: pytest.FixtureRequest, engine_of: EngineOf) -> Engine:
    """A dense one and a hybrid one."""
    return engine_of(request.param)


def _is_hybrid(engine: Engine) -> bool:
    return engine._model.config.delta is not None


COLDS: dict[tuple[object, ...], Cold] = {}


def _cold(model: Engine, prompt: Sequence[int], cuts: tuple[int, ...] = (), count: int = 8) -> Cold:
    key = (model._model, tuple(prompt), cuts, count)
    if key not in COLDS:
        COLDS[key] = cold(anew(model, slots=1), prompt, cuts, count)
    return COLDS[key]


def _check_same_bits(slot: Slot, expected: Cold, engine: Engine) -> None:
    """All that a prompt gives: rows, states, logits of every token of the answer."""
    chosen = answered(engine, slot)
    length = slot.prompt_length
    assert is_same(rows(slot.cache.kv.freeze(length), length), expected.kv)
    assert chosen == expected.chosen


# X4.


@pytest.mark.parametrize("start", STARTS)
@pytest.mark.parametrize("slots", [1, 2])
def test_x4_a_resume_at_a_start_of_the_plan_is_a_cold_reading_to_the_bit(
    any_model: Engine, start: int, slots: int, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(residents, "LEAST_SAVED", 8)
    expected = _cold(any_model, PROMPT, (CUT,))
    engine = anew(any_model, slots=slots)
    # In one slot it is cut back; of two the other one starts from a copy.
    turn(engine, (*PROMPT[:start], *OTHER), cuts=(CUT,))
    slot = taken(engine, PROMPT, cuts=(CUT,))
    source = Source.ANCHOR if _is_hybrid(engine) else Source.RESIDENT
    assert (slot.start.position, slot.start.source) == (start, source)
    assert slot.start.exactness is GRID
    assert is_same(slot.cache.kv.freeze(start), rows(expected.kv, start))
    assert is_same(delta_of(slot), expected.deltas[start])
    first = None
    while first is None:
        first = read_on(engine, slot, 1)
        assert is_same(delta_of(slot), expected.deltas[slot.kv_len])
    assert is_same(slot.cache.kv.freeze(len(PROMPT)), expected.kv)
    assert [first, *chosen_in(engine, slot, 7)] == expected.chosen


def test_x4_a_start_is_copied_into_a_slot_that_held_more(any_model: Engine):
    engine = anew(any_model)
    failed = taken(engine, OTHER)
    answered(engine, failed)
    turn(engine, (*PROMPT[:96], *OTHER))
    engine.close(failed, is_sound=False)
    slot = taken(engine, PROMPT)
    assert (slot, slot.start.position) == (failed, 96)
    _check_same_bits(slot, _cold(any_model, PROMPT), engine)


@pytest.mark.parametrize("start", [65, 90, 127, 150, 199])
def test_x4_rows_cut_between_starts_give_the_same_tokens(engine_of: EngineOf, start: int):
    for family in ("llama", "gemma3"):
        engine = anew(engine_of(family))
        turn(engine, (*PROMPT[:start], *OTHER))
        slot = taken(engine, PROMPT)
        assert (slot.start.position, slot.start.exactness) == (start, TOKEN)
        expected = _cold(engine, PROMPT)
        assert tokens(answered(engine, slot)) == tokens(expected.chosen)


def test_x4_the_next_turns_give_the_same_tokens(any_model: Engine):
    engine, prompt = anew(any_model), PROMPT[:90]
    for more in (40, 3, 64):
        slot = turn(engine, prompt, count=20)
        prompt = (*slot.ctx, *OTHER[:more])
        again = taken(engine, prompt)
        assert again is slot
        source = Source.SESSION if _is_hybrid(engine) else Source.RESIDENT
        assert (again.start.position, again.start.source) == (len(prompt) - more - 1, source)
        assert again.start.exactness is SESSION
        assert tokens(answered(engine, again, 20)) == tokens(_cold(engine, prompt, (), 20).chosen)
        engine.close(again)


LAST = {
    "regenerated": lambda ctx: ctx[:120],
    "regenerated, a little shorter": lambda ctx: ctx[:119],
    "edited in the prompt": lambda ctx: (*ctx[:100], 490, *ctx[101:]),
    "edited in the answer": lambda ctx: (*ctx[:125], 490, *ctx[126:], 5),
    "edited at the first token": lambda ctx: (490, *ctx[1:]),
    "shorter": lambda ctx: ctx[:80],
    "up to a start": lambda ctx: ctx[:96],
    "behind a start": lambda ctx: ctx[:97],
    "forked": lambda ctx: (*ctx[:66], *OTHER[:50]),
    "one token": lambda ctx: ctx[:1],
    "the same and the root": lambda ctx: ctx,
    "the same and one more": lambda ctx: (*ctx, 5),
    "another": lambda ctx: OTHER[:90],
}


@pytest.mark.parametrize("last", LAST)
@pytest.mark.parametrize(("is_exact", "slots"), [(False, 1), (False, 2), (True, 1)])
def test_x4_whatever_comes_next_is_answered_as_if_cold(
    model: Engine, last: str, is_exact: bool, slots: int
):
    engine = anew(model, Keeping(is_exact=is_exact), slots=slots)
    ctx = tuple(turn(engine, PROMPT[:120], count=20).ctx)
    prompt = LAST[last](ctx)
    slot = taken(engine, prompt)
    expected = _cold(model, prompt)
    if is_exact or slot.start.exactness is GRID:
        assert slot.start.exactness is GRID
        _check_same_bits(slot, expected, engine)
    else:
        assert tokens(answered(engine, slot)) == tokens(expected.chosen)
    if last not in ("edited at the first token", "one token", "another"):
        assert slot.start.position >= 64


def test_x4_nothing_is_left_of_what_was_behind_a_resume(any_model: Engine):
    engine = anew(any_model, **ONE_SLOT)
    turn(engine, PROMPT)
    # No chunk of this one ends at a start, and its answer goes past some of the old ones.
    slot = turn(engine, (*PROMPT[:100], *OTHER[:10]), count=40)
    assert slot.kv_len == 149
    prompt = (*slot.ctx[:140], *OTHER[:10])
    slot = taken(engine, prompt)
    # Where its own answer began; of the old anchors at 128 and on none is left.
    assert slot.start.position == (110 if _is_hybrid(engine) else 140)
    assert tokens(answered(engine, slot)) == tokens(_cold(any_model, prompt).chosen)


def test_x4_nothing_is_left_of_an_end_behind_a_resume(any_model: Engine):
    engine = anew(any_model, **ONE_SLOT)
    turn(engine, PROMPT[:104], count=2)  # ends at 105, which is no start
    slot = turn(engine, (*PROMPT[:100], *OTHER[:20]))
    prompt = (*slot.ctx[:115], *OTHER[:10])
    slot = taken(engine, prompt)
    assert slot.start.position == (96 if _is_hybrid(engine) else 115)
    assert tokens(answered(engine, slot)) == tokens(_cold(any_model, prompt).chosen)


def test_a_long_answer_of_a_second_turn_has_an_anchor_a_chunk(engine_of: EngineOf):
    engine = anew(engine_of("qwen3_5"), Keeping(anchor_tail=1))
    slot = turn(engine, PROMPT[:90], count=31)
    slot = taken(engine, (*slot.ctx, *OTHER[:20]))
    answered(engine, slot, 80)
    positions = sorted(anchor.position for anchor in slot.anchors if anchor.position > 120)
    assert positions == [128, 141, 173, 205]


@pytest.mark.parametrize("length", [64, 96, 97])
def test_x4_a_prompt_that_ends_at_a_start_may_be_resumed_there(any_model: Engine, length: int):
    engine = anew(any_model)
    turn(engine, PROMPT[:length], count=1)  # its only token comes from the prompt's last row
    slot = taken(engine, PROMPT)
    is_start = length % CHUNK == 0
    assert (slot.start.position, slot.start.exactness) == (length, GRID if is_start else TOKEN)
    expected = _cold(any_model, PROMPT)
    if is_start:
        _check_same_bits(slot, expected, engine)
    assert tokens(answered(engine, taken(engine, PROMPT))) == tokens(expected.chosen)


def test_x14_the_same_runs_again_give_the_same(any_model: Engine):
    def written() -> list[list[int]]:
        engine, made, prompt = anew(any_model), [], PROMPT[:90]
        for salt in ("one", "two", "one"):
            slot = turn(engine, prompt, salt, count=12)
            made.append(list(slot.ctx))
            prompt = (*slot.ctx, *OTHER[:20])
        return made

    assert written() == written()


# B16 to B22.


def test_b16_a_snapshot_right_after_a_round_is_that_after_an_idle_step(any_model: Engine):
    frozen = []
    for is_idle in (False, True):
        engine = anew(any_model, is_guessing=True)
        text = (*PROMPT, *tokens(_cold(any_model, PROMPT, (), 40).chosen))
        guess = lambda text=text: (Guessing(half_right(text)),)  # noqa: E731
        engine._speculation = replace(
            engine._speculation, prices=ALL_FREE, new_drafters=guess, drafter_bytes=lambda _: 0
        )
        slot = taken(engine, PROMPT)
        slot.drafting = Drafting(guess(), (), lambda: 0.0)
        slot.drafting.start("mine")
        first = read_on(engine, slot)
        assert first is not None
        made = rounds(engine, slot, 20)
        assert any(len(done.path) < len(done.tree) for done, _ in made)  # rows were dropped
        if is_idle:
            read_on(engine, taken(engine, OTHER, "theirs"), 2)
        frozen.append(slot.snapshot("session", "mine"))
    one, other = frozen
    assert one.ids == other.ids == tuple(text[: len(one.ids)])
    assert is_same(one.tensors, other.tensors)
    assert one.tensors[0].shape[2] == one.tensors[1].shape[2] == len(one.ids)


def _long_resident(model: Engine, **more: object) -> tuple[Engine, Slot]:
    engine = anew(model, Keeping(**more), **ONE_SLOT, is_drafted=True)
    resident = turn(engine, (*OTHER, *PROMPT[:100]), "mine")
    return engine, resident


def _bytes_of(slot: Slot) -> str:
    """Of every byte, those behind its end included."""
    parts = [slot.cache.kv._keys, slot.cache.kv._values, *delta_of(slot)]
    parts += [part for anchor in slot.anchors for part in (anchor.recurrent, anchor.conv)]
    parts += [part for drafts in slot.drafting.freeze() for part in drafts]
    whole = b"".join(part.contiguous().view(torch.uint8).numpy().tobytes() for part in parts)
    facts = (slot.ctx, slot.kv_len, slot.salt, slot.plan, slot.lineage, slot.start)
    return hashlib.sha256(whole + repr(facts).encode()).hexdigest()


@pytest.mark.parametrize("same", [0, 64, 70])
def test_b17_a_guest_leaves_every_byte_of_the_resident(any_model: Engine, same: int):
    engine, resident = _long_resident(any_model)
    before = _bytes_of(resident)
    prompt = (*OTHER[:same], *PROMPT[100 : 190 - same])
    guest = taken(engine, prompt, output=8)
    assert guest is not resident
    assert engine.free_slots == 1
    # What the resident holds may be copied from.
    assert guest.start.position == (64 if _is_hybrid(engine) and same else same)
    assert tokens(answered(engine, guest)) == tokens(_cold(any_model, prompt).chosen)
    chosen_in(engine, guest, 60)  # more than it said
    assert _bytes_of(resident) == before
    engine.close(guest)
    assert engine.kept._guests == {}
    assert _bytes_of(resident) == before
    # Nothing of it stays, not even for its own next turn.
    assert taken(engine, (*prompt, 5), output=8).start.position <= 70


def test_a_guest_may_start_from_a_prefix(any_model: Engine):
    engine = anew(any_model, is_drafted=True, **ONE_SLOT)
    for at in (10, 40, 70):
        turn(engine, (*PROMPT[:CUT], *OTHER[at : at + 60]), cuts=(CUT,))
    assert [entry.kind for entry in engine.kept._store].count("prefix") == 1
    engine.kept._store.clear("session")
    turn(engine, (*OTHER, *OTHER[:80]), "theirs")
    engine.kept._store.clear("session")
    prompt = (*PROMPT[:CUT], *OTHER[80:100])
    guest = taken(engine, prompt, cuts=(CUT,))
    assert engine.free_slots == 1
    assert guest.start == replace(guest.start, position=CUT, source=Source.PREFIX, exactness=GRID)
    _check_same_bits(guest, _cold(any_model, prompt, (CUT,)), engine)


def test_without_room_for_a_guest_the_resident_goes_to_the_store(any_model: Engine):
    engine, resident = _long_resident(any_model, guest_bytes=1)
    held = resident.held
    slot = taken(engine, PROMPT[100:180])
    assert slot is resident
    assert [entry.ids for entry in engine.kept._store] == [held]


def test_b18_under_exact_resume_nothing_that_a_decode_wrote_is_used(any_model: Engine):
    engine = anew(any_model, Keeping(is_exact=True), **ONE_SLOT)
    slot = turn(engine, PROMPT[:90], count=30)
    prompt = (*slot.ctx, *OTHER[:70])
    for _ in range(3):  # from the slot; from a slot that was resumed; from the store
        slot = taken(engine, prompt)
        assert slot.start.exactness is GRID
        _check_same_bits(slot, _cold(any_model, prompt), engine)
        engine.close(slot)
        prompt = (*slot.ctx, *OTHER[70:140]) if len(prompt) < 250 else prompt
        turn(engine, OTHER[:200], "theirs")


def test_b19_after_a_start_off_the_grid_chunks_end_on_it_again(any_model: Engine):
    engine = anew(any_model)
    prompt = (*turn(engine, PROMPT[:90], count=21).ctx[:110], *OTHER[:70])
    slot, ends = taken(engine, prompt), []
    assert slot.start.position == 110
    while slot.kv_len < len(prompt):
        read_on(engine, slot, 1)
        ends.append(slot.kv_len)
    assert ends == [128, 160, 180]


@pytest.mark.parametrize("chunks", [2, 3, 5])
def test_b20_a_cancelled_reading_is_kept_up_to_where_it_came(any_model: Engine, chunks: int):
    engine = anew(any_model)
    slot = taken(engine, PROMPT, cuts=(CUT,))
    read_on(engine, slot, chunks)
    engine.close(slot)
    again = taken(engine, PROMPT, cuts=(CUT,))
    assert (again.start.position, again.start.exactness) == (STARTS[chunks - 1], GRID)
    _check_same_bits(again, _cold(any_model, PROMPT, (CUT,)), engine)


def test_b20_a_run_that_ended_before_its_first_chunk_loses_nothing(any_model: Engine):
    engine = anew(any_model)
    slot = turn(engine, PROMPT[:90], count=31)
    prompt = (*slot.ctx, *OTHER[:9])
    engine.close(taken(engine, prompt))
    again = taken(engine, prompt)
    assert (again.start.position, again.start.exactness) == (120, SESSION)
    assert tokens(answered(engine, again)) == tokens(_cold(any_model, prompt).chosen)


@pytest.mark.parametrize("is_shared", [False, True])
def test_b21_tenants_share_nothing_but_system_prompts_that_they_may(
    any_model: Engine, is_shared: bool
):
    engine = anew(any_model, Keeping(has_shared_prefixes=is_shared), slots=3)
    for at in (0, 60):
        turn(engine, (*PROMPT[:CUT], *OTHER[at : at + 60]), "mine", cuts=(CUT,))
    assert hit_count(engine) == 1  # its own
    prompt = (*PROMPT[:CUT], *OTHER[:60], 5)
    slot = taken(engine, prompt, "yours", cuts=(CUT,))
    if is_shared:
        assert (slot.start.position, slot.start.source) == (CUT, Source.PREFIX)
    else:
        assert slot.start is NOTHING
    _check_same_bits(slot, _cold(any_model, prompt, (CUT,)), engine)
    engine.close(slot)
    turn(engine, OTHER, "nobody")
    turn(engine, OTHER[1:], "nobody")
    # From the store: theirs again, never the other's.
    assert taken(engine, prompt, "mine", cuts=(CUT,)).start.position >= CUT
    assert taken(engine, (*prompt, 7), "other", cuts=(CUT,)).start.position == CUT * is_shared


@pytest.mark.parametrize("is_side", [False, True])
def test_b22_a_prompt_that_shall_not_be_kept_leaves_every_byte_and_counter(
    any_model: Engine, is_side: bool
):
    engine = anew(any_model, is_drafted=True)
    for at in (0, 60, 120):
        turn(engine, (*PROMPT[:CUT], *OTHER[at : at + 60]), cuts=(CUT,))
    turn(engine, (*PROMPT[:CUT], *OTHER[:10]), is_side=True, cuts=(CUT,))
    before, free = digest(engine), engine.free_slots
    prompt = (*PROMPT[:CUT], *OTHER[:60])
    for is_sound in (True, False):
        slot = taken(engine, prompt, None, is_side=is_side, cuts=(CUT,))
        assert (slot.start, engine.free_slots) == (NOTHING, free)
        _check_same_bits(slot, _cold(any_model, prompt, (CUT,)), engine)
        engine.close(slot, is_sound=is_sound)
    assert digest(engine) == before
    assert engine.kept._guests == {}


# The side lane.


def test_x5_a_side_run_leaves_every_byte_that_slots_keep(any_model: Engine):
    engine = anew(any_model, is_drafted=True)
    resident = turn(engine, PROMPT)
    main = taken(engine, OTHER[:90])
    read_on(engine, main, 2)
    before = _bytes_of(resident), _bytes_of(main)
    for at in (0, 60, 20):
        turn(engine, (*PROMPT[:CUT], *OTHER[at : at + 60]), is_side=True, cuts=(CUT,))
    assert (_bytes_of(resident), _bytes_of(main)) == before


def test_what_the_side_lane_read_is_resumed_there_and_nowhere_else(any_model: Engine):
    engine = anew(any_model, is_drafted=True)
    prompts = [(*PROMPT[:CUT], *OTHER[at : at + 60]) for at in (0, 60, 120)]
    for prompt in prompts:
        turn(engine, prompt, is_side=True, cuts=(CUT,))
    slot = taken(engine, (*prompts[-1], 5, 5), is_side=True, cuts=(CUT,))
    assert slot.start.position > CUT
    engine.close(slot)
    assert taken(engine, prompts[0], "yours", is_side=True, cuts=(CUT,)).start is NOTHING
    slot = taken(engine, prompts[0], cuts=(CUT,))
    assert slot.start is NOTHING
    _check_same_bits(slot, _cold(any_model, prompts[0], (CUT,)), engine)


# The store.


@pytest.mark.parametrize("cut", [CUT, 64])
@pytest.mark.parametrize("slots", [1, 2])
def test_where_two_conversations_part_a_third_one_starts(any_model: Engine, cut: int, slots: int):
    engine = anew(any_model, is_drafted=True, slots=slots)
    for at in (0, 60):
        turn(engine, (*PROMPT[:cut], *OTHER[at : at + 70]), cuts=(cut,))
    prefixes = [entry for entry in engine.kept._store if entry.kind == "prefix"]
    assert [(entry.ids, entry.salt) for entry in prefixes] == [(PROMPT[:cut], "mine")]
    turn(engine, OTHER, "theirs")
    turn(engine, OTHER[1:], "theirs")
    engine.kept._store.clear("session")
    prompt = (*PROMPT[:cut], *OTHER[90:150])
    slot = taken(engine, prompt, cuts=(cut,))
    assert (slot.start.position, slot.start.source) == (cut, Source.PREFIX)
    assert slot.start.exactness is GRID
    _check_same_bits(slot, _cold(any_model, prompt, (cut,)), engine)


def test_the_turns_of_one_conversation_make_no_prefix(any_model: Engine):
    engine = anew(any_model)
    prompt = PROMPT[:140]
    for _ in range(3):
        engine.close(taken(engine, OTHER[:90], "theirs"))
        prompt = (*turn(engine, prompt, cuts=(CUT,)).ctx, *OTHER[:9])
    assert [entry for entry in engine.kept._store if entry.kind == "prefix"] == []


def test_a_conversation_that_lost_its_slot_comes_back_from_the_store(any_model: Engine):
    engine = anew(any_model, is_drafted=True, **ONE_SLOT)
    slot = turn(engine, PROMPT[:90], count=31)
    ctx, state = tuple(slot.ctx), slot.cache.freeze(slot.kv_len)
    drafts = slot.drafting.freeze()
    turn(engine, OTHER[:200], "theirs")
    entry = next(iter(engine.kept._store))
    assert (entry.kind, entry.ids, entry.size_bytes) == (
        "session", ctx[:-1], engine.cache_bytes(120),
    )  # fmt: skip
    prompt = (*ctx, *OTHER[:20])
    slot = taken(engine, prompt)
    assert (slot.start.position, slot.start.source) == (120, Source.SESSION)
    assert slot.start.exactness is SESSION
    assert is_same(slot.cache.freeze(120), state)
    for one, other in zip(slot.drafting.freeze(), drafts, strict=True):
        assert is_same(one, other)
    assert tokens(answered(engine, slot)) == tokens(_cold(any_model, prompt).chosen)
    assert [entry.salt for entry in engine.kept._store] == ["mine", "theirs"]


def test_a_conversation_that_is_cut_back_for_another_is_stored_first(any_model: Engine):
    engine = anew(any_model, **ONE_SLOT)
    held = turn(engine, PROMPT).held
    turn(engine, (*PROMPT[:CUT], *OTHER[:150]))  # starts from it, in its slot
    assert held in [entry.ids for entry in engine.kept._store]
    prompt = (*held, 5, 5, 5)
    slot = taken(engine, prompt)
    assert slot.start.position == len(held)
    assert tokens(answered(engine, slot)) == tokens(_cold(any_model, prompt).chosen)


def test_what_a_stored_state_replaces_in_its_own_slot_is_stored(any_model: Engine):
    engine = anew(any_model, **ONE_SLOT)
    first = turn(engine, PROMPT, count=40).held
    turn(engine, OTHER[:200], "theirs")
    held = turn(engine, (*PROMPT[:190], *OTHER[:50])).held  # a branch
    prompt = (*first, 5, 5)
    slot = taken(engine, prompt)
    assert slot.start.position == len(first)
    assert held in [entry.ids for entry in engine.kept._store]
    assert tokens(answered(engine, slot)) == tokens(_cold(any_model, prompt).chosen)


def test_b14_b15_real_bytes_are_what_was_counted(any_model: Engine):
    engine = anew(any_model, is_drafted=True, **ONE_SLOT)
    for length in (65, 90, 128):
        turn(engine, OTHER[length : 2 * length], count=5)
    turn(engine, PROMPT[:100])
    assert len(engine.kept._store) == 3
    for entry in engine.kept._store:
        assert entry.size_bytes == engine.cache_bytes(len(entry.ids))


# Reading ahead.


def _ahead(engine: Engine, prompt: tuple[int, ...], cuts: tuple[int, ...] = ()) -> int | None:
    """Reads a whole prompt ahead; the tokens that were forwarded, None for nothing to do."""
    slot = engine.open_ahead(prompt, cuts, "mine")
    if slot is None:
        return None
    start = slot.kv_len
    while not engine.read_ahead(slot):
        pass
    engine.close(slot)
    return slot.kv_len - start


def test_what_was_read_ahead_is_not_read_again(any_model: Engine):
    engine = anew(any_model, is_drafted=True)
    slot = turn(engine, PROMPT[:90], count=31)
    # The template writes the answer otherwise than it was written; the beginning is the same.
    known = (*PROMPT[:90], *slot.ctx[90:100], 9, 9, *slot.ctx[100:])
    first = 90 if _is_hybrid(engine) else 100  # where the answer began
    assert _ahead(engine, known) == len(known) - first
    assert _ahead(engine, known) is None
    prompt = (*known, *OTHER[:12])
    slot = taken(engine, prompt)
    assert slot.start.position == len(known)
    assert tokens(answered(engine, slot)) == tokens(_cold(any_model, prompt).chosen)


def test_b18_under_exact_resume_only_whole_chunks_are_read_ahead(any_model: Engine):
    engine = anew(any_model, Keeping(is_exact=True))
    turn(engine, PROMPT[:90], count=5)
    assert _ahead(engine, PROMPT[:190]) == 160 - 64
    assert _ahead(engine, PROMPT[:190]) is None
    slot = taken(engine, PROMPT)
    assert slot.start.position == 160
    _check_same_bits(slot, _cold(any_model, PROMPT), engine)


def test_nothing_is_read_ahead_for_a_conversation_without_a_slot(any_model: Engine):
    engine = anew(any_model)
    turn(engine, PROMPT[:90])
    assert engine.open_ahead((*PROMPT[:80], *OTHER), (), "yours") is None
    assert engine.open_ahead((*PROMPT[:20], *OTHER), (), "mine") is None
    turn(engine, OTHER)
    assert engine.open_ahead((*OTHER[:100], *PROMPT), (), "mine") is None  # another conversation
    running = taken(engine, PROMPT[:91])
    assert engine.open_ahead(PROMPT, (), "mine") is None
    engine.close(running)
    slot = engine.open_ahead(PROMPT, (), "mine")
    assert slot is running
    engine.read_ahead(slot)
    engine.close(slot)  # a request came; what was read stays
    assert taken(engine, PROMPT).start.position == slot.kv_len


# What must not be left.


@pytest.mark.parametrize("is_reading", [False, True])
def test_a_step_that_failed_leaves_nothing(
    any_model: Engine, is_reading: bool, monkeypatch: pytest.MonkeyPatch
):
    engine = anew(any_model, is_drafted=True, **ONE_SLOT)
    slot = taken(engine, PROMPT, cuts=(CUT,))
    if is_reading:
        read_on(engine, slot, 4)
    else:
        answered(engine, slot)
    layers, forward = engine._model._layers, type(engine._model._layers[0]).__call__

    def fail(self: object, *given: object) -> object:
        if self is layers[-1]:
            raise RuntimeError("no memory")
        return forward(self, *given)

    with monkeypatch.context() as patched:
        patched.setattr(type(layers[0]), "__call__", fail)
        with pytest.raises(RuntimeError, match="no memory"):
            chosen_in(engine, slot, 1) if not is_reading else read_on(engine, slot, 1)
    engine.close(slot, is_sound=False)
    again = taken(engine, PROMPT, cuts=(CUT,))
    assert again.start is NOTHING
    _check_same_bits(again, _cold(any_model, PROMPT, (CUT,)), engine)
    assert len(engine.kept._store) == 0


# Several answers to one prompt.


def test_answers_that_share_a_prompt_stand_beside_what_is_kept(any_model: Engine):
    engine = anew(any_model, slots=3, is_drafted=True)
    before = turn(engine, PROMPT[:90], count=31)
    other = turn(engine, OTHER[:100])
    held = other.held
    prompt = (*before.ctx, *OTHER[:40])
    reader = taken(engine, prompt)
    assert reader.start.position == 120
    first = read_on(engine, reader)
    shared = engine.share(reader)
    takers = []
    for _ in range(2):
        chooser = Chooser(GREEDY, prompt)
        takers.append(engine.open(Ask(prompt, chooser, (), "mine", 8, is_shared=True)))
        assert engine.take_shared(takers[-1], shared) == first
    assert held in [entry.ids for entry in engine.kept._store]
    expected = _cold(any_model, prompt).chosen
    for slot in (reader, *takers):
        written = [first, *chosen_in(engine, slot, 7)]
        assert tokens(written) == tokens(expected)
        # Some of its rows a decode wrote, whoever read them.
        assert slot.lineage.at(160, slot.plan) is SESSION
        engine.close(slot)
    assert hit_count(engine) + engine.cache_facts().misses == 3


# Guesses over resumed slots.


@pytest.mark.parametrize("slots", [1, 2])
def test_guesses_over_resumed_slots_change_no_token(any_model: Engine, slots: int):
    engine = anew(any_model, slots=slots, is_guessing=True)
    prompt, kinds = PROMPT[:100], set()
    for at in range(6):
        slot = taken(engine, prompt)
        first = read_on(engine, slot)
        assert first is not None
        made = rounds(engine, slot, 39)
        kinds |= {done.kind for done, _ in made}
        written = [first.token, *(token for done, _ in made for token in done.tokens)]
        assert written == tokens(_cold(any_model, prompt, (), 40).chosen)
        _check_drafters(slot)
        engine.close(slot)
        if at % 2:
            turn(engine, OTHER[: 150 + at], "theirs")  # out of its slot
        prompt = (*slot.ctx[: 90 + 30 * at], *PROMPT[:20])
    assert kinds > {"block"}
    assert hit_count(engine) >= 3


def _check_drafters(slot: Slot) -> None:
    """The lookup drafter knows all ids, the block drafter the rows of all that are forwarded."""
    _, lookup, block = slot.drafting._drafters
    assert lookup._index.ids == slot.ctx
    assert block._length == slot.kv_len


@pytest.mark.parametrize("way", ["resident", "copied", "stored", "prefix", "shared", "aside"])
def test_a_drafter_knows_what_it_would_know_of_a_cold_reading(model: Engine, way: str):
    engine = anew(model, slots=2 if way in ("copied", "shared") else 1, is_guessing=True)
    prompt, cuts = (*PROMPT[:CUT], *OTHER[:90]), (CUT,)
    if way == "prefix":
        for at in (100, 130):
            turn(engine, (*PROMPT[:CUT], *OTHER[at : at + 60]), cuts=cuts)
        engine.kept._store.clear("session")
        turn(engine, OTHER, "theirs")
        engine.kept._store.clear("session")
    elif way in ("resident", "copied", "stored"):
        turn(engine, prompt[:120], count=1, cuts=cuts)
    if way == "stored":
        turn(engine, OTHER, "theirs")
    if way == "copied":
        running = taken(engine, (*PROMPT[:CUT], *OTHER[:50]), cuts=cuts)
        assert running.start.position > 64
    slot = taken(engine, prompt, cuts=cuts)
    assert (slot.start is NOTHING) == (way in ("shared", "aside"))
    first = read_on(engine, slot)
    assert first is not None
    if way == "shared":
        shared = engine.share(slot)
        slot = engine.open(Ask(prompt, Chooser(GREEDY, prompt), cuts, "mine", is_shared=True))
        assert engine.take_shared(slot, shared) == first
    if way == "aside":
        frozen = engine.set_aside(slot)
        assert frozen is not None
        slot = engine.take_back(frozen, frozen.chooser)
    _check_drafters(slot)
    fresh = anew(model, slots=1, is_guessing=True)
    other = taken(fresh, prompt, cuts=cuts)
    read_on(fresh, other)
    for one, two in zip(slot.drafting.freeze(), other.drafting.freeze(), strict=True):
        for part, twin in zip(one, two, strict=True):
            torch.testing.assert_close(part, twin, atol=1e-3, rtol=1e-3)
    made, expected = rounds(engine, slot, 30), rounds(fresh, other, 30)
    assert [done.tree.tokens for done, _ in made][:1] == [d.tree.tokens for d, _ in expected][:1]
    _check_drafters(slot)


def test_anchors_within_their_bytes_still_resume_to_the_bit(engine_of: EngineOf):
    hybrid = engine_of("qwen3_5")
    delta = hybrid._model.new_cache(CHUNK).delta
    assert delta is not None
    engine = anew(hybrid, Keeping(anchor_bytes=3 * 3 * delta.size_bytes, anchor_tail=2))
    slot = turn(engine, PROMPT, cuts=(CUT,))
    positions = sorted(anchor.position for anchor in slot.anchors)
    assert len(positions) == 4
    assert positions[-3:] == [192, 200, 207]  # the second is where the answer began
    assert slot.anchors.size_bytes == 4 * delta.size_bytes
    for start, end in pairwise(positions[:-1]):
        prompt = (*PROMPT[: end - 1], 5, 5, 5)
        fresh = anew(hybrid, Keeping(anchor_bytes=3 * 3 * delta.size_bytes, anchor_tail=2))
        turn(fresh, PROMPT, cuts=(CUT,))
        slot = taken(fresh, prompt, cuts=(CUT,))
        assert slot.start.position == (start if start >= residents.LEAST_SAVED else 0)
        _check_same_bits(slot, _cold(hybrid, prompt, (CUT,)), fresh)
