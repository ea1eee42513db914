"""Where the end of a sequence has stood before in it. Knows no other sequence and no tree."""

from array import array
from collections.abc import Sequence

SHORT, LONG = 3, 8  # ids of the grams that are looked up; the long one spares looking through many
MOST_PLACES = 24  # earlier places looked at, newest first
MOST_COMPARED = 32  # ids compared backwards from a place


class Ngrams:
    """An index over ids that grows by appending and can be cut back."""

    def __init__(self) -> None:
        self.ids: list[int] = []
        self._chains = tuple(_Chain(order) for order in (LONG, SHORT))

    def rewind(self, length: int) -> None:
        """Forgets all ids but the first `length`."""
        for chain in self._chains:
            chain.rewind(self.ids, length)
        del self.ids[length:]

    def extend(self, ids: Sequence[int]) -> None:
        """Appends ids."""
        for token in ids:
            self.ids.append(token)
            for chain in self._chains:
                chain.add(self.ids)

    def places(self) -> list[tuple[int, int]]:
        """Positions that follow what the sequence ends with, newest first, and how many ids are
        the same before each of them."""
        end = len(self.ids)
        for chain in self._chains:
            if found := chain.before(end):
                return [(place, self._same_before(place)) for place in found]
        return []

    def _same_before(self, place: int) -> int:
        ids, end, count = self.ids, len(self.ids), 0
        while count < min(place, MOST_COMPARED) and ids[place - 1 - count] == ids[end - 1 - count]:
            count += 1
        return count


class _Chain:
    """The positions behind equal grams of one order, each with the one before it."""

    def __init__(self, order: int) -> None:
        self._order = order
        self._newest: dict[tuple[int, ...], int] = {}
        self._older = array("i", [-1])  # by position; position 0 follows nothing

    def add(self, ids: list[int]) -> None:
        """Takes up the position behind the last id."""
        end = len(ids)
        if end < self._order:
            self._older.append(-1)
            return
        gram = tuple(ids[end - self._order :])
        self._older.append(self._newest.get(gram, -1))
        self._newest[gram] = end

    def rewind(self, ids: list[int], length: int) -> None:
        """Forgets the positions behind `length`."""
        if length == 0:
            self._newest.clear()
        else:
            for end in range(len(ids), max(length, self._order - 1), -1):
                gram = tuple(ids[end - self._order : end])
                if self._older[end] < 0:
                    del self._newest[gram]
                else:
                    self._newest[gram] = self._older[end]
        del self._older[length + 1 :]

    def before(self, end: int) -> list[int]:
        """Earlier positions behind the gram that ends at `end`, newest first."""
        found: list[int] = []
        place = self._older[end]
        while place >= 0 and len(found) < MOST_PLACES:
            found.append(place)
            place = self._older[place]
        return found
