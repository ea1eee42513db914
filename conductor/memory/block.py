"""The block `<tandem_memory>` in an answer: cut from the stream, read, taken out of histories.

Knows no table and no refusal: what it reads are wishes.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace

from conductor.cutting import Stretch, cut_out
from conductor.fences import Place
from conductor.memory.notes import MOST_NOTES, Draft, MemoryKind
from proto.chat import Message

OPEN, CLOSE = "<tandem_memory>", "</tandem_memory>"

_LINE = re.compile(
    r"[-*•]?\s*(?:(?P<kind>fact|preference|todo)\s*"
    r"(?:\(\s*replaces\s+\[?(?P<id>\d{1,18})\]?\s*\)\s*)?:)?\s*(?P<text>.*)",
    re.IGNORECASE | re.DOTALL,
)


@dataclass(frozen=True, slots=True)
class HiddenBlock:
    """What was cut out of a text. `text`: as the model wrote it, with tags and the blank before
    them; `offset`: where it stood in what stayed. One that `is_closed` is False ran to the end."""

    text: str
    offset: int
    is_closed: bool = True


class BlockCutter:
    """Takes the blocks out of one answer's visible text while it is written.

    Held back is only what may still belong to a block: the beginning of its tag, and blanks before
    it. In a code block, or behind a backtick, the tag is text. Put back at their offsets, in
    order, `blocks` and the visible text are what the model wrote.
    """

    def __init__(self) -> None:
        self.blocks: list[HiddenBlock] = []
        self._place = Place()
        self._shown = 0
        self._pending = ""
        self._block: list[str] | None = None  # of an open one, in pieces
        self._lead = ""  # blanks before the block
        self._is_behind_block = False  # and nothing was shown since

    def feed(self, text: str) -> str:
        """Takes what the model wrote; returns what the client may see of it."""
        self._pending += text
        shown: list[str] = []
        while self._step(shown):
            continue
        return "".join(shown)

    def end(self) -> str:
        """The answer is complete: what was held back and is text after all."""
        rest, self._pending = self._pending, ""
        if self._block is not None:
            self._add("".join([*self._block, rest]), is_closed=False)
            return ""
        if self._is_behind_block and not rest.strip():
            *_, last = self.blocks
            self.blocks[-1] = replace(last, text=last.text + rest)
            return ""
        self._shown += len(rest)
        return rest

    def _step(self, shown: list[str]) -> bool:
        """Decides about some of what is pending; whether there may be more to decide."""
        if self._block is not None:
            return self._read_block(self._block, shown)
        begin = self._pending.find(OPEN)
        if begin < 0:
            self._show(len(self._pending) - _held(self._pending), shown)
            return False
        if self._place.after(self._pending[:begin]).is_code:
            self._show(begin + len(OPEN), shown)
            return True
        head = len(self._pending[:begin].rstrip())
        self._show(head, shown)
        self._lead = self._pending[: begin - head]
        self._block = [OPEN]
        self._pending = self._pending[begin - head + len(OPEN) :]
        return True

    def _read_block(self, block: list[str], shown: list[str]) -> bool:
        end = self._pending.find(CLOSE)
        if end < 0:
            keep = _overlap(self._pending, CLOSE)
            block.append(self._pending[: len(self._pending) - keep])
            self._pending = self._pending[len(self._pending) - keep :]
            return False
        behind = end + len(CLOSE)
        if behind == len(self._pending):
            return False  # what comes next says where the blanks belong
        is_glued = not self._pending[behind].isspace()
        block.append(self._pending[:behind])
        self._pending = self._pending[behind:]
        if is_glued and self._lead:  # they part the text before from the text behind
            self._pending = self._lead + self._pending
            self._show(len(self._lead), shown)
            self._lead = ""
        self._add("".join(block), is_closed=True)
        return True

    def _add(self, text: str, *, is_closed: bool) -> None:
        if not is_closed and text.endswith(CLOSE):
            is_closed = True
        self.blocks.append(HiddenBlock(self._lead + text, self._shown, is_closed))
        self._block, self._lead, self._is_behind_block = None, "", True

    def _show(self, count: int, shown: list[str]) -> None:
        """Lets go of the first characters of what is pending."""
        if count:
            text = self._pending[:count]
            shown.append(text)
            self._pending = self._pending[count:]
            self._place = self._place.after(text)
            self._shown += count
            self._is_behind_block = False


def drafts_of(block: HiddenBlock) -> tuple[Draft, ...]:
    """What a block wants kept: a line each, a fact where it does not say what it is."""
    if not block.is_closed:
        return ()
    inside = block.text.strip().removeprefix(OPEN).removesuffix(CLOSE)
    drafts = []
    for line in inside.splitlines():
        found = _LINE.fullmatch(line.strip())
        assert found is not None  # it matches every line
        if text := " ".join(found["text"].split()):
            drafts.append(Draft(_kind(found["kind"]), text, int(found["id"] or 0) or None))
    return tuple(drafts[:MOST_NOTES])


def without_blocks(messages: Sequence[Message]) -> tuple[Message, ...]:
    """The history without whole blocks in answers; one that was never closed stays as text."""
    return tuple(_cleaned(message) for message in messages)


def _cleaned(message: Message) -> Message:
    if message.role != "assistant" or OPEN not in message.text:
        return message
    cutter = BlockCutter()
    cutter.feed(message.text)
    cutter.end()
    stretches: list[Stretch] = []
    hidden = 0
    for block in cutter.blocks:
        begin = block.offset + hidden
        hidden += len(block.text)
        if block.is_closed:
            stretches.append((begin, begin + len(block.text)))
    return replace(message, content=cut_out(message.content, stretches))


def _kind(name: str | None) -> MemoryKind:
    kinds: dict[str, MemoryKind] = {"preference": "preference", "todo": "todo"}
    return kinds.get((name or "").lower(), "fact")


def _held(text: str) -> int:
    """How many last characters may begin a block: blanks, and the beginning of its tag."""
    tag = _overlap(text, OPEN)
    before = text[: len(text) - tag]
    return tag + len(before) - len(before.rstrip())


def _overlap(text: str, tag: str) -> int:
    """How many last characters of a text begin a tag."""
    longest = min(len(tag) - 1, len(text))
    return next((n for n in range(longest, 0, -1) if text.endswith(tag[:n])), 0)
