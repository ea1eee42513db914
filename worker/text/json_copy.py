"""One JSON value, copied as its characters come. Knows no tool and no markup.

What a model writes is nearly JSON: a comma too many, Python's literals, a raw newline in a string,
a backslash that escapes nothing. The copy is JSON, and can be closed validly at any character.
"""

import json
import re
from typing import Literal

MOST_DEPTH = 100  # containers inside each other; a client's parser may recurse
MOST_SCALAR_CHARS = 400  # of a number or literal; Python refuses to read 4,300 digits

BLANKS = " \t\r\n"
_IN_STRING = re.compile(r'[^"\\\x00-\x1f]+')
_IN_SCALAR = re.compile(r"[-+.\w]+")
_NUMBER = re.compile(r"-?(0|[1-9]\d*)(\.\d+)?([eE][-+]?\d+)?", re.ASCII)
_LITERALS = {
    "true": "true",
    "false": "false",
    "null": "null",
    "True": "true",
    "False": "false",
    "None": "null",
}

_Expects = Literal[
    "value", "item", "key", "colon", "next", "string", "escape", "scalar", "nothing", "broken"
]


class JsonCopy:
    """Takes characters of one value, gives out JSON. Linear in what it is fed.

    Comma, blanks and key before a value go out with its first character, numbers and literals
    whole, so that what is out can always be closed.
    """

    def __init__(self) -> None:
        self._expects: _Expects = "value"
        self._owed: list[str] = []  # closing brackets, the innermost last
        self._before: list[str] = []  # what stands before the next value
        self._out: list[str] = []
        self._token = ""  # of a scalar or an escape
        self._is_key = False
        self._has_begun = False
        self._broke_between = False

    @property
    def is_done(self) -> bool:
        """Whether the value is complete. A number or literal is only after `finish`."""
        return self._expects == "nothing"

    @property
    def is_broken(self) -> bool:
        """Whether what came can be no JSON. What is out can still be closed."""
        return self._expects == "broken"

    @property
    def has_begun(self) -> bool:
        """Whether anything of the value has gone out."""
        return self._has_begun

    @property
    def is_between(self) -> bool:
        """Whether a container is open, or was at the break, and nothing in it is unfinished."""
        return self._broke_between or self._expects in ("next", "item", "key")

    def feed(self, text: str, at: int = 0) -> int:
        """Reads on from `text[at]`; returns where the first character not read stands.

        That is the end of `text`, the character after the value, or the one that breaks it.
        """
        while at < len(text) and self._expects not in ("nothing", "broken"):
            if self._expects == "string":
                at = self._string(text, at)
            elif self._expects == "escape":
                at += self._escape(text[at])
            elif self._expects == "scalar":
                at = self._scalar(text, at)
            else:
                at += self._structure(text[at])
        return at

    def finish(self) -> None:
        """The text has ended: a number or literal is complete."""
        if self._expects == "scalar":
            self._end_scalar()

    def take(self) -> str:
        """What has gone out since the last call."""
        out, self._out = "".join(self._out), []
        return out

    def close(self) -> str:
        """What makes valid JSON of all that was taken; "" when nothing has begun."""
        in_string = self._expects in ("string", "escape") and not self._is_key
        return ('"' if in_string else "") + "".join(reversed(self._owed))

    def _structure(self, char: str) -> bool:
        """A character outside strings and scalars; False when it was not read."""
        if char in BLANKS:
            if self._owed:
                self._before.append(char)
        elif self._owed and char == self._owed[-1] and self._expects in ("next", "item", "key"):
            self._end_container()
        elif self._expects == "next" and char == ",":
            self._before.append(char)
            self._expects = "key" if self._owed[-1] == "}" else "item"
        elif self._expects == "colon" and char == ":":
            self._before.append(char)
            self._expects = "value"
        elif self._expects == "key" and char == '"':
            self._is_key, self._expects = True, "string"
            self._before.append(char)
        elif self._expects in ("value", "item"):
            return self._begin_value(char)
        else:
            self._break()
            return False
        return True

    def _break(self) -> None:
        self._broke_between = self.is_between
        self._expects = "broken"

    def _begin_value(self, char: str) -> bool:
        if char == '"':
            self._begin(char)
            self._expects = "string"
        elif char in "{[" and len(self._owed) < MOST_DEPTH:
            self._begin(char)
            self._owed.append("}" if char == "{" else "]")
            self._expects = "key" if char == "{" else "item"
        elif _IN_SCALAR.match(char):
            self._token, self._expects = "", "scalar"
            return False
        else:
            self._break()
            return False
        return True

    def _begin(self, text: str) -> None:
        self._out += [*self._before, text]
        self._before = []
        self._has_begun = True

    def _end_value(self) -> None:
        self._expects = "next" if self._owed else "nothing"

    def _end_container(self) -> None:
        self._out += [blank for blank in self._before if blank != ","]
        self._out.append(self._owed.pop())
        self._before = []
        self._end_value()

    def _string(self, text: str, at: int) -> int:
        if run := _IN_STRING.match(text, at):
            self._write(run.group())
            return run.end()
        if text[at] == "\\":
            self._token, self._expects = "\\", "escape"
        elif text[at] != '"':
            self._write(json.dumps(text[at])[1:-1])
        else:
            self._write('"')
            if self._is_key:
                self._is_key, self._expects = False, "colon"
            else:
                self._end_value()
        return at + 1

    def _escape(self, char: str) -> bool:
        """A character after a backslash; False when it belongs to no escape and was not read."""
        grown = self._token + char
        if len(grown) == 2 and char in '"\\/bfnrt':
            self._write(grown)
        elif grown == "\\'":
            self._write("'")
        elif grown == "\\u" or (len(grown) > 2 and char in "0123456789abcdefABCDEF"):
            self._token = grown
            if len(grown) < 6:
                return True
            self._write(grown)
        else:
            self._write("\\" + self._token)  # the backslash was meant as one
            self._expects = "string"
            return False
        self._expects = "string"
        return True

    def _write(self, text: str) -> None:
        (self._before if self._is_key else self._out).append(text)

    def _scalar(self, text: str, at: int) -> int:
        run = _IN_SCALAR.match(text, at)
        if run is None:
            self._end_scalar()
            return at
        room = MOST_SCALAR_CHARS - len(self._token)
        self._token += run.group()[:room]
        if len(run.group()) > room:
            self._expects = "broken"
        return min(run.end(), at + room)

    def _end_scalar(self) -> None:
        known = _LITERALS.get(self._token)
        if known is None and not _NUMBER.fullmatch(self._token):
            self._expects = "broken"
            return
        self._begin(known or self._token)
        self._end_value()


def copy_json(text: str) -> str | None:
    """`text` as JSON when it is one value, mended where `JsonCopy` mends; else None."""
    copy = JsonCopy()
    end = copy.feed(text)
    copy.finish()
    return copy.take() if copy.is_done and not text[end:].strip(BLANKS) else None
