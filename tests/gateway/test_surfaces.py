"""Reading requests without rewriting them, and events however they are cut."""

import gzip
import json
import zlib
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from gateway.errors import ApiError
from gateway.surfaces.chat.fields import FIELDS
from gateway.surfaces.chat.parse import parse_chat
from gateway.surfaces.chat.render import ChatRenderer
from gateway.surfaces.choices import merged
from gateway.surfaces.completions.parse import parse_completion
from gateway.surfaces.completions.render import CompletionRenderer
from gateway.surfaces.encoding import decoded_body
from gateway.surfaces.envelope import edited, model_of, read_envelope, value_edit
from gateway.surfaces.sse import RecordTooLarge, SseEvent, SseParser
from proto.chat import ImagePart, ToolCall
from proto.events import (
    Event,
    Finished,
    ReasoningDelta,
    Speculation,
    TextDelta,
    Timings,
    Usage,
)

JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(max_size=10),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=4), inner),
    max_leaves=10,
)  # fmt: skip


@given(st.dictionaries(st.text(max_size=6), JSON, max_size=5), st.integers(0, 4), st.booleans())
def test_an_envelope_reads_what_json_reads(body: dict[str, Any], indent: int, ascii: bool) -> None:
    raw = json.dumps(body, indent=indent or None, ensure_ascii=ascii).encode(
        "utf-8", "surrogatepass"
    )
    try:
        expected = json.loads(raw)
    except UnicodeDecodeError:
        return
    assert read_envelope(raw).fields == expected


@given(st.dictionaries(st.text(max_size=6), JSON, max_size=4), JSON, st.integers(0, 3))
def test_replacing_a_value_changes_nothing_else(
    body: dict[str, Any], value: Any, indent: int
) -> None:
    raw = json.dumps({**body, "model": "old"}, ensure_ascii=True, indent=indent).encode()
    envelope = read_envelope(raw)
    replaced = edited(envelope.text, [value_edit(envelope, "model", value)])
    assert json.loads(replaced) == {**body, "model": value}
    before, after = raw.rsplit(b'"old"', 1)
    assert replaced.startswith(before) and replaced.endswith(after)


@pytest.mark.parametrize(
    "raw",
    [
        b"", b"[]", b"{", b'{"a"}', b'{"a":1,}', b'{"a":1}x', b'{a:1}', b'{"a":NaN}', b"\xff{}",
        b'{"a":' + b"[" * 101 + b"]" * 101 + b"}", b'{"a":' + b"[" * 100_000,
        b'{"a" 1}', b"null", b'"x"',
    ],
)  # fmt: skip
def test_what_is_no_json_object_is_a_400(raw: bytes) -> None:
    with pytest.raises(ApiError) as fault:
        read_envelope(raw)
    assert (fault.value.status, fault.value.code) == (400, "invalid_json")


def test_a_hundred_levels_are_still_read() -> None:
    assert read_envelope(b'{"a":' + b"[" * 99 + b"]" * 99 + b"}").fields


@pytest.mark.parametrize(
    ("raw", "word"),
    [
        (b"{}", "missing"), (b'{"model":5}', "text"), (b'{"model":""}', "text"),
        (b'{"model":null}', "missing"), (b'{"model":"a","model":"a"}', "twice"),
        (b'{"model":"' + b"x" * 257 + b'"}', "256"),
    ],
)  # fmt: skip
def test_a_bad_model_is_a_400_that_names_the_field(raw: bytes, word: str) -> None:
    with pytest.raises(ApiError) as fault:
        model_of(read_envelope(raw))
    assert (fault.value.status, fault.value.param) == (400, "model")
    assert word in fault.value.message


def test_a_model_inside_another_value_is_not_the_model() -> None:
    raw = b'{"metadata":{"model":"x","model":"y"},"model":"real"}'
    assert model_of(read_envelope(raw)) == "real"


