"""The tools of a chat request, and which of them may, must or must not be called.

Knows no backend; every error names its field. Source: OpenAI API reference, "tools".
"""

import json
from typing import Any

from gateway.surfaces.fields import bad_field, flag
from proto.chat import Tool, ToolChoice
from proto.limits import TOOL_SCHEMA_BYTES, TOOLS

MODES = ("none", "auto", "required")


def read_tools(body: dict[str, Any]) -> tuple[Tool, ...]:
    """The functions on offer. Raises: ApiError 400."""
    tools = body.get("tools")
    if tools is None:
        return ()
    if not isinstance(tools, list) or len(tools) > TOOLS:
        raise bad_field("tools", f"'tools' must be a list of at most {TOOLS} tools.")
    read = tuple(_tool(item, f"tools[{index}]") for index, item in enumerate(tools))
    names = [tool.name for tool in read]
    twice = next((name for index, name in enumerate(names) if name in names[:index]), None)
    if twice is not None:
        raise bad_field("tools", f"'tools' offers {twice!r} twice; names must differ.")
    return read


def read_tool_choice(body: dict[str, Any], tools: tuple[Tool, ...]) -> ToolChoice:
    """Which calls are allowed. Raises: ApiError 400."""
    choice = body.get("tool_choice")
    if choice is None or choice in ("none", "auto"):
        return ToolChoice(choice or "auto")
    if not tools:
        raise bad_field("tool_choice", "'tool_choice' asks for a call, but 'tools' offers none.")
    if choice == "required":
        return ToolChoice("required")
    name = None
    if isinstance(choice, dict) and choice.get("type") == "function":
        function = choice.get("function")
        name = function.get("name") if isinstance(function, dict) else None
    if not isinstance(name, str):
        message = "'tool_choice' must be none, auto, required, or name a function that is offered."
        raise bad_field("tool_choice", message)
    if name not in {tool.name for tool in tools}:
        message = f"'tool_choice' names {name!r}, which 'tools' does not offer."
        raise bad_field("tool_choice", message)
    return ToolChoice("named", name)


def read_parallel(body: dict[str, Any], choice: ToolChoice) -> bool:
    """Whether several calls may stand in one answer; a forced one stands alone unless asked for."""
    is_forced = choice.mode in ("required", "named")
    return flag(body, "parallel_tool_calls", default=not is_forced)


def _tool(item: Any, where: str) -> Tool:
    kind = item.get("type") if isinstance(item, dict) else None
    function = item.get("function") if isinstance(item, dict) else None
    if kind not in (None, "function") or not isinstance(function, dict):
        raise bad_field(where, f"'{where}' must be a tool of type 'function' with a 'function'.")
    name = function.get("name")
    if not isinstance(name, str) or not name.strip():
        raise bad_field(f"{where}.function.name", f"'{where}.function.name' must be text.")
    description = function.get("description")
    if description is not None and not isinstance(description, str):
        field = f"{where}.function.description"
        raise bad_field(field, f"'{field}' must be text.")
    return Tool(
        name=name,
        description=description,
        parameters=_parameters(function.get("parameters"), f"{where}.function.parameters"),
        strict=flag(function, "strict", default=False),
    )


def _parameters(schema: Any, where: str) -> dict[str, Any] | None:
    if schema is None:
        return None
    if not isinstance(schema, dict) or schema.get("type", "object") != "object":
        raise bad_field(where, f"'{where}' must be a JSON Schema of type 'object'.")
    if not isinstance(schema.get("properties", {}), dict):
        raise bad_field(where, f"'{where}.properties' must be an object.")
    if len(json.dumps(schema)) > TOOL_SCHEMA_BYTES:
        raise bad_field(where, f"'{where}' is over {TOOL_SCHEMA_BYTES} bytes.")
    return schema
