"""Tool calls in three notations: their values, their streaming, and the text around them."""

import itertools
import json
import time

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from proto.chat import Json, Tool
from proto.messages import CallPart
from worker.text.call_output import Stream
from worker.text.call_syntax import CALL_END
from worker.text.json_copy import JsonCopy, copy_json
from worker.text.tool_calls import CallText

TYPES: dict[str, Json] = {
    "s": {"type": "string"},
    "sn": {"type": ["string", "null"]},
    "i": {"type": "integer"},
    "n": {"type": "number"},
    "b": {"type": "boolean"},
    "z": {"type": "null"},
    "a": {"type": "array"},
    "o": {"type": "object"},
    "bn": {"anyOf": [{"type": "boolean"}, {"type": "null"}]},
    "e": {"enum": ["1", "two"]},
    "any": {},
}
TOOLS = (
    Tool("f", parameters={"type": "object", "properties": TYPES}),
    Tool("find_all", parameters={"type": "object", "properties": TYPES}),
    Tool("ping"),
)
STREAMS: tuple[Stream, ...] = ("live", "held")

Result = tuple[str, list[tuple[str, str]]]


class Reading:
    """A `CallText` and what came of it, checked to be well-formed parts."""

    def __init__(
        self, stream: Stream = "live", most_calls: int | None = None, *, any_name: bool = False
    ) -> None:
        ids = itertools.count()
        self.machine = CallText(
            TOOLS, stream=stream, most_calls=most_calls, new_id=lambda: f"call_{next(ids)}",
            takes_any_name=any_name,
        )  # fmt: skip
        self.at = 0
        self.text = ""
        self.pieces: list[list[str | CallPart]] = []
        self.calls: list[tuple[str, str]] = []
        self._args = ""
        self._name: str | None = None

    def push(self, *pieces: str) -> "Reading":
        for piece in pieces:
            self.at += 1
            self._take(self.machine.push(piece, self.at))
        return self

    def finish(self, *, is_cut: bool = False) -> "Reading":
        self._take(self.machine.finish(self.at, is_cut=is_cut))
        assert self._name is None, "a call that went out was left open"
        assert self.machine.finish(self.at, is_cut=is_cut) == []
        return self

    @property
    def result(self) -> Result:
        return self.text, self.calls

    @property
    def arguments(self) -> list[list[str | None]]:
        """What the parts of calls brought, by push; None for a start and for an end."""
        return [[part.args for part in out if isinstance(part, CallPart)] for out in self.pieces]

    def _take(self, out: list[str | CallPart]) -> None:
        self.pieces.append(out)
        for part in out:
            if isinstance(part, str):
                assert part and self._name is None
                self.text += part
                continue
            assert (part.at, part.index) == (self.at, len(self.calls))
            if part.name is not None:
                assert part.id == f"call_{part.index}" and self._name is None
                self._name, self._args = part.name, ""
            elif part.args is not None:
                assert part.args and self._name is not None
                self._args += part.args
            else:
                assert part.end and self._name is not None
                assert isinstance(json.loads(self._args), dict)
                self.calls.append((self._name, self._args))
                self._name = None


def read(
    text: str, stream: Stream = "live", *, most: int | None = None, cut: bool = False
) -> Reading:
    return Reading(stream, most).push(text).finish(is_cut=cut)


def xml(name: str, *values: tuple[str, str]) -> str:
    inner = "".join(f"<parameter={key}>\n{value}\n</parameter>\n" for key, value in values)
    return f"<tool_call>\n<function={name}>\n{inner}</function>\n</tool_call>"


def hermes(body: str) -> str:
    return f"<tool_call>\n{body}\n</tool_call>"


