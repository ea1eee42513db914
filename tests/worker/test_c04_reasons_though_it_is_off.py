"""Bug class 4: thinking is off, and the model reasons all the same."""

import pytest
from looping import BEGINS_TO_REASON, MAY_REASON, said_by
from scripted import saying

from conductor.monitor.tasks import monitor_plan
from proto.plan import MonitorPlan


@pytest.mark.parametrize("monitor", [None, monitor_plan({})], ids=["alone", "watched"])
@pytest.mark.parametrize(
    ("written", "text", "reasoned"),
    [
        ("I see.\n</think>\n\nHi.", "I see.\nHi.", "I see.\n"),
        ("I see.\n</think>\n</think>\n\nHi.", "I see.\nHi.", "I see.\n"),
        ("I see.\n</think>\nHi.\n</think>\nHo.", "I see.\nHi.\nHo.", "I see.\n"),
        ("```\n</think>\n```\nis a marker.", "```\n</think>\n```\nis a marker.", ""),
        ("It ends with </think> there.", "It ends with </think> there.", ""),
        ("Hi.\n</think>", "Hi.\n", ""),
    ],
)
def test_a_line_that_is_nothing_but_the_marker_is_dropped_but_in_code(
    written: str, text: str, reasoned: str, monitor: MonitorPlan | None
) -> None:
    """What stands before it is out already; whoever waits for the end is told that it was none."""
    said = said_by(saying(written), template=MAY_REASON, monitor=monitor)
    assert (said.text, said.reasoning, said.usage.reasoning_tokens) == (text, "", 0)
    assert (said.finish, said.acts) == ("stop", ())
    assert said.text[: said.reasoned_chars] == reasoned


def test_a_marker_behind_a_call_makes_no_reasoning_of_what_was_before_it() -> None:
    made = '<tool_call>\n{"name": "now", "arguments": {}}\n</tool_call>\n</think>\nHi.'
    said = said_by(saying(made), template=MAY_REASON)
    assert said.calls and said.reasoned_chars == 0


def test_a_template_that_opens_the_block_whatever_it_is_told_keeps_it_apart() -> None:
    said = said_by(saying("I see.\n</think>\n\nHi."), template=BEGINS_TO_REASON)
    assert (said.reasoning, said.text, said.closed_by) == ("I see.", "Hi.", "model")
