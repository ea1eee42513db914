"""Everything one sequence owns while it runs. Knows no client and no model."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import chain

import torch
from torch import Tensor

from worker.prefill import Plan, agreed_length
from worker.sampling.chooser import Chooser
from worker.speculation.drafting import Drafting
from worker.state.anchors import Anchor, Anchors
from worker.state.cache import SequenceCache
from worker.state.lineage import Exactness, Lineage
from worker.state.snapshots import Kind, Snapshot
from worker.state.start import NOTHING, Source, Start, Wanted


class Slot:
    """A sequence: its token ids, its cache, and what chooses its next token. One owner, the loop.

    While decoding, `len(ctx) == kv_len + 1`: the last id (the root) is chosen, not forwarded. When
    its run is over a slot stays as it is, so that the next turn need not be read from the start.
    """

    def __init__(self, cache: SequenceCache, drafting: Drafting, anchors: Anchors) -> None:
        self.cache = cache
        self.drafting = drafting
        self.anchors = anchors
        self.ctx: list[int] = []
        self.prompt_length = self.kv_len = 0
        self.salt: str | None = None  # whose caches it may read and leave something in
        self.plan = Plan("", 1)  # how its prompt is cut
        self.parting: tuple[int, ...] = ()  # where prompts that begin alike may go on differently
        self.lineage = Lineage()
        self.start = NOTHING  # what its prompt was resumed from
        self.prompt_row: Tensor | None = None  # the model's last output for the prompt: (1, hidden)
        self._chooser: Chooser | None = None

    @property
    def chooser(self) -> Chooser:
        """What chooses the next token of the run that holds the slot."""
        assert self._chooser is not None, "no run holds this slot"
        return self._chooser

    @property
    def has_run(self) -> bool:
        """Whether it is read for a run, and not ahead of one."""
        return self._chooser is not None

    @property
    def held(self) -> tuple[int, ...]:
        """The ids that are in the cache."""
        return tuple(self.ctx[: self.kv_len])

    def start_for(self, wanted: Wanted) -> Start:
        """Where a prompt may start from what the slot holds: every id is compared."""
        same = min(wanted.same(self.ctx), self.kv_len)
        if self.cache.delta is None:
            return wanted.start_in_rows(Source.RESIDENT, self.lineage, self.plan, same)
        starts = (self._start_at(anchor, wanted, same) for anchor in self.anchors)
        return max(starts, key=lambda start: start.position, default=NOTHING)

    def _start_at(self, anchor: Anchor, wanted: Wanted, same: int) -> Start:
        # What was on the grid when it was taken is not, for a plan that cuts before it elsewhere.
        exactness = max(anchor.exactness, self.lineage.at(anchor.position, self.plan))
        source = Source.SESSION if exactness is Exactness.SESSION else Source.ANCHOR
        return wanted.start_at(anchor.position, source, exactness, self.plan, same)

    def begin(
        self, prompt: tuple[int, ...], chooser: Chooser | None, plan: Plan, salt: str | None,
        start: Start = NOTHING,
    ) -> None:  # fmt: skip
        """Takes a new prompt, of which the slot holds the first `start.position` tokens."""
        kept, is_next = start.position, self.salt == salt and start.position > 0
        assert self.ctx[:kept] == list(prompt[:kept]), "a start whose tokens are others"
        self._return_to(start)
        agreed = agreed_length(self.plan, plan)
        self.lineage = self.lineage.cut(kept, plan, agreed)
        self.ctx = list(prompt)
        self.prompt_length, self.kv_len = len(prompt), kept
        self.plan, self.salt, self.start = plan, salt, start
        self.prompt_row = None
        self.drafting.start(salt, kept if is_next else 0)
        self._chooser = chooser

    def _return_to(self, start: Start) -> None:
        self.anchors.cut(start.position)
        if start.position == 0:
            self.cache.clear()
        elif self.cache.delta is not None:
            anchor = self.anchors.at(start.position)
            self.cache.delta.set(anchor.recurrent, anchor.conv)

    def copy_start(self, donor: "Slot", start: Start) -> None:
        """Holds from now on what another slot holds up to a start of it."""
        kept = start.position
        self.forget()
        self.cache.kv.copy_from(donor.cache.kv, kept)
        if self.cache.delta is not None:
            anchor = donor.anchors.at(kept)
            self.cache.delta.set(anchor.recurrent, anchor.conv)
            self.anchors.keep_end(kept, anchor.exactness, self.cache.delta)
        self._hold(donor.ctx[:kept], donor.plan, donor.lineage.cut(kept, donor.plan, None))
        self.salt = donor.salt
        self.drafting.start(self.salt)
        self.drafting.thaw(self.ctx, donor.drafting.freeze(), kept)

    def adopt(self, snapshot: Snapshot, kept: int, salt: str | None) -> None:
        """Holds from now on the first `kept` tokens of a snapshot."""
        self.forget()
        self.cache.thaw(snapshot.tensors, kept)
        if self.cache.delta is not None:
            self.anchors.keep_end(kept, snapshot.exactness, self.cache.delta)
        lineage = snapshot.lineage.cut(kept, snapshot.plan, None)
        self._hold(snapshot.ids[:kept], snapshot.plan, lineage)
        self.salt = salt
        self.drafting.start(salt)
        self.drafting.thaw(self.ctx, snapshot.drafts, kept)

    def snapshot(self, kind: Kind, salt: str | None) -> Snapshot:
        """A copy of all that is in the cache, in host memory."""
        assert self.kv_len <= len(self.ctx), "a snapshot of more tokens than there are"
        tensors = tuple(part.cpu() for part in self.cache.freeze(self.kv_len))
        drafts = tuple(tuple(part.cpu() for part in one) for one in self.drafting.freeze())
        return Snapshot(kind, salt, self.held, self.plan, self.lineage, tensors, drafts)

    def rows(self, start: int, end: int) -> tuple[Tensor, Tensor]:
        """Copies of some of its keys and values, in host memory."""
        keys, values = self.cache.kv.freeze(end, start)
        return keys.cpu(), values.cpu()

    def state_at(self, position: int) -> tuple[Tensor, Tensor]:
        """Copies of the delta layers' state at a start it has, in host memory."""
        anchor = self.anchors.at(position)
        return anchor.recurrent.to("cpu", copy=True), anchor.conv.to("cpu", copy=True)

    def end(self) -> None:
        """The run is over; its state stays, and no run holds it."""
        self._chooser = None
        self.prompt_row = None
        if self.cache.delta is not None and self.kv_len > 0:
            exactness = self.lineage.at(self.kv_len, self.plan)
            self.anchors.keep_end(self.kv_len, exactness, self.cache.delta)

    def forget(self) -> None:
        """Holds nothing; the memory stays."""
        self.cache.clear()
        self.anchors.cut(0)
        self._hold((), self.plan, Lineage())
        self.salt, self.start = None, NOTHING
        self._chooser = self.prompt_row = None

    def release(self) -> int:
        """Holds nothing and gives the memory back; the bytes freed."""
        before = self.size_bytes
        self.forget()
        self.anchors.clear()
        self.cache.kv.release()
        return before - self.size_bytes

    @property
    def size_bytes(self) -> int:
        """Bytes that it takes on the device, its anchors included."""
        return self.cache.size_bytes + self.anchors.size_bytes

    def _hold(self, ids: Sequence[int], plan: Plan, lineage: Lineage) -> None:
        self.ctx = list(ids)
        self.prompt_length = self.kv_len = len(ids)
        self.plan, self.lineage = plan, lineage

    def commit_chunk(self, end: int) -> None:
        """Notes that the prompt is in the cache up to `end`: a chunk of it was forwarded."""
        assert self.kv_len < end <= len(self.ctx), "a chunk must be of tokens that there are"
        self.lineage = self.lineage.with_chunk(self.kv_len, end, self.plan)
        self.kv_len = end
        if self.plan.is_start(end) or end == self.prompt_length:
            self._keep_anchor()

    def commit_round(self, count: int, tokens: Sequence[int]) -> None:
        """Notes that `count` more tokens are in the cache, and what was chosen behind them.

        A long answer has anchors too: a client may send it back with another ending.
        """
        self.kv_len += count
        self.commit_choice(*tokens)
        if self.kv_len - self.anchors.last >= self.plan.chunk:
            self._keep_anchor()

    def _keep_anchor(self) -> None:
        if self.cache.delta is not None:
            self.anchors.keep(
                self.kv_len, self.lineage.at(self.kv_len, self.plan), self.cache.delta
            )

    def commit_forward(self, count: int) -> None:
        """Notes that the next `count` tokens of ctx are in the cache."""
        self.kv_len += count
        assert self.kv_len <= len(self.ctx), "more tokens forwarded than there are"

    def commit_shared(self, plan: Plan, lineage: Lineage) -> None:
        """Notes that the prompt is in the cache: another slot has read it, by a plan of its own."""
        self.kv_len = len(self.ctx)
        self.lineage = lineage.cut(self.kv_len, self.plan, agreed_length(plan, self.plan))

    def commit_choice(self, *tokens: int) -> None:
        """Appends chosen tokens; the last of them becomes the root."""
        self.ctx += tokens
        assert len(self.ctx) == self.kv_len + 1, "the root must be the only token not forwarded"

    def drop_root(self) -> None:
        """The last token was not written after all; something else must be put in its place."""
        self.ctx.pop()
        self.drafting.rewind(self.kv_len)

    def rewind(self, length: int) -> None:
        """Holds the first `length` tokens; in the cache are those that it can go back to.

        The state of delta layers goes back to the last anchor, so that some are forwarded again.
        """
        del self.ctx[length:]
        target = length - 1
        if self.cache.delta is not None:
            target = max((a.position for a in self.anchors if a.position <= target), default=0)
            if target:
                anchor = self.anchors.at(target)
                self.cache.delta.set(anchor.recurrent, anchor.conv)
            else:
                self.cache.clear()
        self.anchors.cut(target)
        self.kv_len = target
        self.lineage = self.lineage.cut(target, self.plan, None)
        self.drafting.rewind(target)

    def freeze(self) -> "FrozenSlot":
        """A copy of all of it, which nothing that the slot does later changes."""
        return FrozenSlot(
            tuple(self.ctx),
            self.prompt_length,
            self.kv_len,
            self.salt,
            self.plan,
            self.lineage,
            self.cache.freeze(self.kv_len),
            self.drafting.freeze(),
            self.chooser.copy(),
        )

    def thaw(self, frozen: "FrozenSlot", chooser: Chooser | None = None) -> None:
        """Becomes what was frozen, whatever the slot held before.

        `chooser`: the run's own, where nothing was chosen since.
        """
        self.ctx = list(frozen.ctx)
        self.prompt_length, self.kv_len = frozen.prompt_length, frozen.kv_len
        self.salt, self.plan, self.lineage = frozen.salt, frozen.plan, frozen.lineage
        self.anchors.cut(0)
        self.cache.thaw(frozen.tensors)
        self.drafting.start(self.salt)
        self.drafting.thaw(self.ctx, frozen.drafts)
        self._chooser = chooser or frozen.chooser.copy()


