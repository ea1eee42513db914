"""The text of a note, of what is to be said in it. Knows no message and no place.

What an operator or a memory wrote goes in whole or not at all: nothing is cut, nothing mended.
"""

from collections.abc import Iterable
from dataclasses import dataclass, field

from conductor.markers import marker_in
from conductor.profiles import Rule
from conductor.tokens import estimated_tokens
from conductor.types import Package

BEGIN, END = "\n\n<tandem_note>\n", "\n</tandem_note>\n"


@dataclass(frozen=True, slots=True)
class Say:
    """What a note should say, each piece a text of its own, in the order of the fields."""

    effort: str = ""
    rules: tuple[Rule, ...] = ()
    packages: tuple[Package, ...] = ()
    memories: tuple[tuple[str, str], ...] = ()  # id and text
    how_to_write: str = ""  # memory notes


@dataclass(frozen=True, slots=True)
class Rendered:
    """A note's text, empty when there is nothing to say, and the ids of what is in it.

    `left_out`: ids of pieces that hold a marker, or for which there was no room.
    """

    text: str = ""
    rules: tuple[str, ...] = ()
    packages: tuple[str, ...] = ()
    memories: tuple[str, ...] = ()
    left_out: tuple[str, ...] = ()


@dataclass(slots=True)
class _Body:
    room_tokens: int
    pieces: list[str] = field(default_factory=list)
    left_out: list[str] = field(default_factory=list)

    def add(self, pieces: Iterable[tuple[str, str]], *, is_ours: bool = False) -> tuple[str, ...]:
        """Adds each piece that fits; the ids of those. `is_ours`: they may name tags of ours."""
        taken: list[str] = []
        for name, text in pieces:
            piece = text.strip("\n")
            if not piece:
                continue
            cost = estimated_tokens(piece + "\n")
            has_marker = not is_ours and marker_in(piece) is not None
            if has_marker or cost > self.room_tokens:
                self.left_out.append(name)
                continue
            self.room_tokens -= cost
            self.pieces.append(piece)
            taken.append(name)
        return tuple(taken)


def render(say: Say, max_tokens: int) -> Rendered:
    """The note, of `max_tokens` at most by an estimate. An empty body is no note."""
    body = _Body(max_tokens - estimated_tokens(BEGIN + END))
    body.add([("effort", say.effort)])
    rules = body.add((rule.id, rule.text) for rule in say.rules)
    packages = body.add((package.id, package.text) for package in say.packages)
    memories = body.add(say.memories)
    body.add([("how_to_write", say.how_to_write)], is_ours=True)
    text = BEGIN + "\n".join(body.pieces) + END if body.pieces else ""
    return Rendered(text, rules, packages, memories, tuple(body.left_out))


def says(note: str, piece: str) -> bool:
    """Whether a piece stands in a note's text."""
    stripped = piece.strip("\n")
    return f"\n{stripped}\n" in note
