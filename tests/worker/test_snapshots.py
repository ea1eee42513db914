"""The store of snapshots: who finds what, which go first, and that bytes are counted before."""

import dataclasses
from collections.abc import Callable

import torch

from worker.prefill import Plan, plan
from worker.sampling.chooser import Chooser
from worker.sampling.params import Sampling
from worker.speculation.drafting import Drafting
from worker.state.anchors import Anchors
from worker.state.ask import Ask
from worker.state.cache import SequenceCache
from worker.state.keeping import Keeping
from worker.state.kept import Kept
from worker.state.kv import KvCache
from worker.state.lineage import Exactness, Lineage
from worker.state.room import Sizes
from worker.state.slot import Slot
from worker.state.snapshots import Kind, Snapshot, SnapshotStore
from worker.state.start import NOTHING, Source, Start, Wanted

CHUNK = 32
ROW = 8  # bytes of a token's row: one key and one value of 4


def _snapshot(
    *ids: int, kind: Kind = "session", salt: str | None = "mine", grid: int = 0, read: int = 0,
    is_hybrid: bool = False, cuts: tuple[int, ...] = (),
) -> Snapshot:  # fmt: skip
    kv = (torch.zeros(1, 1, len(ids), 1), torch.zeros(1, 1, len(ids), 1))
    state = (torch.zeros(2), torch.zeros(2)) if is_hybrid else ()
    made = plan(len(ids), "any", CHUNK, cuts)
    return Snapshot(kind, salt, ids, made, Lineage(grid, read), (*kv, *state))


def _wanted(*ids: int, is_exact: bool = False, cuts: tuple[int, ...] = ()) -> Wanted:
    return Wanted(ids, plan(len(ids), "any", CHUNK, cuts), len(ids) - 1, is_exact)


def _store(budget: int = 10_000, most: int = 10_000, **more: Callable[..., int]) -> SnapshotStore:
    return SnapshotStore(budget, most, **more)


def _found(store: SnapshotStore, wanted: Wanted, salt: str = "mine") -> Start:
    found = store.find(salt, wanted)
    return NOTHING if found is None else found[1]


def _put(store: SnapshotStore, *snapshots: Snapshot) -> None:
    for snapshot in snapshots:
        assert store.has_room(snapshot.size_bytes)
        store.add(snapshot)


def _ids(store: SnapshotStore) -> list[tuple[int, ...]]:
    return [entry.ids for entry in store]


TEXT = tuple(range(100, 300))


def test_the_one_that_spares_most_is_found():
    store = _store()
    _put(store, _snapshot(*TEXT[:80]), _snapshot(*TEXT[:120]), _snapshot(*TEXT[:50], 7, 8, 9))
    assert _found(store, _wanted(*TEXT)) == Start(120, Source.SESSION, Exactness.SESSION)
    assert _found(store, _wanted(*TEXT[:100], 1)).position == 100
    # The last token of a prompt is always forwarded.
    assert _found(store, _wanted(*TEXT[:120])).position == 119
    assert _found(store, _wanted(*TEXT[:50], 7, 8, 1)).position == 52
    assert store.find("mine", _wanted(1, *TEXT)) is None


def test_a_state_of_delta_layers_is_good_for_its_own_position_alone():
    store = _store()
    _put(store, *(_snapshot(*TEXT[:length], is_hybrid=True) for length in (80, 120)))
    assert _found(store, _wanted(*TEXT)).position == 120
    assert _found(store, _wanted(*TEXT[:121])).position == 120
    assert _found(store, _wanted(*TEXT[:120])).position == 80
    assert _found(store, _wanted(*TEXT[:100], 1)).position == 80
    assert _found(store, _wanted(*TEXT[:79], 1, 2)) == NOTHING


def test_a_start_says_what_it_promises():
    store = _store()
    _put(store, _snapshot(*TEXT[:100], kind="prefix", grid=64, read=90))
    for same, exactness in ((64, Exactness.GRID), (70, Exactness.TOKEN), (95, Exactness.SESSION)):
        assert _found(store, _wanted(*TEXT[:same], 1, 1)) == Start(same, Source.PREFIX, exactness)
        exact = _found(store, _wanted(*TEXT[:same], 1, 1, is_exact=True))
        assert exact == Start(64, Source.PREFIX, Exactness.GRID)
    assert _found(store, _wanted(*TEXT[:20], 1, is_exact=True)) == NOTHING


