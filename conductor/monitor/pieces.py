"""Text as pieces: words, signs, and what stands between them. Knows no task.

What comes out depends on the characters alone, never on how they were cut into blocks.
"""

import re
from typing import NamedTuple
from zlib import crc32

WORD_CHARS = 16  # longer runs are several pieces: memory stays bounded, "aaaa…" becomes a cycle

# Scripts written without spaces: Thai to Lao, Myanmar, Khmer, kana, ideographs.
_UNSPACED = (
    r"\u0e00-\u0eff\u1000-\u109f\u1780-\u17ff\u3040-\u30ff\u3400-\u4dbf\u4e00-\u9fff"
    r"\uf900-\ufaff\U00020000-\U0003ffff"
)
_PIECE = re.compile(
    rf"(?P<blank>[^\S\n]+)|(?P<newline>\n)|(?P<sign>[{_UNSPACED}]|[^\w\s])"
    rf"|(?P<word>[^\W{_UNSPACED}]{{1,{WORD_CHARS}}})"
)
_APOSTROPHES = frozenset("'’")
_SHORT_WORDS = frozenset({"a", "i"})
_FENCES = frozenset("`~")
_FENCE_SIGNS = 3

# What stands before a piece. A gap (a tab, or two blanks) is a column's edge.
JOINED, SPACE, GAP, LINE, PARAGRAPH = range(5)


class Piece(NamedTuple):
    """A run of word characters, one character of a script without spaces, or one other sign.

    `id`: of its text, lower case. `before`: JOINED to PARAGRAPH. `is_prose`: a word as sentences
    have them, outside code and columns. `is_fenced`: inside a fenced code block.
    """

    text: str
    id: int
    before: int
    is_prose: bool
    is_fenced: bool


class Pieces:
    """Cuts text into pieces as it comes. The last word is held until something follows it."""

    def __init__(self) -> None:
        self._held = ""
        self._newlines = self._blanks = 0
        self._is_begun = False
        self._last = ""  # the piece before, "" for none
        self._was_word = False
        self._fence = ""  # the sign of the open fence
        self._run = 0  # fence signs since the line began

    def push(self, text: str) -> list[Piece]:
        """The pieces that became complete."""
        text = self._held + text
        self._held = ""
        found: list[Piece] = []
        for match in _PIECE.finditer(text):
            part, kind = match.group(), match.lastgroup
            if kind == "newline":
                self._newlines += 1
            elif kind == "blank":
                self._blanks += 2 if "\t" in part else len(part)
            elif kind == "word" and match.end() == len(text) and len(part) < WORD_CHARS:
                self._held = part
            else:
                found.append(self._piece(part.lower(), is_word=kind == "word"))
        return found

    def _piece(self, text: str, *, is_word: bool) -> Piece:
        before = self._take_before()
        if text in _FENCES or self._run:
            self._note_fence(text, before)
        is_fenced = bool(self._fence)
        is_prose = not is_fenced and before != GAP and self._is_prose(text, before, is_word)
        self._last, self._was_word = text, is_word
        return Piece(text, crc32(text.encode(errors="replace")), before, is_prose, is_fenced)

    def _take_before(self) -> int:
        if self._newlines or not self._is_begun:
            before = PARAGRAPH if self._newlines > 1 or not self._is_begun else LINE
        else:
            before = min(self._blanks, GAP)
        self._newlines = self._blanks = 0
        self._is_begun = True
        return before

    def _note_fence(self, text: str, before: int) -> None:
        """Three equal signs where a line begins open a block, and three of its own close it."""
        if text not in _FENCES or (before < LINE and text != self._last):
            self._run = 0
        elif before >= LINE:
            self._run = 1
        elif before == JOINED and self._run:
            self._run += 1
        if self._run == _FENCE_SIGNS and self._fence in ("", text):
            self._fence = "" if self._fence else text

    def _is_prose(self, text: str, before: int, is_word: bool) -> bool:
        if is_word:
            is_tail = before == JOINED and self._last in _APOSTROPHES
            return text.isalpha() and (len(text) > 1 or text in _SHORT_WORDS or is_tail)
        if text in _APOSTROPHES:
            return before == JOINED and self._was_word
        return text.isalpha()
