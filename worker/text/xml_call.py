"""One tool call written as tags, read as its characters come. Knows the offered tools.

Knows neither what stands around a call nor when it may go out.
"""

import json
from collections.abc import Mapping
from typing import Literal

from proto.chat import Tool
from worker.text.call_syntax import CALL, CALL_END, FUNCTION, AnyName, Outcome, held_length
from worker.text.call_values import parameter_types, value_json

_FUNCTION_END = "</function>"
_PARAMETER, _PARAMETER_END = "<parameter=", "</parameter>"
_TEXT = frozenset(("string",))
_INSIDE = (_PARAMETER, _FUNCTION_END, CALL_END, FUNCTION, CALL)


class XmlCall:
    """A call from behind `<function=` to `</function>`, its values typed by the tool's schema.

    `takes_any_name`: names that are not offered make a call too. Its values are texts, for whoever
    finds out which tool was meant.
    """

    def __init__(self, tools: Mapping[str, Tool], *, takes_any_name: bool = False) -> None:
        self.name: str | None = None
        self.outcome: Outcome = "reading"
        self.unread = ""
        self._tools = tools
        self._names = AnyName() if takes_any_name else tools
        self._is_offered = True
        self._part: Literal["name", "between", "key", "value"] = "name"
        self._types: dict[str, frozenset[str] | None] = {}
        self._token = ""  # of a name, a key or a tag
        self._value: _XmlValue | None = None
        self._has_parameter = False
        self._out: list[str] = []

    def read(self, text: str, at: int) -> int:
        while at < len(text) and self.outcome == "reading":
            if self._part == "value":
                at = self._read_value(text, at)
            elif self._part == "between":
                self._between(text[at])
                at += 1
            elif self._part == "key":
                self._key(text[at])
                at += 1
            else:
                at += self._name(text[at])
        return at

    def take(self) -> str:
        out, self._out = "".join(self._out), []
        return out

    def close(self) -> str:
        if self._value is not None and self._value.is_string_open:
            return '"}'
        return "}" if self._has_parameter else "{}"

    def finish(self) -> None:
        if self._part == "between":
            self._end()

    def _name(self, char: str) -> bool:
        if char == ">" and self._token in self._names:
            self.name, self._token, self._part = self._token, "", "between"
            self._is_offered = self.name in self._tools
            if self._is_offered:
                self._types = parameter_types(self._tools[self.name].parameters)
        elif self._may_be_name(self._token + char):
            self._token += char
        else:
            self.outcome = "failed"
            return False
        return True

    def _may_be_name(self, begun: str) -> bool:
        if isinstance(self._names, AnyName):
            return begun in self._names
        return any(name.startswith(begun) for name in self._tools)

    def _between(self, char: str) -> None:
        """Between parameters only tags count; what else stands there is skipped."""
        self._token = self._token + char if char != "<" else char
        if self._token == _PARAMETER:
            self._token, self._part = "", "key"
        elif self._token in (_FUNCTION_END, CALL_END, FUNCTION, CALL):
            # Without its end tag the call ends where the next thing of its block begins.
            self.unread = "" if self._token == _FUNCTION_END else self._token
            self._end()
        elif not any(tag.startswith(self._token) for tag in _INSIDE):
            self._token = ""

    def _key(self, char: str) -> None:
        if char in "<\n":  # no key has these: it was no tag of ours
            self._token, self._part = "", "between"
            if char == "<":
                self._token = char
        elif char != ">":
            self._token += char
        else:
            key, self._token, self._part = self._token.strip(), "", "value"
            before = ", " if self._has_parameter else "{"
            before += json.dumps(key, ensure_ascii=False) + ": "
            types = self._types.get(key) if self._is_offered else _TEXT
            self._value = _XmlValue(types, before)

    def _read_value(self, text: str, at: int) -> int:
        assert self._value is not None
        at = self._value.read(text, at)
        if piece := self._value.take():
            self._has_parameter = True
            self._out.append(piece)
        if self._value.is_done:
            self._value, self._part = None, "between"
        return at

    def _end(self) -> None:
        self._out.append(self.close())
        self.outcome = "done"


class _XmlValue:
    """The text of one parameter up to its end tag, given out as JSON behind `before`."""

    def __init__(self, types: frozenset[str] | None, before: str) -> None:
        self.is_done = False
        self.is_string_open = False
        self._types = types
        self._is_string = types is not None and "string" in types
        # Until it can be no `null` any more, a nullable string is no string.
        self._may_be_null = self._is_string and types is not None and "null" in types
        self._out = [before]
        self._parts: list[str] = []  # of a value that goes out at its end
        self._held = ""  # may begin the end tag, or be the newline before it
        self._is_first = True

    def read(self, text: str, at: int) -> int:
        if self._is_first:
            self._is_first = False
            if text[at] == "\n":
                return at + 1
        chunk = self._held + text[at:]
        end = chunk.find(_PARAMETER_END)
        if end < 0:
            keep = held_length(chunk, "\n" + _PARAMETER_END, _PARAMETER_END)
            self._add(chunk[: len(chunk) - keep])
            self._held = chunk[len(chunk) - keep :]
            return len(text)
        self._add(chunk[:end].removesuffix("\n"))
        self._end()
        return at + end + len(_PARAMETER_END) - len(self._held)

    def take(self) -> str:
        """JSON that became certain since the last call."""
        if not self.is_string_open and not self.is_done:
            return ""
        out, self._out = "".join(self._out), []
        return out

    def _add(self, text: str) -> None:
        if self._may_be_null and text:
            self._parts.append(text)
            text = "".join(self._parts)
            self._may_be_null = "null".startswith(text)
            if self._may_be_null:
                return
            self._parts = []
        if not self._is_string:
            self._parts.append(text)
        elif text:
            self._open_string()
            self._out.append(json.dumps(text, ensure_ascii=False)[1:-1])

    def _open_string(self) -> None:
        if not self.is_string_open:
            self.is_string_open = True
            self._out.append('"')

    def _end(self) -> None:
        text = "".join(self._parts)
        if not self._is_string:
            self._out.append(value_json(text, self._types))
        elif self._may_be_null and text == "null":
            self._out.append(text)
        else:
            self._open_string()
            self._out.append(json.dumps(text, ensure_ascii=False)[1:])
        self.is_string_open, self.is_done = False, True
