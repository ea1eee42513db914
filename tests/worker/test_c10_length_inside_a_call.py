"""Bug class 10: a limit ends the answer inside a call."""

import json

import pytest
from looping import said_by
from scripted import TOKENIZER, saying

from conductor.monitor.tasks import monitor_plan
from proto.plan import MonitorTask

WHOLE = '<tool_call>\n{"name": "now", "arguments": {}}\n</tool_call>\n'
CUT = '<tool_call>\n{"name": "get_weather", "arguments": {"city": "Bern", "days"'


@pytest.mark.parametrize("mode", ["off", "shadow", "act"])
@pytest.mark.parametrize("before", ["", "I look.\n", WHOLE])
def test_a_held_answer_ends_by_length_and_shows_no_cut_call(before: str, mode: str) -> None:
    plan = monitor_plan({"C6": MonitorTask(mode)})  # type: ignore[arg-type]
    limit = len(TOKENIZER.encode(before + CUT))
    said = said_by(saying(before + CUT + ": 3}}"), monitor=plan, max_tokens=limit)
    assert said.finish == "length"
    assert said.calls == ((("now", "{}"),) if before == WHOLE else ())
    if mode == "act":
        assert said.text == before.replace(WHOLE, "").rstrip()
        assert said.detail == "monitor"
    else:
        assert said.detail == "max_tokens" and said.text.endswith(CUT)


def test_a_live_call_is_closed_so_that_it_can_be_read() -> None:
    limit = len(TOKENIZER.encode(CUT))
    said = said_by(saying(CUT + ": 3}}"), stream="live", max_tokens=limit)
    ((name, arguments),) = said.calls
    assert (name, json.loads(arguments)) == ("get_weather", {"city": "Bern"})
    assert (said.finish, said.detail) == ("length", "max_tokens")