VALUES = [
    ("s", "plain", "plain"),
    ("s", "", ""),
    ("s", "12", "12"),
    ("s", "true", "true"),
    ("s", "null", "null"),
    ("s", '"quoted" \\ and\ttab', '"quoted" \\ and\ttab'),
    ("s", "\ntwo\n\nlines\n", "\ntwo\n\nlines\n"),
    ("s", "a < b </par </parameter and </", "a < b </par </parameter and </"),
    ("s", "</function>\n</tool_call>", "</function>\n</tool_call>"),
    ("s", "日本 😀 é", "日本 😀 é"),
    ("sn", "null", None),
    ("sn", "nul", "nul"),
    ("sn", "nullable", "nullable"),
    ("sn", "", ""),
    ("i", "42", 42),
    ("i", " -7 ", -7),
    ("i", '"5"', 5),
    ("i", "many", "many"),
    ("n", "1.50", 1.5),
    ("n", "1e3", 1000.0),
    ("n", "NaN", "NaN"),
    ("b", "true", True),
    ("b", "True", True),
    ("b", "False", False),
    ("b", "yes", "yes"),
    ("b", "1", "1"),
    ("z", "None", None),
    ("bn", "None", None),
    ("bn", "False", False),
    ("a", '[1, "x", {"y": null}]', [1, "x", {"y": None}]),
    ("a", "[1, True,]", [1, True]),
    ("a", '"[1, 2]"', [1, 2]),
    ("o", '{"a": {"b": [1]}}', {"a": {"b": [1]}}),
    ("o", "{broken", "{broken"),
    ("e", "1", "1"),
    ("any", "3", 3),
    ("any", '{"k": 1}', {"k": 1}),
    ("any", "free text", "free text"),
    ("any", '"kept"', '"kept"'),
    ("any", "None", "None"),
    ("unknown", "false", False),
]


@pytest.mark.parametrize(("key", "written", "value"), VALUES)
def test_b39_a_tagged_value_gets_the_type_of_its_schema(
    key: str, written: str, value: Json
) -> None:
    for stream in STREAMS:
        text, calls = read(xml("f", (key, written)), stream).result
        assert (text, len(calls)) == ("", 1)
        found = json.loads(calls[0][1])
        assert found == {key: value}
        assert type(found[key]) is type(value)


