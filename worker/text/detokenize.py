"""Token ids to visible text as they come, and where a stop string ends it. Knows no run.

Constant work a token: whole characters are given out, an incomplete tail of bytes waits.
"""

import codecs
from collections.abc import Sequence
from dataclasses import dataclass


class Detokenizer:
    """Bytes to characters. The pieces of all ids join to one decode of them."""

    def __init__(self, token_bytes: Sequence[bytes | None]) -> None:
        self._token_bytes = token_bytes
        # Keeps at most 3 bytes; what can never become a character turns into U+FFFD at once.
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")

    def push(self, token: int) -> str:
        """The characters that this token completes."""
        data = self._token_bytes[token]
        assert data is not None, f"id {token} has no token and can never be chosen"
        return self._decoder.decode(data)

    def finish(self) -> str:
        """What is left at the end: "" or U+FFFD once for an incomplete character."""
        return self._decoder.decode(b"", final=True)


@dataclass(frozen=True, slots=True)
class Released:
    """Text that may go out, and whether a stop string began right after it."""

    text: str
    is_stopped: bool = False


class StopSearch:
    """Searches stop strings across pieces and holds back only what may begin one."""

    def __init__(self, stops: Sequence[str]) -> None:
        self._stops = tuple(stops)
        self._longest = max(map(len, stops), default=0)
        self._held = ""

    def push(self, piece: str) -> Released:
        """Takes a piece; releases all but the longest tail that may begin a stop string."""
        if not self._stops:
            return Released(piece)
        text = self._held + piece
        found = [at for stop in self._stops if (at := text.find(stop)) >= 0]
        if found:
            self._held = ""
            return Released(text[: min(found)], is_stopped=True)
        keep = self._tail_length(text)
        self._held = text[len(text) - keep :]
        return Released(text[: len(text) - keep])

    def finish(self) -> str:
        """The tail that was held for a stop string which never came."""
        tail, self._held = self._held, ""
        return tail

    def _tail_length(self, text: str) -> int:
        for length in range(min(self._longest - 1, len(text)), 0, -1):
            tail = text[-length:]
            if any(stop.startswith(tail) for stop in self._stops):
                return length
        return 0
