"""Bug class 3: the close marker is the first token of all, or comes twice."""

import pytest
from looping import BEGINS_TO_REASON, MAY_REASON, said_by
from scripted import saying

from conductor.monitor.tasks import monitor_plan
from proto.plan import Thinking


@pytest.mark.parametrize("template", [BEGINS_TO_REASON, MAY_REASON])
@pytest.mark.parametrize("monitor", [None, monitor_plan({})], ids=["alone", "watched"])
@pytest.mark.parametrize(
    ("written", "reasoning"),
    [
        ("</think>\n\nHi.", ""),
        ("</think></think>\n\nHi.", ""),
        ("</think>\n</think>\n\nHi.", ""),
        ("So.\n</think>\n\nHi.", "So."),
        ("So.\n</think>\n\n</think>\n\nHi.", "So."),
    ],
)
def test_it_closes_once_and_is_no_part_of_the_answer(
    template: str, monitor: object, written: str, reasoning: str
) -> None:
    if template == MAY_REASON and reasoning:
        written = f"<think>\n{written}"
    said = said_by(
        saying(written), template=template, thinking=Thinking(on=True),
        monitor=monitor,  # type: ignore[arg-type]
    )  # fmt: skip
    assert (said.reasoning, said.text) == (reasoning, "Hi.")
    was_open = template == BEGINS_TO_REASON or bool(reasoning)
    assert said.closed_by == ("model" if was_open else None)
    assert (said.finish, said.acts, said.hidden) == ("stop", (), ())
    assert said.usage.reasoning_tokens <= said.usage.completion_tokens - 3


def test_a_model_that_closes_what_a_budget_has_closed_adds_no_marker() -> None:
    begun = saying("one two three\n</think>\n\nHi.")
    alone = said_by(begun, template=BEGINS_TO_REASON, thinking=Thinking(on=True))
    assert alone.closed_by == "model"
    said = said_by(begun, template=BEGINS_TO_REASON, thinking=Thinking(on=True, budget=2))
    assert said.closed_by == "budget" and said.usage.reasoning_tokens == 2
    assert "think" not in said.text
