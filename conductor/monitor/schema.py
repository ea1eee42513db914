"""Whether arguments fit a tool's JSON Schema, and what they are coerced to. Knows no call.

Only what decides a type is read: `type`, `const`, `enum`, `anyOf`, `oneOf`, `allOf`, `nullable`,
`properties`, `required`, `items`, and references within the schema. All else holds for anything.
Source: JSON Schema 2020-12; `nullable` is OpenAPI 3.0's.
"""

import math
from dataclasses import dataclass

from conductor.monitor.loose_json import dumped, strict_json
from proto.chat import Json

MOST_DEPTH = 16  # of schemas and values looked into; deeper ones are left as they are
MOST_REFERENCES = 8  # followed from one place; a circle never ends

_Schema = dict[str, Json]
_TYPES = ("null", "boolean", "integer", "number", "string", "array", "object")
_WORDS: dict[str, Json] = {"true": True, "false": False, "null": None, "none": None}


@dataclass(frozen=True, slots=True)
class Fitted:
    """Arguments after coercion. `faults`: what still does not fit, as `missing` or `type`."""

    value: Json
    faults: tuple[str, ...] = ()


def fit_arguments(arguments: dict[str, Json], parameters: _Schema | None) -> Fitted:
    """Arguments coerced to the types of a tool's parameters, and what still does not fit."""
    whole = parameters or {}
    return _object(arguments, whole, whole, 0)


def fit(value: Json, schema: Json, whole: _Schema, depth: int = 0) -> Fitted:
    """A value coerced to the types of its schema. `whole`: where references lead into."""
    if depth > MOST_DEPTH:
        return Fitted(value)
    schema = resolved(schema, whole)
    choices = _choices(schema)
    if choices:
        return _fit_any(value, choices, whole, depth)
    types = types_of(schema)
    if types is None or _type_of(value) & types:
        return _inside(value, schema, whole, depth)
    for candidate in _coerced(value, types, schema):
        inside = _inside(candidate, schema, whole, depth)
        if not inside.faults:
            return inside
    return Fitted(value, ("type",))


def types_of(schema: _Schema) -> frozenset[str] | None:
    """JSON types that a schema allows; None where it does not say."""
    listed = schema.get("type")
    if isinstance(listed, str):
        listed = [listed]
    found: frozenset[str] | None
    if isinstance(listed, list):
        known = frozenset(name for name in listed if isinstance(name, str) and name in _TYPES)
        found = known if len(known) == len(listed) else None
    elif "const" in schema:
        found = _type_of(schema["const"])
    elif isinstance(values := schema.get("enum"), list):
        found = frozenset().union(*(_type_of(value) for value in values))
    elif isinstance(schema.get("properties"), dict):
        found = frozenset({"object"})
    else:
        found = frozenset({"array"}) if isinstance(schema.get("items"), dict) else None
    if found and schema.get("nullable") is True:
        found |= {"null"}
    return found or None


def resolved(schema: Json, whole: _Schema) -> _Schema:
    """The schema that references lead to, with those of `allOf` merged in; {} for anything."""
    for _ in range(MOST_REFERENCES):
        if not isinstance(schema, dict):
            return {}
        reference = schema.get("$ref")
        if not isinstance(reference, str):
            parts = schema.get("allOf")
            return _merged(schema, parts, whole) if isinstance(parts, list) else schema
        schema = _pointed(reference, whole)
    return {}


def _pointed(reference: str, whole: _Schema) -> Json:
    found: Json = whole
    steps = reference.split("/")
    if steps[0] != "#":
        return {}
    for step in steps[1:]:
        step = step.replace("~1", "/").replace("~0", "~")
        found = found.get(step) if isinstance(found, dict) else {}
    return found


def _merged(schema: _Schema, parts: list[Json], whole: _Schema) -> _Schema:
    """One level of `allOf`: properties and required names together, else the first that says."""
    merged = {key: value for key, value in schema.items() if key != "allOf"}
    for part in parts:
        if isinstance(part, dict) and isinstance(reference := part.get("$ref"), str):
            part = _pointed(reference, whole)
        if not isinstance(part, dict):
            continue
        for key, value in part.items():
            own = merged.get(key)
            if key == "properties" and isinstance(own, dict) and isinstance(value, dict):
                merged[key] = {**value, **own}
            elif key == "required" and isinstance(own, list) and isinstance(value, list):
                merged[key] = [*own, *value]
            else:
                merged.setdefault(key, value)
    return merged


