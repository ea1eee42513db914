"""What goes in comes out, what is foreign is refused by name, and the bytes are fixed."""

import dataclasses
import types
from typing import Any, Literal, Union, get_args, get_origin, get_type_hints

import msgpack
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from proto import codec
from proto.chat import Call, Json, Message, Params, TextPart
from proto.events import Speculation, Timings, Usage
from proto.faults import BadField, CodecFault, MessageTooLarge, UnknownMessage, VersionMismatch
from proto.messages import Beat, Done, LinkMessage, Metric, MonitorCounts, Submit
from proto.plan import Plan
from proto.worker_settings import Launch, WorkerSettings

JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**63), 2**63) | st.floats(allow_nan=False)
    | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3)
    | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=8,
)  # fmt: skip


def strategy_for(hint: Any) -> st.SearchStrategy[Any]:
    """Values of a type hint, built from the hint alone: a new message is covered at once."""
    origin = get_origin(hint)
    if hint is Json or list in map(get_origin, get_args(hint)):
        return JSON
    if dataclasses.is_dataclass(hint):
        hints = get_type_hints(hint)
        return st.builds(
            hint, **{f.name: st.deferred(lambda h=hints[f.name]: strategy_for(h))  # type: ignore[misc]
                     for f in dataclasses.fields(hint)}
        )  # fmt: skip
    if origin in (Union, types.UnionType):
        return st.one_of([strategy_for(option) for option in get_args(hint)])
    if origin is tuple:
        return st.lists(strategy_for(get_args(hint)[0]), max_size=3).map(tuple)
    if origin is dict:
        return st.dictionaries(st.text(max_size=5), strategy_for(get_args(hint)[1]), max_size=3)
    if origin is Literal:
        return st.sampled_from(get_args(hint))
    return {
        str: st.text(max_size=12),
        int: st.integers(-(2**63), 2**63 - 1),
        float: st.floats(allow_nan=False),
        bool: st.booleans(),
        types.NoneType: st.none(),
    }[hint]


@pytest.mark.parametrize("cls", get_args(LinkMessage), ids=lambda cls: cls.__name__)
def test_every_message_survives_the_round_trip(cls: Any) -> None:
    @settings(max_examples=40, deadline=None)
    @given(strategy_for(cls))
    def check(message: Any) -> None:
        assert codec.decode(codec.encode(message)) == message

    check()


@given(strategy_for(Launch))
@settings(max_examples=20, deadline=None)
def test_a_launch_survives_the_round_trip_as_plain_values(launch: Launch) -> None:
    assert codec.from_wire(Launch, codec.to_wire(launch)) == launch


def test_settings_left_out_take_their_defaults() -> None:
    assert codec.from_wire(WorkerSettings, {}) == WorkerSettings()


def packed(**fields: Any) -> bytes:
    data: bytes = msgpack.packb({"v": 1, **fields})
    return data


def test_unknown_fields_are_ignored() -> None:
    data = packed(t="Drain", deadline_ms=5, invented_later={"a": [1]})
    assert codec.decode(data) == codec.decode(packed(t="Drain", deadline_ms=5))


@pytest.mark.parametrize(
    ("data", "fault"),
    [
        (b"", CodecFault),
        (b"\xc1", CodecFault),
        (msgpack.packb([1]), CodecFault),
        (msgpack.packb({1: 2}), CodecFault),
        (msgpack.packb({"v": 2, "t": "Beat", "state": "up"}), VersionMismatch),
        (msgpack.packb({"t": "Beat", "state": "up"}), VersionMismatch),
        (packed(t="Invented"), UnknownMessage),
        (packed(t=["Beat"]), UnknownMessage),
        (packed(t="Beat"), BadField),
        (packed(t="Beat", state=1), BadField),
        (packed(t="Beat", state="up", running=True), BadField),
        (packed(t="Beat", state="up", metrics=[{"name": "n", "labels": {"a": 1}}]), BadField),
        (packed(t="Cancel", run_id=b"r", epoch=1, reason=""), BadField),
    ],
)
def test_foreign_bytes_are_refused_with_a_declared_fault(
    data: bytes, fault: type[CodecFault]
) -> None:
    with pytest.raises(fault):
        codec.decode(data)


def test_a_wrong_field_is_named_by_its_path() -> None:
    message = Submit("r", 1, 1, 0, Call("m", (Message("user", (TextPart("x"),)),)), Plan(),
                     Params(), 1, "s", 256)  # fmt: skip
    fields = msgpack.unpackb(codec.encode(message))
    fields["call"]["messages"][0]["content"][0]["text"] = 5
    with pytest.raises(BadField) as fault:
        codec.decode(msgpack.packb(fields))
    assert fault.value.field == "Submit.call.messages[0].content[0].text"


def test_size_limit_holds_at_the_byte_both_ways() -> None:
    message = Beat("up")
    size = len(codec.encode(message))
    assert codec.decode(codec.encode(message, size), size) == message
    with pytest.raises(MessageTooLarge):
        codec.encode(message, size - 1)
    with pytest.raises(MessageTooLarge):
        codec.decode(codec.encode(message), size - 1)


def test_numbers_and_text_that_msgpack_cannot_hold_are_a_declared_fault() -> None:
    with pytest.raises(CodecFault):
        codec.encode(Beat("up", running=2**64))
    with pytest.raises(CodecFault):
        codec.encode(Beat("\ud800"))


def test_a_histogram_passes_as_json() -> None:
    value: Json = {"buckets": [[1, 2], [10, 5]], "sum": 3.5, "count": 5}
    beat = Beat("busy", metrics=(Metric("ttft_ms", {"worker": "w"}, value),))
    assert codec.decode(codec.encode(beat)) == beat


def test_a_value_that_is_nested_without_end_is_a_declared_fault() -> None:
    value = b"\x91" * 1000 + b"\x01"  # what msgpack unpacks and we cannot walk through
    data = codec.encode(Beat("busy", metrics=(Metric("a", {}, "here"),)))
    assert msgpack.unpackb(value)
    with pytest.raises(CodecFault, match="deep"):
        codec.decode(data.replace(msgpack.packb("here"), value))


def test_absent_optional_fields_take_no_room() -> None:
    done = Done("r", 1, "stop", Usage(1, 1), Timings(), Speculation(), "none", MonitorCounts())
    fields = msgpack.unpackb(codec.encode(done))
    assert "error" not in fields and "detail" not in fields


@given(st.binary(max_size=200))
@settings(max_examples=300, deadline=None)
def test_random_bytes_raise_nothing_but_declared_faults(data: bytes) -> None:
    try:
        codec.decode(data)
    except CodecFault:
        return
