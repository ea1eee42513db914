"""Ends that are taken back, and ends that are not; what an answer may say again; secrets."""

import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from conductor.monitor.policy import Monitor
from conductor.monitor.secrets import masked
from conductor.monitor.verdicts import (
    ALLOWED,
    GO_ON,
    Block,
    CloseReasoning,
    Continue,
    End,
    Inject,
    PastCall,
    Stop,
)
from proto.chat import Tool
from proto.plan import MonitorPlan
from tests.conductor.monitor.rightful import prose
from tests.conductor.monitor.watched import Seen, facts, plan_with, tokens_of, watch

EMPTY = End("stop", "eos", has_text=False, calls=0, is_open=False, room=100)
OPEN = End("stop", "eos", has_text=False, calls=0, is_open=True, room=100)
SAID = End("stop", "eos", has_text=True, calls=0, is_open=False, room=100)
TOOLS = (Tool("now"),)


def told(monitor: Monitor) -> list[tuple[str, str, str]]:
    return [(one.task, one.mode, one.reason) for one in monitor.take_findings()]


# E1.


def test_an_empty_answer_goes_on_once_and_then_ends_as_it_is() -> None:
    monitor = Monitor(plan_with({"E1": "act"}), facts())
    verdict = monitor.on_end(EMPTY)
    assert isinstance(verdict, Inject)
    assert verdict.text
    assert monitor.on_end(EMPTY) == GO_ON
    assert told(monitor) == [("E1", "act", "empty"), ("E1", "shadow", "empty:turn")]


def test_an_open_block_is_closed() -> None:
    monitor = Monitor(plan_with({"E1": "act"}), facts())
    assert monitor.on_end(OPEN) == CloseReasoning("", "E1")


def test_in_shadow_an_empty_answer_ends() -> None:
    monitor = Monitor(plan_with({"E1": "shadow"}), facts())
    assert monitor.on_end(EMPTY) == GO_ON
    assert told(monitor) == [("E1", "shadow", "empty")]


@pytest.mark.parametrize(
    "end",
    [
        SAID,
        End("length", "max_tokens", has_text=False, calls=0, is_open=True, room=0),
        End("stop", "stop_string", has_text=False, calls=0, is_open=False, room=100),
        End("tool_calls", "eos", has_text=False, calls=1, is_open=False, room=100),
        End("stop", "eos", has_text=False, calls=1, is_open=False, room=100),
    ],
)
def test_limits_stop_strings_and_answers_end_for_good(end: End) -> None:
    monitor = Monitor(plan_with({"E1": "act", "C2": "act"}), facts(tools=TOOLS))
    assert monitor.on_end(end) == GO_ON
    assert told(monitor) == []


@pytest.mark.parametrize(
    ("limits", "given_facts", "end", "name"),
    [
        ({"continuations": 0}, {}, EMPTY, "continuations"),
        ({"hidden_tokens": 3}, {}, EMPTY, "hidden"),
        ({}, {"is_plain": False}, EMPTY, "constrained"),
        ({}, {}, End("stop", "eos", has_text=False, calls=0, is_open=False), "room"),
    ],
)
def test_nothing_goes_on_past_a_limit(
    limits: dict[str, int], given_facts: dict[str, object], end: End, name: str
) -> None:
    monitor = Monitor(plan_with({"E1": "act"}, None, **limits), facts(**given_facts))
    assert monitor.on_end(end) == GO_ON
    assert told(monitor) == [("E1", "shadow", f"empty:{name}")]


# C2, C6, E2.


INSIDE = 'I need the time. {"name": "now", "arguments": {}} And then I say it.'


@pytest.mark.parametrize(
    "text",
    [INSIDE, 'So: <tool_call>\n{"name": "now", "arguments": {"a": 1}}\n</tool_call> done'],
)
def test_a_call_inside_the_reasoning_is_repeated_outside(text: str) -> None:
    monitor = Monitor(plan_with({"C2": "act"}), facts(tools=TOOLS))
    for token in tokens_of(text):
        assert monitor.on_block(Block("reasoning", token, 1, 100)) == GO_ON
    assert monitor.on_end(OPEN) == CloseReasoning("", "C2")
    assert told(monitor) == [("C2", "act", "call_in_reasoning")]