def test_bodies_are_unpacked_within_their_limits() -> None:
    assert decoded_body(gzip.compress(b"abc"), b"gzip", 100) == b"abc"
    assert decoded_body(zlib.compress(b"abc"), b"deflate", 100) == b"abc"
    assert decoded_body(b"abc", b"identity", 100) == b"abc"
    for body, encoding, limit, status in (
        (gzip.compress(b"a" * 101), b"gzip", 100, 413),
        (gzip.compress(b"a" * 100_000), b"gzip", 10**9, 413),
        (gzip.compress(b"abc")[:-4], b"gzip", 100, 400),
        (b"abc", b"gzip", 100, 400),
        (b"abc", b"compress", 100, 415),
    ):
        with pytest.raises(ApiError) as fault:
            decoded_body(body, encoding, limit)
        assert fault.value.status == status


EVENTS = [
    SseEvent(b"", b'{"a":"\xc3\xa9\xf0\x9f\x98\x80"}'),
    SseEvent(b"ping", b"1\n2"),
    SseEvent(b"", b"[DONE]"),
]


@pytest.mark.parametrize("end", [b"\n", b"\r\n", b"\r"], ids=["LF", "CRLF", "CR"])
@pytest.mark.parametrize("is_closed", [True, False])
def test_a_stream_cut_at_every_byte_gives_the_same_events(end: bytes, is_closed: bool) -> None:
    lines = [
        b'\xef\xbb\xbfdata: {"a":"\xc3\xa9\xf0\x9f\x98\x80"}', b"", b": comment", b"event: ping",
        b"data:1", b"data: 2", b"id: 7", b"", b": only a comment", b"", b"data: [DONE]",
    ]  # fmt: skip
    stream = end.join(lines) + (end + end if is_closed else b"")
    for cut in range(len(stream) + 1):
        parser = SseParser()
        found = parser.feed(stream[:cut]) + parser.feed(stream[cut:]) + parser.finish()
        assert found == EVENTS, cut
    single = SseParser()
    assert [e for i in range(len(stream)) for e in single.feed(stream[i : i + 1])] + (
        single.finish()
    ) == EVENTS


def test_a_record_over_the_limit_is_refused_however_it_comes() -> None:
    for pieces in ([b"data: " + b"x" * 200], [b"x"] * 200, [b"data: xxxxxxxxx\n"] * 20):
        with pytest.raises(RecordTooLarge):
            parser = SseParser(100)
            for piece in pieces:
                parser.feed(piece)


def test_a_parser_knows_whether_it_stands_between_events() -> None:
    parser = SseParser()
    for piece, between in ((b"data: x", False), (b"\n", False), (b"\n", True), (b": c\n", True)):
        parser.feed(piece)
        assert parser.is_between_events is between


def test_the_table_of_fields_is_pinned() -> None:
    honoured = {name for name, kind in FIELDS.items() if kind == "honoured"}
    assert honoured == {
        "messages", "model", "stream", "stream_options", "max_tokens", "max_completion_tokens",
        "stop", "temperature", "top_p", "top_k", "min_p", "seed", "modalities", "cache_prompt",
        "chat_template_kwargs", "presence_penalty", "frequency_penalty", "repetition_penalty",
        "logit_bias", "logprobs", "top_logprobs", "n", "tools", "tool_choice",
        "parallel_tool_calls", "response_format", "structured_outputs", "reasoning_effort",
        "max_reasoning_tokens", "thinking_budget",
    }  # fmt: skip
    assert {name for name, kind in FIELDS.items() if kind == "neutral"} == {
        "user", "metadata", "store", "service_tier", "prompt_cache_key", "safety_identifier",
        "prediction",
    }  # fmt: skip
    assert {name for name, kind in FIELDS.items() if kind == "refused"} == {
        "audio", "functions", "function_call", "web_search_options", "verbosity",
    }  # fmt: skip


SCHEMA = {"type": "object", "properties": {"a": {"type": "integer"}}}


def tool(name: str = "f", **function: Any) -> dict[str, Any]:
    return {"type": "function", "function": {"name": name, **function}}


def named(name: str) -> dict[str, Any]:
    return {"type": "function", "function": {"name": name}}


def chat(**fields: Any) -> dict[str, Any]:
    return {"model": "m", "messages": [{"role": "user", "content": "hi"}], **fields}


