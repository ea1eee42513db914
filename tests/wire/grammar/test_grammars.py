"""The checkers themselves: good streams pass, and each rule is seen to be broken."""

import json
from collections.abc import Callable

import pytest

from tests.gateway.cases.samples import (
    ARGUMENTS,
    CHAT,
    COMPLETIONS,
    DONE,
    GEMINI,
    MESSAGES,
    RESPONSES,
    TEXT,
    WITH_COMPLETIONS,
    Sample,
    block_delta,
    chat_chunk,
    data,
    typed,
)
from tests.wire.grammar.records import GrammarFault

CHAT_ERROR = data({"error": {"message": "it broke", "type": "stream_error"}})
MESSAGE_ERROR = typed({"type": "error", "error": {"type": "api_error", "message": "it broke"}})
GEMINI_ERROR = data({"error": {"code": 502, "message": "it broke", "status": "UNAVAILABLE"}})


def failed_response(number: int) -> bytes:
    response = {"id": "resp_1", "object": "response", "status": "failed",
                "error": {"code": "upstream_failed", "message": "it broke"}}  # fmt: skip
    return typed({"type": "response.failed", "sequence_number": number, "response": response})


ERRORS: dict[str, Callable[[int], bytes]] = {
    "chat": lambda number: CHAT_ERROR + DONE,
    "completions": lambda number: CHAT_ERROR + DONE,
    "messages": lambda number: MESSAGE_ERROR,
    "gemini": lambda number: GEMINI_ERROR,
    "responses": failed_response,
}


@pytest.mark.parametrize("sample", WITH_COMPLETIONS, ids=str)
def test_a_good_stream_says_what_it_says(sample: Sample) -> None:
    """Text, call, end and usage of each sample."""
    told = sample.grammar.check(sample.stream)
    assert (told.ending, told.text, told.has_mark) == ("finished", TEXT, True)
    if sample is not COMPLETIONS:
        [(name, arguments)] = told.calls
        assert name == "weather"
        assert sample is GEMINI or json.loads(arguments) == json.loads("".join(ARGUMENTS))
    assert told.usages


@pytest.mark.parametrize("sample", WITH_COMPLETIONS, ids=str)
def test_a_cut_stream_has_no_end_and_an_error_gives_it_one(sample: Sample) -> None:
    """At every event before the finish: no end of its own; with an error behind it: failed."""
    for count in range(sample.finish_at + 1):
        said = b"".join(sample.events[:count])
        assert sample.grammar.read(said).ending is None
        with pytest.raises(GrammarFault, match="a stream ends with"):
            sample.grammar.check(said)
        error = ERRORS[sample.surface](count)
        assert sample.grammar.check(said + error).ending == "failed"
        torn = said + sample.events[count][:-5] + b"\n\n"
        if b"event: " not in sample.events[count][:-5] or b"data: " in torn[len(said) :]:
            assert sample.grammar.check(torn + error).ending == "failed"
    with pytest.raises(GrammarFault):
        sample.grammar.check(sample.stream + error)


def without(sample: Sample, *numbers: int) -> tuple[bytes, ...]:
    return tuple(event for at, event in enumerate(sample.events) if at not in numbers)


def among(sample: Sample, at: int, *events: bytes) -> tuple[bytes, ...]:
    return (*sample.events[:at], *events, *sample.events[at:])


def instead(sample: Sample, at: int, old: str, new: str) -> tuple[bytes, ...]:
    assert old.encode() in sample.events[at]
    changed = sample.events[at].replace(old.encode(), new.encode())
    return (*sample.events[:at], changed, *sample.events[at + 1 :])


Stream = tuple[bytes, ...]
TORN = b"data: {\n\n"


def made(sample: Sample, old: str, new: str) -> Stream:
    """The sample with one text replaced wherever it stands."""
    assert old.encode() in sample.stream
    return tuple(event.replace(old.encode(), new.encode()) for event in sample.events)


