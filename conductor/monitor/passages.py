"""Sentences and paragraphs among pieces, so that equal ones are found. Knows no task.

Of a passage nothing is kept but its hash and sizes.
"""

from dataclasses import dataclass

from conductor.monitor.pieces import JOINED, LINE, PARAGRAPH, Piece
from conductor.monitor.trail import joined

_STOPS = frozenset(".!?…")
_UNSPACED_STOPS = frozenset("。！？")  # nothing needs to follow them


@dataclass(frozen=True, slots=True)
class Passage:
    """A sentence or paragraph, lower case, its blanks folded. `prose`: pieces that are words."""

    hash: int
    chars: int
    pieces: int
    prose: int


class _Growing:
    """A passage while it is read."""

    def __init__(self) -> None:
        self._hash = self._chars = self._pieces = self._prose = 0

    def add(self, piece: Piece) -> None:
        self._hash = joined(self._hash, piece.id)
        self._chars += len(piece.text) + (piece.before != JOINED and self._pieces > 0)
        self._pieces += 1
        self._prose += piece.is_prose

    def take(self) -> Passage | None:
        """What was read, None for nothing; begins anew."""
        done = Passage(self._hash, self._chars, self._pieces, self._prose)
        self._hash = self._chars = self._pieces = self._prose = 0
        return done if done.pieces else None


class Sentences:
    """Ends a sentence at a line's end, or at a stop that something else follows."""

    def __init__(self) -> None:
        self._growing = _Growing()
        self._last = ""

    def push(self, piece: Piece) -> Passage | None:
        """The sentence that ended before this piece, if one did."""
        is_stopped = self._last in _STOPS and piece.before != JOINED
        ends = piece.before >= LINE or is_stopped or self._last in _UNSPACED_STOPS
        done = self._growing.take() if ends else None
        self._growing.add(piece)
        self._last = piece.text
        return done


class Paragraphs:
    """Ends a paragraph at a blank line, or where fenced code begins. Code is no paragraph."""

    def __init__(self) -> None:
        self._growing = _Growing()

    def push(self, piece: Piece) -> Passage | None:
        """The paragraph that ended before this piece, if one did."""
        ends = piece.is_fenced or piece.before == PARAGRAPH
        done = self._growing.take() if ends else None
        if not piece.is_fenced:
            self._growing.add(piece)
        return done
