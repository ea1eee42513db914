"""What an answer may say: the SSE parser and both taps, up to the ledger's columns.

The first two bytes of an input choose surface, encoding and tap, the next four how the bytes are
cut, the rest is the answer. One bit packs it first: random bytes are hardly ever good gzip.
"""

import json
from collections.abc import Iterator
from itertools import count
from typing import Any, get_args

from gateway.backends.base import Backend
from gateway.errors import ApiError, stream_error_end
from gateway.ledger.entry import Entry
from gateway.ledger.row import BIG_MAX, bound, fitted
from gateway.relay.booking import book_relayed
from gateway.relay.forward import Relayed
from gateway.relay.tap import StreamTap, Tap, WholeTap
from gateway.relay.usage import Reading, reader_of
from gateway.settings.types import BackendSettings, Surface
from gateway.surfaces.envelope import read_envelope
from gateway.surfaces.request import ModelRequest
from gateway.surfaces.sse import RecordTooLarge, SseEvent, SseParser
from tests.fuzz.packing import packed
from tests.fuzz.wire import cuts, kept_bytes

RECORD_BYTES = 512
LIMITS = {
    "gateway.surfaces.sse.SseParser.__init__.__defaults__": (RECORD_BYTES,),
    "gateway.relay.tap.ANSWER_TAP_BYTES": 4096,
    "gateway.surfaces.encoding.ANSWER_TAP_BYTES": 8192,
}
MOST_BYTES = 3072
SURFACES: tuple[Surface, ...] = get_args(Surface)
ENCODINGS = (None, b"gzip", b"br", b"zstd", b"deflate", b"identity", b"rot13", b" GZIP ")
_PACKED_AS = {b"deflate": b"gzip"}  # as some servers do
IS_PACKED, IS_WHOLE = 1, 2
_BACKEND = Backend("b", BackendSettings(kind="openai", base_url="http://127.0.0.1:1/v1"))
_ENVELOPE = read_envelope(b'{"model":"m","messages":[{"role":"user","content":"hello"}]}')
_REQUEST = ModelRequest("m", "generation", True, None, _ENVELOPE, "/v1/chat/completions", b"{}")


