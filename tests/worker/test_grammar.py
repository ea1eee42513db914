"""Answers of a form: every one that a random model writes is of it, and costs few tokens."""

import json
import re

import jsonschema
import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from scripted import COMPILER, END, TOKENIZER

from proto.chat import AnswerFormat, Call, Json, Tool, ToolChoice
from proto.faults import Refusal
from worker.grammar import compiler as compiler_module
from worker.grammar.closing import FormCloser
from worker.grammar.compiler import GrammarCompiler
from worker.grammar.forms import form_of
from worker.grammar.matcher import GrammarFault, Matcher
from worker.sampling.chooser import Chooser
from worker.sampling.params import Sampling
from worker.text.tool_calls import CallText

FREE = AnswerFormat()
NOTHING_MASKED = np.array([], np.int64)
ASCII = [i for i, spelled in enumerate(TOKENIZER.token_bytes) if spelled and spelled[0] < 128]
CLOSER = FormCloser(TOKENIZER.token_bytes)
LABELS = ["chat", "fact", "write", "edit", "build", "debug", "review", "plan", "math", "agent",
          "other", "search"]  # fmt: skip
CITY: dict[str, Json] = {
    "type": "object",
    "properties": {
        "city": {"type": "string"},
        "days": {"type": "integer"},
        "unit": {"type": "string", "enum": ["c", "f"]},
        "where": {"$ref": "#/$defs/place"},
    },
    "required": ["city"],
    "additionalProperties": False,
    "$defs": {"place": {"type": "array", "items": {"type": "number"}, "maxItems": 2}},
}
TOOLS = (Tool("get_weather", "Tells", CITY), Tool("now"))


def _call(answer: AnswerFormat = FREE, **more) -> Call:
    return Call("m", (), answer_format=answer, **more)


def _matcher(call: Call, syntax="hermes") -> Matcher:
    form = form_of(call, syntax)
    assert form is not None
    return COMPILER.compile(form)


def _text(ids) -> str:
    return b"".join(TOKENIZER.token_bytes[token] or b"" for token in ids).decode()


def _write(matcher: Matcher, seed: int, most: int = 60, closing: str = "") -> str:
    """What a random model writes in this form; at the cap it is completed.

    `closing`: what ends a raw text, which the search for JSON does not know.
    """
    noise = np.random.default_rng(seed)
    chooser = Chooser(Sampling(1.0, 1.0, 0, 0.0, seed), (), matcher=matcher)
    ids: list[int] = []
    while len(ids) < most or (closing and not matcher.allowed()[ASCII].any()):
        row = (noise.normal(size=512) * 3).astype(np.float32)
        token = chooser.choose(row, NOTHING_MASKED).token
        if token == END:
            return _text(ids)
        ids.append(token)
    end = CLOSER.find(matcher)
    for begun in ("", "1", "]", "1]") if closing and end is None else ():
        ahead, tokens = matcher.copy(), TOKENIZER.encode_literal(begun + closing)
        try:
            for token in tokens:
                ahead.consume(token)
        except GrammarFault:
            continue
        if (rest := CLOSER.find(ahead)) is not None:
            end = (*tokens, *rest)
    assert end is not None
    return _text([*ids, *end])


# The library holds numbers as 64-bit floats, which know every whole number up to here.
WHOLE = st.integers(-(2**53), 2**53)
# It writes the character DEL as an escape only.
ALPHABET = st.characters(exclude_characters="\x7f")
TEXT = st.text(ALPHABET)
SCHEMA_TYPES = ("integer", "number", "boolean", "null", "string")


