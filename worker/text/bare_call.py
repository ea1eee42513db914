"""A whole answer that is nothing but a tool call in JSON. Knows the offered names.

Small models write `{"name": …, "arguments": …}` without markup, plain or in a fence. That it is
the whole answer is known only at its end, so nothing of it goes out before.
"""

from collections.abc import Container

from worker.text.json_call import JsonCall
from worker.text.json_copy import BLANKS

_OPENINGS = ("```json\n", "```\n")
_CLOSING = "```"


class BareCall:
    """Takes an answer from its first character for as long as it may be such a call."""

    def __init__(self, names: Container[str]) -> None:
        self.is_possible = True
        self._call = JsonCall(names, is_bare=True)
        self._has_brace = self._is_inside = False
        self._token = ""
        self._has_fence = False
        self._raw: list[str] = []

    @property
    def raw(self) -> str:
        """Everything that was read, as written."""
        return "".join(self._raw)

    def read(self, text: str) -> None:
        """Takes a piece. Once it is not `is_possible`, the answer is something else."""
        self._raw.append(text)
        at = 0
        while at < len(text) and self.is_possible:
            if self._is_inside:
                at = self._call.read(text, at)
                self._is_inside = self._call.outcome == "reading"
                self.is_possible = self._call.outcome != "failed"
            else:
                self._around(text[at])
                at += 1

    def finish(self) -> tuple[str, str] | None:
        """Name and arguments at the end of the answer, if it was a call."""
        if not self.is_possible or self._call.outcome != "done" or self._call.name is None:
            return None
        return self._call.name, self._call.take()

    def _around(self, char: str) -> None:
        token = self._token + char
        if not self._token and char in BLANKS:
            return
        if not self._has_brace and token == "{":
            self._has_brace = self._is_inside = True
        elif not self._has_brace and not self._has_fence and token in _OPENINGS:
            self._has_fence, self._token = True, ""
        elif any(marker.startswith(token) for marker in self._markers()):
            self._token = token
        elif not (token.startswith(_CLOSING) and self._has_brace and char in BLANKS):
            self.is_possible = False

    def _markers(self) -> tuple[str, ...]:
        if self._has_brace:
            return (_CLOSING,) if self._has_fence else ()
        return () if self._has_fence else _OPENINGS
