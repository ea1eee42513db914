"""What repeats rightly is left alone, in reasoning and in answers."""

import pytest

from conductor.monitor.policy import Monitor
from conductor.monitor.verdicts import Phase
from tests.conductor.monitor.rightful import EQUAL_TOKENS, prose, rightful_texts
from tests.conductor.monitor.watched import facts, plan_with, tokens_of, watch

TEXTS = dict(rightful_texts())
PHASES: tuple[Phase, ...] = ("reasoning", "answer", "call")
LOOP_TASKS = {"D1": "act", "D1b": "act", "D3": "act"}


def test_the_corpus_is_broad_and_its_texts_are_of_some_length() -> None:
    assert len(TEXTS) >= 40
    assert all(len(tokens_of(text)) >= 150 for text in TEXTS.values())


@pytest.mark.parametrize("phase", PHASES)
@pytest.mark.parametrize("name", TEXTS)
def test_no_loop_is_seen_in_a_text_that_repeats_rightly(name: str, phase: Phase) -> None:
    monitor = Monitor(plan_with(LOOP_TASKS), facts())
    assert watch(monitor, [(phase, token) for token in tokens_of(TEXTS[name])]) is None
    assert monitor.take_findings() == ()


@pytest.mark.parametrize("name", TEXTS)
def test_nor_behind_much_other_reasoning(name: str) -> None:
    monitor = Monitor(plan_with(LOOP_TASKS), facts())
    tokens = tokens_of(prose(11, 200) + "\n\n" + TEXTS[name])
    assert watch(monitor, [("reasoning", token) for token in tokens]) is None


@pytest.mark.parametrize("phase", PHASES)
@pytest.mark.parametrize("token", EQUAL_TOKENS)
@pytest.mark.parametrize("before", [0, 300])
def test_256_equal_tokens_are_no_loop(token: str, phase: Phase, before: int) -> None:
    tokens = tokens_of(prose(12, before)) + [token] * 256 + tokens_of(prose(13, 20))
    monitor = Monitor(plan_with(LOOP_TASKS), facts())
    assert watch(monitor, [(phase, one) for one in tokens]) is None