C, M, G, R = CHAT, MESSAGES, GEMINI, RESPONSES
BROKEN: list[tuple[Sample, str, Stream]] = [
    (C, "an event's data must be an object", among(C, 3, b"data: 7\n\n")),
    (C, "ends inside a record", (*C.events[:-1], b"data: [DONE]\n")),
    (C, "nothing follows .DONE.", (*C.events, DONE)),
    (C, "silent after its end", among(C, 8, chat_chunk({"content": "x"}))),
    (C, "one finish reason", among(C, 8, chat_chunk({}, "stop"))),
    (C, "a stream ends with", without(C, 7)),
    (C, "two ends", (*C.events[:8], CHAT_ERROR, DONE)),
    (C, "DONE. follows an error", (*C.events[:3], CHAT_ERROR)),
    (C, "nothing but .DONE.", (*C.events[:3], CHAT_ERROR, C.events[3], DONE)),
    (C, "usage alone comes once", among(C, 8, C.events[8])),
    (C, "only .DONE. follows the usage", (*C.events[:7], C.events[8], C.events[7], DONE)),
    (C, "one id", instead(C, 2, '"c1"', '"c2"')),
    (C, "no event name", instead(C, 2, "data: ", "event: x\ndata: ")),
    (C, "a chunk has choices", instead(C, 2, '"choices"', '"choice"')),
    (C, "object", made(C, "completion.chunk", "completion")),
    (C, "the role is", instead(C, 0, "assistant", "user")),
    (C, "a choice has an index", instead(C, 2, '"index": 0, ', "")),
    (C, "a call begins with", instead(C, 4, '"id": "call_1", ', "")),
    (C, "a call begins with", instead(C, 4, "weather", "")),
    (C, "every delta of a call", instead(C, 5, '[{"index": 0, "f', '[{"f')),
    (C, "a call keeps its id", instead(C, 5, '[{"index": 0, "f', '[{"index": 0, "id": "z", "f')),
    (C, "are no JSON", without(C, 6)),
    (C, "only an error follows a torn", among(C, 3, TORN)),
    (C, "two torn", (TORN, TORN, CHAT_ERROR, DONE)),
    (C, "only an error follows a torn", among(C, 3, b'data: {"x": "\xc3"}\n\n')),
    (C, "an error has a message", (data({"error": {}}), DONE)),
    (M, "message_start comes first", without(M, 0)),
    (M, "one message_start", among(M, 1, M.events[0])),
    (M, "start", instead(M, 0, "assistant", "user")),
    (M, "a delta needs an open", without(M, 1)),
    (M, "one block at a time", without(M, 6)),
    (M, "only an open block stops", among(M, 7, M.events[6])),
    (M, "a stop names", instead(M, 6, '"index": 0', '"index": 1')),
    (M, "numbered in order", instead(M, 7, '"index": 1', '"index": 2')),
    (M, "a delta names", instead(M, 4, '"index": 0', '"index": 1')),
    (M, "a delta fits", among(M, 4, block_delta(0, {"type": "input_json_delta"}))),
    (M, "are no JSON", without(M, 9)),
    (M, "a call has id", instead(M, 7, '"id": "toolu_1", ', "")),
    (M, "no block after", among(M, 12, M.events[1])),
    (M, "every block has stopped", without(M, 10)),
    (M, "follows a stop reason", without(M, 11)),
    (M, "a stream ends with", without(M, 11, 12)),
    (M, "the event's name", instead(M, 4, "event: content_block_delta", "event: ping")),
    (M, "nothing follows the end", (*M.events, typed({"type": "ping"}))),
    (M, "nothing follows the end", (MESSAGE_ERROR, typed({"type": "ping"}))),
    (M, "two ends", (*M.events[:-1], MESSAGE_ERROR)),
    (M, "no .DONE.", (*M.events[:-1], DONE)),
    (M, "two torn", (*M.events[:2], TORN, TORN, MESSAGE_ERROR)),
    (M, "only an error follows a torn", among(M, 3, TORN)),
    (M, "a type and a message", (typed({"type": "error", "error": {"message": "x"}}),)),
    (M, "a field is missing", instead(M, 4, '"delta":', '"detla":')),
    (G, "a stream ends with", G.events[:-1]),
    (G, "silent after its end", (*G.events, G.events[0])),
    (G, "two ends", (*G.events, GEMINI_ERROR)),
    (G, "nothing follows an error", (GEMINI_ERROR, *G.events)),
    (G, "no .DONE.", (*G.events, DONE)),
    (G, "no event name", instead(G, 1, "data: ", "event: x\ndata: ")),
    (G, "an error's fields", (data({"error": {"code": 502, "message": "x"}}),)),
    (G, "an error's fields", (data({"error": {"code": "502", "message": "x", "status": "y"}}),)),
    (G, "arguments are an object", instead(G, 3, '{"city": "東京🗼"}', '"city"')),
    (G, "only an error follows a torn", among(G, 2, TORN)),
    (G, "two torn", among(G, 2, TORN, TORN, GEMINI_ERROR)),
    (R, "created is first", R.events[1:]),
    (R, "created comes once", among(R, 1, instead(R, 0, 'number": 0', 'number": 1')[0])),
    (R, "a response:", made(R, '"object": "response"', '"object": "reply"')),
    (R, "count up by one", instead(R, 1, 'number": 1', 'number": 2')),
    (R, "count up by one", instead(R, 1, 'number": 1', 'number": 0')),
    (R, "has its sequence_number", instead(R, 5, '"sequence_number"', '"n"')),
    (R, "a response keeps its id", instead(R, 15, "resp_1", "resp_2")),
    (R, "an item keeps its id", instead(R, 5, '"item_id": "msg_1"', '"item_id": "msg_2"')),
    (R, "an item keeps its id", instead(R, 9, '"id": "msg_1"', '"id": "msg_2"')),
    (R, "the item is open", instead(R, 5, '"output_index": 0', '"output_index": 1')),
    (R, "items are numbered", instead(R, 10, '"output_index": 1', '"output_index": 2')),
    (R, "text belongs to an open", instead(R, 5, '"content_index": 0', '"content_index": 1')),
    (R, "a part opens once", (*R.events[:4], instead(R, 3, 'number": 3', 'number": 4')[3])),
    (R, "the text as it", instead(R, 7, "Grüße", "Grusse")),
    (R, "the part as it", instead(R, 8, "Grüße", "Grusse")),
    (R, "every part is closed", instead(R, 8, "content_part.done", "content_part.odd")),
    (R, "arguments as streamed", instead(R, 13, "city", "town")),
    (R, "arguments as streamed", instead(R, 14, "city", "town")),
    (R, "belong to a call", instead(R, 5, "output_text.delta", "function_call_arguments.delta")),
    (R, "every item is done", instead(R, 14, "output_item.done", "output_item.odd")),
    (R, "a stream ends with", R.events[:-1]),
    (R, "nothing follows the final", (*R.events, failed_response(16))),
    (R, "no .DONE.", (*R.events[:-1], DONE)),
    (R, "only an error follows a torn", among(R, 3, TORN)),
    (R, "two torn", among(R, 3, TORN, TORN)),
    (R, "an error's fields", (failed_response(0).replace(b'"code"', b'"kode"'),)),
    (R, "an error has a message", (typed({"type": "error", "sequence_number": 0}),)),
    (R, "the event's name", instead(R, 5, "event: response.output_text.delta", "event: x")),
]


@pytest.mark.parametrize(
    ("sample", "rule", "events"), BROKEN, ids=[f"{sample}: {rule}" for sample, rule, _ in BROKEN]
)
def test_each_broken_rule_is_seen(sample: Sample, rule: str, events: Stream) -> None:
    """One fault in a stream that is good otherwise, and the rule that it breaks."""
    with pytest.raises(GrammarFault, match=rule):
        sample.grammar.check(b"".join(events))
