"""Bug class 11: the model writes a call twice."""

import pytest
from looping import said_by
from scripted import saying

from conductor.monitor.tasks import monitor_plan

CALL = (
    '<tool_call>\n{"name": "get_weather", "arguments": {"city": "Bern", "days": 3}}\n</tool_call>'
)
RESPELLED = CALL.replace('"city": "Bern", "days": 3', '"days": 3,  "city": "Bern"')
NOW = '<tool_call>\n{"name": "now", "arguments": {}}\n</tool_call>'


@pytest.mark.parametrize("stream", ["live", "held"])
@pytest.mark.parametrize("monitor", [None, monitor_plan({})], ids=["alone", "watched"])
def test_it_is_sent_once(stream: str, monitor: object) -> None:
    said = said_by(
        saying(f"I look.\n{CALL}\n{CALL}\n{CALL}"), stream=stream,
        monitor=monitor,  # type: ignore[arg-type]
    )  # fmt: skip
    assert [name for name, _ in said.calls] == ["get_weather"]
    assert (said.text, said.finish) == ("I look.", "tool_calls")
    again = said_by(saying(f"{CALL}\n{NOW}\n{CALL}"), stream=stream)
    assert [name for name, _ in again.calls] == ["get_weather", "now", "get_weather"]


def test_a_watched_echo_is_one_by_what_it_means() -> None:
    said = said_by(saying(f"{CALL}\n{RESPELLED}"), monitor=monitor_plan({}))
    assert len(said.calls) == 1
