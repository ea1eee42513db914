"""What the visible answer repeats, and how it ends: what tasks D3 and E2 look at.

Knows no verdict. Answers are not cut for repetition, since tables and data repeat rightly: only
a close marker again and again, or one long paragraph again and again, is a hint of a loop.
"""

import re
from collections import Counter, deque

from conductor.monitor.passages import Paragraphs
from conductor.monitor.pieces import JOINED, Piece, Pieces
from conductor.monitor.tasks import Params

MOST_PARAGRAPHS = 256  # long ones that are remembered

# What a model says it will do next; only in the last sentence, with nothing behind it.
_PROMISE = re.compile(
    r"(?:^|[.!?:\n]\s*|\b(?:so|now|first|next|then|okay|ok|alright),? )"
    r"(?:let me|let's|let us|i'll|i will|i am going to|i'm going to|i need to)\b[^.!?\n]{0,200}"
    r"[.:…!]*\s*$",
    re.IGNORECASE,
)


class AnswerText:
    """The visible answer of one run, read as it comes."""

    def __init__(self, repeats: Params, tail_chars: int) -> None:
        self._repeats = repeats
        self._pieces, self._paragraphs = Pieces(), Paragraphs()
        self._seen: Counter[int] = Counter()
        self._marker = [piece.text for piece in Pieces().push(repeats.text("close_marker") + " ")]
        self._last: deque[Piece] = deque(maxlen=len(self._marker) + 1)
        self._markers = 0
        self._most = 0  # how often the most frequent long paragraph came
        self._tail, self._tail_chars = "", tail_chars

    def read(self, text: str) -> None:
        """Takes text of the answer."""
        if self._tail_chars:
            self._tail = (self._tail + text)[-self._tail_chars :]
        for piece in self._pieces.push(text):
            self._last.append(piece)
            self._markers += self._is_marker()
            paragraph = self._paragraphs.push(piece)
            if paragraph is None or paragraph.pieces < self._repeats.count("paragraph_pieces"):
                continue
            if paragraph.prose >= self._repeats.share("prose_share") * paragraph.pieces:
                self._note(paragraph.hash)

    def repeated(self) -> str | None:
        """At a decision: what comes again and again, in a word (D3)."""
        if self._markers >= self._repeats.count("close_markers"):
            return "close_marker"
        return "paragraph" if self._most >= self._repeats.count("times") else None

    def ends_on_a_promise(self) -> bool:
        """Whether the last sentence says what will be done now (E2)."""
        return _PROMISE.search(self._tail) is not None

    def _note(self, paragraph: int) -> None:
        if len(self._seen) < MOST_PARAGRAPHS or paragraph in self._seen:
            self._seen[paragraph] += 1
            self._most = max(self._most, self._seen[paragraph])

    def _is_marker(self) -> bool:
        """Whether a close marker ends here, outside code, fenced or between backticks."""
        *before, last = self._last
        if last.is_fenced or last.text != self._marker[-1]:
            return False
        inside = [*before, last][-len(self._marker) :]
        if [piece.text for piece in inside] != self._marker:
            return False
        if any(piece.before != JOINED for piece in inside[1:]):
            return False
        return len(self._last) == len(self._marker) or self._last[0].text != "`"
