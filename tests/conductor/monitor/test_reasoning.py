"""Reasoning that goes in circles is closed, at one position whatever the cuts; D2 is exact."""

import random
from collections.abc import Callable

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from conductor.monitor.policy import Monitor
from conductor.monitor.reasoning import STEP_TOKENS
from conductor.monitor.verdicts import GO_ON, Block, CloseReasoning, Phase
from tests.conductor.monitor.rightful import prose
from tests.conductor.monitor.watched import (
    Seen,
    facts,
    plan_with,
    reasoning,
    tokens_of,
    watch,
)

SENTENCE = "Wait, let me reconsider whether the second bridge really carries the load. "
PERIOD_30 = (
    "So the first part must be larger than the second part, which means that we look at the third "
    "part again, and then it follows that the first one is too small. "
)


def _drift(sentences: int) -> str:
    """A few thoughts in ever other order."""
    rng = random.Random(5)
    thoughts = [
        "perhaps the answer is in the first part",
        "the second part says otherwise",
        "it could be that I read it wrong",
        "the number does not fit the question",
        "we have to look at the beginning again",
        "nothing in the text settles this",
    ]
    return "".join(
        f"{rng.choice(('But', 'So', 'Still'))} {rng.choice(thoughts)}, and {rng.choice(thoughts)}. "
        for _ in range(sentences)
    )


LOOPS: dict[str, str] = {
    "sentence": prose(1, 30) + SENTENCE * 60,
    "lines": prose(2, 10) + "Hmm, that is not right, let me check the sum of all parts.\n" * 60,
    "long period": prose(3, 30) + PERIOD_30 * 30,
    "sentences in turn": prose(4, 20)
    + "".join(
        one
        for i in range(40)
        for one in (SENTENCE, f"No, part {'abc'[i % 3]}. ", PERIOD_30.replace("\n", " "))
    ),
    "punctuation": prose(5, 20) + "!" * 4000,
    "punctuation in turn": prose(6, 20) + "?! ... " * 800,
    "close markers": prose(7, 20) + "</think>\n" * 400,
    "one word": prose(8, 20) + "no " * 1500,
    "letters": "a" * 16_000,
    "formulas": prose(9, 20)
    + "x = 3, y = 4, z = 5; (x + y) * z = 35, x * y - z = 7, x / y = 0.75, z % y = 1, x ^ 2 = 9, "
    "y ^ 2 = 16, z ^ 2 = 25, q = 81, r = 27, s = 9, t = 3, u = 1, p = 64, m = 2.\n" * 30,
    "period 64": prose(10, 10) + " ".join(f"k{i}" for i in range(64)) * 1 + " "
    + (" ".join(f"k{i}" for i in range(64)) + " ") * 20,
    "code": prose(11, 10) + "\n```\n" + "for i in range(3):\n    x[i] += 1\n" * 80,
    "chinese": prose(12, 10) + "等一下，我们再看看第一部分是不是真的比第二部分大一些呢。" * 40,
}  # fmt: skip


@pytest.mark.parametrize("name", LOOPS)
def test_a_loop_is_closed(name: str) -> None:
    monitor = Monitor(plan_with({"D1": "act"}), facts())
    seen = watch(monitor, reasoning(LOOPS[name]))
    assert seen is not None, name
    assert isinstance(seen.verdict, CloseReasoning)
    assert seen.verdict.by == "D1"
    assert seen.verdict.bridge
    (finding,) = monitor.take_findings()
    assert (finding.task, finding.mode) == ("D1", "act")
    assert finding.numbers == {"tokens": seen.at}
    assert seen.at % STEP_TOKENS == 0


@pytest.mark.parametrize(
    ("name", "params", "reason"),
    [
        ("long period", {"sentence_chars": 9999}, "unit"),
        ("sentences in turn", {"unit_pieces": 200}, "sentence"),
        ("punctuation", {}, "cycle"),
    ],
)
def test_the_finding_says_what_was_repeated(name: str, params: dict[str, int], reason: str) -> None:
    monitor = Monitor(plan_with({"D1": "act"}, {"D1": params}), facts())
    watch(monitor, reasoning(LOOPS[name]))
    assert monitor.take_findings()[0].reason == reason


def test_nothing_is_closed_before_the_fourth_time() -> None:
    monitor = Monitor(plan_with({"D1": "act"}), facts())
    tokens = reasoning(prose(1, 30) + PERIOD_30 * 3 + prose(2, 30))
    assert watch(monitor, tokens) is None


def test_a_refrain_of_long_ago_is_forgotten() -> None:
    monitor = Monitor(plan_with({"D1": "act"}), facts())
    song = "".join(f"{prose(i, 5)}\n{SENTENCE}\n" for i in range(6))
    assert watch(monitor, reasoning(song + prose(40, 3000))) is None