def test_behind_a_closed_block_it_is_only_told() -> None:
    monitor = Monitor(plan_with({"C2": "act"}), facts(tools=TOOLS))
    monitor.on_block(Block("reasoning", INSIDE, 20, 100))
    assert monitor.on_end(SAID) == GO_ON
    assert told(monitor) == [("C2", "shadow", "call_in_reasoning:closed")]


def test_in_shadow_the_empty_answer_is_what_counts() -> None:
    monitor = Monitor(plan_with({"C2": "shadow", "E1": "act"}), facts(tools=TOOLS))
    monitor.on_block(Block("reasoning", INSIDE, 20, 100))
    assert monitor.on_end(OPEN) == CloseReasoning("", "E1")
    assert [one[0] for one in told(monitor)] == ["C2", "E1"]


@pytest.mark.parametrize(
    "text",
    ['{"name": "then", "arguments": {}}', '{"name": "now", "argum', '{"name": now', "{}", ""],
)
def test_other_text_in_reasoning_is_no_call(text: str) -> None:
    monitor = Monitor(plan_with({"C2": "act"}), facts(tools=TOOLS))
    monitor.on_block(Block("reasoning", f"I think {text}", 20, 100))
    assert monitor.on_end(OPEN) == GO_ON


def test_without_tools_there_is_no_call() -> None:
    monitor = Monitor(plan_with({"C2": "act"}), facts())
    monitor.on_block(Block("reasoning", INSIDE, 20, 100))
    assert monitor.on_end(OPEN) == GO_ON


CUT = End("length", "max_tokens", has_text=True, calls=2, is_open=False, is_in_call=True)


def test_a_cut_call_is_left_out() -> None:
    monitor = Monitor(plan_with({"C6": "act"}), facts())
    assert monitor.on_end(CUT) == Stop("length", 2)
    monitor = Monitor(plan_with({"C6": "shadow"}), facts())
    assert monitor.on_end(CUT) == GO_ON
    assert told(monitor) == [("C6", "shadow", "cut_call")]


@pytest.mark.parametrize(
    ("text", "is_promise"),
    [
        ("The file is missing. Let me look for it.", True),
        ("Now I'll run the tests:", True),
        ("I will open the page…\n", True),
        ("Let me know if that helps. It is done.", False),
        ("The tests pass.", False),
        ("", False),
    ],
)
def test_an_answer_that_ends_on_a_promise_is_told(text: str, is_promise: bool) -> None:
    monitor = Monitor(plan_with({"E2": "shadow"}), facts(tools=TOOLS))
    for token in tokens_of(text):
        monitor.on_block(Block("answer", token, 1, 100))
    assert monitor.on_end(SAID) == GO_ON
    assert told(monitor) == ([("E2", "shadow", "promise")] if is_promise else [])


def test_without_tools_a_promise_is_no_hint() -> None:
    monitor = Monitor(plan_with({"E2": "shadow"}), facts())
    monitor.on_block(Block("answer", "Let me look for it.", 6, 100))
    assert monitor.on_end(SAID) == GO_ON
    assert told(monitor) == []


# D3.


LONG = prose(31, 24).replace("\n\n", " ").strip() + "\n\n"


def _answer(text: str, mode: str = "act") -> tuple[Seen | None, list[tuple[str, str, str]]]:
    monitor = Monitor(plan_with({"D3": mode}), facts())
    seen = watch(monitor, [("answer", token) for token in tokens_of(text + prose(32, 20))])
    return seen, told(monitor)


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("So.\n</think>\n" * 3, "close_marker"),
        ("</think></think></THINK>", "close_marker"),
        ("".join(f"{LONG.strip()}\n```\nx\n```\nPart {i}.\n\n" for i in range(4)), "paragraph"),
        (LONG * 4, "paragraph"),
        ((LONG + "Or so.\n\n") * 4, "paragraph"),
    ],
)
def test_an_answer_that_loops_is_stopped_only_where_a_profile_says_so(
    text: str, reason: str
) -> None:
    seen, found = _answer(text)
    assert seen is not None
    assert seen.verdict == Stop("stop")
    assert seen.at % 64 == 0
    assert found == [("D3", "act", reason)]
    assert _answer(text, "shadow") == (None, [("D3", "shadow", reason)])


