"""The top level of a JSON request, read without re-writing it. Knows no dialect.

Each value is parsed once at C speed and its place in the bytes is kept, so that some of them can be
replaced while every other byte stays as the client wrote it.
"""

import json
import re
from collections.abc import Iterable
from typing import Any, NamedTuple

from gateway.errors import ApiError
from gateway.surfaces.json_text import Scan, scanners
from proto.limits import JSON_DEPTH, MODEL_NAME_CHARS

_SPACE = re.compile(r"[ \t\n\r]*")
# What stands before a value and behind it, where nothing is wrong.
_NAME = r'[ \t\n\r]*"([^"\\\x00-\x1f]*)"[ \t\n\r]*:[ \t\n\r]*'
_FIRST_NAME = re.compile(r"[ \t\n\r]*\{" + _NAME)
_NEXT_NAME = re.compile(r"[ \t\n\r]*," + _NAME)
_END = re.compile(r"[ \t\n\r]*\}[ \t\n\r]*\Z")


def _refuse_constant(name: str) -> Any:
    raise ValueError(f"{name} is not JSON")


_DECODER = json.JSONDecoder(parse_constant=_refuse_constant)
_quick, _patient = scanners(_refuse_constant)


class Envelope(NamedTuple):
    """Top-level fields by name, and where each value stands in the text (characters)."""

    text: str
    fields: dict[str, Any]
    spans: dict[str, tuple[int, int]]
    repeated: frozenset[str]


def read_envelope(body: bytes) -> Envelope:
    """Reads a request body that must be one JSON object.

    Raises: ApiError 400 `invalid_json`.
    """
    try:
        text = body.decode("utf-8")
    except UnicodeDecodeError as fault:
        raise _invalid(f"the body is not UTF-8 (byte {fault.start})") from fault
    try:
        envelope = _read_any(text)
    except json.JSONDecodeError as fault:
        raise _invalid(f"{fault.msg} at line {fault.lineno}, column {fault.colno}") from fault
    except ValueError as fault:
        raise _invalid(str(fault)) from fault
    except RecursionError as fault:
        raise _too_deep() from fault
    openers = body.count(b"{") + body.count(b"[")
    if openers > JSON_DEPTH and _depth(envelope.fields) > JSON_DEPTH:
        raise _too_deep()
    return envelope


def model_of(envelope: Envelope) -> str:
    """The `model` of a request.

    Raises: ApiError 400 with `param: model`.
    """
    model = envelope.fields.get("model")
    if "model" in envelope.repeated:
        raise ApiError(400, "invalid_request", "'model' is given twice.", param="model")
    if not isinstance(model, str) or not model:
        message = "'model' is missing: name the model to use, as text."
        if model is not None:
            message = "'model' must be text that is not empty."
        raise ApiError(400, "invalid_request", message, param="model")
    return checked_name(model)


def checked_name(model: str) -> str:
    """A model's name that is not too long. Raises: ApiError 400 with `param: model`."""
    if len(model) > MODEL_NAME_CHARS:
        message = f"'model' is longer than {MODEL_NAME_CHARS} characters."
        raise ApiError(400, "invalid_request", message, param="model")
    return model


class Edit(NamedTuple):
    """New text for one span (characters) of a body; an empty span is a place to put it in."""

    start: int
    end: int
    new: str


def value_edit(envelope: Envelope, name: str, value: Any) -> Edit:
    """Replaces one top-level value."""
    return Edit(*envelope.spans[name], json.dumps(value, ensure_ascii=False))


def member_edit(envelope: Envelope, name: str, member: str, value: str) -> Edit | None:
    """Sets one member of a top-level object to `value` (JSON), and makes the object if need be.

    None where nothing can be set without a guess: the name or the member is given twice, or it is
    no object at all. A member that is there is replaced.
    """
    if name in envelope.repeated:
        return None
    whole = f'{{"{member}":{value}}}'
    if name not in envelope.fields:
        at = max((end for _, end in envelope.spans.values()), default=None)
        return None if at is None else Edit(at, at, f',"{name}":{whole}')
    start, end = envelope.spans[name]
    found = envelope.fields[name]
    if found is None:
        return Edit(start, end, whole)
    if not isinstance(found, dict):
        return None
    inner = _read_any(envelope.text[start:end])
    if member in inner.repeated:
        return None
    if member in inner.spans:
        at, until = inner.spans[member]
        return Edit(start + at, start + until, value)
    return Edit(start + 1, start + 1, f'"{member}":{value}' + ("," if found else ""))