# What was written -> the visible text, and the calls with their arguments.
READINGS: list[tuple[str, str, list[tuple[str, Json]]]] = [
    ("no call at all", "no call at all", []),
    (" \n padded \n ", " \n padded \n ", []),
    ("a < b <tool <tool_call", "a < b <tool <tool_call", []),
    (f"Let me see.\n\n{xml('ping')}\n\n", "Let me see.", [("ping", {})]),
    (f" {xml('ping')}", "", [("ping", {})]),
    (f"{xml('ping')}\n\nand more\n", "\n\nand more\n", [("ping", {})]),
    (f"{xml('f', ('i', '1'))}\n{xml('ping')}", "", [("f", {"i": 1}), ("ping", {})]),
    (f"{xml('ping')} so {xml('f')}", " so ", [("ping", {}), ("f", {})]),
    # Several in one block, with and without their end tags.
    (
        "<tool_call>\n<function=f>\n<parameter=s>\nx\n</parameter>\n</function>\n"
        "<function=ping>\n</function>\n</tool_call>",
        "",
        [("f", {"s": "x"}), ("ping", {})],
    ),
    ("<tool_call><function=f><function=ping></tool_call>", "", [("f", {}), ("ping", {})]),
    ("<tool_call>\n<function=ping>\n</tool_call>.", ".", [("ping", {})]),
    ("<tool_call>\n<function=ping>\n<tool_call>", "<tool_call>", [("ping", {})]),
    ("<tool_call>\n<function=ping></function>", "", [("ping", {})]),
    ("<tool_call><function=f><parameter=i>1</parameter>\n", "", [("f", {"i": 1})]),
    ("<tool_call><function=ping></function>\n}\nfoo", "\n}\nfoo", [("ping", {})]),
    # Between parameters.
    (
        "<tool_call><function=f><parameter=x\n<parameter=<parameter=i>1</parameter></function>",
        "",
        [("f", {"i": 1})],
    ),
    (
        "<tool_call><function=f><why>because</why><parameter=i>1</parameter> <x> < "
        "<parameter\n<parameter=s>a</parameter></thing></function></tool_call>",
        "",
        [("f", {"i": 1, "s": "a"})],
    ),
    ("<tool_call><function=ping>\n}\n</function></tool_call>", "", [("ping", {})]),
    # JSON.
    (hermes('{"name": "f", "arguments": {"s": "x", "i": 1}}'), "", [("f", {"s": "x", "i": 1})]),
    (hermes('{"arguments": {"i": 1}, "name": "f"}'), "", [("f", {"i": 1})]),
    (hermes('{"name": "f", "parameters": {"i": 1}}'), "", [("f", {"i": 1})]),
    (hermes('{"id": [1], "name": "f", "arguments": {}}'), "", [("f", {})]),
    (hermes('{"name": "f", "arguments": "{\\"i\\": 1}"}'), "", [("f", {"i": 1})]),
    (hermes('{"name": "f", "arguments": ""}'), "", [("f", {})]),
    (hermes('{"name": "f", "arguments": "}"}'), "", [("f", {})]),
    (hermes('{"name": "f", "arguments": null}'), "", [("f", {})]),
    (hermes('{"name": "f", "arguments": }'), "", [("f", {})]),
    (hermes('{"name": "f"}'), "", [("f", {})]),
    (hermes('{"name": "f", "arguments": {"i": 1}'), "", [("f", {"i": 1})]),
    (hermes('{"name": "f", "arguments": {"a": [1, 2'), "", [("f", {"a": [1, 2]})]),
    (hermes('{"name": "f", "arguments": {"i": 1}}}'), "", [("f", {"i": 1})]),
    (hermes('{"name": "f", "arguments": {"i": 1,},}'), "", [("f", {"i": 1})]),
    (hermes('{"name": "f", "arguments": {"b": True}}'), "", [("f", {"b": True})]),
    (hermes('{"name": "f", "arguments": {"s": "\n\\d\\u00e9"}}'), "", [("f", {"s": "\n\\dé"})]),
    (hermes('{"name": "f", "arguments": {"s": "</tool_call>"}}'), "", [("f", {"s": CALL_END})]),
    (hermes('{"name": "f"}\n{"name": "ping"}'), "", [("f", {}), ("ping", {})]),
    ('<tool_call>{"name": "f", "arguments": {"i": 1}', "", [("f", {"i": 1})]),
    # Bare.
    ('{"name": "<tool_call><function=ping></function>', '{"name": "', [("ping", {})]),
    ('{"name": "f", "arguments": {"i": 1}}', "", [("f", {"i": 1})]),
    ('\n{"parameters": "{}", "name": "f"}\n', "", [("f", {})]),
    ('```json\n{"name": "f", "arguments": {}}\n```\n', "", [("f", {})]),
    ('```\n{"name": "f", "arguments": {}}', "", [("f", {})]),
]
TEXTS = [
    # What stays text exactly as it was written.
    xml("nobody", ("s", "x")),
    hermes('{"name": "nobody", "arguments": {}}'),
    "<tool_call>\n<function=fin>\n</function></tool_call>",
    "see:\n<tool_call> is a tag\n",
    "<tool_call>\n<tool_call>\n",
    hermes("[1]"),
    hermes('{"arguments": {}}'),
    '{"name": "nobody", "arguments": {}}',
    '{"name": "f", "arguments": {}}\n```',
    '<tool_call>{"arguments": {} </tool> x',
    '{"name": "f"}',
    '{"name": "f", "arguments": {}, "why": 1}',
    '{"name": "f", "arguments": {}} is how',
    'So: {"name": "f", "arguments": {}}',
    '```json\n{"name": "f", "arguments": {}}\n```\nas asked',
    '```python\nprint("f")\n```',
    '{"city": "Paris"}',
    "{",
    "``",
    "`f` is it",
]
READINGS += [(text, text, []) for text in TEXTS]


@pytest.mark.parametrize("stream", STREAMS)
@pytest.mark.parametrize(("written", "text", "calls"), READINGS)
def test_an_answer_is_read_as_its_text_and_its_calls(
    stream: Stream, written: str, text: str, calls: list[tuple[str, Json]]
) -> None:
    reading = read(written, stream)
    assert reading.text == text
    assert [(name, json.loads(args)) for name, args in reading.calls] == calls
    assert reading.machine.calls == len(calls)
    assert not reading.machine.is_in_call


@pytest.mark.parametrize(("written", "text", "calls"), READINGS)
def test_b38_stream_and_whole_are_equal_character_by_character(
    written: str, text: str, calls: list[tuple[str, Json]]
) -> None:
    for stream in STREAMS:
        by_character = Reading(stream).push(*written).finish()
        assert by_character.result == read(written).result


FRAGMENTS = [
    *(part for written, _, _ in READINGS for part in (written, "\n")),
    *(xml("f", (key, written)) for key, written, _ in VALUES),
    *("<tool_call>", "</tool_call>", "<function=f>", "<function=", "</function>", "<parameter=s>"),
    *("<parameter=any>\n", "\n</parameter>", "</parameter>", "</par", "<", " ", "\n", "}", "word"),
    *('{"name": "f", ', '"arguments": {', '"s": "', '"', "\\", ": [", "1", ", ", "tru"),
]
ANSWERS = st.lists(st.sampled_from(FRAGMENTS), max_size=6).map("".join)