@pytest.mark.parametrize(
    "fields",
    [
        {"temperature": 0}, {"temperature": 2}, {"top_p": 1}, {"top_k": 0}, {"min_p": 0.5},
        {"seed": -(2**63)}, {"max_tokens": 0}, {"stop": "x"}, {"stop": ["a"] * 64},
        {"n": 1}, {"logprobs": False}, {"presence_penalty": 0.0}, {"logit_bias": {}},
        {"tools": []}, {"tool_choice": "auto"}, {"response_format": {"type": "text"}},
        {"modalities": ["text"]}, {"nobody_defined_this": {"x": 1}}, {"user": "u"},
        {"reasoning_effort": "high"}, {"functions": None}, {"stream_options": {}},
        {"chat_template_kwargs": {"enable_thinking": False}},
        {"n": 16}, {"logprobs": True}, {"logprobs": True, "top_logprobs": 20},
        {"top_logprobs": 0}, {"presence_penalty": -2}, {"frequency_penalty": 2},
        {"repetition_penalty": 0.1}, {"logit_bias": {"5": -100}},
        {"tools": [tool()]}, {"tools": [tool(parameters=SCHEMA, strict=True)]},
        {"tools": [tool()], "tool_choice": "required"},
        {"tools": [tool()], "tool_choice": named("f")}, {"tool_choice": "none"},
        {"tools": [tool()], "parallel_tool_calls": False},
        {"response_format": {"type": "json_object"}},
        {"response_format": {"type": "json_schema", "json_schema": {"schema": SCHEMA}}},
        {"structured_outputs": {"choice": ["a", "b"]}}, {"structured_outputs": {"regex": "a+"}},
        {"structured_outputs": {"json": SCHEMA}}, {"structured_outputs": {"grammar": "start: X"}},
        {"structured_outputs": {"json": SCHEMA}, "response_format": {"type": "text"}},
        {"reasoning_effort": "whatever"}, {"max_reasoning_tokens": 0}, {"thinking_budget": 100},
    ],
    ids=str,
)  # fmt: skip
def test_accepted_values(fields: dict[str, Any]) -> None:
    assert parse_chat(chat(**fields)).call.model == "m"


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"temperature": 2.1}, "temperature"), ({"temperature": True}, "temperature"),
        ({"temperature": "1"}, "temperature"), ({"top_p": 0}, "top_p"), ({"top_p": 1.1}, "top_p"),
        ({"top_k": -1}, "top_k"), ({"top_k": 1.5}, "top_k"), ({"min_p": -0.1}, "min_p"),
        ({"seed": 2**63}, "seed"), ({"seed": True}, "seed"), ({"max_tokens": "5"}, "max_tokens"),
        ({"max_tokens": True}, "max_tokens"), ({"stop": ["a"] * 65}, "stop"),
        ({"stop": ""}, "stop"), ({"stop": [1]}, "stop"), ({"n": 17}, "n"), ({"n": 0}, "n"),
        ({"n": True}, "n"), ({"n": 2, "stream": True}, "n"), ({"n": 2, "tools": [tool()]}, "n"),
        ({"logprobs": 1}, "logprobs"), ({"top_logprobs": 3}, "top_logprobs"),
        ({"logprobs": True, "top_logprobs": 21}, "top_logprobs"),
        ({"presence_penalty": 2.5}, "presence_penalty"),
        ({"frequency_penalty": -2.5}, "frequency_penalty"),
        ({"repetition_penalty": 0}, "repetition_penalty"),
        ({"repetition_penalty": "1"}, "repetition_penalty"),
        ({"logit_bias": {"1": 101}}, "logit_bias"), ({"logit_bias": {"1": True}}, "logit_bias"),
        ({"logit_bias": [1]}, "logit_bias"),
        ({"logit_bias": {str(i): 1 for i in range(4097)}}, "logit_bias"), ({"audio": {}}, "audio"),
        ({"functions": []}, "functions"), ({"verbosity": "low"}, "verbosity"),
        ({"function_call": "auto"}, "function_call"),
        ({"web_search_options": {}}, "web_search_options"),
        ({"response_format": {"type": "xml"}}, "response_format"),
        ({"response_format": {"type": "json_schema"}}, "response_format"),
        ({"structured_outputs": {}}, "structured_outputs"),
        ({"structured_outputs": {"choice": ["a"], "regex": "a"}}, "structured_outputs"),
        ({"structured_outputs": {"choice": []}}, "structured_outputs"),
        ({"structured_outputs": {"choice": ["a"] * 257}}, "structured_outputs"),
        ({"structured_outputs": {"regex": 5}}, "structured_outputs"),
        ({"structured_outputs": {"json": "{}"}}, "structured_outputs"),
        ({"structured_outputs": {"regex": "a"}, "response_format": {"type": "json_object"}},
         "structured_outputs"),
        ({"reasoning_effort": 5}, "reasoning_effort"), ({"top_p": 10**400}, "top_p"),
        ({"max_reasoning_tokens": -1}, "max_reasoning_tokens"),
        ({"thinking_budget": -1}, "thinking_budget"), ({"cache_prompt": 1}, "cache_prompt"),
        ({"chat_template_kwargs": {"enable_thinking": "no"}}, "chat_template_kwargs"),
        ({"chat_template_kwargs": {"a": "x" * 5000}}, "chat_template_kwargs"),
        ({"modalities": ["audio"]}, "modalities"), ({"stream": "yes"}, "stream"),
        ({"tools": {}}, "tools"), ({"tools": [{"type": "custom"}]}, "tools[0]"),
        ({"tools": [tool()] * 513}, "tools"), ({"tools": [tool(), tool()]}, "tools"),
        ({"tools": [tool("")]}, "tools[0].function.name"),
        ({"tools": [tool(description=5)]}, "tools[0].function.description"),
        ({"tools": [tool(parameters=[])]}, "tools[0].function.parameters"),
        ({"tools": [tool(parameters={"type": "array"})]}, "tools[0].function.parameters"),
        ({"tools": [tool(parameters={"properties": []})]}, "tools[0].function.parameters"),
        ({"tools": [tool(parameters={"description": "x" * 300_000})]},
         "tools[0].function.parameters"),
        ({"tool_choice": "required"}, "tool_choice"),
        ({"tools": [tool()], "tool_choice": "always"}, "tool_choice"),
        ({"tools": [tool()], "tool_choice": named("g")}, "tool_choice"),
        ({"tools": [tool()], "tool_choice": {"type": "custom"}}, "tool_choice"),
        ({"tools": [tool()], "parallel_tool_calls": "yes"}, "parallel_tool_calls"),
        ({"stream_options": {"include_usage": 1}}, "stream_options.include_usage"),
        ({"chat_template_kwargs": {"a": {}}}, "chat_template_kwargs"),
        ({"messages": []}, "messages"), ({"messages": "hi"}, "messages"),
        ({"messages": [{"role": "bot"}]}, "messages[0].role"),
        ({"messages": [{"role": "user", "content": 5}]}, "messages[0].content"),
        ({"messages": [{"role": "user", "content": [{"type": "video"}]}]},
         "messages[0].content[0]"),
        ({"messages": [{"role": "assistant", "tool_calls": [{}]}]}, "messages[0].tool_calls[0]"),
    ],
    ids=str,
)  # fmt: skip
def test_refused_values_name_their_field(fields: dict[str, Any], param: str) -> None:
    with pytest.raises(ApiError) as fault:
        parse_chat(chat(**fields))
    assert (fault.value.status, fault.value.param) == (400, param)


