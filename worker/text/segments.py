"""Text that stands in a prompt although no client wrote it: where, and as which ids.

Knows no tokenizer, no template's words and no plan: a sign holds each place while a template
renders, and what comes out is looked at.
"""

import re
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace

from proto.chat import Message, Role, TextPart
from proto.plan import REASONING_PART, Segment

# Private-use characters around what stands for something else while a template renders.
MARK_OPEN, MARK_CLOSE = "\ue000", "\ue001"

Render = Callable[[tuple[Message, ...]], str]


@dataclass(frozen=True, slots=True)
class Notes:
    """What of a prompt the client did not write.

    `spans`: where in the ids, each from its start to before its end. `new_ids`: of segments that
    came without ids of this tokenizer, by key. `lost`: keys of those that have no place.
    """

    spans: tuple[tuple[int, int], ...] = ()
    new_ids: dict[str, tuple[int, ...]] = field(default_factory=dict)
    lost: tuple[str, ...] = ()

    def tokens_before(self, position: int) -> int:
        """How many of the first `position` ids of the prompt are in it."""
        return sum(max(0, min(end, position) - start) for start, end in self.spans)

    @property
    def tokens(self) -> int:
        """How many there are in all."""
        return sum(end - start for start, end in self.spans)


NO_NOTES = Notes()


@dataclass(frozen=True, slots=True)
class Inserted:
    """A segment and its ids. `is_new`: they were made here."""

    segment: Segment
    ids: tuple[int, ...]
    is_new: bool


class Signs:
    """The signs of one call's segments, unlike anything that a caller can write (`prefix`)."""

    def __init__(self, prefix: str, segments: Sequence[Segment]) -> None:
        self.pattern = re.compile(f"{prefix}=([0-9]+){MARK_CLOSE}")
        self._prefix = prefix
        self._segments = segments

    def of(self, number: int) -> str:
        """The sign of a segment, by its place in the list."""
        return f"{self._prefix}={number}{MARK_CLOSE}"

    def place(
        self, messages: tuple[Message, ...], render: Render, keeps_order: Callable[[Role], bool]
    ) -> tuple[str, tuple[int, ...]]:
        """The rendered text with the signs in it, and the numbers of those that have no place.

        A segment that the template leaves out, shows twice or puts before what was said earlier
        is lost: it would stand where it does not belong. `keeps_order`: whether the template
        leaves messages of a role where they are. Raises: what `render` does.
        """
        asked = range(len(self._segments))
        order = [n for n in asked if _has_place(self._segments[n], messages)]
        order = [n for n in order if keeps_order(messages[self._segments[n].message].role)]
        order.sort(key=lambda n: (_place(self._segments[n], messages), n))
        text = render(self._insert(messages, order))
        found = self._in_place(text, order)
        if set(self.numbers(text)) != set(found):
            text = render(self._insert(messages, found))
            if self._in_place(text, found) != found:
                text, found = render(messages), []
        return text, tuple(n for n in asked if n not in found)

    def numbers(self, text: str) -> list[int]:
        """Whose signs stand in a text, in order."""
        return [int(number) for number in self.pattern.findall(text)]

    def last_end(self, text: str, start: int) -> int:
        """Where the text behind the last sign begins, looked for from `start` on; else 0."""
        return max((match.end() for match in self.pattern.finditer(text, start)), default=0)

    def _insert(self, messages: tuple[Message, ...], order: Sequence[int]) -> tuple[Message, ...]:
        changed = list(messages)
        # From the last place on, so that the places before it stay what they are.
        for number in reversed(order):
            index, part, offset = _place(self._segments[number], messages)
            message, sign = changed[index], self.of(number)
            if part == REASONING_PART:
                said = message.reasoning or ""
                changed[index] = replace(message, reasoning=said[:offset] + sign + said[offset:])
            else:
                said = message.text[:offset] + sign + message.text[offset:]
                changed[index] = replace(message, content=(TextPart(said),))
        return tuple(changed)

    def _in_place(self, text: str, order: Sequence[int]) -> list[int]:
        """Those that stand in the text once, and behind all that they shall stand behind."""
        seen = self.numbers(text)
        counts, places = Counter(seen), {number: at for at, number in enumerate(seen)}
        found: list[int] = []
        for number in order:
            if counts[number] == 1 and all(places[other] < places[number] for other in found[-1:]):
                found.append(number)
        return found


def _has_place(segment: Segment, messages: tuple[Message, ...]) -> bool:
    if not 0 <= segment.message < len(messages):
        return False
    message = messages[segment.message]
    if segment.part == REASONING_PART:
        length: int | None = None if message.reasoning is None else len(message.reasoning)
    elif segment.part is None:
        length = len(message.text)
    else:
        in_range = 0 <= segment.part < len(message.content)
        part = message.content[segment.part] if in_range else None
        length = len(part.text) if isinstance(part, TextPart) else None
    return length is not None and 0 <= (segment.offset or 0) <= length


def _place(segment: Segment, messages: tuple[Message, ...]) -> tuple[int, int, int]:
    """Message, part (the reasoning's, or 0) and offset in all of its text."""
    message = messages[segment.message]
    if segment.part == REASONING_PART:
        end = len(message.reasoning or "")
        offset = end if segment.offset is None else segment.offset
        return segment.message, REASONING_PART, offset
    parts = [part.text if isinstance(part, TextPart) else "" for part in message.content]
    first = 0 if segment.part is None else segment.part
    before = sum(map(len, parts[:first]))
    end = len(message.text) if segment.part is None else before + len(parts[first])
    return segment.message, 0, end if segment.offset is None else before + segment.offset