def edited(text: str, edits: Iterable[Edit]) -> bytes:
    """The body with these spans replaced, which do not overlap, and every other byte as it was."""
    for edit in sorted(edits, reverse=True):  # from the end: what is before it stays in its place
        text = text[: edit.start] + edit.new + text[edit.end :]
    return text.encode("utf-8")


def _read_any(text: str) -> Envelope:
    try:
        return _read_object(text, _quick)
    except json.JSONDecodeError:
        raise
    except ValueError:
        return _read_object(text, _patient)


def _read_object(text: str, scan: Scan) -> Envelope:
    """One walk over the top level; nested values are skipped by the C decoder."""
    fields: dict[str, Any] = {}
    spans: dict[str, tuple[int, int]] = {}
    repeated: set[str] = set()
    if (named := _FIRST_NAME.match(text)) is not None:
        name, at = named[1], named.end()
    else:
        at = _skip(text, 0)
        if not text.startswith("{", at):
            raise json.JSONDecodeError("Expecting an object", text, at)
        if _END.match(text, at + 1) is not None:
            return Envelope(text, fields, spans, frozenset())
        _refuse_end(text, at + 1)
        name, at = _name_at(text, at + 1)
    while True:
        try:
            value, end = scan(text, at)
        except StopIteration as fault:
            raise json.JSONDecodeError("Expecting value", text, fault.value) from None
        if name in fields:
            repeated.add(name)
        fields[name] = value
        spans[name] = (at, end)
        if (named := _NEXT_NAME.match(text, end)) is not None:
            name, at = named[1], named.end()
        elif _END.match(text, end) is not None:
            return Envelope(text, fields, spans, frozenset(repeated))
        else:
            name, at = _name_at(text, _comma_at(text, end) + 1)


def _comma_at(text: str, at: int) -> int:
    """Where the comma behind a value stands, after which there is no plain name."""
    _refuse_end(text, at)
    at = _skip(text, at)
    if not text.startswith(",", at):
        raise json.JSONDecodeError("Expecting ',' delimiter", text, at)
    return at


def _refuse_end(text: str, at: int) -> None:
    """The object must not end here: there is more behind it."""
    if text.startswith("}", at := _skip(text, at)):
        raise json.JSONDecodeError("Extra data", text, _skip(text, at + 1))


def _name_at(text: str, at: int) -> tuple[str, int]:
    """A name that has escapes in it, or is none; and where its value begins."""
    at = _skip(text, at)
    if not text.startswith('"', at):
        raise json.JSONDecodeError("Expecting a name in double quotes", text, at)
    name, at = _DECODER.raw_decode(text, at)
    at = _skip(text, at)
    if not text.startswith(":", at):
        raise json.JSONDecodeError("Expecting ':' delimiter", text, at)
    return name, _skip(text, at + 1)


def _skip(text: str, at: int) -> int:
    found = _SPACE.match(text, at)
    assert found is not None
    return found.end()


def _depth(value: Any) -> int:
    """Levels of nesting, without recursion."""
    deepest = 0
    open_values = [(value, 1)]
    while open_values:
        item, level = open_values.pop()
        children = item.values() if isinstance(item, dict) else item
        if isinstance(item, (dict, list)):
            deepest = max(deepest, level)
            open_values += [(child, level + 1) for child in children]
    return deepest


def _invalid(reason: str) -> ApiError:
    return ApiError(400, "invalid_json", f"The body is not valid JSON: {reason}.")


def _too_deep() -> ApiError:
    message = f"The body is nested deeper than {JSON_DEPTH} levels."
    return ApiError(400, "invalid_json", message)
