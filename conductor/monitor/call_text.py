"""Tool calls in text that a parser gave up on, and stray markup: for task C1.

Knows no run. Read are tags, JSON between tags, and a whole text that is nothing but a call in JSON;
fenced code stays as it is.
"""

import json
import re
from collections.abc import Container
from dataclasses import dataclass

from conductor.monitor.loose_json import NoJson, loose_json, loose_prefix, strict_json
from proto.chat import Json

MOST_CALLS = 64  # that are read out of one text

_OPEN = re.compile(r"<tool_call\b[^<>\n]{0,80}>|<function=")
_FUNCTION = re.compile(r"\s*<function=\s*([^<>\s]{1,128})\s*>")
_PARAMETER = re.compile(r"\s*<parameter=\s*([^<>\n]{1,256}?)\s*>")
_PARAMETER_END = re.compile(r"</parameter>|(?=<parameter=)|(?=</function>)|(?=</tool_call>)")
_ENDS = re.compile(r"(?:\s|\}|</parameter>|</function>|</tool_call>)*")
_FENCED = re.compile(r"^[ \t]*(`{3,}|~{3,})[^\n]*\n.*?(?:^[ \t]*\1[ \t]*$|\Z)", re.S | re.M)
_WHOLE_FENCE = re.compile(r"\s*```(?:json)?\n(.*?)\n?```\s*", re.DOTALL)
_JSON_CALL = re.compile(r'\{\s*"name"\s*:')
_DECODER = json.JSONDecoder()
_STRAY = re.compile(
    r"^[ \t]*</?(?:tool_call|tool_response|function|parameter)>[ \t]*(?:\n|\Z)", re.MULTILINE
)


@dataclass(frozen=True, slots=True)
class FoundCall:
    """A call as it was written. `are_texts`: its values are all texts, to be typed by a schema."""

    name: str
    arguments: Json
    are_texts: bool = False


@dataclass(frozen=True, slots=True)
class FoundCalls:
    """Calls of a text, and the text without them and without stray markup."""

    calls: tuple[FoundCall, ...]
    rest: str


def calls_in(text: str, names: Container[str], *, is_cut: bool) -> FoundCalls:
    """Calls that were meant, in order. `names`: offered tools, which a bare call must name.

    `is_cut`: a limit ended the text, so that what is not closed is no call, and a tag no stray one.
    """
    bare = _bare_calls(text, names, is_cut=is_cut)
    if bare:
        return FoundCalls(bare, "")
    code = [match.span() for match in _FENCED.finditer(text)]
    calls: list[FoundCall] = []
    kept: list[str] = []
    at = done = 0
    while len(calls) < MOST_CALLS and (found := _OPEN.search(text, at)) is not None:
        at = found.end()
        if any(begin <= found.start() < end for begin, end in code):
            continue
        block = _block(text, found)
        if block is None or (is_cut and not block.is_closed):
            continue
        kept.append(text[done : found.start()])
        calls += block.calls
        at = done = block.end
    kept.append(text[done:])
    rest = "".join(kept) if is_cut else _without_strays("".join(kept))
    return FoundCalls(tuple(calls), rest.rstrip() if calls else rest)


def calls_named_in(text: str, names: Container[str]) -> int:
    """How many complete calls of offered tools stand anywhere in a text, tagged or not."""
    tagged = sum(call.name in names for call in calls_in(text, names, is_cut=True).calls)
    bare = 0
    for match in _JSON_CALL.finditer(text):
        try:
            value, _ = _DECODER.raw_decode(text, match.start())
        except (ValueError, RecursionError):
            continue
        bare += sum(call.name in names for call in _json_calls(value))
    return max(tagged, bare)


@dataclass(frozen=True, slots=True)
class _Block:
    calls: list[FoundCall]
    end: int
    is_closed: bool


def _bare_calls(text: str, names: Container[str], *, is_cut: bool) -> tuple[FoundCall, ...]:
    """Calls that are the whole text, plain or in a fence."""
    fence = _WHOLE_FENCE.fullmatch(text)
    bare = (fence.group(1) if fence else text).strip()
    if not bare.startswith(("{", "[")):
        return ()
    try:
        value = strict_json(bare) if is_cut else loose_json(bare)
    except NoJson:
        return ()
    found = _json_calls(value)
    return tuple(found) if found and all(call.name in names for call in found) else ()


def _json_calls(value: Json) -> list[FoundCall]:
    """Calls that a JSON value stands for: one, or a list of them; [] where one is none."""
    found: list[FoundCall] = []
    for one in value if isinstance(value, list) else [value]:
        if isinstance(one, dict) and isinstance(one.get("function"), dict):
            one = one["function"]
        if not isinstance(one, dict) or not isinstance(name := one.get("name"), str):
            return []
        key = "arguments" if "arguments" in one else "parameters"
        if key not in one or set(one) - {"name", "arguments", "parameters", "id", "type"}:
            return []
        found.append(FoundCall(name.strip(), one[key]))
    return found


def _block(text: str, opened: re.Match[str]) -> _Block | None:
    """The calls from an opening tag on; None where nothing there can be read."""
    function = _FUNCTION.match(text, opened.start())
    at = opened.start() if function else opened.end()
    if _FUNCTION.match(text, at):
        return _tagged(text, at)
    try:
        value, end = loose_prefix(text, at)
    except NoJson:
        return None
    calls = _tag_calls(value)
    ends = _ENDS.match(text, end)
    assert ends is not None
    return _Block(calls, ends.end(), "</tool_call>" in ends.group()) if calls else None


def _tag_calls(value: Json) -> list[FoundCall]:
    """Between tags a call may also leave its arguments out."""
    if isinstance(value, dict) and set(value) == {"name"}:
        value = {**value, "arguments": {}}
    return _json_calls(value)


def _tagged(text: str, at: int) -> _Block:
    calls: list[FoundCall] = []
    is_closed = False
    while (function := _FUNCTION.match(text, at)) is not None:
        values: dict[str, Json] = {}
        at = function.end()
        while (parameter := _PARAMETER.match(text, at)) is not None:
            ended = _PARAMETER_END.search(text, parameter.end())
            value = text[parameter.end() : ended.start() if ended else len(text)]
            values[parameter.group(1)] = value.removeprefix("\n").removesuffix("\n")
            at = ended.end() if ended else len(text)
        calls.append(FoundCall(function.group(1), values, are_texts=True))
        ends = _ENDS.match(text, at)
        assert ends is not None
        at, is_closed = ends.end(), "</function>" in ends.group()
    return _Block(calls, at, is_closed)


def _without_strays(text: str) -> str:
    """The text without lines that hold nothing but a tag of a call, but for fenced code."""
    out: list[str] = []
    at = 0
    for code in _FENCED.finditer(text):
        out += [_STRAY.sub("", text[at : code.start()]), code.group()]
        at = code.end()
    return "".join([*out, _STRAY.sub("", text[at:])])
