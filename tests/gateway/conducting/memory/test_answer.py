"""What a client gets of a run whose model writes for later sessions, and how much it does not."""

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from conductor.memory.tool import NAME
from gateway.backends.run import Silence
from gateway.conducting.memory.answer import MemoryAnswer
from proto.chat import Message, TextPart, ToolCall
from proto.events import CallArguments, CallEnd, CallStart, Event, ReasoningDelta, TextDelta
from proto.plan import REASONING_PART, HiddenText

BLOCK = "\n<tandem_memory>\nfact: it rains\n</tandem_memory>"


def seen(answer: MemoryAnswer, *events: Event) -> list[Any]:
    out: list[Any] = []
    for event in events:
        out += answer.take(event)
    out += answer.end()
    return [one for one in out if not isinstance(one, Silence)]


def called(index: int, name: str, arguments: str = "{}") -> list[Event]:
    return [CallStart(index, f"c{index}", name), CallArguments(index, arguments), CallEnd(index)]


@given(
    st.lists(st.sampled_from(["so ", "it", " rains", "\n", "<tan", BLOCK, "`"]), max_size=12),
    st.integers(1, 9),
)
def test_nothing_is_lost_and_no_more_is_hidden_than_was_written(
    pieces: list[str], width: int
) -> None:
    text = "".join(pieces)
    answer = MemoryAnswer(has_tool=False)
    cuts = [text[n : n + width] for n in range(0, len(text), width)]
    shown = "".join(one.text for one in seen(answer, *(TextDelta(cut, tokens=1) for cut in cuts)))
    for block in reversed(answer.blocks):
        shown = shown[: block.offset] + block.text + shown[block.offset :]
    assert shown == text
    assert answer.message().text == text
    assert 0 <= answer.hidden_tokens(len(cuts)) <= len(cuts)
    assert bool(answer.hidden_tokens(len(cuts))) == bool(answer.blocks)


def test_tokens_are_hidden_by_the_share_of_their_piece() -> None:
    answer = MemoryAnswer(has_tool=False)
    half = "x" * len(BLOCK)
    assert seen(answer, TextDelta(half + BLOCK, tokens=10)) == [TextDelta(half)]
    assert answer.hidden_tokens(10) == 5
    assert answer.hidden_tokens(3) == 3


def test_each_of_several_blocks_is_counted_where_it_stood() -> None:
    answer = MemoryAnswer(has_tool=False)
    pieces = (("So", 1), (BLOCK, 20), ("\nit rains", 3), (BLOCK, 30), ("\nhere", 2))
    seen(answer, *(TextDelta(piece, tokens=tokens) for piece, tokens in pieces))
    assert len(answer.blocks) == 2 and answer.hidden_tokens(56) == 50


def test_where_nobody_counts_tokens_they_are_estimated() -> None:
    answer = MemoryAnswer(has_tool=False)
    seen(answer, TextDelta(BLOCK))
    assert answer.hidden_tokens(100) == -(-len(BLOCK) // 4)


def test_what_was_held_comes_before_a_call() -> None:
    answer = MemoryAnswer(has_tool=True)
    events = seen(answer, TextDelta("See:\n"), *called(0, "look"))
    assert events == [TextDelta("See:"), TextDelta("\n"), *called(0, "look")]


def test_own_calls_are_taken_out_and_the_others_counted_anew() -> None:
    answer = MemoryAnswer(has_tool=True)
    arguments = json.dumps({"kind": "fact", "text": "it rains"})
    events = seen(
        answer, ReasoningDelta("Hm", 1), TextDelta("So", tokens=1),
        *called(0, NAME, arguments), *called(1, "look"), CallStart(2, "c2", NAME),
    )  # fmt: skip
    look = [CallStart(0, "c1", "look"), CallArguments(0, "{}"), CallEnd(0)]
    assert events == [ReasoningDelta("Hm"), TextDelta("So"), *look]
    assert answer.calls == 1
    said = (TextPart("So"),)
    assert answer.message() == Message(
        "assistant", said, (ToolCall("c0", NAME, arguments),), reasoning="Hm"
    )
    own, all_of_them = (
        len(NAME) * 2 + len(arguments),
        len(NAME) * 2 + len(arguments) + len("look{}"),
    )
    assert answer.hidden_tokens(22) == round(20 * own / all_of_them)


@pytest.mark.parametrize("has_tool", [True, False])
def test_without_the_tool_a_call_of_its_name_is_any_call(has_tool: bool) -> None:
    answer = MemoryAnswer(has_tool=has_tool)
    assert bool(seen(answer, *called(0, NAME))) is not has_tool


@pytest.mark.parametrize(
    ("written", "seen_at"), [(0, 0), (2, 2), (2 + len(BLOCK), 2), (4, 2), (3 + len(BLOCK), 3)]
)
def test_what_a_run_put_in_stands_between_the_same_words(written: int, seen_at: int) -> None:
    answer = MemoryAnswer(has_tool=False)
    seen(answer, ReasoningDelta("Hm"), TextDelta(f"So{BLOCK} it is"))
    assert answer.placed(HiddenText("x", None, written)) == HiddenText("x", None, seen_at)
    in_reasoning = HiddenText("x", REASONING_PART, 9)
    assert answer.placed(in_reasoning) == in_reasoning and answer.reasoning_chars == 2