def _choices(schema: _Schema) -> list[Json]:
    if "type" in schema or "properties" in schema:
        return []  # choices beside them narrow what they say
    for key in ("anyOf", "oneOf"):
        found = schema.get(key)
        if isinstance(found, list) and found:
            return found
    return []


def _fit_any(value: Json, choices: list[Json], whole: _Schema, depth: int) -> Fitted:
    """The first choice that takes the value unchanged, else the first that takes it at all."""
    tried = [fit(value, choice, whole, depth + 1) for choice in choices]
    fitting = [one for one in tried if not one.faults]
    same = [one for one in fitting if one.value == value and _type_of(one.value) & _type_of(value)]
    return (same or fitting or [Fitted(value, ("type",))])[0]


def _inside(value: Json, schema: _Schema, whole: _Schema, depth: int) -> Fitted:
    """A value of the right type, with what it holds coerced."""
    if isinstance(value, dict):
        return _object(value, schema, whole, depth)
    items = schema.get("items")
    if isinstance(value, list) and isinstance(items, dict):
        fitted = [fit(item, items, whole, depth + 1) for item in value]
        return Fitted(
            [one.value for one in fitted], tuple(fault for one in fitted for fault in one.faults)
        )
    values = schema.get("enum")
    if isinstance(values, list) and value not in values:
        return Fitted(_listed(value, values))
    return Fitted(value)


def _object(value: dict[str, Json], schema: _Schema, whole: _Schema, depth: int) -> Fitted:
    schema = resolved(schema, whole)
    properties, required = schema.get("properties"), schema.get("required")
    known = properties if isinstance(properties, dict) else {}
    names = required if isinstance(required, list) else []
    needed = [name for name in names if isinstance(name, str)]
    out: dict[str, Json] = {}
    faults: list[str] = []
    for key, part in value.items():
        fitted = fit(part, known[key], whole, depth + 1) if key in known else Fitted(part)
        if fitted.faults and part is None and key not in needed:
            continue  # null for "not given", where null is not allowed
        out[key] = fitted.value
        faults += fitted.faults
    faults += ["missing" for name in needed if name not in out]
    return Fitted(out, tuple(faults))


def _type_of(value: Json) -> frozenset[str]:
    """The types a value is of: a whole number is an integer and a number."""
    if value is None:
        return frozenset({"null"})
    if isinstance(value, bool):
        return frozenset({"boolean"})
    if isinstance(value, int):
        return frozenset({"integer", "number"})
    if isinstance(value, float):
        return frozenset({"integer", "number"} if value.is_integer() else {"number"})
    names = {str: "string", list: "array", dict: "object"}
    return frozenset({names[type(value)]})


def _coerced(value: Json, types: frozenset[str], schema: _Schema) -> list[Json]:
    """What a value of another type may have meant, the likeliest first."""
    found: list[Json] = []
    if isinstance(value, str):
        found += [one for one in _meant(value) if _type_of(one) & types]
    elif "string" in types and value is not None:
        found.append(dumped(value))
    if "boolean" in types and value in (0, 1) and not isinstance(value, str):
        found.append(bool(value))
    if "array" in types and value is not None and "items" in schema:
        found.append([value])
    return found


def _meant(text: str) -> list[Json]:
    """What a text may be the writing of."""
    bare = text.strip()
    if bare.lower() in _WORDS:
        return [_WORDS[bare.lower()]]
    if not bare:
        return [None]
    try:
        value = strict_json(bare)
    except ValueError:
        return []
    if isinstance(value, float) and math.isfinite(value) and value.is_integer():
        return [int(value), value]
    return [value]


def _listed(value: Json, values: list[Json]) -> Json:
    """The one listed value that is written the same but for case; the value where none is."""
    text = _written(value)
    same = [one for one in values if _written(one) == text]
    return same[0] if len(same) == 1 else value


def _written(value: Json) -> str:
    return (value if isinstance(value, str) else dumped(value)).strip().casefold()
