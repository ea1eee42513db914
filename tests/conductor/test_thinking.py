"""Whether a turn may reason, and for how long."""

import pytest

from conductor.profiles import ThinkingRules
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


CLASS, CLIENT, NEVER = ThinkingRules(), ThinkingRules(mode="client"), ThinkingRules(mode="off")


@pytest.mark.parametrize(
    ("wish", "rules", "plan"),
    [
        # Silent: the class, unless the profile leaves it to the client or to nobody.
        (ThinkingWish(), CLASS, Thinking(True, 1000)),
        (ThinkingWish(), CLIENT, Thinking(True, None)),
        (ThinkingWish(), NEVER, Thinking(False)),
        # Switched on without a number: the class has one, the others do not.
        (ThinkingWish(is_on=True), CLASS, Thinking(True, 1000)),
        (ThinkingWish(is_on=True), CLIENT, Thinking(True, None)),
        (ThinkingWish(is_on=True), NEVER, Thinking(True, None)),
        # A number or an effort: the client's, in every mode.
        (ThinkingWish(tokens=9000), CLASS, Thinking(True, 9000)),
        (ThinkingWish(tokens=9000), NEVER, Thinking(True, 9000)),
        (ThinkingWish(effort="minimal"), CLASS, Thinking(True, 100)),
        (ThinkingWish(effort="low"), CLASS, Thinking(True, 250)),
        (ThinkingWish(effort="medium"), CLIENT, Thinking(True, 1000)),
        (ThinkingWish(effort="high"), NEVER, Thinking(True, 2000)),
        # Switched off, by any word.
        (ThinkingWish(is_on=False), CLASS, Thinking(False)),
        (ThinkingWish(tokens=0), CLASS, Thinking(False)),
        (ThinkingWish(effort="none"), CLASS, Thinking(False)),
    ],
)
def test_client_then_class_then_the_models_default(
    wish: ThinkingWish, rules: ThinkingRules, plan: Thinking
) -> None:
    assert thinking_of(wish, None, rules, class_budget=1000) == plan


def test_without_a_class_the_model_has_its_default() -> None:
    assert thinking_of(ThinkingWish(), None, CLASS) == Thinking(True, None)
    assert thinking_of(ThinkingWish(effort="high"), None, CLASS) == Thinking(True, 4096)


def test_a_class_without_reasoning_is_no_ban() -> None:
    assert thinking_of(ThinkingWish(), None, CLASS, class_budget=0) == Thinking(False)
    switched_on = thinking_of(ThinkingWish(is_on=True), None, CLASS, class_budget=0)
    assert switched_on == Thinking(True, None)


def test_the_profile_says_how_much_the_answer_keeps() -> None:
    rules = ThinkingRules(reserve_min=100, reserve_share=0.5)
    assert thinking_of(ThinkingWish(tokens=900), 1000, rules) == Thinking(True, 500)
    assert thinking_of(ThinkingWish(tokens=900), 150, rules) == Thinking(True, 50)
    assert thinking_of(ThinkingWish(tokens=900), 1001, rules) == Thinking(True, 500)


def test_a_summary_thinks_no_longer_than_it_may() -> None:
    assert thinking_of(ThinkingWish(), None, CLASS, most_thinking=512) == Thinking(True, 512)
    asked = ThinkingWish(effort="high")
    assert thinking_of(asked, None, CLASS, most_thinking=512) == Thinking(True, 512)
    assert thinking_of(ThinkingWish(tokens=9), None, CLASS, most_thinking=512).budget == 9
