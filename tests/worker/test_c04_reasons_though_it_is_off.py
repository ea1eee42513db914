"""Bug class 4: thinking is off, and the model reasons all the same."""

import pytest
from looping import BEGINS_TO_REASON, MAY_REASON, said_by
from scripted import saying

from conductor.monitor.tasks import monitor_plan
from proto.plan import MonitorPlan


@pytest.mark.parametrize("monitor", [None, monitor_plan({})], ids=["alone", "watched"])
@pytest.mark.parametrize(
    ("written", "text"),
    [
        ("I see.\n</think>\n\nHi.", "I see.\nHi."),
        ("I see.\n</think>\n</think>\n\nHi.", "I see.\nHi."),
        ("```\n</think>\n```\nis a marker.", "```\n</think>\n```\nis a marker."),
        ("It ends with </think> there.", "It ends with </think> there."),
        ("Hi.\n</think>", "Hi.\n"),
    ],
)
def test_a_line_that_is_nothing_but_the_marker_is_dropped_but_in_code(
    written: str, text: str, monitor: MonitorPlan | None
) -> None:
    """What stands before it is out already, and stays text."""
    said = said_by(saying(written), template=MAY_REASON, monitor=monitor)
    assert (said.text, said.reasoning, said.usage.reasoning_tokens) == (text, "", 0)
    assert (said.finish, said.acts) == ("stop", ())


def test_a_template_that_opens_the_block_whatever_it_is_told_keeps_it_apart() -> None:
    said = said_by(saying("I see.\n</think>\n\nHi."), template=BEGINS_TO_REASON)
    assert (said.reasoning, said.text, said.closed_by) == ("I see.", "Hi.", "model")
