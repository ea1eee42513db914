"""Bug class 8: a budget of reasoning as large as the limit of a client, class or server."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from conductor.profiles import ThinkingRules
from conductor.thinking import SHARES, ThinkingWish, thinking_of

MODES = ("class", "client", "off")
TOKENS = st.none() | st.integers(0, 200_000)
WISHES = st.builds(
    ThinkingWish,
    st.none() | st.booleans(),
    TOKENS,
    st.none() | st.sampled_from(sorted(SHARES)),
)
RULES = st.builds(ThinkingRules, st.sampled_from(MODES), st.integers(0, 4_096), st.floats(0, 1))


@given(WISHES, st.integers(1, 200_000), RULES, TOKENS, TOKENS)
def test_room_for_the_answer_remains_whoever_set_the_limit(
    wish: ThinkingWish,
    cap: int,
    rules: ThinkingRules,
    class_budget: int | None,
    most_thinking: int | None,
) -> None:
    plan = thinking_of(wish, cap, rules, class_budget=class_budget, most_thinking=most_thinking)
    if not plan.on:
        assert plan.budget is None
        return
    assert plan.budget is not None
    assert 0 < plan.budget <= cap - max(rules.reserve_min, rules.reserve_share * cap)
    assert most_thinking is None or plan.budget <= most_thinking


@pytest.mark.parametrize("cap", [1, 64, 512])
@pytest.mark.parametrize("wish", [ThinkingWish(is_on=True), ThinkingWish(tokens=9_000)])
def test_where_no_room_is_left_nothing_is_reasoned(wish: ThinkingWish, cap: int) -> None:
    assert not thinking_of(wish, cap, ThinkingRules(), class_budget=cap).on


@given(WISHES, TOKENS, RULES, TOKENS)
def test_reasoning_is_never_on_for_a_client_that_switched_it_off(
    wish: ThinkingWish, cap: int | None, rules: ThinkingRules, class_budget: int | None
) -> None:
    if wish.is_off or (wish.is_silent and rules.mode == "off"):
        assert not thinking_of(wish, cap, rules, class_budget=class_budget).on
