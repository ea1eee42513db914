"""Lines of an answer that hold nothing but a close marker. Knows no reasoning before them.

A model that closes its reasoning twice, or closes what was never open, writes such a line.
"""

import re

from worker.text.call_syntax import CALL, CALL_END
from worker.text.code_fence import CodeFence
from worker.text.json_copy import BLANKS

_LINE = re.compile(r"[^\n]*\n|[^\n]+")


class AnswerLines:
    """Finds them outside of code fences and tool calls; all other text goes through."""

    def __init__(self, close: str, *, has_tools: bool) -> None:
        self._close = close
        self.has_call = False  # one was begun
        self._has_tools = has_tools
        self._held = ""  # a line that may be nothing but the marker
        self._is_plain = False  # this line has other text
        self._fence = CodeFence()
        self._is_in_call = False
        self._tail = ""  # may begin a call's marker

    @property
    def is_holding(self) -> bool:
        """Whether the beginning of a line waits."""
        return bool(self._held)

    def read(self, text: str) -> tuple[str, str | None]:
        """Text that may go out, and what follows the marker's line if there was one."""
        out: list[str] = []
        for match in _LINE.finditer(text):
            part = match.group()
            if not (self._is_plain or self._fence.marks or self._is_in_call):
                part = self._held + part
                is_marker = part.rstrip(BLANKS) == self._close
                if is_marker and part.endswith("\n"):
                    self._held = ""
                    return "".join(out), text[match.end() :]
                if is_marker or self._close.startswith(part):
                    self._held = part
                    continue
            out.append(part)
            self._held = ""
            self._note(part)
        return "".join(out), None

    def finish(self) -> str:
        """What was held back, at the end of the answer."""
        held, self._held = self._held, ""
        return "" if held.rstrip(BLANKS) == self._close else held

    def _note(self, part: str) -> None:
        """Follows what a later line would stand in."""
        self._is_plain = not part.endswith("\n")
        if self._has_tools:
            seen = self._tail + part
            begun, ended = seen.rfind(CALL), seen.rfind(CALL_END)
            self.has_call |= begun >= 0
            if begun != ended:
                self._is_in_call = begun > ended
            self._tail = seen[-len(CALL) :]
        if self._is_in_call and not self._is_plain:
            self._fence.skip_line()
        else:
            self._fence.read(part)
