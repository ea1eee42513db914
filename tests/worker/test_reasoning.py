"""Reasoning and answer apart: every way a block begins, ends, or does neither."""

import itertools
import time

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from worker.text.reasoning import ReasoningForm, ReasoningText, Span

MODEL, PROMPT, NONE = (ReasoningForm(opens) for opens in ("model", "prompt", "none"))
NAMES = ("look", "say")


def machine(mode: str, names: tuple[str, ...] = NAMES) -> ReasoningText:
    form, is_open, is_thinking = {
        "model": (MODEL, False, True),
        "prompt": (PROMPT, True, True),
        "off": (PROMPT, False, False),
        "model off": (MODEL, False, False),
        "none": (NONE, False, True),
    }[mode]
    return ReasoningText(form, is_open=is_open, is_thinking=is_thinking, names=names)


def joined(spans: list[Span]) -> list[tuple[str, str]]:
    """Neighbours of one kind as one."""
    assert all(span.text for span in spans)
    groups = itertools.groupby(spans, key=lambda span: span.kind)
    return [(kind, "".join(span.text for span in group)) for kind, group in groups]


def read(mode: str, *pieces: str) -> tuple[list[tuple[str, str]], bool, str | None]:
    """Spans, whether the block is open before the end, and what closed it."""
    reading = machine(mode)
    spans = [span for piece in pieces for span in reading.push(piece)]
    is_open = reading.is_open
    spans += reading.finish()
    assert reading.is_open == is_open
    assert reading.finish() == []
    return joined(spans), is_open, reading.closed_by


def r(text: str) -> tuple[str, str]:
    return "reasoning", text


def t(text: str) -> tuple[str, str]:
    return "text", text


FENCED = "```\n</think>\n```\n"
IN_VALUE = "<tool_call>\n<function=say>\n<parameter=s>\n</think>\n</parameter>"
# Mode, what was written -> spans, whether the block stays open, what closed it.
READINGS: list[tuple[str, str, list[tuple[str, str]], bool, str | None]] = [
    ("prompt", "so\n</think>\n\nYes", [r("so"), t("Yes")], False, "model"),
    (
        "prompt",
        "\n \n so\n\n then \n \n</think>Yes",
        [r(" so\n\n then "), t("Yes")],
        False,
        "model",
    ),
    ("prompt", "so</think>\n\n  indented\n", [r("so"), t("  indented\n")], False, "model"),
    ("prompt", "a </thin b <tool c\n", [r("a </thin b <tool c\n")], True, None),
    ("prompt", "a </thi", [r("a </thi")], True, None),
    ("prompt", "```\nx</think>y", [r("```\nx"), t("y")], False, "model"),
    ("prompt", "<think>a</think>", [r("<think>a")], False, "model"),
    ("prompt", "", [], True, None),
    ("prompt", "\n\n", [], True, None),
    # The close marker first, twice, never.
    ("prompt", "</think>\n\nYes", [t("Yes")], False, "model"),
    ("prompt", "\n\n</think>", [], False, "model"),
    ("prompt", "a</think>\n</think>\n\n</think>Yes", [r("a"), t("Yes")], False, "model"),
    ("prompt", "a</think>\nYes\n</think>\n\nNo", [r("a"), t("Yes\nNo")], False, "model"),
    ("prompt", "a</think>\nYes\n</think>", [r("a"), t("Yes\n")], False, "model"),
    ("prompt", "a</think></thi", [r("a"), t("</thi")], False, "model"),
    ("prompt", "a\n\nb\n\n", [r("a\n\nb\n\n")], True, None),
    # The model opens.
    ("model", "<think>\nso\n</think>\n\nYes", [r("so"), t("Yes")], False, "model"),
    ("model", "\n <think>so", [r("so")], True, None),
    ("model", "Yes <think>no</think>", [t("Yes <think>no</think>")], False, None),
    ("model", "\n <thin", [t("\n <thin")], False, None),
    ("model", "</think>\n\nYes", [t("Yes")], False, "model"),
    ("model", "<think></think>", [], False, "model"),
    # Nothing is open.
    ("off", "<think>a", [t("<think>a")], False, None),
    ("off", "\n a\n</think> \n\nYes", [t("\n a\nYes")], False, None),
    ("off", "a </think>\n</think>b\n", [t("a </think>\n</think>b\n")], False, None),
    ("model off", "<think>a</think>", [t("<think>a</think>")], False, None),
    ("off", "a\n</thi", [t("a\n</thi")], False, None),
    ("off", FENCED + "</think>\na", [t(FENCED + "a")], False, None),
    (
        "off",
        "~~~~md\n~~~\n</think>\n~~~~\n</think>",
        [t("~~~~md\n~~~\n</think>\n~~~~\n")],
        False,
        None,
    ),
    ("off", "```x``` is\n</think>\na", [t("```x``` is\na")], False, None),
    ("off", IN_VALUE + "</tool_call>\n</think>\n", [t(IN_VALUE + "</tool_call>\n")], False, None),
    ("none", "<think>\na\n</think>\n", [t("<think>\na\n</think>\n")], False, None),
    # A call inside the block.
    (
        "prompt",
        "a\n\n<tool_call>\n<function=x",
        [r("a"), t("<tool_call>\n<function=x")],
        False,
        "call",
    ),
    (
        "prompt",
        'a <tool_call>{"arguments": {"s": "<b>"}, "name": "say"}',
        [r("a "), t('<tool_call>{"arguments": {"s": "<b>"}, "name": "say"}')],
        False,
        "call",
    ),
    ("prompt", 'a\n<tool_call>{"name": "no"}b', [r('a\n<tool_call>{"name": "no"}b')], True, None),
    ("prompt", "<tool_call> is\n</think>b", [r("<tool_call> is"), t("b")], False, "model"),
    ("prompt", "<tool_call></think>b", [r("<tool_call>"), t("b")], False, "model"),
    ("prompt", "<tool_call>\n<fun</think>b", [r("<tool_call>\n<fun"), t("b")], False, "model"),
    ("prompt", '<tool_call>{"na</think>b', [r('<tool_call>{"na'), t("b")], False, "model"),
    (
        "prompt",
        "<tool_call><tool_call><function",
        [r("<tool_call>"), t("<tool_call><function")],
        False,
        "call",
    ),
    (
        "prompt",
        "<tool_call>{<tool_call><function",
        [r("<tool_call>{"), t("<tool_call><function")],
        False,
        "call",
    ),
    ("prompt", "a\n<tool_call>\n", [r("a\n<tool_call>\n")], True, None),
    (
        "prompt",
        IN_VALUE + "</function></tool_call>\n</think>\n",
        [t(IN_VALUE + "</function></tool_call>\n")],
        False,
        "call",
    ),
]


