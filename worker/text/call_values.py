"""What a parameter's schema makes of the text between its tags. Knows no markup around it."""

import json
from collections.abc import Mapping

from proto.chat import Json
from worker.text.json_copy import copy_json

_TYPE_OF = {
    bool: "boolean",
    int: "number",
    float: "number",
    str: "string",
    list: "array",
    dict: "object",
    type(None): "null",
}


def types_of(schema: Json) -> frozenset[str] | None:
    """JSON types that a schema allows, `integer` among them as `number`; None: it does not say.

    Looks at `type`, at `const` and `enum`, and into `anyOf` and `oneOf`; follows no reference.
    """
    if not isinstance(schema, dict):
        return None
    match schema:
        case {"type": str(name)}:
            return _numbers_are_one({name})
        case {"type": list(names)}:
            return _numbers_are_one({name for name in names if isinstance(name, str)})
        case {"const": value}:
            return frozenset((_TYPE_OF[type(value)],))
        case {"enum": list(values)}:
            return frozenset(_TYPE_OF[type(value)] for value in values)
        case {"anyOf": list(choices)} | {"oneOf": list(choices)}:
            found = [types_of(choice) for choice in choices]
            known = [types for types in found if types is not None]
            return frozenset().union(*known) if known and len(known) == len(found) else None
    return None


def parameter_types(parameters: Mapping[str, Json] | None) -> dict[str, frozenset[str] | None]:
    """The types of every parameter of a tool, by name (`types_of`)."""
    properties = (parameters or {}).get("properties")
    if not isinstance(properties, dict):
        return {}
    return {name: types_of(schema) for name, schema in properties.items()}


def value_json(text: str, types: frozenset[str] | None) -> str:
    """The JSON of a value that is not declared a string.

    Numbers keep their digits. What is none of `types` becomes a string of the text as written;
    without `types` only what is strictly JSON, and no string, is taken as JSON.
    """
    copy = copy_json(text)
    if copy is None or (types is None and not _is_strict(text)):
        return json.dumps(text, ensure_ascii=False)
    value = json.loads(copy)
    if isinstance(value, str) and types is not None and "string" not in types:
        # Encoded twice: an array inside a string where an array is declared.
        inner = copy_json(value)
        if inner is not None and _TYPE_OF[type(json.loads(inner))] in types:
            return inner
    is_allowed = not isinstance(value, str) if types is None else _TYPE_OF[type(value)] in types
    return copy if is_allowed else json.dumps(text, ensure_ascii=False)


def _is_strict(text: str) -> bool:
    try:
        json.loads(text)
    except ValueError:
        return False
    return True


def _numbers_are_one(names: set[str]) -> frozenset[str]:
    return frozenset("number" if name == "integer" else name for name in names)