@settings(max_examples=300)
@given(ANSWERS, st.data(), st.sampled_from(STREAMS), st.booleans(), st.sampled_from((None, 1)))
def test_b38_every_cut_into_pieces_gives_the_same(
    answer: str, data: st.DataObject, stream: Stream, is_cut: bool, most: int | None
) -> None:
    answer = answer[: data.draw(st.integers(0, len(answer)))]
    cuts = sorted(data.draw(st.lists(st.integers(0, len(answer)), max_size=12)))
    pieces = [answer[a:b] for a, b in itertools.pairwise([0, *cuts, len(answer)])]
    whole = read(answer, stream, most=most, cut=is_cut)
    streamed = Reading(stream, most).push(*pieces).finish(is_cut=is_cut)
    assert streamed.result == whole.result
    assert streamed.machine.calls == whole.machine.calls
    assert streamed.machine.is_in_call == whole.machine.is_in_call
    live = read(answer, "live", most=most, cut=is_cut)
    if not live.machine.is_in_call:  # what ends unclosed is text only while it is unsent
        assert read(answer, "held", most=most, cut=is_cut).result == live.result


@settings(max_examples=150)
@given(st.text(max_size=40), st.text(max_size=40))
def test_any_string_comes_through_tags_and_json(first: str, second: str) -> None:
    if "</parameter>" in first + second:
        return
    written = xml("f", ("s", first), ("sn", f"-{second}"))
    assert json.loads(read(written).calls[0][1]) == {"s": first, "sn": f"-{second}"}
    arguments = {"s": first, "n": {"m": [second]}}
    written = hermes(json.dumps({"name": "f", "arguments": arguments}))
    assert json.loads(read(written).calls[0][1]) == arguments


def test_live_parts_go_out_with_the_token_that_makes_them_certain() -> None:
    reading = Reading().push("<tool_call>\n<function=f", ">", "\n<parameter=s>", "\n", 'a"')
    start = CallPart(at=2, index=0, id="call_0", name="f")
    assert reading.pieces == [[], [start], [], [], [CallPart(at=5, index=0, args='{"s": "a\\"')]]
    reading.push("\n", "b\n</para", "meter>", "<parameter=i>4", "2</parameter>", "</function>")
    assert reading.arguments[5:] == [
        [],
        ["\\nb"],
        ['"'],
        [],
        [', "i": 42'],
        ["}", None],
    ]
    assert reading.calls == [("f", '{"s": "a\\"\\nb", "i": 42}')]


def test_live_json_arguments_go_out_as_written() -> None:
    pieces = ('<tool_call>{"name": "f"', ', "arguments": {"s" :', ' "a', 'b", "i": 4')
    reading = Reading().push(*pieces)
    assert reading.arguments == [[None], ["{"], ['"s" : "a'], ['b"']]
    assert reading.push("2}}").finish().calls == [("f", '{"s" : "ab", "i": 42}')]


def test_held_sends_a_call_whole_with_its_last_token() -> None:
    written = hermes('{"name": "f", "arguments": {"i": 1}}').partition("}}")
    reading = Reading("held").push(written[0], written[1])
    assert reading.pieces == [
        [],
        [
            CallPart(at=2, index=0, id="call_0", name="f"),
            CallPart(at=2, index=0, args='{"i": 1}'),
            CallPart(at=2, index=0, end=True),
        ],
    ]


def test_b35_text_goes_out_with_the_first_piece_that_begins_no_marker() -> None:
    reading = Reading().push("H", "i <", "b> ", "<tool_", "x", "\n", "y")
    for early in ("<tool_call><function=x", '{"city"', '{"name": "x"', "`a"):
        assert Reading().push(*early).text == early
    assert reading.pieces == [["H"], ["i "], ["<b> "], [], ["<tool_x"], [], ["\ny"]]


@pytest.mark.parametrize("call", [xml("ping"), hermes('{"name": "ping", "arguments": }')])
def test_b36_a_call_without_parameters_is_an_empty_object(call: str) -> None:
    assert read(call).result == ("", [("ping", "{}")])


@pytest.mark.parametrize("stream", STREAMS)
@pytest.mark.parametrize(
    "call", [xml("f", ("s", "x"), ("i", "1")), hermes('{"name": "f", "arguments": {"s": "x"}}')]
)
def test_b37_an_echoed_call_is_sent_once(stream: Stream, call: str) -> None:
    once = read(call, stream)
    assert Reading(stream).push(*f"{call}\n{call}").finish().result == once.result
    other = call.replace("x", "xy")
    reading = read(call + call + other + call, stream)
    assert [args for _, args in reading.calls] == [
        once.calls[0][1],
        once.calls[0][1].replace("x", "xy"),
        once.calls[0][1],
    ]
    assert reading.machine.calls == 3


