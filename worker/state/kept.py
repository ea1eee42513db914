"""All kept states of the worker: who holds which slot, and what outlives its slot.

Knows no model: it moves states, the engine makes them. A kept state changes speed only.
"""

from collections import Counter, OrderedDict
from collections.abc import Callable

import structlog

from worker.limits import CUTS_SEEN
from worker.memory_gate import Verdict
from worker.prefill import Plan
from worker.sampling.chooser import Chooser
from worker.state.ask import Ask
from worker.state.facts import KIND_OF, CacheFacts
from worker.state.keeping import Keeping
from worker.state.kept_files import KeptFiles
from worker.state.residents import LEAST_SAVED, choose_place, is_next_turn, longest_start
from worker.state.room import Room, Shelf, Sizes
from worker.state.slot import FrozenSlot, Slot
from worker.state.snapshots import Kind, Snapshot, SnapshotStore
from worker.state.start import NOTHING, Source, Start, Wanted

log = structlog.get_logger()

STATE_LOST = "state.lost"

TOLD_APART = 64  # tokens behind a system prompt by which conversations are told apart


class Kept:
    """Slots and snapshots. One thread uses it, the engine's.

    `new_slot`: an empty slot, told whether anybody drafts in it; not in the lane of short requests.
    """

    def __init__(
        self,
        new_slot: Callable[[bool], Slot],
        *,
        slots: int,
        keeping: Keeping,
        sizes: Sizes,
    ) -> None:
        self._new_slot = new_slot
        self._side = new_slot(False)
        self._idle = [new_slot(True) for _ in range(slots)]  # the one not used for longest first
        self._running: list[Slot] = []
        self._guests: dict[Slot, int] = {}  # and the bytes that each may take
        self._keeping = keeping
        self.files = KeptFiles()  # none, until folders are given
        self.room = Room(sizes)
        self._wanted: set[Slot] = set()  # by the prompt that room is made for
        self._store = SnapshotStore(keeping.store_bytes, keeping.entry_bytes)
        self._cuts: OrderedDict[tuple[str, int], int] = OrderedDict()  # seen once, and by whom
        self._is_side_running = False
        self._hits: Counter[str] = Counter()  # by kind
        self._misses = 0

    @property
    def free_slots(self) -> int:
        """Slots that no run holds."""
        return len(self._idle)

    def reserve_side(self, length: int) -> None:
        """Makes room in the lane of short requests for sequences of so many tokens."""
        self._side.cache.reserve(length + self.room.sizes.rows)

    def open(self, ask: Ask, plan: Plan) -> Slot:
        """A slot that holds as much of the prompt as can be had, the rest to be read.

        Where that fails, the slot is free again and holds nothing.
        """
        before = [*self._running, *self._guests]
        try:
            return self._open(ask, plan)
        except Exception:
            taken = [slot for slot in (*self._running, *self._guests) if slot not in before]
            if ask.is_side and ask.salt is not None:
                taken.append(self._side)
            for slot in taken:
                self.close(slot, is_sound=False)
            raise

    def _open(self, ask: Ask, plan: Plan) -> Slot:
        wanted = Wanted(ask.prompt, plan, len(ask.prompt) - 1, self._keeping.is_exact)
        if ask.salt is None:  # in the side lane too, whose slot keeps what it holds
            slot, start = self._new_guest(self._bytes_of(ask), is_side=ask.is_side), NOTHING
        elif ask.is_side:
            slot, self._is_side_running = self._side, True
            start = slot.start_for(wanted) if slot.salt == ask.salt else NOTHING
        elif ask.is_shared:
            slot, start = self._blank(), NOTHING
        else:
            slot, start = self._take(ask, wanted, ask.salt)
            self.files.saw_resume(ask.salt, wanted, start)
        self.room.fit(slot, ask, start)
        slot.begin(ask.prompt, ask.chooser, plan, ask.salt, start)
        slot.parting = ask.cuts
        if ask.salt is not None and not ask.is_shared:
            self._count(start)
            self.saw_chunk(slot)  # of another slot, where it starts right at a cut
        return slot

    def _count(self, start: Start) -> None:
        if start.source is Source.NONE:
            self._misses += 1
        else:
            self._hits[KIND_OF[start.source]] += 1

    def _blank(self) -> Slot:
        """A slot for a state that comes from elsewhere."""
        victim = next((slot for slot in self._idle if slot.kv_len < LEAST_SAVED), self._idle[0])
        self._rest(victim)
        self._run(victim)
        return victim

    def _take(self, ask: Ask, wanted: Wanted, salt: str) -> tuple[Slot, Start]:
        size_bytes = self._bytes_of(ask)
        place = choose_place(
            wanted, salt, self._idle, self._running, may_visit=self._may_visit(size_bytes)
        )
        stored = self._find_beyond(place.start, salt, wanted)
        if place.slot is not None:
            if stored is not None or not place.is_own:
                # The found one is the last to make room; if it must, it is gone before the copy.
                stored = None
                self._rest(place.slot)
                stored = self._find_beyond(place.start, salt, wanted)
            self._run(place.slot)
        known = place.start if stored is None else stored[1]
        filed = self.files.find(
            salt, wanted, known.position,
            has_room=lambda length: self.room.has_host_room(self.room.sizes.sequence(length)),
        )  # fmt: skip
        if filed is not None:
            if place.slot is not None and stored is None:
                self._rest(place.slot)
            stored = filed
        slot, start = place.slot or self._new_guest(size_bytes), place.start
        if stored is not None:
            slot.adopt(stored[0], stored[1].position, salt)
            return slot, stored[1]
        if place.donor is not None and place.donor is not slot:
            slot.copy_start(place.donor, start)
        return slot, start

    def _find_beyond(
        self, start: Start, salt: str, wanted: Wanted
    ) -> tuple[Snapshot, Start] | None:
        found = self._store.find(salt, wanted)
        return found if found is not None and found[1].position > start.position else None

    def _run(self, slot: Slot) -> None:
        self._idle.remove(slot)
        self._running.append(slot)

    def _rest(self, slot: Slot) -> None:
        """Before another conversation gets the slot: what it holds is kept if it can be."""
        if slot.salt is None or slot.kv_len < LEAST_SAVED:
            return
        if not self._store.holds(slot.salt, slot.held):
            self._add("session", slot, slot.salt)

    def _add(self, kind: Kind, slot: Slot, salt: str | None) -> None:
        """Bytes are counted, and room is made, before anything is copied."""
        if self._has_room_aside(slot):
            self._store.add(slot.snapshot(kind, salt))

    def _has_room_aside(self, slot: Slot) -> bool:
        size_bytes = self.room.sizes.sequence(slot.kv_len)
        if not self._store.has_room(size_bytes):
            return False
        if self.room.has_host_room(size_bytes):
            return True
        self._store.skipped["memory"] += 1
        return False

    def _bytes_of(self, ask: Ask) -> int:
        return self.room.sizes.sequence(len(ask.prompt) + ask.output)

    def _may_visit(self, size_bytes: int) -> bool:
        return sum(self._guests.values()) + size_bytes <= self._keeping.guest_bytes

    def _new_guest(self, size_bytes: int, *, is_side: bool = False) -> Slot:
        slot = self._new_slot(not is_side)
        self._guests[slot] = size_bytes
        return slot

    def close(self, slot: Slot, *, is_sound: bool = True) -> None:
        """The run is over. `is_sound`: whether the slot's state is what its ids say."""
        if slot in self._guests:
            del self._guests[slot]
            return
        if slot is self._side:
            self._is_side_running = False
        else:
            self._running.remove(slot)
            self._idle.append(slot)
        try:
            if is_sound:
                slot.end()
                return
        except (RuntimeError, MemoryError):  # no memory for the copy of where it ends
            log.warning(STATE_LOST, tokens=slot.kv_len)
        slot.forget()

    def set_aside(self, slot: Slot) -> FrozenSlot | None:
        """Takes the slot of a run that waits for its client, and keeps its state in host memory;
        None where that has no room for it."""
        if slot not in self._running or not self._has_room_aside(slot):
            return None
        frozen = slot.freeze().on_host()
        self._store.reserve(frozen.size_bytes)
        self._running.remove(slot)
        slot.forget()
        self._idle.insert(0, slot)
        return frozen

    def take_back(self, frozen: FrozenSlot, chooser: Chooser) -> Slot | None:
        """A slot that goes on where the one that was set aside stopped; None while memory for it
        is short."""
        if not self.room.gate.ask(self.room.sizes.sequence(frozen.kv_len)).fits:
            return None
        slot = self._blank()
        self.drop_aside(frozen)
        slot.thaw(frozen, chooser)
        return slot

    def drop_aside(self, frozen: FrozenSlot) -> None:
        """Forgets what was set aside."""
        self._store.reserve(-frozen.size_bytes)

    def saw_chunk(self, slot: Slot) -> None:
        """A chunk was read. Where a system prompt ends that two conversations begin with, it is
        worth a copy for a third. Not from the side lane: its slot has no drafters, whose part of
        a copy would be missing."""
        cut, salt = slot.kv_len, slot.salt
        if salt is None or slot is self._side or cut not in slot.parting:
            return
        ids = slot.held
        key, conversation = (salt, hash(ids)), hash(tuple(slot.ctx[cut : cut + TOLD_APART]))
        first = self._cuts.setdefault(key, conversation)
        self._cuts.move_to_end(key)
        if len(self._cuts) > CUTS_SEEN:
            self._cuts.popitem(last=False)
        owner = None if self._keeping.has_shared_prefixes else salt
        if first != conversation and not self._store.holds(owner, ids):
            self._add("prefix", slot, owner)

    # Files, while nobody waits and at the end.

    def file_away(self) -> bool:
        """Has a piece of what is worth it written to disk; whether there was any."""
        chunk_bytes = self.room.sizes.sequence(self.room.sizes.chunk)
        return (
            self.files.disk is not None
            and self.room.has_host_room(chunk_bytes)
            and self.files.disk.step((*self._idle, *self._store))
        )

    def stop(self) -> None:
        """Writes conversations to disk, where that is wanted. Nothing runs any more."""
        sessions = (entry for entry in self._store if entry.kind == "session")
        size_of, has_room = self.room.sizes.sequence, self.room.has_host_room
        self.files.stop(reversed(self._idle), sessions, size_of, has_room)

    # Reading ahead, while nobody waits.

    def open_ahead(self, prompt: tuple[int, ...], plan: Plan, salt: str) -> Slot | None:
        """The conversation's own slot, to read what its next prompt will begin with; None where
        that is held already, or the conversation has lost its slot."""
        if self._keeping.is_exact:  # what is read behind the last start could not be used
            prompt = prompt[: plan.last_start(len(prompt))]
        wanted = Wanted(prompt, plan, len(prompt), self._keeping.is_exact)
        slot, start = longest_start(wanted, salt, self._idle)
        if slot is None or start.position == len(prompt) or not is_next_turn(slot, prompt):
            return None
        length = len(prompt) + self.room.sizes.rows
        if not self.room.gate.has_room(
            self.room.new_bytes(slot, length) + self.room.sizes.work(length)
        ):
            return None
        slot.cache.reserve(length)
        self._run(slot)
        slot.begin(prompt, None, plan, salt, start)
        return slot

    # Memory, before it is taken.

    def shelves(self, *, is_host: bool) -> tuple[Shelf, ...]:
        """What can be given back, cheapest first. `is_host`: copies lie in the same memory."""
        copies = (
            Shelf("prefix", lambda: self._store.drop_oldest("prefix")),
            Shelf("session", lambda: self._store.drop_oldest("session")),
        )
        own = Shelf("anchors", self._shrink_anchors), Shelf("slots", self._release_oldest)
        return (*copies, *own) if is_host else own

    def room_for(self, ask: Ask, plan: Plan) -> Verdict:
        """Whether there is memory to read a prompt; makes room at the cost of what is kept.

        What the prompt itself would start from goes last, and only where nobody runs who could end.
        """
        room, length = self.room, self.room.length_of(ask)
        work_bytes = room.work_bytes(ask)
        alone = room.sizes.sequence(length) + work_bytes
        if alone > room.gate.most_bytes:
            return room.gate.ask(alone)
        slot, donor = None, None
        if ask.salt is not None and not ask.is_shared:
            wanted = Wanted(ask.prompt, plan, len(ask.prompt) - 1, self._keeping.is_exact)
            place = choose_place(
                wanted, ask.salt, self._idle, self._running,
                may_visit=self._may_visit(self._bytes_of(ask)),
            )  # fmt: skip
            slot, donor = place.slot, place.donor
        self._wanted = {one for one in (slot, donor) if one is not None}
        verdict = room.gate.ask(room.new_bytes(slot, length) + work_bytes)
        self._wanted = set()
        if verdict.kind == "wait" and not (self._running or self._guests):
            verdict = room.gate.ask(alone)
        return verdict

    def _shrink_anchors(self) -> int:
        for slot in self._idle:
            if slot not in self._wanted and (given := slot.anchors.shrink()):
                return given
        return 0

    def _release_oldest(self) -> int:
        for slot in self._idle:
            if slot not in self._wanted and (given := slot.release()):
                return given
        return 0

    # For operators.

    def facts(self) -> CacheFacts:
        """The numbers of now."""
        slots = [slot for slot in (*self._idle, *self._running, self._side) if slot.kv_len]
        kinds: tuple[Kind, ...] = ("prefix", "session")
        folders = self.files.folders
        return CacheFacts(
            entries={
                "slot": len(slots),
                "anchor": sum(len(slot.anchors) for slot in slots),
                **{kind: self._store.count_of(kind) for kind in kinds},
                **{tier: len(folder) for tier, folder in folders.items()},
            },
            size_bytes={
                "slot": sum(slot.cache.size_bytes for slot in slots),
                "anchor": sum(slot.anchors.size_bytes for slot in slots),
                **{kind: self._store.bytes_of(kind) for kind in kinds},
                **{tier: folder.size_bytes for tier, folder in folders.items()},
            },
            hits=dict(self._hits),
            evictions={
                **self._store.evictions,
                **{tier: folder.evicted for tier, folder in folders.items()},
            },
            skipped={**self._store.skipped, **self.files.skipped()},
            misses=self._misses,
            collisions=self._store.collisions,
        )

    def clear(self, kinds: frozenset[str]) -> int:
        """Drops what is kept of these kinds, but nothing that a run uses; the bytes that it was."""
        freed = 0
        quiet = (*self._idle, *(() if self._is_side_running else (self._side,)))
        for slot in quiet:
            if "slot" in kinds:
                freed += slot.release()
            elif "anchor" in kinds:
                before = slot.anchors.size_bytes
                slot.anchors.clear()
                freed += before
        store_kinds: tuple[Kind, ...] = ("prefix", "session")
        freed += self.files.clear(kinds)
        return freed + sum(self._store.clear(kind) for kind in store_kinds if kind in kinds)