def test_content_comes_in_every_legal_form() -> None:
    call = parse_chat(
        chat(
            messages=[
                {"role": "system", "content": [{"type": "text", "text": "a"}, "b"]},
                {"role": "user", "content": [
                    {"type": "image_url", "image_url": {"url": "data:x"}}]},
                {"role": "assistant", "content": None, "tool_calls": [
                    {"id": "c", "type": "function", "index": 0, "status": "done",
                     "function": {"name": "f", "arguments": "{broken"}}]},
                {"role": "tool", "content": "", "tool_call_id": "c"},
                {"role": "assistant"},
            ]
        )
    ).call  # fmt: skip
    assert call.messages[0].text == "ab"
    assert call.messages[1].content == (ImagePart("data:x"),)
    assert call.messages[2].calls == (ToolCall("c", "f", "{broken"),)
    assert (call.messages[3].content, call.messages[3].call_id) == ((), "c")


def test_the_completion_limit_wins_and_zero_is_no_limit() -> None:
    assert parse_chat(chat(max_tokens=5, max_completion_tokens=7)).params.max_tokens == 7
    assert parse_chat(chat(max_tokens=5, max_completion_tokens=0)).params.max_tokens == 5
    assert parse_chat(chat(max_tokens=-1)).params.max_tokens is None


