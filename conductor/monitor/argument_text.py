"""Arguments of a call that repeat while they are written: task C4. Knows no verdict.

Lines and units are counted within one text argument. Tables, CSV and blank lines repeat rightly.
"""

import re

from conductor.monitor.pieces import Pieces
from conductor.monitor.tasks import Params
from conductor.monitor.trail import Recurrences, Rolling, Trail

MOST_LINES = 4096  # different ones that are counted
MOST_LINE_CHARS = 1024  # a longer line is counted by its beginning
LINES_APART = 2  # lines from one to the next that counts: in programs and records more lie between
UNITS_APART = 4  # a unit may come that many times its length later, and counts on

# An argument begins; a text of JSON begins or ends; a line ends, written as JSON or as it is.
_STEP = re.compile(r"<(?:parameter=|function=|tool_call>)|\\n|\\.|\n|[^\\\n<\"]+|.", re.DOTALL)
_OPEN_TAG = re.compile(r"<[a-z_]{0,9}$")
_TAG = re.compile(r"<(?:parameter=|function=)")
_TABULAR = re.compile(r"[|\t]|(?:[,;].*){2}|(?:\S[ ]{2,}.*){2}")


class ArgumentText:
    """The calls of one stretch of an answer, as the model writes them."""

    def __init__(self, params: Params) -> None:
        self._params = params
        self._held = ""
        self._is_tagged = False  # arguments stand between tags, so that a quote is a quote
        self._begin()

    def read(self, text: str) -> None:
        """Takes text of calls."""
        text = self._held + text
        self._held = ""
        tag = _OPEN_TAG.search(text)
        if tag is not None:
            text, self._held = text[: tag.start()], tag.group()
        for match in _STEP.finditer(text):
            step = match.group()
            if step == "\\" and match.end() == len(text):
                self._held = step + self._held
            else:
                self._step(step)

    def repeated(self) -> str | None:
        """At a decision: what the argument repeats, in a word."""
        if self._has_line:
            return "line"
        return "unit" if self._has_unit else None

    def _begin(self) -> None:
        """An argument begins: what was counted in the one before does not count for it."""
        self._line = ""
        self._line_ids: dict[str, int] = {}
        self._line_count = 0
        self._has_line = self._has_unit = False
        size = self._params.count("unit_pieces")
        times = self._params.count("line_repeats")
        self._pieces, self._trail, self._unit = Pieces(), Trail(), Rolling(size)
        self._lines = Recurrences(times=times, window=LINES_APART * times, apart=0)
        self._units = Recurrences(times=times, window=UNITS_APART * times * size, apart=size)

    def _step(self, step: str) -> None:
        if step.startswith("<") and len(step) > 1:
            self._is_tagged = self._is_tagged or _TAG.match(step) is not None
            self._begin()
        elif step == '"' and not self._is_tagged:
            self._begin()
        elif step == "\n" or (step == "\\n" and not self._is_tagged):
            self._end_line()
        else:
            if step[0] == "\\" and not self._is_tagged:  # counted as what it stands for
                step = "\t" if step == "\\t" else step[1:]
            if len(self._line) < MOST_LINE_CHARS:
                self._line += step
            self._read_units(step)

    def _end_line(self) -> None:
        line, self._line = self._line.strip()[:MOST_LINE_CHARS], ""
        self._line_count += 1
        self._read_units("\n")
        if len(line) < self._params.count("line_chars") or _TABULAR.search(line):
            return
        if not any(map(str.isalpha, line)):
            return
        if line not in self._line_ids and len(self._line_ids) == MOST_LINES:
            return
        known = self._line_ids.setdefault(line, len(self._line_ids))
        if self._lines.push(known, self._line_count) is not None:
            self._has_line = True

    def _read_units(self, text: str) -> None:
        size = self._params.count("unit_pieces")
        for piece in self._pieces.push(text):
            self._trail.push(piece)
            unit = self._unit.push(piece.id)
            if not unit or self._units.push(unit, self._trail.count) is None:
                continue
            if self._trail.distinct(size) >= self._params.count("unit_distinct"):
                self._has_unit = True