def _schemas() -> st.SearchStrategy[dict[str, Json]]:
    names = st.text('abcdefgé "\\', min_size=1, max_size=6)
    leaves = st.one_of(
        st.sampled_from([{"type": kind} for kind in SCHEMA_TYPES]),
        st.builds(lambda n: {"type": "string", "maxLength": n}, st.integers(0, 9)),
        st.builds(lambda a, b: {"type": "integer", "minimum": min(a, b), "maximum": max(a, b)},
                  st.integers(-99, 99), st.integers(-99, 99)),
        st.builds(lambda values: {"enum": values},
                  st.lists(st.one_of(WHOLE, st.text(max_size=4), st.none()),
                           min_size=1, max_size=4)),
        st.builds(lambda v: {"const": v}, st.one_of(st.booleans(), st.text(max_size=5))),
        st.just({"type": "string", "pattern": "^[a-c]{2,4}$"}),
        st.just({"type": ["string", "null"]}),
    )  # fmt: skip
    return st.recursive(
        leaves,
        lambda inner: st.one_of(
            st.builds(lambda item, n: {"type": "array", "items": item, "maxItems": n},
                      inner, st.integers(0, 3)),
            st.builds(_object, st.dictionaries(names, inner, max_size=3), st.booleans()),
            st.builds(lambda options: {"anyOf": options}, st.lists(inner, min_size=1, max_size=2)),
        ),
        max_leaves=6,
    )  # fmt: skip


def _object(properties: dict[str, Json], is_required: bool) -> dict[str, Json]:
    return {
        "type": "object",
        "properties": properties,
        "required": list(properties) if is_required else [],
        "additionalProperties": False,
    }


@settings(
    max_examples=200, derandomize=True, deadline=None, suppress_health_check=list(HealthCheck)
)
@given(_schemas(), st.integers(0, 2**32))
def test_every_answer_to_a_random_schema_validates(schema: dict[str, Json], seed: int):
    matcher = _matcher(_call(AnswerFormat("json_schema", schema)))
    written = _write(matcher, seed)
    jsonschema.validate(json.loads(written), schema)


@settings(max_examples=60, derandomize=True, deadline=None, suppress_health_check=list(HealthCheck))
@given(st.data(), _schemas())
def test_what_a_schema_allows_is_not_kept_from_the_model(data, schema: dict[str, Json]):
    value = data.draw(_values(schema))
    matcher = _matcher(_call(AnswerFormat("json_schema", schema)))
    for token in TOKENIZER.encode_literal(json.dumps(value, ensure_ascii=False)):
        matcher.consume(token)
    assert matcher.is_accepting


def _values(schema: dict[str, Json]) -> st.SearchStrategy[Json]:
    """Values of a schema, members in its order: the one order that the grammar writes."""
    match schema:
        case {"enum": values}:
            return st.sampled_from(values)
        case {"const": value}:
            return st.just(value)
        case {"anyOf": options}:
            return st.one_of([_values(option) for option in options])
        case {"type": "array", "items": item, "maxItems": most}:
            return st.lists(_values(item), max_size=most)
        case {"type": "object", "properties": properties, "required": required}:
            members = {
                name: _values(part) if name in required else st.none() | _values(part)
                for name, part in properties.items()
            }
            return st.fixed_dictionaries(members).map(
                lambda drawn: {
                    n: drawn[n] for n in properties if drawn[n] is not None or n in required
                }
            )
        case {"pattern": _}:
            return st.text("abc", min_size=2, max_size=4)
        case {"type": "string", "maxLength": most}:
            return st.text(ALPHABET, max_size=most)
        case {"type": "integer", "minimum": low, "maximum": high}:
            return st.integers(low, high)
        case {"type": ["string", "null"]}:
            return st.none() | TEXT
    plain = {
        "integer": st.integers(),
        "number": st.integers() | st.floats(-1e6, 1e6),
        "boolean": st.booleans(),
        "null": st.none(),
        "string": TEXT,
    }
    return plain[str(schema["type"])]


@pytest.mark.parametrize("seed", range(20))
def test_any_object_is_json(seed: int):
    assert isinstance(json.loads(_write(_matcher(_call(AnswerFormat("json_object"))), seed)), dict)


@settings(max_examples=60, derandomize=True, deadline=None)
@given(
    st.lists(st.text(min_size=1, max_size=12), min_size=1, max_size=12, unique=True), st.integers(0)
)
def test_every_choice_is_one_of_the_list(choices: list[str], seed: int):
    matcher = _matcher(_call(AnswerFormat("choice", choices)))
    assert _write(matcher, seed % 2**32, most=100) in choices