FINISHED = Finished("stop", "eos", Usage(7, 3), Timings())


def renderer(include_usage: bool | None) -> ChatRenderer:
    return ChatRenderer(answer_id="chatcmpl-1", model="m", created=1, include_usage=include_usage)


def chunks(include_usage: bool | None, events: list[Event]) -> list[Any]:
    writer = renderer(include_usage)
    stream = b"".join(writer.chunk(event) for event in events)
    parsed = SseParser().feed(stream)
    assert parsed.pop().data == b"[DONE]"
    return [json.loads(event.data) for event in parsed]


@pytest.mark.parametrize("include_usage", [None, True, False])
def test_usage_stands_in_exactly_one_place(include_usage: bool | None) -> None:
    found = chunks(include_usage, [TextDelta("a"), TextDelta(""), TextDelta("b"), FINISHED])
    with_usage = [chunk for chunk in found if "usage" in chunk]
    assert len(with_usage) == (0 if include_usage is False else 1)
    if include_usage is not False:
        assert with_usage[0]["usage"]["total_tokens"] == 10
        assert (with_usage[0]["choices"] == []) is bool(include_usage)
    deltas = [choice["delta"] for chunk in found for choice in chunk["choices"]]
    assert [delta.get("role") for delta in deltas].count("assistant") == 1
    assert deltas[0] == {"role": "assistant", "content": "a"}
    finishes = [choice["finish_reason"] for chunk in found for choice in chunk["choices"]]
    assert finishes == [None, None, "stop"]


def test_the_bytes_of_a_stream_are_fixed() -> None:
    writer = renderer(None)
    assert (
        writer.chunk(TextDelta("é"))
        == (
            'data: {"id":"chatcmpl-1","created":1,"model":"m","object":"chat.completion.chunk",'
            '"choices":[{"index":0,"delta":{"role":"assistant","content":"é"},"finish_reason":null}]}'
            "\n\n"
        ).encode()
    )


@given(st.lists(st.text(min_size=1, max_size=5), max_size=6))
@example(["", "\ud800"])
@settings(max_examples=50)
def test_streamed_and_whole_are_the_same_answer(pieces: list[str]) -> None:
    events: list[Event] = [TextDelta(piece) for piece in pieces]
    streamed = chunks(None, [*events, FINISHED])
    text = "".join(c["delta"].get("content", "") for s in streamed for c in s["choices"])
    whole = json.loads(renderer(None).whole([(events, FINISHED)], FINISHED.usage))
    assert whole["choices"][0]["message"]["content"] == text
    assert whole["usage"] == streamed[-1]["usage"]


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"prompt": None}, "prompt"), ({"prompt": ["a"]}, "prompt"), ({"prompt": ""}, "prompt"),
        ({"echo": True}, "echo"), ({"best_of": 2}, "best_of"), ({"logprobs": 6}, "logprobs"),
        ({"logprobs": True}, "logprobs"), ({"suffix": 5}, "suffix"),
        ({"n": 2, "stream": True}, "n"), ({"n": 2, "best_of": 3}, "best_of"),
    ],
    ids=str,
)  # fmt: skip
def test_refused_values_of_completions_name_their_field(fields: dict[str, Any], param: str) -> None:
    with pytest.raises(ApiError) as fault:
        parse_completion({"model": "m", "prompt": "x", **fields})
    assert (fault.value.status, fault.value.param) == (400, param)


def test_a_completion_has_its_own_default_limit() -> None:
    assert parse_completion({"model": "m", "prompt": "x"}).params.max_tokens == 128
    assert parse_completion({"model": "m", "prompt": "x", "max_tokens": 5}).params.max_tokens == 5


