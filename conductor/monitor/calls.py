"""What is done to complete calls: repairs (C1), coercion and renaming (C3), echoes, sums of calls.

Knows no verdict and no limit. A call that the client has is never changed here: who asks does not.
"""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from conductor.monitor.call_text import FoundCall
from conductor.monitor.loose_json import NoJson, dumped, loose_json, strict_json
from conductor.monitor.schema import fit_arguments
from conductor.monitor.verdicts import MadeCall, PastCall
from proto.chat import Json, Tool

# What models write for "no arguments" beside `{}`.
_NOTHING = frozenset({"", '""', "''", "null", "None", "{", "}", "undefined"})
_WORDS = re.compile(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+|[0-9]+")


@dataclass(frozen=True, slots=True)
class Judged:
    """A call after a check. `change`: what was done, in a word; `fault`: what cannot be done.

    `tool`: the offered tool it is a call of, None where it is of none.
    """

    call: MadeCall
    change: str | None = None
    fault: str | None = None
    tool: str | None = None


def repaired(call: MadeCall) -> Judged:
    """A call whose arguments are a JSON object, where that can be seen to be meant (C1)."""
    value, change = _read_arguments(call.arguments)
    if value is None:
        return Judged(call, fault="arguments")
    if change is None:
        return Judged(call)
    return Judged(replace(call, arguments=dumped(value)), change)


def written_call(found: FoundCall, index: int, tools: Mapping[str, Tool]) -> MadeCall:
    """A call that was read out of text, as C1 gives it out."""
    arguments = found.arguments
    if found.are_texts and isinstance(arguments, dict) and found.name in tools:
        arguments = fit_arguments(arguments, tools[found.name].parameters).value
    if isinstance(arguments, str):
        return repaired(MadeCall(index, found.name, arguments)).call
    return MadeCall(index, found.name, "{}" if arguments is None else dumped(arguments))


def without_echoes(calls: Sequence[MadeCall]) -> tuple[MadeCall, ...]:
    """The calls without those that say exactly what the one before them says.

    What the client has stays.
    """
    kept: list[MadeCall] = []
    for call in calls:
        if not call.is_sent and kept and meaning(kept[-1]) == meaning(call):
            continue
        kept.append(call)
    return tuple(kept)


def judged(call: MadeCall, tools: Mapping[str, Tool], rename_edits: int) -> Judged:
    """A call as its tool's schema wants it, or what is wrong with it (C3)."""
    name = tool_name(call.name, tools, rename_edits)
    if name is None:
        return Judged(call, fault="unknown_tool")
    change = "renamed" if name != call.name else None
    call = replace(call, name=name)
    try:
        value = strict_json(call.arguments)
    except NoJson:
        value = None
    if not isinstance(value, dict):
        return Judged(call, change, "arguments", name)
    fitted = fit_arguments(value, tools[name].parameters)
    if fitted.faults:
        return Judged(call, change, fitted.faults[0], name)
    if dumped(fitted.value) != dumped(value):
        call = replace(call, arguments=dumped(fitted.value))
        change = change or "coerced"
    return Judged(call, change, None, name)


def tool_name(written: str, tools: Mapping[str, Tool], rename_edits: int) -> str | None:
    """The offered name that was meant: the same, but for case, or but for one edit; if only one."""
    if written in tools:
        return written
    folded = written.casefold()
    same = [name for name in tools if name.casefold() == folded]
    if not same and rename_edits:
        same = [name for name in tools if is_one_edit(folded, name.casefold())]
    return same[0] if len(same) == 1 else None


def is_one_edit(one: str, other: str) -> bool:
    """Whether one character too much, too few or another one is all that differs."""
    short, long = sorted((one, other), key=len)
    if len(long) - len(short) > 1 or short == long:
        return False
    at = next((i for i, char in enumerate(short) if char != long[i]), len(short))
    return short[at + (len(short) == len(long)) :] == long[at + 1 :]


def is_circular(call: MadeCall, past: Sequence[PastCall], times: int) -> bool:
    """Whether the last calls of the conversation all were this one, with one result (C4)."""
    last = past[-times:] if times else ()
    if not last or len(last) < times or last[0].result is None:
        return False
    return all(meaning(one) == meaning(call) and one.result == last[0].result for one in last)


def is_mutating(name: str, verbs: Sequence[str], tools: Sequence[str]) -> bool:
    """Whether a tool's name says that it changes something, or a profile says so (C5)."""
    return name in tools or bool({word.lower() for word in _WORDS.findall(name)} & set(verbs))


def meaning(call: MadeCall | PastCall) -> tuple[str, str]:
    """Name and arguments, the order of keys and blanks left out where they are JSON."""
    try:
        value = strict_json(call.arguments)
    except NoJson:
        return call.name, call.arguments
    return call.name, _sorted(value)


def _sorted(value: Json) -> str:
    if isinstance(value, dict):
        return "{" + ",".join(f"{dumped(key)}:{_sorted(value[key])}" for key in sorted(value)) + "}"
    if isinstance(value, list):
        return "[" + ",".join(map(_sorted, value)) + "]"
    return dumped(value)


def _read_arguments(text: str) -> tuple[dict[str, Json] | None, str | None]:
    """The object that arguments are, and what had to be forgiven, in a word."""
    bare = text.strip()
    if bare in _NOTHING:
        return {}, "empty"
    try:
        value: Json = strict_json(bare)
        change = None
    except NoJson:
        try:
            value, change = loose_json(bare), "loose"
        except NoJson:
            return None, None
    if isinstance(value, str):
        inner, _ = _read_arguments(value) if value != text else (None, None)
        return inner, "doubly_encoded"
    return (value, change) if isinstance(value, dict) else (None, None)
