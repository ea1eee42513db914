"""What the worker's tokens say: neighbouring pieces of one kind are one event, hidden ones none."""

from proto.chat import Message, TextPart, ToolCall, reply_message
from proto.deltas import events_of
from proto.events import (
    CallArguments,
    CallEnd,
    CallStart,
    Logprobs,
    ReasoningDelta,
    TextDelta,
    TokenLogprob,
)
from proto.messages import CallPart, Delta, Kind


def _delta(*tokens: tuple[str, Kind], **more: object) -> Delta:
    pieces, kinds = tuple(piece for piece, _ in tokens), tuple(kind for _, kind in tokens)
    count = len(tokens)
    fields = {"hidden": (False,) * count, **more}
    return Delta("r", 1, tuple(range(count)), pieces, kinds, **fields)  # type: ignore[arg-type]


def test_neighbours_of_one_kind_are_one_event() -> None:
    delta = _delta(("I ", "reasoning"), ("see", "reasoning"), ("H", "text"), ("i", "text"))
    assert [*events_of(delta)] == [ReasoningDelta("I see"), TextDelta("Hi")]


def test_hidden_and_empty_tokens_say_nothing() -> None:
    delta = _delta(("a", "text"), ("b", "text"), ("", "text"), hidden=(False, True, False))
    assert [*events_of(delta)] == [TextDelta("a")]


def test_steps_of_calls_follow_the_text() -> None:
    parts = (CallPart(2, 0, "c1", "f"), CallPart(2, 0, args='{"a":1}'), CallPart(2, 0, end=True))
    delta = _delta(("Look", "text"), ("", "call"), calls=parts)
    assert [*events_of(delta)] == [
        TextDelta("Look"), CallStart(0, "c1", "f"), CallArguments(0, '{"a":1}'), CallEnd(0),
    ]  # fmt: skip
    reply = reply_message(events_of(delta))
    assert reply == Message("assistant", (TextPart("Look"),), (ToolCall("c1", "f", '{"a":1}'),))


def test_logprobs_go_with_text_also_where_the_piece_is_held_back() -> None:
    one, other = (Logprobs(TokenLogprob(i, "x", -1.0)) for i in (1, 2))
    delta = _delta(("", "text"), ("ab", "text"), logprobs=(one, other))
    assert [*events_of(delta)] == [TextDelta("ab", (one, other))]


def test_tokens_are_counted_with_the_piece_that_brings_their_text() -> None:
    delta = _delta(
        ("", "reasoning"), ("I", "reasoning"), ("H", "text"), ("", "text"), ("", "call"),
        ("x", "text"), ("i", "text"), hidden=(False,) * 5 + (True, False),
    )  # fmt: skip
    events = [event for event in events_of(delta) if isinstance(event, ReasoningDelta | TextDelta)]
    assert [event.tokens for event in events] == [2, 3]
