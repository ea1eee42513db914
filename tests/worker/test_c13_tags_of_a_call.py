"""Bug class 13: no parameters, a tag that nobody knows between them, two functions in one block."""

import json
from typing import Any

import pytest
from looping import said_by
from scripted import saying

from conductor.monitor.tasks import monitor_plan

DAYS = "<parameter=days>\n3\n</parameter>\n"
CITY = "<parameter=city>\nBern\n</parameter>\n"


@pytest.mark.parametrize("stream", ["live", "held"])
@pytest.mark.parametrize(
    ("inside", "calls"),
    [
        ("<function=now>\n</function>", [("now", {})]),
        (
            f"<function=get_weather>\n{CITY}<why>it is asked</why>\n{DAYS}</function>",
            [("get_weather", {"city": "Bern", "days": 3})],
        ),
        (
            f"<function=get_weather>\n{CITY}</function>\n<function=now>\n</function>",
            [("get_weather", {"city": "Bern"}), ("now", {})],
        ),
    ],
)
def test_the_calls_are_whole(inside: str, calls: list[tuple[str, Any]], stream: str) -> None:
    said = said_by(
        saying(f"<tool_call>\n{inside}\n</tool_call>"), monitor=monitor_plan({}), stream=stream
    )
    assert [(name, json.loads(arguments)) for name, arguments in said.calls] == calls
    assert (said.text, said.finish, said.acts) == ("", "tool_calls", ())
