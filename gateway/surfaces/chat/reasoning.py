"""How an answer's reasoning is shown: in a field of its own, in tags before the text, or both.

Knows no bytes: events in, the events to render out, the same for a stream and a whole answer.
"""

from collections.abc import Iterator
from typing import Literal

from proto.events import CallStart, Event, Finished, ReasoningDelta, TextDelta

ReasoningFormat = Literal["reasoning_content", "tags", "both"]

OPEN, CLOSE = "<think>\n", "\n</think>\n\n"


class ShownReasoning:
    """Puts reasoning where the format wants it. One object an answer."""

    def __init__(self, form: ReasoningFormat) -> None:
        self._form = form
        self._is_open = False

    def events(self, event: Event) -> Iterator[Event]:
        """What to render for an event."""
        if isinstance(event, ReasoningDelta) and event.text:
            if self._form != "tags":
                yield event
            if self._form != "reasoning_content":
                yield TextDelta(event.text if self._is_open else OPEN + event.text)
                self._is_open = True
            return
        ends = isinstance(event, (CallStart, Finished)) or (
            isinstance(event, TextDelta) and (event.text or event.logprobs)
        )
        if self._is_open and ends:
            self._is_open = False
            yield TextDelta(CLOSE)
        yield event
