"""Reasoning that a server leaves in the answer's text, told from the answer. Knows no event.

Only a block at the very start counts, only the first, and its tags may be cut anywhere; a text
without them comes out as it went in. Source: `streaming.md` 14.1.
"""

from typing import Literal

Kind = Literal["reasoning", "text"]

OPEN, CLOSE = "<think>", "</think>"
MOST_BLANKS = 512  # held in front of an opening tag; more of them are an answer's own


class ThinkTags:
    """Takes an answer's text piece by piece. `is_closed`: reasoning is over before it begins; a
    close that comes all the same is dropped."""

    def __init__(self, *, is_closed: bool = False) -> None:
        self._held = ""
        self._place: Literal["start", "opened", "inside", "behind", "out"] = "start"
        self._is_closed = is_closed

    @property
    def is_inside(self) -> bool:
        """Whether a block was opened and not closed."""
        return self._place in ("opened", "inside")

    def close(self) -> None:
        """Reasoning came another way: none stands in the text."""
        self._is_closed = True

    def feed(self, text: str) -> list[tuple[Kind, str]]:
        """What is certain so far."""
        self._held += text
        found: list[tuple[Kind, str]] = []
        while self._step(found):
            continue
        return [piece for piece in found if piece[1]]

    def end(self) -> list[tuple[Kind, str]]:
        """What was held back: half a tag is none."""
        kind: Kind = "reasoning" if self.is_inside else "text"
        held, self._held = self._held, ""
        return [(kind, held)] if held else []

    def _step(self, found: list[tuple[Kind, str]]) -> bool:
        """One place further in the text; False where more of it is needed."""
        match self._place:
            case "start":
                return self._begin()
            case "opened":
                if self._held:
                    self._held, self._place = self._held.removeprefix("\n"), "inside"
                return self._place == "inside"
            case "inside":
                return self._read(found)
            case "behind":
                self._held = self._held.lstrip("\n")
                if self._held:
                    self._place = "out"
                return bool(self._held)
            case "out":
                found.append(("text", self._held))
                self._held = ""
                return False

    def _begin(self) -> bool:
        tag = CLOSE if self._is_closed else OPEN
        bare = self._held.lstrip()
        if bare.startswith(tag):
            self._held = bare[len(tag) :]
            self._place = "behind" if self._is_closed else "opened"
            return True
        blanks = len(self._held) - len(bare)
        if blanks <= MOST_BLANKS and tag.startswith(bare):
            return False
        self._place = "out"
        return True

    def _read(self, found: list[tuple[Kind, str]]) -> bool:
        before, close, rest = self._held.partition(CLOSE)
        if close:
            found.append(("reasoning", before.removesuffix("\n")))
            self._held, self._place = rest, "behind"
            return True
        kept = _tail(self._held)
        found.append(("reasoning", self._held[: len(self._held) - kept]))
        self._held = self._held[len(self._held) - kept :]
        return False


def _tail(text: str) -> int:
    """The length of the end of a text that may be the beginning of a close."""
    end = "\n" + CLOSE
    for length in range(min(len(text), len(end) - 1), 0, -1):
        tail = text[-length:]
        if end.startswith(tail) or CLOSE.startswith(tail):
            return length
    return 0
