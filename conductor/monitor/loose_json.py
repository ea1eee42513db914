"""JSON as models write it: strict where it is JSON, else read for what it meant. Knows no schema.

Forgiven: control characters in texts, single quotes, Python's words, bare keys, commas too many,
and braces and brackets that are missing at the end. A text that does not end stays a fault: nobody
knows what else was to stand in it.
"""

import json
import math
import re
from typing import NoReturn

from proto.chat import Json

MOST_DEPTH = 64  # of nested containers

_BLANK = re.compile(r"\s*")
_BARE = re.compile(r"[A-Za-z0-9_.+\-$]+")
_ESCAPE = re.compile(r"(?:\\u[0-9a-fA-F]{4})+|\\(?:.|$)", re.DOTALL)
_WORDS: dict[str, Json] = {
    "true": True, "True": True, "false": False, "False": False,
    "null": None, "None": None, "undefined": None,
}  # fmt: skip


class NoJson(ValueError):
    """The text is no JSON, however it is read."""


def strict_json(text: str) -> Json:
    """The value of a JSON text.

    Raises: NoJson, also for numbers that JSON does not have, and for what is nested too deep.
    """
    try:
        value: Json = json.loads(text, parse_constant=_refuse, parse_float=_finite)
    except (ValueError, RecursionError) as fault:
        raise NoJson(str(fault)) from fault
    return value


def dumped(value: Json) -> str:
    """A value as JSON text, in the letters it has; lone surrogates stay escaped."""
    text = json.dumps(value, ensure_ascii=False)
    return text if text.isascii() or _is_encodable(text) else json.dumps(value)


def loose_json(text: str) -> Json:
    """The value that a whole text was meant to be. Raises: NoJson."""
    try:
        return strict_json(text)
    except NoJson:
        value, end = loose_prefix(text)
        if text[end:].strip(" \t\r\n;}]"):
            raise
        return value


def loose_prefix(text: str, at: int = 0) -> tuple[Json, int]:
    """The value that begins at `at`, and where it ends. Raises: NoJson."""
    reader = _Reader(text, at)
    value = reader.value(0)
    return value, reader.at


def _refuse(name: str) -> NoReturn:
    raise NoJson(name)


def _finite(digits: str) -> float:
    value = float(digits)
    if not math.isfinite(value):
        raise NoJson(digits)
    return value


def _is_encodable(text: str) -> bool:
    return not any("\ud800" <= char <= "\udfff" for char in text)


class _Reader:
    """Reads one value, forgiving as the module says. Linear in the text."""

    def __init__(self, text: str, at: int) -> None:
        self._text, self.at = text, at

    def value(self, depth: int) -> Json:
        char = self._next()
        if depth > MOST_DEPTH:
            raise NoJson("nested too deep")
        if char == "{":
            return self._object(depth)
        if char == "[":
            return self._array(depth)
        if char in ('"', "'") and char:
            return self._string(char)
        return self._scalar()

    def _next(self) -> str:
        """The next character that is no blank, "" at the end."""
        match = _BLANK.match(self._text, self.at)
        assert match is not None
        self.at = match.end()
        return self._text[self.at : self.at + 1]

    def _object(self, depth: int) -> dict[str, Json]:
        out: dict[str, Json] = {}
        self.at += 1
        while (char := self._next()) not in ("}", ""):
            if char == ",":
                self.at += 1
                continue
            key = self._string(char) if char in ('"', "'") else self._bare()
            if self._next() != ":":
                if self._next():
                    raise NoJson("a key without a value")
                break  # the end came behind a key
            self.at += 1
            if not self._next():
                break
            out[key] = self.value(depth + 1)
        self.at = min(self.at + 1, len(self._text))
        return out

    def _array(self, depth: int) -> list[Json]:
        out: list[Json] = []
        self.at += 1
        while (char := self._next()) not in ("]", ""):
            if char == ",":
                self.at += 1
                continue
            out.append(self.value(depth + 1))
        self.at = min(self.at + 1, len(self._text))
        return out

    def _string(self, quote: str) -> str:
        begun = self.at = self.at + 1
        while self.at < len(self._text) and self._text[self.at] != quote:
            self.at += 2 if self._text[self.at] == "\\" else 1
        if self.at >= len(self._text):
            raise NoJson("a text without an end")
        inside = self._text[begun : self.at]
        self.at += 1
        return _ESCAPE.sub(_unescaped, inside)

    def _bare(self) -> str:
        match = _BARE.match(self._text, self.at)
        if match is None:
            raise NoJson("neither a key nor a value")
        self.at = match.end()
        return match.group()

    def _scalar(self) -> Json:
        word = self._bare()
        if word in _WORDS:
            return _WORDS[word]
        return strict_json(word)


def _unescaped(match: re.Match[str]) -> str:
    code = match.group()
    if code == r"\'":
        return "'"
    try:
        found = json.loads(f'"{code}"')
    except ValueError:
        return code  # a backslash that escapes nothing, as in a path
    return str(found)