@pytest.mark.parametrize("seed", range(12))
def test_a_choice_of_twelve_labels_costs_at_most_eight_tokens(seed: int):
    matcher = _matcher(_call(AnswerFormat("choice", LABELS)))
    label = _write(matcher, seed, most=8)
    assert label in LABELS
    assert len(matcher.consumed) <= 8  # the end included


@pytest.mark.parametrize(
    "pattern", [r"[0-9]{3}-[a-z]+", r"a/b\/c", r"(é|ü){2}", r"[0-9]+\.[0-9]{2}", "x\ny"]
)
def test_a_pattern_is_matched_whole(pattern: str):
    for seed in range(5):
        matcher = _matcher(_call(AnswerFormat("regex", pattern)))
        written = _write_or_none(matcher, seed)
        assert written is None or re.fullmatch(pattern, written)


def _write_or_none(matcher: Matcher, seed: int) -> str | None:
    try:
        return _write(matcher, seed, most=200)
    except AssertionError:  # a pattern that can go on for ever did
        return None


def test_a_grammar_of_the_client_is_followed():
    rules = 'start: greeting " " name\ngreeting: "hi" | "yo"\nname: /[A-Z][a-z]{2}/\n'
    for seed in range(5):
        written = _write(_matcher(_call(AnswerFormat("grammar", rules))), seed)
        assert re.fullmatch(r"(hi|yo) [A-Z][a-z]{2}", written)


@pytest.mark.parametrize("syntax", ["hermes", "xml"])
@pytest.mark.parametrize("seed", range(8))
def test_b40_a_forced_call_is_one_call_with_arguments_of_its_schema(syntax: str, seed: int):
    call = _call(tools=TOOLS, tool_choice=ToolChoice("required"), parallel_tool_calls=False)
    matcher = _matcher(call, syntax)
    written = _write(matcher, seed, most=400, closing="\n</parameter>\n</function>\n</tool_call>")
    name, arguments = _only_call(written)
    schemas = {"get_weather": CITY, "now": {"type": "object", "additionalProperties": False}}
    jsonschema.validate(arguments, schemas[name])
    assert written.count("<tool_call>") == 1


def _only_call(written: str) -> tuple[str, Json]:
    reader = CallText(TOOLS, stream="held", most_calls=None, new_id=lambda: "id")
    parts = [*reader.push(written, 1), *reader.finish(1, is_cut=False)]
    assert not any(isinstance(part, str) and part for part in parts), parts
    (start,) = [part for part in parts if part.name is not None]
    text = "".join(part.args or "" for part in parts)
    return start.name, json.loads(text)


def test_a_named_choice_calls_that_tool_only():
    call = _call(tools=TOOLS, tool_choice=ToolChoice("named", "now"), parallel_tool_calls=False)
    for seed in range(4):
        assert _only_call(_write(_matcher(call), seed, most=200)) == ("now", {})


def test_several_calls_are_allowed_where_they_may_be_parallel():
    one = '<tool_call>\n{"name": "now", "arguments": {}}\n</tool_call>'
    for is_parallel in (True, False):
        matcher = _matcher(
            _call(tools=TOOLS, tool_choice=ToolChoice("required"), parallel_tool_calls=is_parallel)
        )
        for token in TOKENIZER.encode_literal(one):
            matcher.consume(token)
        assert matcher.is_accepting
        (newline,) = TOKENIZER.encode_literal("\n")
        assert bool(matcher.allowed()[newline]) is is_parallel


def test_beside_tools_a_document_grammar_lets_the_first_token_pick():
    call = _call(AnswerFormat("json_object"), tools=TOOLS)
    for text in ('{"a": 1}', '<tool_call>\n{"name": "now", "arguments": {}}\n</tool_call>'):
        matcher = _matcher(call)
        for token in TOKENIZER.encode_literal(text):
            matcher.consume(token)
        assert matcher.is_accepting
    free = form_of(_call(tools=TOOLS), "hermes")
    assert free is None


