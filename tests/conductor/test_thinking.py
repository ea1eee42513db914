"""Whether a turn may reason, and for how long."""

import pytest

from conductor.thinking import ThinkingWish, thinking_of
from proto.plan import Thinking


@pytest.mark.parametrize(
    ("wish", "most_tokens", "plan"),
    [
        (ThinkingWish(), None, Thinking(True, None)),
        (ThinkingWish(is_on=True), None, Thinking(True, None)),
        (ThinkingWish(is_on=False), None, Thinking(False)),
        (ThinkingWish(is_on=False, tokens=100, effort="high"), None, Thinking(False)),
        (ThinkingWish(tokens=0), None, Thinking(False)),
        (ThinkingWish(is_on=True, tokens=0), None, Thinking(False)),
        (ThinkingWish(tokens=100), None, Thinking(True, 100)),
        (ThinkingWish(tokens=100, effort="high"), None, Thinking(True, 100)),
        (ThinkingWish(effort="none"), None, Thinking(False)),
        (ThinkingWish(effort="minimal"), None, Thinking(True, 205)),
        (ThinkingWish(effort="low"), None, Thinking(True, 512)),
        (ThinkingWish(effort="medium"), None, Thinking(True, 2048)),
        (ThinkingWish(effort="high"), None, Thinking(True, 4096)),
        # The answer keeps 512 tokens of its limit, or a quarter of it.
        (ThinkingWish(), 512, Thinking(False)),
        (ThinkingWish(tokens=9), 64, Thinking(False)),
        (ThinkingWish(), 600, Thinking(True, 88)),
        (ThinkingWish(tokens=50), 600, Thinking(True, 50)),
        (ThinkingWish(tokens=5000), 8000, Thinking(True, 5000)),
        (ThinkingWish(tokens=9000), 8000, Thinking(True, 6000)),
    ],
)
def test_the_clients_word_comes_first_and_the_answer_keeps_its_room(
    wish: ThinkingWish, most_tokens: int | None, plan: Thinking
) -> None:
    assert thinking_of(wish, most_tokens) == plan
