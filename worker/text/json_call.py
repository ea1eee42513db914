"""One tool call written as a JSON object, read as its characters come. Knows the offered names.

Knows neither what stands around a call nor when it may go out.
"""

import json
from collections.abc import Container
from typing import Literal

from worker.text.call_syntax import CALL_END, Outcome
from worker.text.json_copy import BLANKS, JsonCopy, copy_json

_ARGUMENTS = ("arguments", "parameters")


class JsonCall:
    """A call from behind the `{` of `{"name": …, "arguments": {…}}` to its end, keys in any order.

    Arguments that are an object go out as they come; encoded once more as a string, or nothing
    (`null`, "", a lone `}`), at their end. `is_bare`: no markup stands around the call, so that
    it must have both keys and no other.
    """

    def __init__(self, names: Container[str], *, is_bare: bool = False) -> None:
        self.name: str | None = None
        self.outcome: Outcome = "reading"
        self.unread = ""
        self._names = names
        self._is_bare = is_bare
        self._part: Literal["key", "key_text", "colon", "value", "next"] = "key"
        self._key = ""
        self._tag = ""  # the end tag, when it comes before the object's end
        self._copy = JsonCopy()  # of the key or value that is being read
        self._value: list[str] = []
        self._has_arguments = False
        self._is_streaming = False  # an arguments object has begun to go out
        self._out: list[str] = []

    def read(self, text: str, at: int) -> int:
        while at < len(text) and self.outcome == "reading":
            if self._part == "key_text":
                at = self._key_text(text, at)
            elif self._part == "value":
                at = self._read_value(text, at)
            else:
                at += self._structure(text[at])
        return at

    def take(self) -> str:
        out, self._out = "".join(self._out), []
        return out

    def close(self) -> str:
        if self._is_streaming:
            return self._copy.close()
        return "" if self._has_arguments else "{}"

    def finish(self) -> None:
        if self._part in ("key", "next"):
            self._end()

    def _structure(self, char: str) -> bool:
        """A character outside keys and values; False when it was not read."""
        if self._tag or (char == "<" and self._part in ("key", "next")):
            return self._end_tag(char)
        if char in BLANKS:
            return True
        if char == "}" and self._part in ("key", "next"):
            self._end()
        elif char == "," and self._part == "next":
            self._part = "key"
        elif char == '"' and self._part == "key":
            self._copy, self._part = JsonCopy(), "key_text"
            return False
        elif char == ":" and self._part == "colon":
            self._copy, self._value, self._part = JsonCopy(), [], "value"
        else:
            self.outcome = "failed"
            return False
        return True

    def _end_tag(self, char: str) -> bool:
        """The end tag in place of the closing brace."""
        grown = self._tag + char
        if self._is_bare or not CALL_END.startswith(grown):
            self.outcome, self.unread = "failed", self._tag
            return False
        self._tag = grown
        if grown == CALL_END:
            self.unread = grown
            self._end()
        return True

    def _key_text(self, text: str, at: int) -> int:
        at = self._copy.feed(text, at)
        if self._copy.is_done:
            self._key, self._part = json.loads(self._copy.take()), "colon"
            if self._is_bare and self._key not in ("name", *_ARGUMENTS):
                self.outcome = "failed"
        return at

    def _read_value(self, text: str, at: int) -> int:
        at = self._copy.feed(text, at)
        self._add(self._copy.take())
        if self._copy.is_done:
            self._end_value("".join(self._value))
        elif self._copy.is_broken:
            if text[at : at + 1] == "}" and not self._copy.has_begun:
                self._end_value("null")  # a brace where a value should be
            elif text[at : at + 1] == "<" and self._is_streaming and self._copy.is_between:
                # Braces are missing; what follows must be the end tag.
                self._out.append(self._copy.close())
                self._end_value("")
            else:
                self.outcome = "failed"
        return at

    def _add(self, piece: str) -> None:
        is_arguments = self._key in _ARGUMENTS and not self._has_arguments
        if is_arguments and not self._value and piece.startswith("{"):
            self._is_streaming = self._has_arguments = True
        if self._is_streaming:
            self._out.append(piece)
        elif piece and (is_arguments or self._key == "name"):
            self._value.append(piece)

    def _end_value(self, value: str) -> None:
        """`value`: its JSON, "" when nothing of it was kept."""
        self._part = "next"
        if self._is_streaming:
            self._is_streaming = False
        elif self._key in _ARGUMENTS and not self._has_arguments:
            self._end_arguments(json.loads(value))
        elif self._key == "name" and self.name is None:
            name = json.loads(value)
            if isinstance(name, str) and name in self._names:
                self.name = name
            else:
                self.outcome = "failed"

    def _end_arguments(self, value: object) -> None:
        inner = value.strip() if isinstance(value, str) else value
        whole = "{}" if inner in (None, "", "}") else None
        if whole is None and isinstance(inner, str):
            whole = copy_json(inner)
        if whole is None or not whole.startswith("{"):
            self.outcome = "failed"
            return
        self._out.append(whole)
        self._has_arguments = True

    def _end(self) -> None:
        if self.name is None or (self._is_bare and not self._has_arguments):
            self.outcome = "failed"
            return
        if not self._has_arguments:
            self._out.append("{}")
        self.outcome = "done"
