"""Deals from a pack until it is empty, then shuffles a new one: no kind is left to luck.

Knows nothing of what it deals.
"""

from collections.abc import Sequence
from random import Random


class Deck:
    """Deals every card of the pack before any card again."""

    def __init__(self, rng: Random, cards: Sequence[str]) -> None:
        self._rng = rng
        self._pack = tuple(cards)
        self._left: list[str] = []

    def draw(self) -> str:
        """The next card."""
        if not self._left:
            self._left = list(self._pack)
            self._rng.shuffle(self._left)
        return self._left.pop()

    def draw_of(self, allowed: Sequence[str]) -> str:
        """The next card that is allowed; others stay in the pack."""
        for _ in range(2 * len(self._pack) + 1):
            card = self.draw()
            if card in allowed:
                return card
            self._left.insert(0, card)
            if not set(self._left) & set(allowed):
                self._left = []
        raise AssertionError(f"none of {allowed} is in {self._pack}")