def test_end_ids_are_allowed_exactly_where_the_grammar_may_end_and_no_other_control_id_ever():
    matcher = _matcher(_call(AnswerFormat("regex", "ab+")))
    a, b = TOKENIZER.encode_literal("a")[0], TOKENIZER.encode_literal("b")[0]
    other = [i for name, i in TOKENIZER.control_tokens.items() if i != END]
    for token, may_end in ((a, False), (b, False), (b, True)):
        allowed = matcher.allowed()
        assert bool(allowed[END]) is may_end
        assert not allowed[other].any()
        matcher.consume(token)
    assert matcher.allowed()[END]
    whole = _matcher(_call(AnswerFormat("choice", ["a"])))
    whole.consume(a)
    assert np.flatnonzero(whole.allowed()).tolist() == [END]


@pytest.mark.parametrize(
    ("call", "param", "word"),
    [
        (_call(AnswerFormat("json_schema", {"type": "strin"})), "response_format", "strin"),
        (_call(AnswerFormat("json_schema", {"$ref": "#/no"})), "response_format", "no"),
        (_call(AnswerFormat("json_schema", [1])), "response_format", "object"),
        (_call(AnswerFormat("json_schema", {"d": "x" * 300_000})), "response_format", "bytes"),
        (_call(AnswerFormat("regex", "(?=a)b")), "structured_outputs", "look-around"),
        (_call(AnswerFormat("regex", "[")), "structured_outputs", "unclosed"),
        # These compile, and fail at the first token.
        (_call(AnswerFormat("regex", "a{1000000000}")), "structured_outputs", "too many"),
        (_call(AnswerFormat("json_schema", {"type": "object", "properties": {
            f"p{i}": {"type": "string"} for i in range(1000)}})), "response_format", "items"),
        (_call(AnswerFormat("json_schema", {"not": {}})), "response_format", "grammar"),
        (_call(AnswerFormat("grammar", "start: nobody")), "structured_outputs", "nobody"),
        (_call(AnswerFormat("choice", [])), "structured_outputs", "choice"),
        (_call(AnswerFormat("choice", ["a"] * 257)), "structured_outputs", "256"),
        (_call(AnswerFormat("choice", ["a", 5])), "structured_outputs", "choice"),
        (_call(AnswerFormat("regex", 5)), "structured_outputs", "regex"),
        (_call(tool_choice=ToolChoice("required")), "tool_choice", "tool"),
        (_call(tools=TOOLS, tool_choice=ToolChoice("named", "x")), "tool_choice", "tool"),
        (_call(tools=(Tool("f", None, {"type": "object", "properties": {"a": {"type": 5}}}),),
               tool_choice=ToolChoice("required")), "tool_choice", "grammar"),
    ],
    ids=str,
)  # fmt: skip
def test_what_no_grammar_can_be_made_of_is_refused_by_its_field(call: Call, param, word):
    with pytest.raises(Refusal) as caught:
        _matcher(call)
    assert (caught.value.code, caught.value.param) == ("bad_request", param)
    assert word in caught.value.detail
    assert "<state>" not in caught.value.detail


def test_b60_matchers_of_one_grammar_do_not_know_each_other():
    call = _call(AnswerFormat("regex", "[ab]{4}"))
    main, side = _matcher(call), _matcher(call)
    before = main.mask()
    a = TOKENIZER.encode_literal("a")[0]
    for _ in range(4):
        side.consume(a)
    assert main.mask() == before and main.consumed == ()
    assert side.mask() != before
    twin = side.copy()
    twin.consume(END)
    assert side.consumed == (a,) * 4


def test_a_token_that_is_not_allowed_is_a_fault():
    matcher = _matcher(_call(AnswerFormat("regex", "a")))
    with pytest.raises(GrammarFault):
        matcher.consume(TOKENIZER.encode_literal("b")[0])


