"""What the notations of a tool call share: markers, and what reads one call. Knows no notation."""

import re
from typing import Literal, Protocol

CALL, CALL_END = "<tool_call>", "</tool_call>"
FUNCTION = "<function="

# How a model was taught to write a call: JSON in a block (Hermes), or tags.
CallForm = Literal["hermes", "xml"]

Outcome = Literal["reading", "done", "failed"]

MOST_NAME_CHARS = 128
_NAME = re.compile(r"[\w.:/-]+")


class AnyName:
    """Stands for the offered names where a call of any name is one, for somebody to judge."""

    def __contains__(self, name: object) -> bool:
        is_short = isinstance(name, str) and len(name) <= MOST_NAME_CHARS
        return is_short and _NAME.fullmatch(str(name)) is not None


class CallReader(Protocol):
    """Reads one call. The pieces of `take` join to a JSON object once it is done.

    `unread`: text that an outcome leaves to whoever reads on; it may be of earlier pieces.
    """

    name: str | None  # once it is complete, and offered
    outcome: Outcome
    unread: str

    def read(self, text: str, at: int) -> int:
        """Reads on from `text[at]`; returns where it stopped, the end while `reading`."""

    def take(self) -> str:
        """Arguments that became certain since the last call."""

    def close(self) -> str:
        """What makes an object of all that was taken, wherever the text was cut."""

    def finish(self) -> None:
        """The model ended here by itself: done when only closing markup is missing."""


def held_length(text: str, *markers: str) -> int:
    """Length of the longest tail of `text` that begins a marker but is not all of it."""
    for length in range(min(max(map(len, markers)) - 1, len(text)), 0, -1):
        tail = text[-length:]
        if any(marker.startswith(tail) for marker in markers if len(marker) > length):
            return length
    return 0
