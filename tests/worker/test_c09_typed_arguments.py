"""Bug class 9: arguments that are typed as their schema says, in either notation."""

import json
from typing import Any

import pytest
from looping import said_by
from scripted import saying

from conductor.monitor.tasks import monitor_plan
from proto.chat import Tool

TYPES: dict[str, Any] = {
    "count": {"type": "integer"},
    "dry": {"type": "boolean"},
    "names": {"type": "array", "items": {"type": "string"}},
    "note": {"type": "string", "nullable": True},
    "days": {"type": ["integer", "null"]},
    "any": {},
    "text": {"type": "string"},
}
TOOLS = (Tool("set", None, {"type": "object", "properties": TYPES}),)
# What a model writes for a text, and what is meant.
CASES: list[tuple[str, str, Any]] = [
    ("count", "3", 3),
    ("dry", "True", True),
    ("dry", "false", False),
    ("names", '["a", "b"]', ["a", "b"]),
    ("note", "so", "so"),
    ("days", "7", 7),
    ("days", "null", None),
    ("text", "12", "12"),
    ("text", "true", "true"),
]


def argument(written: str) -> Any:
    said = said_by(saying(written), tools=TOOLS, monitor=monitor_plan({}))
    ((name, arguments),) = said.calls
    assert (name, said.text, said.finish) == ("set", "", "tool_calls")
    return json.loads(arguments)


@pytest.mark.parametrize(("key", "written", "meant"), CASES)
def test_between_tags_and_as_texts_in_json(key: str, written: str, meant: Any) -> None:
    tags = f"<function=set>\n<parameter={key}>\n{written}\n</parameter>\n</function>"
    assert argument(f"<tool_call>\n{tags}\n</tool_call>") == {key: meant}
    call = json.dumps({"name": "set", "arguments": {key: written}})
    assert argument(f"<tool_call>\n{call}\n</tool_call>") == {key: meant}


def test_where_no_type_is_named_json_stays_as_it_was_written() -> None:
    for value in (3, "3", True, None, [1], {"a": "1"}):
        call = json.dumps({"name": "set", "arguments": {"any": value}})
        assert argument(f"<tool_call>\n{call}\n</tool_call>") == {"any": value}
