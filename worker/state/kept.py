"""All kept states of the worker: who holds which slot, and what outlives its slot.

Knows no model: it moves states, the engine makes them. A kept state changes speed only.
"""

from collections import Counter, OrderedDict
from collections.abc import Callable

from worker.limits import CUTS_SEEN
from worker.prefill import Plan
from worker.sampling.chooser import Chooser
from worker.state.ask import Ask
from worker.state.facts import KIND_OF, CacheFacts
from worker.state.keeping import Keeping
from worker.state.kept_files import KeptFiles
from worker.state.residents import LEAST_SAVED, choose_place, is_next_turn, longest_start
from worker.state.slot import FrozenSlot, Slot
from worker.state.snapshots import Kind, SnapshotStore
from worker.state.start import NOTHING, Source, Start, Wanted

TOLD_APART = 64  # tokens behind a system prompt by which conversations are told apart


class Kept:
    """Slots and snapshots. One thread uses it, the engine's.

    `new_slot`: an empty slot. `size_of`: bytes that a sequence of so many tokens takes in a slot.
    """

    def __init__(
        self,
        new_slot: Callable[[], Slot],
        side: Slot,
        *,
        slots: int,
        keeping: Keeping,
        size_of: Callable[[int], int],
        files: KeptFiles | None = None,
    ) -> None:
        self._new_slot = new_slot
        self._side = side
        self._idle = [new_slot() for _ in range(slots)]  # the one not used for longest first
        self._running: list[Slot] = []
        self._guests: dict[Slot, int] = {}  # and the bytes that each may take
        self._keeping = keeping
        self._size_of = size_of
        self.files = files or KeptFiles()
        self._store = SnapshotStore(keeping.store_bytes, keeping.entry_bytes)
        self._cuts: OrderedDict[tuple[str, int], int] = OrderedDict()  # seen once, and by whom
        self._is_side_running = False
        self._hits: Counter[str] = Counter()  # by kind
        self._misses = 0

    @property
    def free_slots(self) -> int:
        """Slots that no run holds."""
        return len(self._idle)

    def open(self, ask: Ask, plan: Plan) -> Slot:
        """A slot that holds as much of the prompt as can be had, the rest to be read."""
        wanted = Wanted(ask.prompt, plan, len(ask.prompt) - 1, self._keeping.is_exact)
        if ask.is_side:
            slot, self._is_side_running = self._side, True
            start = slot.start_for(wanted) if slot.salt == ask.salt is not None else NOTHING
        elif ask.salt is None or ask.is_shared:
            slot, start = self._take_blank(ask), NOTHING
        else:
            slot, start = self._take(ask, wanted, ask.salt)
            self.files.saw_resume(ask.salt, wanted, start)
        if ask.salt is not None and not ask.is_shared:
            self._count(start)
        slot.begin(ask.prompt, ask.chooser, plan, ask.salt, start)
        return slot

    def _count(self, start: Start) -> None:
        if start.source is Source.NONE:
            self._misses += 1
        else:
            self._hits[KIND_OF[start.source]] += 1

    def _take_blank(self, ask: Ask) -> Slot:
        """A slot that starts from nothing: one of its own where nothing shall be kept."""
        if ask.salt is None:
            return self._new_guest(self._bytes_of(ask))
        return self._blank()

    def _blank(self) -> Slot:
        victim = next((slot for slot in self._idle if slot.kv_len < LEAST_SAVED), self._idle[0])
        self._displace(victim)
        return victim

    def _take(self, ask: Ask, wanted: Wanted, salt: str) -> tuple[Slot, Start]:
        size_bytes = self._bytes_of(ask)
        place = choose_place(
            wanted, salt, self._idle, self._running, may_visit=self._may_visit(size_bytes)
        )
        stored = self._store.find(salt, wanted)
        known = max(place.start.position, stored[1].position if stored else 0)
        stored = self.files.find(salt, wanted, known) or stored
        slot, start = place.slot or self._new_guest(size_bytes), place.start
        if place.slot is not None and slot is not place.donor:
            self._displace(slot)
        elif place.slot is not None:
            self._run(slot)
        if stored is not None and stored[1].position > start.position:
            slot.adopt(stored[0], stored[1].position, salt)
            return slot, stored[1]
        if place.donor is not None and place.donor is not slot:
            slot.copy_start(place.donor, start)
        return slot, start

    def _displace(self, slot: Slot) -> None:
        """Makes a slot's memory free for another conversation; what it held is kept if it can."""
        self._rest(slot)
        self._run(slot)
        slot.forget()

    def _run(self, slot: Slot) -> None:
        self._idle.remove(slot)
        self._running.append(slot)

    def _rest(self, slot: Slot) -> None:
        if slot.salt is None or slot.kv_len < LEAST_SAVED:
            return
        if not self._store.holds(slot.salt, slot.held):
            self._add("session", slot, slot.salt)

    def _add(self, kind: Kind, slot: Slot, salt: str | None) -> None:
        """Bytes are counted, and room is made, before anything is copied."""
        if self._store.has_room(self._size_of(slot.kv_len)):
            self._store.add(slot.snapshot(kind, salt))

    def _bytes_of(self, ask: Ask) -> int:
        return self._size_of(len(ask.prompt) + ask.output)

    def _may_visit(self, size_bytes: int) -> bool:
        return sum(self._guests.values()) + size_bytes <= self._keeping.guest_bytes

    def _new_guest(self, size_bytes: int) -> Slot:
        slot = self._new_slot()
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
        if is_sound:
            slot.end()
        else:
            slot.forget()

    def set_aside(self, slot: Slot) -> FrozenSlot | None:
        """Takes the slot of a run that waits for its client, and keeps its state in host memory;
        None where that has no room for it."""
        if slot not in self._running or not self._store.has_room(self._size_of(slot.kv_len)):
            return None
        frozen = slot.freeze().on_host()
        self._store.reserve(frozen.size_bytes)
        self._running.remove(slot)
        slot.forget()
        self._idle.insert(0, slot)
        return frozen

    def take_back(self, frozen: FrozenSlot, chooser: Chooser) -> Slot:
        """A slot that goes on where the one that was set aside stopped."""
        slot = self._blank()
        self.drop_aside(frozen)
        slot.thaw(frozen, chooser)
        return slot

    def drop_aside(self, frozen: FrozenSlot) -> None:
        """Forgets what was set aside."""
        self._store.reserve(-frozen.size_bytes)

    def saw_chunk(self, slot: Slot) -> None:
        """A chunk was read. Where a system prompt ends that two conversations begin with, it is
        worth a copy for a third."""
        cut, salt = slot.kv_len, slot.salt
        if salt is None or cut not in slot.plan.cuts:
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
        return self.files.step(self._idle, self._store)

    def stop(self) -> None:
        """Writes conversations to disk, where that is wanted. Nothing runs any more."""
        sessions = (entry for entry in self._store if entry.kind == "session")
        self.files.stop(reversed(self._idle), sessions, self._size_of)

    # Reading ahead, while nobody waits.

    def open_ahead(self, prompt: tuple[int, ...], plan: Plan, salt: str) -> Slot | None:
        """The conversation's own slot, to read what its next prompt will begin with; None where
        that is held already, or the conversation has lost its slot."""
        wanted = Wanted(prompt, plan, len(prompt), self._keeping.is_exact)
        slot, start = longest_start(wanted, salt, self._idle)
        if slot is None or start.position == len(prompt) or not is_next_turn(slot, prompt):
            return None
        self._run(slot)
        slot.begin(prompt, None, plan, salt, start)
        return slot

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
