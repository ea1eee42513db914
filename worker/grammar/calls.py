"""The grammar of a model's tool calls, for the tools of one request. Knows no tokenizer.

Two forms: a JSON object a block (Hermes), or tags for function and parameters (XML).
"""

import json
from collections.abc import Sequence
from typing import Any, Literal

from proto.chat import Json, Tool

CallForm = Literal["hermes", "xml"]

NO_PARAMETERS: dict[str, Json] = {"type": "object", "properties": {}, "additionalProperties": False}


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
    if isinstance(part, dict) and part.get("type") == "string":
        if isinstance(values := part.get("enum"), list):
            texts = " | ".join(literal(str(value)) for value in values)
            return [f"{rule}: {opening} ({texts}) {literal(closing)}"]
        # Any text up to the closing tag: values are raw, nothing in them is escaped.
        return [
            f"{rule}: {opening} {rule}_text",
            f"{rule}_text[suffix={literal(closing)}]: /(?s:.*)/",
        ]
    value = part if isinstance(part, dict) else {}
    shared: dict[str, Json] = {key: whole[key] for key in ("$defs", "definitions") if key in whole}
    return [
        f"{rule}: {opening} {rule}_value {literal(closing)}",
        f"{rule}_value: %json {_schema_text({**shared, **value})}",
    ]


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
