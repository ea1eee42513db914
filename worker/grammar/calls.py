"""The grammar of a model's tool calls, for the tools of one request. Knows no tokenizer.

Two forms: a JSON object a block (Hermes), or tags for function and parameters (XML).
"""

import json
from collections.abc import Sequence
from typing import Any

from proto.chat import Json, Tool
from worker.text.call_syntax import CallForm
from worker.text.call_values import types_of

NO_PARAMETERS: dict[str, Json] = {"type": "object", "properties": {}, "additionalProperties": False}

MOST_REFERENCES = 8  # followed from one parameter; a circle never ends


def call_rules(tools: Sequence[Tool], form: CallForm, *, is_parallel: bool) -> str:
    """Lark rules whose start is one call of one of the tools, or several when parallel."""
    rules = ['start: call ("\\n" call)*' if is_parallel else "start: call"]
    names = " | ".join(f"tool_{index}" for index in range(len(tools)))
    rules.append(f'call: "<tool_call>\\n" ({names}) "\\n</tool_call>"')
    for index, tool in enumerate(tools):
        rules += _hermes_rules(index, tool) if form == "hermes" else _xml_rules(index, tool)
    return "\n".join(rules) + "\n"


def _hermes_rules(index: int, tool: Tool) -> list[str]:
    head = literal(f'{{"name": {json.dumps(tool.name, ensure_ascii=False)}, "arguments": ')
    return [
        f'tool_{index}: {head} arguments_{index} "}}"',
        f"arguments_{index}: %json {_schema_text(tool.parameters or NO_PARAMETERS)}",
    ]


def _xml_rules(index: int, tool: Tool) -> list[str]:
    schema = tool.parameters or NO_PARAMETERS
    properties = schema.get("properties")
    required = schema.get("required")
    names = list(properties) if isinstance(properties, dict) else []
    must = set(required) if isinstance(required, list) else set()
    parts = [f"tool_{index}_{n}" + ("" if name in must else "?") for n, name in enumerate(names)]
    head = literal(f"<function={tool.name}>\n")
    rules = [f'tool_{index}: {head} {" ".join(parts)} "</function>"']
    for n, name in enumerate(names):
        assert isinstance(properties, dict)
        rules += _parameter_rules(f"tool_{index}_{n}", name, properties[name], schema)
    return rules


def _parameter_rules(rule: str, name: str, part: Any, whole: dict[str, Json]) -> list[str]:
    opening = literal(f"<parameter={name}>\n")
    closing = "\n</parameter>\n"
    schema = _resolved(part, whole)
    types = types_of(schema)
    if not schema or (types is not None and "string" in types):
        if (values := _listed(schema)) is not None:
            texts = " | ".join(literal(_raw(value)) for value in values)
            return [f"{rule}: {opening} ({texts}) {literal(closing)}"]
        # Any text up to the closing tag: values are raw, nothing in them is escaped.
        return [
            f"{rule}: {opening} {rule}_text",
            f"{rule}_text[suffix={literal(closing)}]: /(?s:.*)/",
        ]
    shared: dict[str, Json] = {key: whole[key] for key in ("$defs", "definitions") if key in whole}
    return [
        f"{rule}: {opening} {rule}_value {literal(closing)}",
        f"{rule}_value: %json {_schema_text({**shared, **part})}",
    ]


def _resolved(part: Any, whole: dict[str, Json]) -> dict[str, Json]:
    """The schema that a parameter's leads to, by references within the tool; {} for any value."""
    for _ in range(MOST_REFERENCES):
        reference = part.get("$ref") if isinstance(part, dict) else None
        keys = reference.split("/") if isinstance(reference, str) else []
        if len(keys) != 3 or keys[0] != "#":
            break
        part = _member(_member(whole, keys[1]), keys[2])
    return part if isinstance(part, dict) else {}


def _member(value: Any, key: str) -> Any:
    return value.get(key) if isinstance(value, dict) else None


def _listed(schema: dict[str, Json]) -> list[Json] | None:
    """All values of a schema that lists them."""
    if "const" in schema:
        return [schema["const"]]
    values = schema.get("enum")
    return values if isinstance(values, list) else None


def _raw(value: Json) -> str:
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)


def _schema_text(schema: dict[str, Json]) -> str:
    # Calls are written as models write them: on one line, a blank behind comma and colon.
    hints: dict[str, Json] = {
        "item_separator": ", ",
        "key_separator": ": ",
        "whitespace_flexible": False,
    }
    return json.dumps({**schema, "x-guidance": hints}, ensure_ascii=False)


def literal(text: str) -> str:
    """A text as a string of Lark, in which no control character may stand as it is."""
    return json.dumps(text, ensure_ascii=False).replace("\x7f", "\\u007f")
