"""The last pieces of a text, and which of them said something new. Knows no task.

Memory is bounded: pieces far back are forgotten, and what they said with them.
"""

from collections import deque

from conductor.monitor.pieces import Piece

KEPT_PIECES = 4096  # holds the longest window and the longest cycle
KEPT_GRAMS = 8192  # of a generation; two are looked at
GRAM = 4  # pieces whose sequence counts as one thing said

# A rolling polynomial hash: one step a piece, equal for equal sequences.
_PRIME = (1 << 61) - 1
_BASE = 1_000_003


class Rolling:
    """The hash of the last `size` pieces. 0 until there are as many."""

    def __init__(self, size: int) -> None:
        self._size = size
        self._out = pow(_BASE, size, _PRIME)
        self._last: deque[int] = deque(maxlen=size)
        self.value = 0

    def push(self, piece: int) -> int:
        """Takes the id of a piece; returns the hash."""
        value = self.value * _BASE + piece
        if len(self._last) == self._size:
            value -= self._last[0] * self._out
        self._last.append(piece)
        self.value = value % _PRIME
        return self.value if len(self._last) == self._size else 0


def joined(value: int, piece: int) -> int:
    """The hash of a sequence, with one more piece behind it."""
    return (value * _BASE + piece + 1) % _PRIME


class Trail:
    """Ids of the last pieces, whether each completed a new 4-gram, and whether it is prose."""

    def __init__(self) -> None:
        self.count = 0  # of all pieces
        self._ids: list[int] = []
        self._is_new = bytearray()
        self._is_prose = bytearray()
        self._gram = Rolling(GRAM)
        self._grams: tuple[set[int], set[int]] = (set(), set())  # older, newer

    def push(self, piece: Piece) -> None:
        """Takes the next piece."""
        self.count += 1
        self._ids.append(piece.id)
        self._is_prose.append(piece.is_prose)
        self._is_new.append(self._note(self._gram.push(piece.id)))
        if len(self._ids) >= 2 * KEPT_PIECES:
            del self._ids[:-KEPT_PIECES], self._is_new[:-KEPT_PIECES]
            del self._is_prose[:-KEPT_PIECES]

    def _note(self, gram: int) -> bool:
        older, newer = self._grams
        is_new = gram not in newer and gram not in older
        newer.add(gram)
        if len(newer) >= KEPT_GRAMS:
            self._grams = (newer, set())
        return is_new

    def new_share(self, pieces: int) -> float:
        """How many of the last pieces completed a 4-gram never seen before them, 0 to 1."""
        return sum(self._is_new[-pieces:]) / pieces

    def prose_share(self, pieces: int) -> float:
        """How many of the last pieces are prose, 0 to 1."""
        return sum(self._is_prose[-pieces:]) / pieces

    def distinct(self, pieces: int) -> int:
        """How many different ones there are among the last pieces."""
        return len(set(self._ids[-pieces:]))

    def has_period(self, period: int, pieces: int) -> bool:
        """Whether each of the last pieces equals the one `period` before it."""
        ids = self._ids
        if len(ids) < pieces or pieces <= period:
            return False
        if ids[-1] != ids[-1 - period] or ids[-2] != ids[-2 - period]:
            return False
        return ids[period - pieces :] == ids[-pieces:-period]


class Recurrences:
    """Counts how often a thing came within a window of pieces. `apart`: pieces between two."""

    def __init__(self, *, times: int, window: int, apart: int) -> None:
        self._times, self._window, self._apart = times, window, apart
        self._places: dict[int, deque[int]] = {}
        self._order: deque[tuple[int, int]] = deque()

    def push(self, thing: int, place: int) -> int | None:
        """Notes it at this piece; returns where the oldest of the last `times` ended.

        None while it has not come so often. Places must not fall.
        """
        while self._order and self._order[0][0] <= place - self._window:
            _, old = self._order.popleft()
            places = self._places[old]
            places.popleft()
            if not places:
                del self._places[old]
        places = self._places.setdefault(thing, deque())
        if not places or place - places[-1] >= self._apart:
            places.append(place)
            self._order.append((place, thing))
        return places[-self._times] if len(places) >= self._times else None