def test_what_was_read_by_another_plan_is_not_of_this_ones_grid():
    store = _store()
    _put(store, _snapshot(*TEXT[:96], grid=96, read=96, cuts=(40,)))
    assert _found(store, _wanted(*TEXT, cuts=(40,), is_exact=True)).position == 96
    # A plan without the cut agrees up to the start before it; so does one that has another.
    assert _found(store, _wanted(*TEXT, is_exact=True)).position == 32
    assert _found(store, _wanted(*TEXT, cuts=(40, 50), is_exact=True)).position == 40
    # A cut that the reader did not have ends no chunk of it: it read on behind it in one.
    assert _found(store, _wanted(*TEXT, cuts=(20, 40), is_exact=True)) == NOTHING
    assert _found(store, _wanted(*TEXT[:20], 1, 2, cuts=(20,))).exactness is Exactness.TOKEN
    assert _found(store, _wanted(*TEXT)) == Start(96, Source.SESSION, Exactness.TOKEN)


def test_a_state_on_the_grid_of_another_plan_is_not_used():
    store = _store()
    _put(store, _snapshot(*TEXT[:96], grid=96, read=96, cuts=(40,), is_hybrid=True))
    assert _found(store, _wanted(*TEXT, cuts=(40,))).exactness is Exactness.GRID
    assert _found(store, _wanted(*TEXT)) == NOTHING
    assert _found(store, _wanted(*TEXT, cuts=(40, 50))) == NOTHING
    assert _found(store, _wanted(*TEXT, cuts=(40, 150))).exactness is Exactness.GRID


def test_b18_nothing_that_a_decode_wrote_is_found_under_exact_resume():
    store = _store()
    _put(store, _snapshot(*TEXT[:96], grid=64, read=80, is_hybrid=True))
    assert _found(store, _wanted(*TEXT)).exactness is Exactness.SESSION
    assert _found(store, _wanted(*TEXT, is_exact=True)) == NOTHING


def test_b21_the_states_of_one_salt_are_not_those_of_another():
    store = _store()
    _put(store, _snapshot(*TEXT[:80], salt="mine"), _snapshot(*TEXT[:50], salt=None, kind="prefix"))
    assert _found(store, _wanted(*TEXT), "mine") == Start(80, Source.SESSION, Exactness.SESSION)
    assert _found(store, _wanted(*TEXT), "yours").source is Source.PREFIX  # everybody's
    assert not store.holds("yours", TEXT[:80])
    assert not store.holds(None, TEXT[:80])
    _put(store, _snapshot(*TEXT[:80], salt="yours"))
    assert (len(store), store.collisions) == (3, 0)


def test_b13_equal_hashes_never_give_another_state():
    store = _store(hash_of=lambda ids: 0)
    one, other = TEXT[:80], (*TEXT[:40], 9, *TEXT[41:80])
    _put(store, _snapshot(*one))
    assert (store.holds("mine", one), store.holds("mine", other)) == (True, False)
    assert _found(store, _wanted(*other, 5)).position == 40
    _put(store, _snapshot(*one))  # the same again is no collision
    assert store.collisions == 0
    _put(store, _snapshot(*other))
    assert (store.collisions, _ids(store)) == (1, [other])
    assert _found(store, _wanted(*one, 5)).position == 40
    assert not store.holds("mine", one)

    store = _store(hash_of=lambda ids: 0)
    _put(store, _snapshot(*one, is_hybrid=True))
    assert _found(store, _wanted(*other, 5)) == NOTHING


def test_b12_a_snapshot_holds_as_many_rows_as_ids():
    slot = _slot(rows=40)
    slot.begin(TEXT[:60], _chooser(), plan(60, "any", CHUNK), "mine")
    slot.commit_chunk(32)
    kept = slot.snapshot("session", "mine")
    assert (kept.ids, kept.tensors[0].shape[2], kept.lineage) == (TEXT[:32], 32, Lineage(32, 32))
    slot.kv_len = 61
    try:
        slot.snapshot("session", "mine")
    except AssertionError as fault:
        assert "more tokens" in str(fault)
    else:
        raise AssertionError("a snapshot of rows without ids")


def test_the_one_not_used_for_longest_goes_first():
    store = _store(budget=100 * ROW)
    texts = [(seed, *TEXT[:29]) for seed in range(3)]
    _put(store, *(_snapshot(*text) for text in texts))
    assert (store.size_bytes, _ids(store)) == (90 * ROW, texts[::-1])
    assert _found(store, _wanted(*texts[0], 1)).position == 30
    assert store.holds("mine", texts[1])
    _put(store, _snapshot(9, *TEXT[:29]))
    assert _ids(store) == [(9, *TEXT[:29]), texts[1], texts[0]]
    _put(store, _snapshot(8, *TEXT[:69]))
    assert _ids(store) == [(8, *TEXT[:69]), (9, *TEXT[:29])]
    assert store.evictions == {"session": 3}
    assert store.size_bytes == 100 * ROW


def test_b14_one_that_is_too_large_is_counted_and_smaller_ones_are_kept():
    store = _store(budget=100 * ROW, most=40 * ROW)
    _put(store, _snapshot(*TEXT[:40]))
    assert not store.has_room(41 * ROW)
    assert store.skipped == {"too_large": 1}
    assert (len(store), store.evictions) == (1, {})  # nothing had to go for it
    _put(store, _snapshot(1, *TEXT[:39]))
    assert len(store) == 2
    # A share of everything is still no more than everything.
    store = _store(budget=10, most=40)
    assert not store.has_room(11)
    assert store.skipped == {"too_large": 1}


