"""Where in a Markdown text code stands, as the text comes in. Knows not what is looked for.

Source: CommonMark 0.31, 4.5 (fenced code blocks).
"""

import re
from dataclasses import dataclass

LINE_CHARS = 1_000  # of a line's beginning are looked at: a fence's own line is shorter

_OPENS = re.compile(r" {0,3}(?:(`{3,})[^`]*|(~{3,}).*)", re.DOTALL)
_CLOSES = re.compile(r" {0,3}(`{3,}|~{3,})[ \t\r]*")


@dataclass(frozen=True, slots=True)
class Place:
    """The place behind a text.

    `fence`: the signs that opened the block it stands in, empty outside. `line`: the beginning of
    the line it stands on. `last`: the sign before it.
    """

    fence: str = ""
    line: str = ""
    last: str = ""

    def after(self, text: str) -> "Place":
        """The place when more text has come."""
        if not text:
            return self
        fence = self.fence
        *lines, rest = (self.line + text).split("\n")
        for line in lines:
            fence = _fence_after(fence, line)
        return Place(fence, rest[:LINE_CHARS], text[-1])

    @property
    def is_fenced(self) -> bool:
        """Whether it stands in a block, or on the line that opens one."""
        return bool(self.fence) or _OPENS.fullmatch(self.line) is not None

    @property
    def is_code(self) -> bool:
        """The same, or right behind a backtick, where code within a line begins."""
        return self.is_fenced or self.last == "`"


def _fence_after(fence: str, line: str) -> str:
    if not fence:
        opened = _OPENS.fullmatch(line)
        return (opened[1] or opened[2]) if opened else ""
    closed = _CLOSES.fullmatch(line)
    is_closed = closed is not None and closed[1].startswith(fence)
    return "" if is_closed else fence