@pytest.mark.parametrize(
    "text",
    [
        "So.\n</think>\n" * 2,
        "It is written `</think>` there. " * 5,
        "```\n" + "</think>\n" * 5 + "```\n",
        "a < / think > b " * 5,
        "x/think> " * 5,
        LONG * 3,
        ("| town | 12 |\n" * 40 + "\n") * 5,
        "```\n" + LONG * 5 + "```\n",
        "~~~\n" + LONG * 5 + "```\n" + LONG * 2 + "~~~\n",
    ],
)
def test_rightful_repetition_in_answers_is_not(text: str) -> None:
    assert _answer(text) == (None, [])


def test_only_so_many_paragraphs_are_remembered() -> None:
    monitor = Monitor(plan_with({"D3": "act"}, {"D3": {"paragraph_pieces": 5}}), facts())
    text = "".join(
        f"All of these {'abcdefghij'[i % 10]}{i} are words apart.\n\n" for i in range(300)
    )
    text += "One that is far too late to be seen here.\n\n" * 5
    assert watch(monitor, [("answer", token) for token in tokens_of(text)]) is None


# M1.


TOKEN = "ghp_" + "aB3dE5fG7hJ9kL1mN2pQ4rS6tU8vW0xY1zA2"
RANDOM = "Zx8Qw2Lm9Rt5Vb1Ny7Kc3Hd6"
JWT = "eyJhbGciOiJIUzI1NiJ9.eyJzdWIiOiIxMjM0NTY3ODkwIn0.dBjftJeZ4CVPmB92K27uhbUJU1p1r"
PEM_LINE = "MIIEvQIBADANBgkqhkiG9w0BAQEFAASCBKcwggSjAgEAAoIBAQC7"
PEM = f"-----BEGIN PRIVATE KEY-----\n{PEM_LINE}\nab==\n-----END PRIVATE KEY-----"
RESULT = f"token: {TOKEN}.\npin {RANDOM}\njwt={JWT}\n{PEM}\nsha 0123456789abcdef0123456789abcdef"
PAST = (PastCall("read", "{}", RESULT), PastCall("read", "{}"))


def _say(
    text: str, cuts: list[int], mode: str = "act", **given_facts: object
) -> tuple[str, Monitor]:
    monitor = Monitor(plan_with({"M1": mode}), facts(past=PAST, **given_facts))
    said = ""
    for begin, end in zip([0, *cuts], [*cuts, len(text)], strict=True):
        verdict = monitor.on_block(Block("answer", text[begin:end], 1, 100))
        assert isinstance(verdict, Continue)
        said += text[begin:end] if verdict.text is None else verdict.text
    verdict = monitor.on_end(SAID)
    assert isinstance(verdict, Continue)
    return said + (verdict.text or ""), monitor


@pytest.mark.parametrize("secret", [TOKEN, RANDOM, JWT, PEM_LINE])
def test_a_secret_of_a_tool_result_is_masked(secret: str) -> None:
    said, monitor = _say(f"It is {secret}, so.", [])
    assert said == f"It is {secret[:4]}…(masked), so."
    assert told(monitor) == [("M1", "act", "secret")]


def test_in_shadow_and_in_constrained_answers_it_is_told() -> None:
    text = f"It is {TOKEN}, so."
    said, monitor = _say(text, [12], "shadow")
    assert (said, told(monitor)) == (text, [("M1", "shadow", "secret")])
    said, monitor = _say(text, [12], is_plain=False)
    assert (said, told(monitor)) == (text, [("M1", "shadow", "secret:constrained")])


def test_a_text_by_itself_is_masked_where_it_looks_like_a_key() -> None:
    assert masked(f'{{"token": "{TOKEN}", "to": "Anna"}}') == (
        f'{{"token": "{TOKEN[:4]}…(masked)", "to": "Anna"}}'
    )
    assert masked(f"mine: {TOKEN}, ghp_") == f"mine: {TOKEN[:4]}…(masked), ghp_"


def test_what_is_no_secret_of_a_result_stays() -> None:
    text = f"0123456789abcdef0123456789abcdef ab== {RANDOM[::-1]} Internationalisation"
    assert _say(text, [])[0] == text
    monitor = Monitor(plan_with({"M1": "act"}), facts())
    assert monitor.on_block(Block("answer", TOKEN, 1, 100)) == GO_ON