def check(data: bytes) -> None:
    """One input. Raises: AssertionError, or whatever the gateway must not raise."""
    if len(data) < 6:
        return
    kind, way, lengths, said = data[0], data[1], data[2:6], data[6:]
    surface = SURFACES[kind % len(SURFACES)]
    encoding = ENCODINGS[kind // 16 % len(ENCODINGS)]
    _check_parser(said, lengths)
    sent = packed(said, _PACKED_AS.get(encoding or b"", encoding)) if way & IS_PACKED else said
    whole = _tapped(surface, encoding, way, [sent])
    cut = _tapped(surface, encoding, way, [*cuts(sent, lengths)])
    if whole.is_on and cut.is_on:
        assert _facts(whole) == _facts(cut), (_facts(whole), _facts(cut))
    if way & IS_PACKED and encoding != b"rot13":
        plain = _tapped(surface, None, way, [said])
        if plain.is_on and cut.is_on:
            assert _facts(plain) == _facts(cut), (_facts(plain), _facts(cut))
        if plain.is_on and not way & IS_WHOLE:
            assert _said(plain.reading) == _said(_read_by_hand(surface, said)), said
    for tap in (whole, cut):
        _check_row(surface, tap)


def _check_parser(said: bytes, lengths: bytes) -> None:
    whole, whole_parser = _events(said, b"")
    cut, parser = _events(said, lengths)
    if whole_parser is None or parser is None:  # how long a line is, is seen sooner in pieces
        assert all(one == other for one, other in zip(whole, cut, strict=False)), (whole, cut)
        return
    assert whole == cut, (whole, cut)
    assert whole == _read_slowly(said), (whole, _read_slowly(said))


def _events(said: bytes, lengths: bytes) -> tuple[list[SseEvent], SseParser | None]:
    parser, events = SseParser(), []
    so_far = b""
    try:
        for piece in cuts(said, lengths):
            events += parser.feed(piece)
            so_far += piece
            if parser.is_between_events and len(so_far) < 200:  # an error of ours could begin here
                assert _read_slowly(so_far) == events, (so_far, events)
        assert kept_bytes(parser) <= 66 * RECORD_BYTES + 4096
        return events + parser.finish(), parser
    except RecordTooLarge:
        return events, None


def _read_slowly(said: bytes) -> list[SseEvent]:
    """The same by another way: line by line, as the standard's text has it."""
    text = said.removeprefix(b"\xef\xbb\xbf").replace(b"\r\n", b"\n").replace(b"\r", b"\n")
    events: list[SseEvent] = []
    name, data = b"", []
    for line in [*text.split(b"\n"), b""]:
        if not line:
            if data:
                events.append(SseEvent(name, b"\n".join(data)))
            name, data = b"", []
            continue
        field, _, value = line.partition(b":")
        value = value.removeprefix(b" ")
        if field == b"data":
            data.append(value)
        elif field == b"event":
            name = value
    return events


def _read_by_hand(surface: Surface, said: bytes) -> Reading:
    """What the events say when they are read one after the other, without a tap."""
    reading, read = Reading(), reader_of(surface)
    for event in _read_slowly(said):
        try:
            body = json.loads(event.data.decode())
        except ValueError:
            continue
        if isinstance(body, dict):
            read(reading, body)
    return reading


def _tapped(surface: Surface, encoding: bytes | None, way: int, pieces: list[bytes]) -> Tap:
    clock = count(1)
    tap: Tap
    if way & IS_WHOLE:
        tap = WholeTap(surface, encoding)
    else:
        tap = StreamTap(surface, encoding, lambda: float(next(clock)))
    for piece in pieces:
        tap.feed(piece)
    assert isinstance(tap.lacks_its_end(), bool)
    tap.finish()
    return tap


def _said(reading: Reading) -> dict[str, Any]:
    return {**vars(reading), "tokens": vars(reading.tokens)}


def _facts(tap: Tap) -> dict[str, Any]:
    facts = {**_said(tap.reading), "has_finish": tap.has_finish}
    if isinstance(tap, StreamTap):
        facts |= {"life": tap.life, "times": (tap.first_s, tap.last_s)}
    return facts


def _check_row(surface: Surface, tap: Tap) -> None:
    """Whatever an answer says, there is a row that a database takes, and an end that SDKs read."""
    relayed = Relayed()
    relayed.tap, relayed.status, relayed.upstream_status = tap, 200, 200
    relayed.judge()
    entry = Entry(request_id="r", ts_ms=1, arrived_s=0.0, surface=surface)
    book_relayed(entry, relayed, _REQUEST, _BACKEND.settings)
    assert relayed.outcome is not None
    entry.close(10.0, outcome=relayed.outcome)
    for value in bound(fitted(entry.values())):
        if isinstance(value, str):
            assert "\0" not in value
            value.encode()
        elif value is not None:
            assert isinstance(value, (int, float))
            assert abs(value) <= BIG_MAX
    end = stream_error_end(
        surface, ApiError(502, "upstream_failed", "x"), "r",
        response_id=tap.reading.response_id, sequence_number=tap.reading.sequence_number,
    )  # fmt: skip
    for event in _read_slowly(end):
        assert event.data == b"[DONE]" or isinstance(json.loads(event.data), dict)


def _seeds() -> Iterator[bytes]:
    chat = (
        b'data: {"id":"1","model":"m","choices":[{"index":0,"delta":{"role":"assistant",'
        b'"content":"Hi","reasoning":"x"}}]}\n\ndata: {"choices":[{"delta":{"tool_calls":[{"index":'
        b'0,"function":{"name":"f","arguments":"{}"}}]},"finish_reason":"stop"}],"usage":{'
        b'"prompt_tokens":3,"completion_tokens":2,"prompt_tokens_details":{"cached_tokens":1},'
        b'"cost":0.25}}\n\ndata: [DONE]\n\n'
    )
    responses = (
        b'event: response.created\ndata: {"type":"response.created","sequence_number":0,"response":'
        b'{"id":"r1","object":"response","status":"in_progress"}}\n\nevent: x\ndata: {"type":'
        b'"response.output_text.delta","delta":"Hi"}\n\ndata: {"type":"response.completed",'
        b'"response":{"object":"response","id":"r1","status":"completed","usage":{"input_tokens":1,'
        b'"output_tokens":2}}}\n\n'
    )
    messages = (
        b'event: message_start\r\ndata: {"type":"message_start","message":{"model":"c","usage":'
        b'{"input_tokens":5,"cache_read_input_tokens":2}}}\r\n\r\n'
        b'event: ping\rdata: {"type":"ping"}'
        b'\r\rdata: {"type":"content_block_delta","delta":{"text":"Hi"}}\n\ndata: {"type":'
        b'"message_delta","delta":{"stop_reason":"end_turn"},"usage":{"output_tokens":2}}\n\n'
    )
    gemini = (
        b'data: {"candidates":[{"content":{"parts":[{"text":"Hi"},{"functionCall":{"name":"f"}}]},'
        b'"finishReason":"STOP"}],"usageMetadata":{"promptTokenCount":3,"candidatesTokenCount":2},'
        b'"modelVersion":"g"}\n\n'
    )
    whole = b'{"model":"m","choices":[{"message":{"content":"Hi"},"finish_reason":"stop"}]}'
    odd = b'\xef\xbb\xbf: comment\n\ndata\n\ndata:a\ndata: b\n\nid: 1\nretry: 2\ndata: {"a":\n\n'
    numbers = (
        b'data: {"model":"\\ud800","usage":{"prompt_tokens":1e400,"completion_tokens":'
        + b"9" * 40 + b',"cost":1e999},"choices":[{"finish_reason":"\\u0000","text":"\\udfff"}],'
        b'"totalTokens":-1,"sequence_number":' + b"9" * 30 + b"}\n\n"
    )  # fmt: skip
    texts = (
        chat,
        messages[:-1],
        gemini[:-2],
        odd[:-1],
        responses,
        messages,
        gemini,
        whole,
        b"[" + whole + b"]",
        odd,
        numbers,
    )
    for number, text in enumerate(texts):
        for surface in range(len(SURFACES)):
            for way in (0, IS_PACKED, IS_WHOLE, IS_WHOLE | IS_PACKED):
                encoding = (number + 3 * surface + way // 2) % len(ENCODINGS)
                yield bytes([surface + 16 * encoding, way, 1 + surface, 3, 1, 40]) + text
        for encoding in range(len(ENCODINGS)):
            yield bytes([16 * encoding, IS_PACKED, 1, 1, 1, 1]) + text
    for encoding in (1, 2, 3):
        yield bytes([16 * encoding, 0, 7, 1, 9, 0]) + packed(chat, ENCODINGS[encoding])
        yield bytes([16 * encoding, 0, 7, 1, 9, 0]) + packed(chat, ENCODINGS[encoding])[:-9] + chat


FINDS: dict[str, bytes] = {
    "a byte order mark that is not at the beginning": b"\0\0\1\0\0\0\n\xef\xbb\xbfdata: x\n\n",
}
SEEDS: list[bytes] = [*_seeds(), *FINDS.values()]
WORDS: list[bytes] = [
    b"data: ", b"event: ", b"\n\n", b"\r\n\r\n", b"\r", b"\xef\xbb\xbf", b'"usage":{',
    b'"choices":[{',
    b'"delta":{', b'"finish_reason":"stop"', b'"type":"', b'"response":{', b"[DONE]", b"null",
    b'"prompt_tokens":', b'"candidates":[{',
]  # fmt: skip
