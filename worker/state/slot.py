"""Everything one sequence owns while it runs. Knows no client and no model."""

from dataclasses import dataclass
from itertools import chain

import torch
from torch import Tensor

from worker.sampling.chooser import Chooser
from worker.speculation.drafting import Drafting
from worker.state.cache import SequenceCache


class Slot:
    """A sequence: its token ids, its cache, and what chooses its next token. One owner, the loop.

    While decoding, `len(ctx) == kv_len + 1`: the last id (the root) is chosen, not forwarded.
    """

    def __init__(self, cache: SequenceCache, drafting: Drafting) -> None:
        self.cache = cache
        self.drafting = drafting
        self.ctx: list[int] = []
        self.prompt_length = self.kv_len = 0
        self.salt: str | None = None  # whose caches it may read and leave something in
        self.prompt_row: Tensor | None = None  # the model's last output for the prompt: (1, hidden)
        self._chooser: Chooser | None = None

    @property
    def chooser(self) -> Chooser:
        """What chooses the next token of the run that holds the slot."""
        assert self._chooser is not None, "no run holds this slot"
        return self._chooser

    def reset(self, prompt: tuple[int, ...], chooser: Chooser, salt: str | None = None) -> None:
        """Takes a new prompt, of which nothing is forwarded yet."""
        self.ctx = list(prompt)
        self.prompt_length, self.kv_len = len(prompt), 0
        self.salt = salt
        self.prompt_row = None
        self.cache.clear()
        self.drafting.start(salt)
        self._chooser = chooser

    def commit_forward(self, count: int) -> None:
        """Notes that the next `count` tokens of ctx are in the cache."""
        self.kv_len += count
        assert self.kv_len <= len(self.ctx), "more tokens forwarded than there are"

    def commit_choice(self, *tokens: int) -> None:
        """Appends chosen tokens; the last of them becomes the root."""
        self.ctx += tokens
        assert len(self.ctx) == self.kv_len + 1, "the root must be the only token not forwarded"

    def freeze(self) -> "FrozenSlot":
        """A copy of all of it, which nothing that the slot does later changes."""
        return FrozenSlot(
            tuple(self.ctx),
            self.prompt_length,
            self.kv_len,
            self.salt,
            self.cache.freeze(self.kv_len),
            self.drafting.freeze(),
            self.chooser.copy(),
        )

    def thaw(self, frozen: "FrozenSlot") -> None:
        """Becomes what was frozen, whatever the slot held before."""
        self.ctx = list(frozen.ctx)
        self.prompt_length, self.kv_len = frozen.prompt_length, frozen.kv_len
        self.salt = frozen.salt
        self.cache.thaw(frozen.tensors)
        self.drafting.start(self.salt)
        self.drafting.thaw(self.ctx, frozen.drafts)
        self._chooser = frozen.chooser.copy()


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
    tensors: tuple[Tensor, ...]
    drafts: tuple[tuple[Tensor, ...], ...]
    chooser: Chooser

    @property
    def size_bytes(self) -> int:
        """Bytes of its tensors."""
        return sum(part.numel() * part.element_size() for part in self._parts())

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, FrozenSlot):
            return NotImplemented
        return (
            self.ctx == other.ctx
            and (self.prompt_length, self.kv_len) == (other.prompt_length, other.kv_len)
            and self.salt == other.salt
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