def test_a_cycle_closes_exactly_where_it_is_long_enough() -> None:
    """512 pieces and 320 tokens: of one-sign tokens the first decides, of long ones the second."""
    for token, tokens in (("!", 512), ("=" * 16, 320)):
        monitor = Monitor(plan_with({"D1": "act"}), facts())
        seen = watch(monitor, [("reasoning", token)] * 2000)
        assert seen == Seen(tokens, CloseReasoning(seen.verdict.bridge, "D1"))  # type: ignore[union-attr]


def test_a_long_cycle_of_few_signs_is_a_map_and_none() -> None:
    row = "#" + "." * 98 + "#"
    for signs, is_seen in ((row, False), (row[:50] + "abcdefghijklmnop" + row[50:], True)):
        monitor = Monitor(plan_with({"D1": "act"}), facts())
        tokens: list[tuple[Phase, str]] = [("reasoning", one + " ") for one in signs]
        assert (watch(monitor, tokens * 12) is not None) == is_seen


def test_reasoning_that_says_nothing_new_is_closed() -> None:
    monitor = Monitor(plan_with({"D1b": "act"}), facts())
    seen = watch(monitor, reasoning(_drift(400)))
    assert seen is not None
    assert isinstance(seen.verdict, CloseReasoning)
    assert seen.verdict.by == "D1b"
    assert seen.at >= 1536
    (finding,) = monitor.take_findings()
    assert (finding.task, finding.mode, finding.reason) == ("D1b", "act", "drift")


def test_it_is_not_before_enough_was_reasoned() -> None:
    monitor = Monitor(plan_with({"D1b": "act"}, {"D1b": {"min_tokens": 9000}}), facts())
    assert watch(monitor, reasoning(_drift(400))[:8990]) is None


@pytest.mark.parametrize(("task", "text"), [("D1", LOOPS["sentence"]), ("D1b", _drift(400))])
def test_in_shadow_a_loop_is_told_once_and_goes_on(task: str, text: str) -> None:
    monitor = Monitor(plan_with({task: "shadow"}), facts())
    assert watch(monitor, reasoning(text)) is None
    (finding,) = monitor.take_findings()
    assert (finding.task, finding.mode) == (task, "shadow")


def test_a_loop_in_an_answer_is_none_of_them() -> None:
    monitor = Monitor(plan_with({"D1": "act", "D1b": "act"}), facts())
    assert watch(monitor, [("answer", token) for token in tokens_of(LOOPS["sentence"])]) is None


def test_reasoning_behind_a_close_is_not_looked_at() -> None:
    """A host that could not close it goes on, and no second verdict comes."""
    monitor = Monitor(plan_with({"D1": "act", "D2": "act"}), facts(budget=10_000))
    tokens = reasoning(LOOPS["sentence"])
    seen = watch(monitor, tokens)
    assert seen is not None
    assert watch(monitor, tokens) is None
    assert len(monitor.take_findings()) == 1


def test_both_kinds_of_loop_share_one_close() -> None:
    """In shadow the first that sees it tells, and the other says nothing."""
    monitor = Monitor(plan_with({"D1": "shadow", "D1b": "shadow"}), facts())
    watch(monitor, reasoning(SENTENCE * 400))
    assert [finding.task for finding in monitor.take_findings()] == ["D1"]


def test_they_act_in_answers_that_are_constrained_too() -> None:
    monitor = Monitor(plan_with({"D1": "act"}), facts(is_plain=False))
    assert watch(monitor, reasoning(LOOPS["sentence"])) is not None


def test_a_bridge_that_passes_the_limit_of_hidden_tokens_is_left_out() -> None:
    monitor = Monitor(plan_with({"D1": "act"}, hidden_tokens=20), facts())
    seen = watch(monitor, reasoning(LOOPS["sentence"]))
    assert seen is not None
    assert seen.verdict == CloseReasoning("", "D1")


# Cuts.


ALL_LOOPS = {**LOOPS, "drift": _drift(400), "nothing": prose(20, 250)}


@settings(max_examples=60, deadline=None)
@given(st.sampled_from(sorted(ALL_LOOPS)), st.integers(0, 2**32), st.sampled_from([None, 300, 901]))
def test_cuts_of_blocks_do_not_change_where_a_verdict_comes(
    name: str, seed: int, budget: int | None
) -> None:
    def run(cut: Callable[[int], int]) -> tuple[Seen | None, object]:
        plan = plan_with({"D1": "act", "D1b": "act", "D2": "act", "D3": "act"})
        monitor = Monitor(plan, facts(budget=budget))
        tokens = reasoning(ALL_LOOPS[name])
        tokens += [("answer", token) for token in tokens_of(prose(21, 40))]
        return watch(monitor, tokens, cut), monitor.take_findings()

    rng = random.Random(seed)
    assert run(lambda _: rng.choice((1, 2, 3, 7, 16, 64))) == run(lambda horizon: horizon)