@pytest.mark.parametrize("include_usage", [None, True, False])
def test_completions_streamed_and_whole_are_the_same_answer(include_usage: bool | None) -> None:
    def renderer() -> CompletionRenderer:
        return CompletionRenderer(
            answer_id="cmpl-1", model="m", created=1, include_usage=include_usage
        )

    events: list[Event] = [TextDelta("a"), TextDelta("é")]
    writer = renderer()
    parsed = SseParser().feed(b"".join(writer.chunk(event) for event in [*events, FINISHED]))
    assert parsed.pop().data == b"[DONE]"
    streamed = [json.loads(event.data) for event in parsed]
    whole = json.loads(renderer().whole([(events, FINISHED)], FINISHED.usage))
    text = "".join(choice["text"] for chunk in streamed for choice in chunk["choices"])
    assert whole["choices"][0]["text"] == text == "aé"
    assert whole["object"] == "text_completion"
    assert len([chunk for chunk in streamed if "usage" in chunk]) == (include_usage is not False)


def test_a_number_may_have_any_length_and_keeps_its_form() -> None:
    raw = b'{"a":' + b"9" * 5000 + b',"model":"m"}'
    envelope = read_envelope(raw)
    assert envelope.fields["a"] == float("inf") and envelope.fields["model"] == "m"
    replaced = edited(envelope.text, [value_edit(envelope, "model", "n")])
    assert replaced == raw.replace(b'"m"', b'"n"')


@pytest.mark.parametrize("form", ["reasoning_content", "tags", "both"])
@given(
    st.lists(
        st.one_of(
            st.builds(TextDelta, st.text(max_size=3)),
            st.builds(ReasoningDelta, st.text(max_size=3)),
        ),
        max_size=6,
    )
)
@settings(max_examples=50)
def test_reasoning_is_shown_alike_in_a_stream_and_a_whole_answer(
    form: Any, events: list[Event]
) -> None:
    def made() -> ChatRenderer:
        return ChatRenderer(
            answer_id="c", model="m", created=1, include_usage=None, reasoning_format=form
        )

    writer = made()
    parsed = SseParser().feed(b"".join(writer.chunk(event) for event in [*events, FINISHED]))
    deltas = [
        choice["delta"] for record in parsed[:-1] for choice in json.loads(record.data)["choices"]
    ]
    message = json.loads(made().whole([(events, FINISHED)], FINISHED.usage))["choices"][0][
        "message"
    ]
    for field in ("content", "reasoning_content"):
        assert "".join(delta.get(field, "") for delta in deltas) == (message.get(field) or "")
    reasoned = any(isinstance(event, ReasoningDelta) and event.text for event in events)
    assert ("reasoning_content" in message) is (reasoned and form != "tags")
    if reasoned and form != "reasoning_content":
        assert message["content"].count("<think>") >= message["content"].count("</think>") > 0


def test_tags_stand_around_the_reasoning_and_before_the_text() -> None:
    writer = ChatRenderer(
        answer_id="c", model="m", created=1, include_usage=None, reasoning_format="tags"
    )
    events: list[Event] = [ReasoningDelta("a"), ReasoningDelta("b"), TextDelta("c")]
    answer = json.loads(writer.whole([(events, FINISHED)], FINISHED.usage))
    assert answer["choices"][0]["message"]["content"] == "<think>\nab\n</think>\n\nc"


def test_several_answers_count_their_prompt_once() -> None:
    one = Finished("stop", "eos", Usage(7, 3, 2, 1, upstream_output_tokens=4),
                   Timings(1, 10, 11, 20, 31, 7), Speculation(3, 3))  # fmt: skip
    two = Finished("length", "max_tokens", Usage(7, 5, 0, 2, upstream_output_tokens=6),
                   Timings(30, 1, 31, 40, 71, 0), Speculation(5, 5))  # fmt: skip
    both = merged([one, two])
    assert both.usage == Usage(7, 8, 2, 3, upstream_output_tokens=10)
    assert both.timings == Timings(1, 10, 11, 60, 71, 7)
    assert (both.speculation.rounds, both.reason) == (8, "stop")
    assert merged([two]) == two
