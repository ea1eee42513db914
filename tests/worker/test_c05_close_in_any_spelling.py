"""Bug class 5: the close marker as one token of its own, or spelled out by several."""

import pytest
from looping import BEGINS_TO_REASON, said_by
from scripted import END, TOKENIZER

from proto.plan import Thinking

MARKER = "</think>"
WHOLE = TOKENIZER.encode(MARKER)
SPELLED = [one for char in MARKER for one in TOKENIZER.encode_literal(char)]


@pytest.mark.parametrize("marker", [WHOLE, SPELLED], ids=["whole", "spelled"])
@pytest.mark.parametrize("budget", [None, 100])
def test_the_phases_are_the_same_and_the_reasoning_counts_up_to_its_marker(
    marker: list[int], budget: int | None
) -> None:
    assert len(WHOLE) == 1 < len(SPELLED)
    thought = TOKENIZER.encode("I see.\n")
    ids = [*thought, *marker, *TOKENIZER.encode("\n\nHi.")]
    said = said_by(
        lambda _, number: ids[number - 1] if number <= len(ids) else END,
        template=BEGINS_TO_REASON,
        thinking=Thinking(on=True, budget=budget),
    )
    assert (said.reasoning, said.text, said.closed_by) == ("I see.", "Hi.", "model")
    assert said.usage.reasoning_tokens == len(thought) + len(marker)
    assert said.usage.completion_tokens == len(ids) + 1
