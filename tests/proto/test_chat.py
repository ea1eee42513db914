"""A reply is put together in one way, whatever pieces it came in."""

from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from proto.chat import Message, TextPart, ToolCall, reply_message
from proto.events import CallArguments, CallStart, Event, ReasoningDelta, TextDelta, Waiting


def test_text_reasoning_and_calls_are_joined_in_order() -> None:
    events: list[Event] = [
        Waiting(0, 0), ReasoningDelta("hm"), TextDelta("a"), CallStart(1, "c1", "g"),
        CallStart(0, "c0", "f"), CallArguments(0, '{"x"'), CallArguments(0, ":1}"), TextDelta("b"),
    ]  # fmt: skip
    assert reply_message(events) == Message(
        role="assistant",
        content=(TextPart("ab"),),
        calls=(ToolCall("c0", "f", '{"x":1}'), ToolCall("c1", "g", "{}")),
        reasoning="hm",
    )


def test_no_text_is_no_part() -> None:
    assert reply_message([]) == Message(role="assistant")


@given(st.text(), st.lists(st.integers(0, 40)))
def test_where_the_text_was_cut_does_not_show(text: str, cuts: list[int]) -> None:
    points = sorted({0, len(text), *(cut for cut in cuts if cut < len(text))})
    pieces = [text[a:b] for a, b in pairwise(points)]
    assert reply_message([TextDelta(p) for p in pieces]).text == text