@dataclass(frozen=True, slots=True)
class FrozenSlot:
    """A slot at one moment. `tensors`: keys, values, and the delta layers' two where there are any.
    `drafts`: what each drafter cannot make again.

    Two of them are equal exactly when every byte is.
    """

    ctx: tuple[int, ...]
    prompt_length: int
    kv_len: int
    salt: str | None
    plan: Plan
    lineage: Lineage
    tensors: tuple[Tensor, ...]
    drafts: tuple[tuple[Tensor, ...], ...]
    chooser: Chooser

    @property
    def size_bytes(self) -> int:
        """Bytes of its tensors."""
        return sum(part.numel() * part.element_size() for part in self._parts())

    def on_host(self) -> "FrozenSlot":
        """The same in host memory."""
        drafts = tuple(tuple(part.cpu() for part in one) for one in self.drafts)
        return replace(self, tensors=tuple(part.cpu() for part in self.tensors), drafts=drafts)

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, FrozenSlot):
            return NotImplemented
        return (
            self.ctx == other.ctx
            and (self.prompt_length, self.kv_len) == (other.prompt_length, other.kv_len)
            and (self.salt, self.plan, self.lineage) == (other.salt, other.plan, other.lineage)
            and self.chooser.state() == other.chooser.state()
            and len(self._parts()) == len(other._parts())
            and all(map(_has_same_bytes, self._parts(), other._parts()))
        )

    def _parts(self) -> tuple[Tensor, ...]:
        return (*self.tensors, *chain.from_iterable(self.drafts))

    __hash__ = None  # type: ignore[assignment]


def _has_same_bytes(one: Tensor, other: Tensor) -> bool:
    if one.shape != other.shape or one.dtype != other.dtype:
        return False
    # Not by value: 0.0 equals -0.0, and no NaN equals itself.
    return torch.equal(one.contiguous().view(torch.uint8), other.contiguous().view(torch.uint8))