@pytest.mark.parametrize(("mode", "written", "spans", "is_open", "closed_by"), READINGS)
def test_an_answer_is_split_by_its_markers(
    mode: str, written: str, spans: list[tuple[str, str]], is_open: bool, closed_by: str | None
) -> None:
    assert read(mode, written) == (spans, is_open, closed_by)
    assert read(mode, *written) == (spans, is_open, closed_by)


PARTS: tuple[str, ...] = (
    "<think>",
    "</think>",
    "</thi",
    "<tool_call>",
    "</tool_call>",
    "<function",
    "{",
    '"name"',
)
PARTS += (': "say"', ': "no"', "}", "\n", "\n\n", " ", "a", "```\n", "```", "~~~\n", "<")
ANSWERS = st.lists(st.sampled_from(PARTS), max_size=14).map("".join)


@settings(max_examples=300)
@given(ANSWERS, st.sampled_from(("model", "prompt", "off", "none")), st.data())
def test_every_cut_into_pieces_gives_the_same(answer: str, mode: str, data: st.DataObject) -> None:
    cuts = sorted(data.draw(st.lists(st.integers(0, len(answer)), max_size=12)))
    pieces = [answer[a:b] for a, b in itertools.pairwise([0, *cuts, len(answer)])]
    assert read(mode, *pieces) == read(mode, answer)


@pytest.mark.parametrize("mode", ["prompt", "model"])
def test_b31_a_close_marker_as_the_first_token_closes_once(mode: str) -> None:
    reading = machine(mode)
    assert reading.push("</think>") == []
    assert (reading.is_open, reading.closed_by) == (False, "model")
    assert reading.push("\n\n") == []
    assert reading.push("Yes") == [Span("text", "Yes")]


def test_b32_a_call_inside_reasoning_is_seen_across_pieces() -> None:
    reading = machine("prompt")
    assert reading.push("I look.\n<tool") == [Span("reasoning", "I look.")]
    assert [reading.push(piece) for piece in ("_call>", "\n", "<func")] == [[], [], []]
    assert reading.is_open
    assert reading.push("tion=l") == [Span("text", "<tool_call>\n<function=l")]
    assert (reading.is_open, reading.closed_by) == (False, "call")


def test_without_tools_no_call_ends_the_block() -> None:
    reading = machine("prompt", names=())
    assert reading.push("<tool_call>\n<function") == [Span("reasoning", "<tool_call>\n<function")]


def test_b34_tokens_of_a_block_count_up_to_its_close_and_all_if_it_never_comes() -> None:
    def count(*tokens: str) -> int:
        reading, counted = machine("prompt"), 0
        for token in tokens:
            counted += reading.is_open
            reading.push(token)
        return counted

    assert count("a", "b", "</think>", "\n\n", "Yes") == 3
    assert count("a", "</", "think", ">", "</think>", "Yes") == 4
    assert count("a", "b", "\n") == 3


def test_b35_only_what_may_begin_a_marker_is_held() -> None:
    reading = machine("off")
    assert reading.push("H") == [Span("text", "H")]
    assert reading.push("i <\n") == [Span("text", "i <\n")]
    assert reading.push("</th") == []
    assert reading.push("em") == [Span("text", "</them")]
    reading = machine("prompt")
    assert reading.push("a <") == [Span("reasoning", "a ")]
    assert reading.push("b") == [Span("reasoning", "<b")]


@pytest.mark.parametrize(
    ("mode", "answer"),
    [
        ("prompt", "word < \n" * 3_000),
        ("off", "word < \n" * 3_000),
        ("off", "word <" * 4_000),
        ("prompt", '<tool_call>{"arguments": {"s": "' + "word < " * 3_000),
    ],
)
def test_twenty_thousand_characters_take_linear_time(mode: str, answer: str) -> None:
    assert len(answer) > 20_000

    def seconds(count: int) -> float:
        reading = machine(mode)
        began = time.process_time()
        for char in answer[:count]:
            reading.push(char)
        return time.process_time() - began

    seconds(2_000)
    short, long = min(seconds(2_000) for _ in range(3)), seconds(20_000)
    assert long < 30 * short  # quadratic would be 100 times
