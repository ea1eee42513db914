"""JSON that is legal and looks odd: numbers, escapes, key order and white space of every form.

Knows no surface. What a text means does not matter here, only that its bytes survive.
"""

import json
from random import Random
from typing import Any

SPACES = {
    "none": ("",),
    "single": (" ",),
    "lines": ("\n  ",),
    "crlf": ("\r\n\t",),
    "any": ("", " ", "\t", "\n", "\r\n", "\r", "   "),
}
ESCAPES = ("raw", "lower", "upper", "any")
_SHORT = {"\n": "\\n", "\r": "\\r", "\t": "\\t", "\b": "\\b", "\f": "\\f"}

NUMBERS = (
    "1e2", "1E+2", "1.0", "-0", "-0.0", "0.1e-10", "10000000000000000000000", "1e400", "5e-324",
    "123456789012345678901234567890.123456789", "0.30000000000000004", "1.50", "9007199254740993",
    "-1e-7", "2E0",
)  # fmt: skip
# Two to four bytes a character, both line separators, no characters, NUL, DEL and half a pair.
TEXTS = (
    "h\u00e9llo", "\u65e5\u672c\u8a9e", "\U0001f600\U0001f468\u200d\U0001f469", "\u2028\u2029",
    "\ufffd\uffff\ufdd0", "\x00\x1f\x7f", "\ud83d", "a\udc00b", "tab\tline\nend\r", "\b\f/\\\"",
    "\u05e9\u05dc\u05d5\u05dd", "e\u0301", "data: x\n\n", "[DONE]", "", " ", "\u0000\u0000",
)  # fmt: skip


class Raw(str):
    """JSON that is written as it stands."""


class Pairs(list[tuple[str, Any]]):
    """An object whose names keep their order and may come twice."""


LONG_CHARS = 10_000  # plain text of this length is not worth a look at each character
LONG_NUMBER = Raw("7" * 5_000)  # legal, and longer than Python likes to read


class Writer:
    """Writes values with one taste in white space and escapes."""

    def __init__(self, rng: Random, *, spaces: str = "none", escapes: str = "raw") -> None:
        self._rng = rng
        self._spaces = SPACES[spaces]
        self._escapes = escapes

    def write(self, value: Any) -> str:
        """The JSON text of a value, white space around it included."""
        return self._space() + self._bare(value) + self._space()

    def string(self, text: str) -> str:
        """A JSON string. Half a surrogate pair can only be an escape."""
        if len(text) > LONG_CHARS and text.isalnum() and text.isascii():
            return f'"{text}"'
        return '"' + "".join(map(self._char, text)) + '"'

    def _bare(self, value: Any) -> str:
        if isinstance(value, Raw):
            return str(value)
        if isinstance(value, str):
            return self.string(value)
        if isinstance(value, dict):
            value = Pairs(value.items())
        if isinstance(value, Pairs):
            items = [
                self._space() + self.string(name) + self._space() + ":" + self.write(item)
                for name, item in value
            ]
            return "{" + (",".join(items) or self._space()) + "}"
        if isinstance(value, list):
            return "[" + (",".join(map(self.write, value)) or self._space()) + "]"
        return json.dumps(value)

    def _space(self) -> str:
        return self._rng.choice(self._spaces)

    def _char(self, char: str) -> str:
        is_half = "\ud800" <= char <= "\udfff"
        if char in '"\\':
            return "\\" + char
        if char < " " and self._escapes == "raw" and char in _SHORT:
            return _SHORT[char]
        if char < " " or is_half:
            return self._escaped(char)
        if self._escapes == "any":
            return self._rng.choice((char, char, self._escaped(char), self._slash(char)))
        return char if self._escapes == "raw" or char < "\x7f" else self._escaped(char)

    def _slash(self, char: str) -> str:
        return "\\/" if char == "/" else char

    def _escaped(self, char: str) -> str:
        units = char.encode("utf-16-be", "surrogatepass")
        form = "\\u%04X" if self._escapes == "upper" else "\\u%04x"
        return "".join(form % int.from_bytes(units[at : at + 2]) for at in range(0, len(units), 2))


def odd_value(rng: Random, depth: int = 3) -> Any:
    """Any JSON value: objects with names that come twice, numbers in rare forms, odd text."""
    kind = rng.randrange(7 if depth else 4)
    if kind == 0:
        return Raw(rng.choice(NUMBERS))
    if kind <= 2:
        return rng.choice(TEXTS)
    if kind == 3:
        return rng.choice([None, True, False, 0, -1, [], {}])
    if kind == 4:
        return [odd_value(rng, depth - 1) for _ in range(rng.randrange(4))]
    names = [rng.choice(["a", "b", "model", "stream", "", *TEXTS]) for _ in range(rng.randrange(5))]
    return Pairs((name, odd_value(rng, depth - 1)) for name in names)


def nested(levels: int) -> Raw:
    """So many arrays, one within the other."""
    return Raw("[" * levels + "]" * levels)
