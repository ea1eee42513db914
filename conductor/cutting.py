"""Takes stretches of text out of a message's parts. Knows not why they have to go."""

from collections.abc import Sequence

from proto.chat import Part, TextPart

Stretch = tuple[int, int]  # characters of the parts' joined text, the end not included


def cut_out(parts: tuple[Part, ...], stretches: Sequence[Stretch]) -> tuple[Part, ...]:
    """The parts without these stretches, which are in order and do not overlap.

    A part of which nothing is left is left out; every other stays a part of its own.
    """
    if not stretches:
        return parts
    kept: list[Part] = []
    begin = 0
    for part in parts:
        if not isinstance(part, TextPart):
            kept.append(part)
            continue
        end = begin + len(part.text)
        text = _without(part.text, begin, stretches)
        if text or not part.text:
            kept.append(part if text == part.text else TextPart(text))
        begin = end
    return tuple(kept)


def _without(text: str, begin: int, stretches: Sequence[Stretch]) -> str:
    pieces = []
    position = 0
    for first, behind in stretches:
        pieces.append(text[position : max(position, first - begin)])
        position = max(position, behind - begin)
    pieces.append(text[position:])
    return "".join(pieces)
