"""What every drafter is. Knows no model, no price and no way of guessing."""

from collections.abc import Sequence
from typing import Protocol

from torch import Tensor

from worker.sampling.chooser import Chooser
from worker.speculation.tree import DraftTree, Source


class Drafter(Protocol):
    """Guesses how one sequence goes on; each slot has its own.

    What drafters of several slots share (weights, learned rates, a store) they are given when they
    are made. A guess may be wrong in any way: it never changes a token, only how long it takes.
    """

    @property
    def source(self) -> Source:
        """What its guesses are counted as."""
        ...

    @property
    def tapped(self) -> Sequence[int]:
        """Layers of the target whose residual stream `sync` gets; none for most."""
        ...

    def start(self, salt: str | None, kept: int = 0) -> None:
        """For a new sequence. `salt`: whose it is, None for nobody's; what was learned of the
        sequences of one salt must never show in those of another. `kept`: so many of its tokens are
        those of the sequence before it, which was of the same salt."""
        ...

    def rewind(self, length: int) -> None:
        """Forgets all but the first `length` tokens of the sequence."""
        ...

    def sync(self, ctx: Sequence[int], taps: Tensor | None) -> None:
        """Learns of all tokens that are there now, after every commit and every chunk of prompt.

        ctx: all ids, of which the last may not be forwarded yet. taps: (rows, taps x hidden)
        float32 of the tokens forwarded since the last call, in order; None where nobody wants them.
        """
        ...

    def propose(self, ctx: Sequence[int], room: int, chooser: Chooser) -> DraftTree | None:
        """A tree on the last token of ctx, at most `room` tokens deep; None for no guess.

        `chooser` is read, never changed: a drafter may guess under the noise of the coming draws.
        """
        ...

    def freeze(self) -> tuple[Tensor, ...]:
        """Copies of what it cannot make again from the ids of the sequence alone; empty where there
        is nothing of the kind, or it lacks some of it."""
        ...

    def thaw(self, ctx: Sequence[int], tensors: tuple[Tensor, ...]) -> None:
        """Becomes what was frozen, for these ids. Where nothing was, though it needs more than the
        ids, it has no guess until the next sequence that it sees from the first token."""
        ...
