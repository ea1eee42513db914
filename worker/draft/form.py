"""Guesses what an answer's form leaves no choice about. Knows no weights and no other sequence."""

from collections.abc import Sequence

from torch import Tensor

from worker.sampling.chooser import Chooser
from worker.speculation.tree import DraftTree, Source


class FormDrafter:
    """The bytes that a grammar forces, as the tokens that they are usually written in.

    The model may write the same bytes in other tokens, so that these too are only a guess.
    """

    source = Source.FORM
    tapped: tuple[int, ...] = ()

    def start(self, salt: str | None, kept: int = 0) -> None:
        """See `Drafter.start`: all that is known is the run's own grammar."""

    def rewind(self, length: int) -> None:
        """See `Drafter.rewind`."""

    def sync(self, ctx: Sequence[int], taps: Tensor | None) -> None:
        """See `Drafter.sync`."""

    def propose(self, ctx: Sequence[int], room: int, chooser: Chooser) -> DraftTree | None:
        """See `Drafter.propose`."""
        if chooser.matcher is None or chooser.is_free:
            return None
        forced = chooser.matcher.forced()[:room]
        if not forced:
            return None
        count = len(forced)
        return DraftTree(
            (ctx[-1], *forced),
            tuple(range(-1, count)),
            (1.0,) * (count + 1),
            (Source(0), *[Source.FORM] * count),
        )

    def freeze(self) -> tuple[Tensor, ...]:
        """See `Drafter.freeze`."""
        return ()

    def thaw(self, ctx: Sequence[int], tensors: tuple[Tensor, ...]) -> None:
        """See `Drafter.thaw`."""
