"""One run's answer without what its model wrote for later sessions: blocks, calls of our tool.

Knows no run and no store.
"""

from dataclasses import dataclass, field, replace

from conductor.memory.block import BlockCutter, HiddenBlock
from conductor.memory.tool import NAME
from gateway.backends.chat_reader import estimate
from gateway.backends.run import Silence
from proto.chat import Message, ToolCall, reply_message
from proto.events import (
    CallArguments,
    CallEnd,
    CallStart,
    Event,
    ReasoningDelta,
    TextDelta,
)
from proto.plan import HiddenText


@dataclass(slots=True)
class OwnCall:
    """A call of our tool, as far as it was written."""

    id: str
    arguments: list[str] = field(default_factory=list)
    is_whole: bool = False

    def made(self) -> ToolCall:
        """The call."""
        return ToolCall(self.id, NAME, "".join(self.arguments) or "{}")


class MemoryAnswer:
    """Takes a run's events, gives those that the client gets. `has_tool`: our tool was offered."""

    def __init__(self, *, has_tool: bool) -> None:
        self.own_calls: dict[int, OwnCall] = {}
        self.reasoning_chars = 0
        self._has_tool = has_tool
        self._cutter = BlockCutter()
        self._indices: dict[int, int] = {}  # of calls that the client gets: theirs by the run's
        self._written: list[Event] = []  # by the model, for a run that goes on
        self._call_chars: dict[int, int] = {}
        self._raw_chars = 0
        self._spans: list[tuple[int, int]] = []  # ends of pieces of text, and their tokens
        self._said_tokens = 0  # of text and reasoning

    @property
    def blocks(self) -> list[HiddenBlock]:
        """What was cut out, by offsets in what the client gets of this run's text."""
        return self._cutter.blocks

    @property
    def whole_blocks(self) -> list[HiddenBlock]:
        """Those of them that were closed."""
        return [block for block in self.blocks if block.is_closed]

    @property
    def calls(self) -> int:
        """Calls that the client gets."""
        return len(self._indices)

    def take(self, event: Event) -> list[Event | Silence]:
        """What the client gets of an event; a `Silence` where that is nothing."""
        match event:
            case TextDelta():
                return self._text(event)
            case ReasoningDelta(text):
                self._said_tokens += event.tokens or estimate(text)
                self._written.append(event)
                self.reasoning_chars += len(text)
                return [event]
            case CallStart():
                return [*self.end(), *self._call(event)]
            case CallArguments() | CallEnd():
                return self._rest_of_call(event)
            case _:
                return [event]

    def end(self) -> list[Event | Silence]:
        """What was held back of the text, and is text after all."""
        held = self._cutter.end()
        return [TextDelta(held)] if held else []

    def hidden_tokens(self, written_tokens: int) -> int:
        """About how many of the tokens that were written the client does not get.

        Blocks by their share in the pieces they stand in; calls by theirs of what is neither text
        nor reasoning.
        """
        hidden = self._cut_tokens()
        if self.own_calls:
            own = sum(self._call_chars[index] for index in self.own_calls)
            rest = max(written_tokens - self._said_tokens, 0)
            hidden += rest * own / sum(self._call_chars.values())
        return min(round(hidden), written_tokens)

    def placed(self, hidden: HiddenText) -> HiddenText:
        """A text that the run put into its answer, where it stands in what the client gets."""
        if hidden.part is not None:
            return hidden
        cut = 0
        for block in self.blocks:
            if block.offset + cut >= hidden.offset:
                break
            cut += min(len(block.text), hidden.offset - block.offset - cut)
        return replace(hidden, offset=hidden.offset - cut)

    def message(self) -> Message:
        """The answer as the model wrote it, with the whole calls of our tool."""
        made = reply_message(self._written)
        own = [call for _, call in sorted(self.own_calls.items())]
        calls = tuple(call.made() for call in own if call.is_whole)
        return Message("assistant", made.content, calls, reasoning=made.reasoning)

    def _text(self, event: TextDelta) -> list[Event | Silence]:
        self._written.append(event)
        tokens = event.tokens or estimate(event.text)
        self._said_tokens += tokens
        self._raw_chars += len(event.text)
        self._spans.append((self._raw_chars, tokens))
        shown = self._cutter.feed(event.text)
        return [TextDelta(shown, event.logprobs)] if shown else [Silence()]

    def _call(self, event: CallStart) -> list[Event | Silence]:
        self._call_chars[event.index] = len(event.name)
        if self._has_tool and event.name == NAME:
            self.own_calls[event.index] = OwnCall(event.id)
            return [Silence()]
        index = self._indices[event.index] = len(self._indices)
        return [CallStart(index, event.id, event.name)]

    def _rest_of_call(self, event: CallArguments | CallEnd) -> list[Event | Silence]:
        if isinstance(event, CallArguments):
            self._call_chars[event.index] += len(event.arguments)
        own = self.own_calls.get(event.index)
        if own is None:
            index = self._indices[event.index]
            if isinstance(event, CallEnd):
                return [CallEnd(index)]
            return [CallArguments(index, event.arguments)]
        if isinstance(event, CallArguments):
            own.arguments.append(event.arguments)
        else:
            own.is_whole = True
        return [Silence()]

    def _cut_tokens(self) -> float:
        if not self.blocks:
            return 0.0
        cuts, before = [], 0  # in the text as it was written
        for block in self.blocks:
            begin = block.offset + before
            before += len(block.text)
            cuts.append((begin, begin + len(block.text)))
        hidden, start = 0.0, 0
        for end, tokens in self._spans:
            inside = sum(max(min(end, last) - max(start, first), 0) for first, last in cuts)
            hidden += tokens * inside / max(end - start, 1)
            start = end
        return hidden
