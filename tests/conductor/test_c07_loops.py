"""Bug class 7: loops of punctuation, loops with many closes, loops cut anywhere."""

import random

import pytest

from conductor.monitor.policy import Monitor
from conductor.monitor.verdicts import CloseReasoning
from tests.conductor.monitor.rightful import prose
from tests.conductor.monitor.watched import Seen, facts, plan_with, reasoning, watch

LOOPS = {
    "punctuation": prose(5, 20) + "!" * 4000,
    "punctuation in turn": prose(6, 20) + "?! ... " * 800,
    "closes": prose(7, 20) + "</think>\n" * 400,
    "closes in a sentence": prose(8, 20)
    + "So the answer is </think> seven, I am sure of it.\n" * 60,
    "a sentence": prose(9, 20)
    + "But then the second part would be larger than the first one. " * 60,
}
CUTS = 20


@pytest.mark.parametrize("name", LOOPS)
def test_d1_closes_it_at_one_position_however_it_is_cut(name: str) -> None:
    def seen(cut_by: random.Random | None) -> Seen | None:
        monitor = Monitor(plan_with({"D1": "act"}), facts())
        most = (lambda horizon: horizon) if cut_by is None else (lambda _: cut_by.randint(1, 64))
        return watch(monitor, reasoning(LOOPS[name]), most)

    once = seen(None)
    assert once is not None and isinstance(once.verdict, CloseReasoning)
    assert once.verdict.by == "D1"
    assert {seen(random.Random(seed)) for seed in range(CUTS)} == {once}


@pytest.mark.parametrize("name", LOOPS)
def test_a_loop_that_begins_in_the_middle_of_itself_is_one(name: str) -> None:
    rng = random.Random(name)
    text = LOOPS[name]
    begun = len(text) // 2
    for _ in range(CUTS // 4):
        part = text[begun + rng.randint(0, 60) :]
        monitor = Monitor(plan_with({"D1": "act"}), facts())
        assert watch(monitor, reasoning(part)) is not None