def test_b37_a_call_of_the_same_name_is_held_until_it_differs() -> None:
    reading = Reading().push(xml("f", ("s", "abc")), "<tool_call><function=f><parameter=s>ab", "X")
    assert reading.pieces[1] == []
    assert reading.pieces[2] == [
        CallPart(at=3, index=1, id="call_1", name="f"),
        CallPart(at=3, index=1, args='{"s": "abX'),
    ]


OPEN = '{"name": "f", "arguments": {"s": "x'


@pytest.mark.parametrize("stream", STREAMS)
def test_b40_a_forced_choice_is_one_call(stream: Stream) -> None:
    written = xml("f", ("i", "1")) + xml("ping") + hermes(OPEN)
    reading = Reading(stream, 1).push(written)
    assert not reading.machine.is_in_call
    reading.finish(is_cut=True)
    assert reading.result == ("", [("f", '{"i": 1}')])
    assert (reading.machine.calls, reading.machine.is_in_call) == (1, False)


CUT_CALLS = [
    ("<tool_call><function=f>", "{}"),
    ("<tool_call><function=f><parameter=s>\nab\n</para", '{"s": "ab"}'),
    ("<tool_call><function=f><parameter=s>a</parameter><parameter=i>12", '{"s": "a"}'),
    ("<tool_call><function=f><parameter=s>a</parameter>", '{"s": "a"}'),
    ('<tool_call>{"name": "f"', "{}"),
    ('<tool_call>{"name": "f", "arguments": "{', "{}"),
    ('<tool_call>{"name": "f", "arguments": {"a": [1, {"s": "x\\', '{"a": [1, {"s": "x"}]}'),
    ('<tool_call>{"name": "f", "arguments": {"i": 1, "n', '{"i": 1}'),
    ('<tool_call>{"name": "f", "arguments": {"i": 1}', '{"i": 1}'),
]


@pytest.mark.parametrize(("written", "arguments"), CUT_CALLS)
def test_a_call_cut_by_a_limit_is_closed_if_sent_and_text_if_not(
    written: str, arguments: str
) -> None:
    live = Reading().push(*f"So\n{written}")
    assert live.machine.is_in_call
    live.finish(is_cut=True)
    assert live.result == ("So", [("f", arguments)])
    held = read(f"So\n{written}", "held", cut=True)
    assert held.result == (f"So\n{written}", [])
    for reading in (live, held):
        assert (reading.machine.calls, reading.machine.is_in_call) == (0, True)


def test_a_sent_call_that_breaks_is_closed_and_its_block_skipped() -> None:
    call = hermes('{"name": "f", "arguments": {"s": "a"b", "i": 1}}')
    live = read(f"{call}\n{xml('ping')}")
    assert live.result == ("", [("f", '{"s": "a"}'), ("ping", "{}")])
    assert (live.machine.calls, live.machine.is_in_call) == (1, True)
    held = read(f"{call}\n{xml('ping')}", "held")
    assert held.result == (call, [("ping", "{}")])


UNKNOWN = {"name": "F_1", "arguments": {"i": "1"}}


@pytest.mark.parametrize(
    ("written", "calls"),
    [
        (hermes('{"name": "nobody.at-all", "arguments": {"i": 1}}'), [("nobody.at-all", {"i": 1})]),
        (xml("nobody", ("i", "1.50"), ("b", "True")), [("nobody", {"i": "1.50", "b": "True"})]),
        (xml("finder"), [("finder", {})]),
        (xml("f", ("i", "1")), [("f", {"i": 1})]),
        (xml("f") + "\n" + hermes('{"name": "F"}'), [("f", {}), ("F", {})]),
        ("`f` is it. " + hermes('{"name": "F"}'), [("F", {})]),
        ("```\nx\n```\n" + hermes('{"name": "F"}'), [("F", {})]),
    ],
)
def test_where_names_are_judged_a_call_of_any_is_one(written: str, calls: object) -> None:
    reading = Reading("held", any_name=True).push(*written).finish()
    assert [(name, json.loads(args)) for name, args in reading.calls] == calls
    assert reading.result == Reading("held", any_name=True).push(written).finish().result


