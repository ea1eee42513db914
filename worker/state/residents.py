"""Which slot a prompt gets, so that little is read twice and nothing dear is lost.

Pure choice: knows what slots hold, changes none of them.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from worker.state.slot import Slot
from worker.state.start import NOTHING, Start, Wanted, common_prefix

LEAST_SAVED = 64  # tokens; a start that spares fewer decides nothing, and is not worth a copy
GUEST_TOKENS = 16_384  # longest prompt that is served as a guest
GUEST_SHARE = 0.25  # of the prompt it would displace, above which it is no guest


@dataclass(frozen=True, slots=True)
class Place:
    """Where a prompt is read. `slot` None: in a slot of its own, as a guest. `donor`: what it
    starts from, if from anything; `start`: where in that. `is_own`: whether the slot holds the
    same conversation, so that no other loses it."""

    slot: Slot | None
    donor: Slot | None = None
    start: Start = NOTHING
    is_own: bool = False


def choose_place(
    wanted: Wanted, salt: str, idle: Sequence[Slot], running: Sequence[Slot], *, may_visit: bool
) -> Place:
    """A place for a prompt. `idle`: slots nobody holds, the one not used for longest first.

    The conversation's own slot; else an empty one; else a guest's, where what would be lost is
    worth more; else that of the conversation which has been quiet for longest.
    `may_visit`: whether there is room for a guest.
    """
    donor, start = longest_start(wanted, salt, (*idle, *running))
    if donor is not None and donor in idle and is_next_turn(donor, wanted.prompt):
        return Place(donor, donor, start, is_own=True)
    victim = next((slot for slot in idle if slot.kv_len < LEAST_SAVED), idle[0])
    is_guest = (
        may_visit
        and victim.kv_len >= LEAST_SAVED
        and len(wanted.prompt) <= GUEST_TOKENS
        and len(wanted.prompt) < GUEST_SHARE * victim.prompt_length
    )
    return Place(None if is_guest else victim, donor, start)


def longest_start(wanted: Wanted, salt: str, slots: Sequence[Slot]) -> tuple[Slot | None, Start]:
    """The slot of that salt in which a prompt may start furthest on."""
    donor, best = None, NOTHING
    for slot in slots:
        if slot.salt == salt:
            start = slot.start_for(wanted)
            if start.position >= max(LEAST_SAVED, best.position + 1):
                donor, best = slot, start
    return donor, best


def is_next_turn(slot: Slot, prompt: Sequence[int]) -> bool:
    """Whether a prompt goes on with what the slot holds, rather than sharing its beginning."""
    return 2 * common_prefix(slot.ctx, prompt) >= slot.kv_len