def test_the_last_grammars_are_kept_and_old_ones_go(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(compiler_module, "KEPT", 2)
    compiled: list[str] = []
    real = compiler_module.LLMatcher

    def counted(tokenizer, source, **options):
        compiled.append(source)
        return real(tokenizer, source, **options)

    monkeypatch.setattr(compiler_module, "LLMatcher", counted)
    compiler = GrammarCompiler(TOKENIZER.serialized, width=512, end_ids=(END,))
    forms = [form_of(_call(AnswerFormat("regex", pattern)), "hermes") for pattern in "abc"]
    for index in (0, 1, 0, 2, 0, 1):
        compiler.compile(forms[index])
    assert [json.loads(source)["grammars"][0]["lark_grammar"][8] for source in compiled] == [
        "a", "b", "c", "b",
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("begun", "end"),
    [('{"a": "x', '"}'), ('{"a": ', '""}'), ("", '{"a":""}'), ('{"a": "x"}', "")],
)
def test_a_form_is_completed_in_a_short_way(begun: str, end: str):
    schema = _object({"a": {"type": "string"}}, True)
    matcher = _matcher(_call(AnswerFormat("json_schema", schema)))
    for token in TOKENIZER.encode_literal(begun):
        matcher.consume(token)
    before = matcher.consumed
    found = CLOSER.find(matcher)
    assert found is not None and _text(found) == end
    assert matcher.consumed == before


def test_a_form_that_no_short_way_completes_is_left():
    for pattern, is_found in (("[Z]{9}Q", True), ("Z[xyz]b", True), ("Z[xyz]{5000}", False)):
        matcher = _matcher(_call(AnswerFormat("regex", pattern)))
        matcher.consume(TOKENIZER.encode_literal("Z")[0])
        assert (CLOSER.find(matcher) is not None) is is_found, pattern


@pytest.mark.parametrize(
    ("schema", "value"),
    [
        ({"type": ["string", "null"]}, "a b"), ({"type": ["string", "null"]}, None),
        ({"anyOf": [{"type": "string"}, {"type": "null"}]}, "a"), ({"enum": ["x", "y"]}, "x"),
        ({"const": "x"}, "x"), ({"type": ["string", "null"], "enum": ["x", None]}, None),
        ({"$ref": "#/$defs/text"}, "a"), ({}, "a"), (True, "a"),
    ],
)  # fmt: skip
def test_a_text_between_tags_is_raw_however_its_schema_says_text(schema: Json, value: str | None):
    parameters = {"type": "object", "properties": {"k": schema}, "required": ["k"],
                  "$defs": {"text": {"type": "string"}}}  # fmt: skip
    tools = (Tool("f", None, parameters),)
    raw = "null" if value is None else value
    text = (
        f"<tool_call>\n<function=f>\n<parameter=k>\n{raw}\n</parameter>\n</function>\n</tool_call>"
    )
    matcher = _matcher(_call(tools=tools, tool_choice=ToolChoice("required")), "xml")
    for token in TOKENIZER.encode_literal(text):
        matcher.consume(token)
    assert matcher.is_accepting
    reader = CallText(tools, stream="held", most_calls=None, new_id=lambda: "id")
    parts = [*reader.push(text, 1), *reader.finish(1, is_cut=False)]
    args = "".join(part.args or "" for part in parts if not isinstance(part, str))
    assert json.loads(args) == {"k": value}


@pytest.mark.parametrize("divisor", [999_983, 5.1e9 + 1])
@pytest.mark.parametrize("is_tool", [True, False])
def test_a_divisor_that_would_take_all_memory_is_refused(divisor: float, is_tool: bool):
    schema = {"type": "object", "properties": {"n": {"type": "integer", "multipleOf": divisor}}}
    call = _call(AnswerFormat("json_schema", schema))
    if is_tool:
        call = _call(tools=(Tool("f", None, schema),), tool_choice=ToolChoice("required"))
    with pytest.raises(Refusal, match="multipleOf"):
        form_of(call, "hermes")
    for small in (0.01, 100_000):
        schema["properties"]["n"]["multipleOf"] = small
        assert form_of(call, "hermes") is not None


def test_divisors_that_are_joined_count_by_their_product():
    parts: Json = [{"type": "integer", "multipleOf": 4_999}, {"multipleOf": 5_003}]
    with pytest.raises(Refusal, match="multipleOf"):
        form_of(_call(AnswerFormat("json_schema", {"allOf": parts})), "hermes")