# D2.


def _spend(text: list[str], budget: int, **params: int) -> Seen | None:
    monitor = Monitor(plan_with({"D2": "act"}, {"D2": params}), facts(budget=budget))
    return watch(monitor, [("reasoning", token) for token in text])


def test_a_budget_ends_at_its_last_token_where_a_line_ends_there() -> None:
    assert _spend(["a "] * 99 + ["\n"] + ["a "] * 99, 100) == Seen(100, CloseReasoning("", "D2"))


def test_else_it_waits_for_the_lines_end() -> None:
    tokens = ["a "] * 110 + [".\n"] + ["a "] * 99
    assert _spend(tokens, 100) == Seen(111, CloseReasoning("", "D2"))


def test_but_not_for_more_than_32_tokens() -> None:
    assert _spend(["a "] * 200, 100) == Seen(132, CloseReasoning("", "D2"))
    assert _spend(["a "] * 200, 100, line_end_tokens=0) == Seen(100, CloseReasoning("", "D2"))


def test_a_line_that_ended_in_an_earlier_token_without_text_counts() -> None:
    """A token may let nothing out; the text before it stands."""
    tokens = ["a "] * 98 + ["\n", ""] + ["a "] * 99
    assert _spend(tokens, 100) == Seen(100, CloseReasoning("", "D2"))


def test_a_line_that_ended_before_blocks_without_text_counts_too() -> None:
    monitor = Monitor(plan_with({"D2": "act"}), facts(budget=100))
    assert monitor.on_block(Block("reasoning", "a\n", 50, 900)) == GO_ON
    assert monitor.on_block(Block("reasoning", "", 14, 900)) == GO_ON
    assert monitor.on_block(Block("reasoning", "", 36, 900)) == CloseReasoning("", "D2")


def test_reasoning_within_its_budget_is_left_alone() -> None:
    assert _spend(["a "] * 99, 100) is None


def test_the_horizon_ends_where_the_budget_does_and_is_one_while_a_line_end_is_awaited() -> None:
    monitor = Monitor(plan_with({"D2": "act"}), facts(budget=70))
    assert monitor.horizon() == 64
    monitor.on_block(Block("reasoning", "a" * 64, 64, 1000))
    assert monitor.horizon() == 6
    monitor.on_block(Block("reasoning", "a" * 6, 6, 1000))
    assert monitor.horizon() == 1
    monitor.on_block(Block("reasoning", "a", 1, 1000))
    assert monitor.horizon() == 1
    monitor.on_block(Block("answer", "a", 1, 1000))
    assert monitor.horizon() == 63


def test_a_phase_counts_its_own_64_tokens() -> None:
    monitor = Monitor(plan_with(), facts())
    monitor.on_block(Block("reasoning", "a", 40, 1000))
    assert monitor.horizon() == 24
    monitor.on_block(Block("call", "a", 3, 1000))
    assert monitor.horizon() == 61


def test_a_budget_in_shadow_is_told_where_it_would_have_ended() -> None:
    monitor = Monitor(plan_with({"D2": "shadow"}), facts(budget=100))
    assert watch(monitor, [("reasoning", "a ")] * 300) is None
    (finding,) = monitor.take_findings()
    assert (finding.task, finding.mode, finding.numbers) == ("D2", "shadow", {"tokens": 132})
    assert monitor.horizon() == 64 - 300 % 64


@pytest.mark.parametrize(
    "given_facts", [{"budget": None}, {"budget": 10, "is_thinking": False}], ids=str
)
def test_without_a_budget_nothing_ends(given_facts: dict[str, object]) -> None:
    monitor = Monitor(plan_with({"D2": "act"}), facts(**given_facts))
    assert watch(monitor, [("reasoning", "a ")] * 300) is None


def test_facts_may_come_anew_before_the_prefill() -> None:
    monitor = Monitor(plan_with({"D2": "act"}), facts())
    monitor.before_prefill(facts(budget=5))
    assert monitor.horizon() == 5


def test_a_host_that_passes_the_horizon_gets_its_verdict_late() -> None:
    monitor = Monitor(plan_with({"D2": "act"}), facts(budget=10))
    assert monitor.on_block(Block("reasoning", "a" * 500, 500, 9)) == CloseReasoning("", "D2")


def test_a_bridge_of_the_profiles_is_used() -> None:
    monitor = Monitor(plan_with({"D2": "act"}, {"D2": {"bridge": "Enough."}}), facts(budget=1))
    tokens: list[tuple[Phase, str]] = [("reasoning", "\n")]
    assert watch(monitor, tokens) == Seen(1, CloseReasoning("Enough.", "D2"))