@pytest.mark.parametrize(
    "written",
    [
        hermes('{"name": "no body", "arguments": {}}'),
        hermes('{"name": "", "arguments": {}}'),
        hermes(json.dumps({"name": "n" * 129})),
        hermes('{"name": 7}'),
        xml("no body"),
        "<tool_call>\n<function=>\n</function></tool_call>",
        xml("n" * 129),
        json.dumps(UNKNOWN),
        f"Like this:\n```xml\n{hermes(json.dumps(UNKNOWN))}\n```\n",
        f"~~~\n{xml('nobody')}\n~~~",
        f"Write `{hermes(json.dumps(UNKNOWN))}` for it.",
    ],
)
def test_but_not_in_code_without_markup_or_by_what_is_no_name(written: str) -> None:
    assert Reading("held", any_name=True).push(*written).finish().result == (written, [])


def test_an_offered_name_in_code_is_a_call_as_ever() -> None:
    written = f"```\n{xml('ping')}\n"
    assert Reading("held", any_name=True).push(written).finish().calls == [("ping", "{}")]


def test_what_a_limit_left_of_a_call_is_told_apart_from_the_text() -> None:
    for cut in (hermes(OPEN).removesuffix("\n</tool_call>"), "<tool_call>\n<func"):
        for is_cut in (True, False):
            reading = Reading("held").push(f"So\n{cut}").finish(is_cut=is_cut)
            assert reading.result == (f"So\n{cut}", [])
            assert reading.machine.cut_text == (f"\n{cut}" if is_cut else "")


def test_without_tools_all_text_goes_through_at_once() -> None:
    machine = CallText((), stream="live", most_calls=None, new_id=lambda: "")
    assert machine.push("{<tool_call>", 1) == ["{<tool_call>"]
    assert machine.push("", 2) == []
    assert (machine.finish(2, is_cut=False), machine.calls) == ([], 0)


@given(
    st.recursive(
        st.none()
        | st.booleans()
        | st.integers()
        | st.floats(allow_nan=False, allow_infinity=False)
        | st.text(),
        lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
        max_leaves=8,
    ),
    st.data(),
)
def test_a_copy_of_json_is_the_same_and_can_be_closed_anywhere(
    value: Json, data: st.DataObject
) -> None:
    written = json.dumps(
        value, ensure_ascii=data.draw(st.booleans()), indent=data.draw(st.sampled_from((None, 1)))
    )
    assert copy_json(written) == written
    copy = JsonCopy()
    end = data.draw(st.integers(0, len(written)))
    for char in written[:end]:
        assert copy.feed(char) == 1
    closed = copy.take() + copy.close()
    assert type(json.loads(closed)) is type(value) if closed else not copy.has_begun


@pytest.mark.parametrize(
    "written",
    ["", "tru", "01", "1_0", "{1: 2}", "[1 2]", '{"a"}', "1 2", "[" * 101 + "]" * 101, "1" * 500],
)
def test_what_is_not_json_is_not_copied(written: str) -> None:
    assert copy_json(written) is None


LONG = 'word <b> \\ " é\n' * 1_400
LONG_ANSWERS = {
    "text": LONG,
    "string value": xml("f", ("s", LONG)),
    "value held to its end": xml("f", ("any", LONG)),
    "nullable": xml("f", ("sn", LONG)),
    "json arguments": hermes(json.dumps({"name": "f", "arguments": {"s": LONG}})),
    "arguments before the name": hermes(json.dumps({"arguments": {"s": LONG}, "name": "f"})),
    "encoded twice": hermes(json.dumps({"name": "f", "arguments": json.dumps({"s": LONG})})),
    "bare": json.dumps({"name": "f", "arguments": {"s": LONG}}),
    "echo": xml("f", ("s", LONG)) * 2,
}


@pytest.mark.parametrize("kind", LONG_ANSWERS)
def test_twenty_thousand_characters_take_linear_time(kind: str) -> None:
    answer = LONG_ANSWERS[kind]
    assert len(answer) >= 20_000

    def seconds(count: int) -> float:
        reading = CallText(TOOLS, stream="live", most_calls=None, new_id=lambda: "")
        began = time.process_time()
        for char in answer[:count]:
            reading.push(char, 1)
        return time.process_time() - began

    seconds(2_000)
    short, long = min(seconds(2_000) for _ in range(3)), seconds(20_000)
    assert long < 50 * short  # quadratic would be 100 times
