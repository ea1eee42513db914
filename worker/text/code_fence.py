"""Where in an answer code stands, as its text comes. Knows not what is looked for in it.

Source: CommonMark 0.31, 4.5 (fenced code blocks).
"""

import re

FENCE_CHARS = 100  # of a line's beginning, where a fence is looked for

_FENCE = re.compile(r"\s*(`{3,}|~{3,})(.*)", re.DOTALL)


class CodeFence:
    """Follows the fences of a text. `marks`: those that opened the block it stands in, or none."""

    def __init__(self) -> None:
        self.marks = ""
        self._head = ""
        self._last = ""

    @property
    def is_code(self) -> bool:
        """Whether what comes next stands in a block, on the line that opens one, or right behind
        a backtick."""
        return bool(self.marks or self._opened()) or self._last == "`"

    def read(self, text: str) -> None:
        """Takes text."""
        if not text:
            return
        *ended, rest = text.split("\n")
        for line in ended:
            self._add(line)
            self._end_line()
        self._add(rest)
        self._last = text[-1]

    def skip_line(self) -> None:
        """The line that was begun counts for nothing."""
        self._head = ""

    def _add(self, text: str) -> None:
        self._head += text[: FENCE_CHARS - len(self._head)]

    def _end_line(self) -> None:
        if not self.marks:
            self.marks = self._opened()
        elif (fence := _FENCE.match(self._head)) is not None:
            run, behind = fence.groups()
            if run.startswith(self.marks) and not behind.strip():
                self.marks = ""
        self._head = ""

    def _opened(self) -> str:
        """The marks of the fence that this line is, none where it is none."""
        fence = _FENCE.match(self._head)
        return fence.group(1) if fence is not None and "`" not in fence.group(2) else ""