def test_secrets_in_arguments_stay() -> None:
    monitor = Monitor(plan_with({"M1": "act"}), facts(past=PAST))
    assert monitor.on_block(Block("call", TOKEN, 1, 100)) == GO_ON


def test_the_beginning_of_a_secret_at_the_end_is_said() -> None:
    said, monitor = _say("It is ghp_", [3])
    assert said == "It is ghp_"
    assert told(monitor) == []


def test_an_answer_that_is_only_such_a_beginning_is_not_empty() -> None:
    monitor = Monitor(plan_with({"M1": "act", "E1": "act"}), facts(past=PAST))
    assert monitor.on_block(Block("answer", "ghp_", 1, 100)) == Continue(text="")
    assert monitor.on_end(EMPTY) == Continue(text="ghp_")


def test_only_so_many_secrets_are_looked_for_the_newest_first() -> None:
    past = (PastCall("read", "{}", f"{TOKEN}"), PastCall("read", "{}", RANDOM))
    plan = plan_with({"M1": "act"}, {"M1": {"most_secrets": 1}})
    monitor = Monitor(plan, facts(past=past))
    assert monitor.on_block(Block("answer", TOKEN, 1, 100)) == GO_ON
    assert monitor.on_block(Block("answer", RANDOM, 1, 100)) == Continue(text="Zx8Q…(masked)")


def test_findings_of_one_task_are_bounded() -> None:
    _, monitor = _say(f"{TOKEN} " * 50, [len(TOKEN) * i + i for i in range(1, 50)])
    assert len(told(monitor)) == 32


def test_one_secret_may_begin_another() -> None:
    long = RANDOM + "+pL4"
    past = (PastCall("read", "{}", f"{RANDOM} {long}"),)
    monitor = Monitor(plan_with({"M1": "act"}), facts(past=past))
    assert monitor.on_block(Block("answer", RANDOM, 1, 100)) == Continue(text="")
    assert monitor.on_block(Block("answer", "+pL4", 1, 100)) == Continue(text="Zx8Q…(masked)")
    monitor.on_block(Block("answer", RANDOM, 1, 100))
    assert monitor.on_end(SAID) == Continue(text="Zx8Q…(masked)")


def test_a_secret_may_end_as_another_begins() -> None:
    other = "d6" + RANDOM[::-1]
    past = (PastCall("read", "{}", f"{RANDOM} {other}"),)
    monitor = Monitor(plan_with({"M1": "act"}), facts(past=past))
    assert monitor.on_block(Block("answer", RANDOM, 1, 100)) == Continue(text="Zx8Q…(masked)")
    assert monitor.on_block(Block("answer", other[2:-1], 1, 100)) == GO_ON


@settings(max_examples=60, deadline=None)
@given(
    st.lists(st.sampled_from([TOKEN, RANDOM, "ghp_", " ", "Zx8", "so", JWT]), max_size=8),
    st.integers(0, 2**32),
)
def test_cuts_do_not_change_what_is_masked(parts: list[str], seed: int) -> None:
    text = "".join(parts)
    rng = random.Random(seed)
    cuts = sorted(rng.sample(range(len(text) + 1), min(len(text), rng.randint(0, 6))))
    assert _say(text, cuts)[0] == _say(text, [])[0]


# The monitor as a whole.


def test_a_task_that_a_plan_does_not_name_is_off() -> None:
    monitor = Monitor(MonitorPlan({}), facts(past=PAST, tools=TOOLS, budget=3))
    assert monitor.before_prefill(facts()) == GO_ON
    assert monitor.on_block(Block("reasoning", "a", 64, 9)) == GO_ON
    assert monitor.on_block(Block("answer", TOKEN, 64, 9)) == GO_ON
    assert monitor.on_block(Block("call", "a", 64, 9)) == GO_ON
    assert monitor.on_end(EMPTY) == GO_ON
    assert monitor.take_findings() == ()


def test_points_return_only_what_they_may() -> None:
    """The verdicts of these tests, by their points, against the interface's table."""
    assert {CloseReasoning, Stop} <= set(ALLOWED["on_block"])
    assert {CloseReasoning, Inject, Stop} <= set(ALLOWED["on_end"])