def test_what_others_keep_in_the_same_memory_counts():
    store = _store(budget=100 * ROW)
    _put(store, _snapshot(*TEXT[:40]))
    assert store.has_room(60 * ROW)
    store.reserve(60 * ROW)
    assert (len(store), store.size_bytes) == (1, 100 * ROW)
    assert not store.has_room(50 * ROW)
    assert (len(store), store.skipped["full"]) == (0, 1)
    store.reserve(-60 * ROW)
    assert store.size_bytes == 0


def test_a_kind_is_forgotten_on_its_own():
    store = _store()
    _put(store, _snapshot(*TEXT[:40]), _snapshot(*TEXT[:20], kind="prefix"), _snapshot(1, 2))
    assert store.clear("session") == 42 * ROW
    assert [entry.kind for entry in store] == ["prefix"]
    assert store.drop_oldest("session") == 0
    assert store.drop_oldest("prefix") == 20 * ROW
    assert (store.drop_oldest(), store.evictions) == (0, {"prefix": 1})


# Before a copy.


@dataclasses.dataclass
class Account:
    """Bytes that copies have taken, and the most there were at once."""

    store: SnapshotStore | None = None
    peak: int = 0
    copies: int = 0


class CountedSlot(Slot):
    """A slot whose snapshots are told to an account."""

    account: Account

    def snapshot(self, kind: Kind, salt: str | None) -> Snapshot:
        made = super().snapshot(kind, salt)
        assert self.account.store is not None
        self.account.copies += 1
        self.account.peak = max(self.account.peak, self.account.store.size_bytes + made.size_bytes)
        return made


def _slot(rows: int = 200, kind: type[Slot] = Slot) -> Slot:
    kv = KvCache(
        layers=1, kv_heads=1, head_dim=1, step=rows, dtype=torch.float32, device=torch.device("cpu")
    )
    drafting = Drafting((), (), lambda: 0.0)
    return kind(SequenceCache(kv, None), drafting, Anchors(most=1, tail=1))


def _chooser() -> Chooser:
    return Chooser(Sampling(temperature=0.0, top_p=1.0, top_k=0, min_p=0.0, seed=0), ())


def _counted(budget: int, entry: int) -> tuple[Kept, Account]:
    account = Account()

    def new(is_drafted: bool) -> Slot:
        slot = _slot(kind=CountedSlot)
        slot.account = account  # type: ignore[attr-defined]
        return slot

    keeping = Keeping(store_bytes=budget * ROW, entry_bytes=entry * ROW, guest_bytes=0)
    kept = Kept(new, slots=1, keeping=keeping, sizes=Sizes(lambda length: length * ROW))
    account.store = kept._store
    return kept, account


def _serve(kept: Kept, prompt: tuple[int, ...], cuts: tuple[int, ...] = ()) -> Slot:
    made: Plan = plan(len(prompt), "any", CHUNK, cuts)
    slot = kept.open(Ask(prompt, _chooser(), cuts, "mine"), made)
    while slot.kv_len < len(prompt):
        slot.commit_chunk(made.chunk_end(slot.kv_len, len(prompt)))
        kept.saw_chunk(slot)
    kept.close(slot)
    return slot


def test_b15_room_is_made_before_anything_is_copied():
    kept, account = _counted(budget=250, entry=250)
    for seed in range(12):
        length = 70 + 17 * seed % 130
        prompt = (seed, *TEXT)[:length]
        _serve(kept, prompt)
        assert kept._store.size_bytes <= 250 * ROW
    assert account.copies == 11
    assert account.peak <= 250 * ROW
    assert kept._store.evictions["session"] > 5


def test_b15_what_cannot_be_kept_is_not_copied():
    kept, account = _counted(budget=250, entry=100)
    _serve(kept, (1, *TEXT[:149]))
    _serve(kept, (2, *TEXT[:89]))
    assert (account.copies, kept._store.skipped) == (0, {"too_large": 1})
    _serve(kept, (3, *TEXT[:89]))
    assert account.copies == 1


def test_b15_a_state_that_is_just_being_used_may_have_to_make_room_and_is_then_not_used():
    kept, account = _counted(budget=150, entry=150)
    _serve(kept, (1, *TEXT[:99]))
    _serve(kept, (2, *TEXT[:109]))
    assert [entry.ids[0] for entry in kept._store] == [1]
    # The slot's 110 rows go to the store, where they and the 100 that are wanted do not both fit.
    slot = _serve(kept, (1, *TEXT[:119]))
    assert [entry.ids[0] for entry in kept._store] == [2]
    assert (slot.start, account.peak) == (NOTHING, 110 * ROW)
