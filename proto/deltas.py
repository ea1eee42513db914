"""What the worker's tokens say, as neutral events. Knows no socket and no surface."""

from collections.abc import Iterator

from proto.events import (
    CallArguments,
    CallEnd,
    CallStart,
    Event,
    Logprobs,
    ReasoningDelta,
    TextDelta,
)
from proto.messages import Delta, Kind
from proto.plan import REASONING_PART, HiddenText


class HiddenTexts:
    """Finds hidden texts among the tokens of an answer, which it is shown in their order."""

    def __init__(self) -> None:
        self.found: list[HiddenText] = []
        self._shown_chars: dict[Kind, int] = {}

    def see(self, piece: str, kind: Kind, *, is_hidden: bool) -> None:
        """A token: what it says, and whether the client gets that."""
        shown = self._shown_chars.get(kind, 0)
        if not is_hidden:
            self._shown_chars[kind] = shown + len(piece)
        elif piece:
            part = REASONING_PART if kind == "reasoning" else None
            self.found.append(HiddenText(piece, part, shown))


def events_of(delta: Delta) -> Iterator[Event]:
    """The neutral events of one `Delta`: neighbouring pieces of one kind are one event."""
    kind = None
    text: list[str] = []
    found: list[Logprobs] = []
    logprobs = delta.logprobs or (None,) * len(delta.ids)
    tokens = zip(delta.pieces, delta.kinds, delta.hidden, logprobs, strict=True)
    for piece, piece_kind, hidden, logprob in tokens:
        is_shown = piece or (piece_kind == "text" and logprob is not None)
        if hidden or not is_shown:
            continue
        if piece_kind != kind and text:
            yield _text_event(kind, text, found)
            text, found = [], []
        kind = piece_kind
        text.append(piece)
        if logprob is not None:
            found.append(logprob)
    if text:
        yield _text_event(kind, text, found)
    for part in delta.calls or ():
        if part.id is not None and part.name is not None:
            yield CallStart(part.index, part.id, part.name)
        if part.args is not None:
            yield CallArguments(part.index, part.args)
        if part.end:
            yield CallEnd(part.index)


def _text_event(kind: str | None, text: list[str], logprobs: list[Logprobs]) -> Event:
    joined = "".join(text)
    if kind == "reasoning":
        return ReasoningDelta(joined)
    return TextDelta(joined, tuple(logprobs))
