"""`stream_usage: inject`: the option goes up by span, its one event stays with us."""

import asyncio
import contextlib
import gzip
import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import httpx
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from gateway.relay.inject import FrameRemover
from gateway.settings.types import RouteSettings, RouteTarget
from gateway.surfaces.envelope import edited, member_edit, read_envelope, value_edit
from gateway.surfaces.sse import SseParser
from proto.limits import USAGE_FRAME_BYTES
from tests.fakes.backend import Cut, FakeBackend, Gate, Reply, Seen, sse
from tests.gateway.harness import backend, running_gateway

BOM = b"\xef\xbb\xbf"
DELTA = b'data: {"model":"m","choices":[{"index":0,"delta":{"content":"hi"}}]}\n\n'
FINISH = b'data: {"choices":[{"index":0,"delta":{},"finish_reason":"stop"}],"usage":null}\n\n'
FRAME = b'data: {"choices":[],"usage":{"prompt_tokens":9,"completion_tokens":4}}\n\n'
DONE = b"data: [DONE]\n\n"
STREAM = (b": hello\n\n", DELTA, FINISH, FRAME, DONE)
BODY = b'{ "model":"m", "messages": [], "temperature": 1.50, "stream": true }'
ASKING = BODY.replace(b"true }", b'true,"stream_options":{"include_usage":true} }')


def answers(reply: Reply) -> Callable[[Seen], Reply]:
    return lambda seen: reply


def refuses_the_option(seen: Seen) -> Reply:
    if b"include_usage" in seen.body:
        return Reply(status=400, pieces=[b'{"error":{"message":"unknown field stream_options"}}'])
    return sse(DELTA, FINISH, DONE)


async def post(base: str, body: bytes, surface: str = "chat/completions", **more: Any) -> Any:
    async with httpx.AsyncClient(timeout=10) as client:
        return await client.post(f"{base}/v1/{surface}", content=body, **more)


def asked(url: str, **settings: Any) -> Any:
    return backend(url, stream_usage="inject", **settings)


# The body that goes up.


@pytest.mark.parametrize(
    ("options", "sent"),
    [
        (b"", b',"stream_options":{"include_usage":true}'),
        (b',"stream_options": null', b',"stream_options": {"include_usage":true}'),
        (b',"stream_options" :{ }', b',"stream_options" :{"include_usage":true }'),
        (
            b',"stream_options":{ "include_usage" : false , "x":1.0e2}',
            b',"stream_options":{ "include_usage" : true , "x":1.0e2}',
        ),
        (
            b',"stream_options":{ "chunk":1.50}',
            b',"stream_options":{"include_usage":true, "chunk":1.50}',
        ),
        (
            b',"stream\\u005foptions":{"include\\u005fusage":null}',
            b',"stream\\u005foptions":{"include\\u005fusage":true}',
        ),
        # Asked already, or nothing that we could change without a guess.
        (b',"stream_options":{"include_usage":true}', None),
        (b',"stream_options":{"include_usage":1}', None),
        (b',"stream_options":"all"', None),
        (b',"stream_options":null,"stream_options":{}', None),
        (b',"stream_options":{"include_usage":false,"include_usage":false}', None),
    ],
)
async def test_the_option_goes_up_by_span_and_nothing_else_changes(
    tmp_path: Path, options: bytes, sent: bytes | None
) -> None:
    """Absent, null, false and other members beside it; untouched where the client said it."""
    body = BODY.replace(b" }", options + b" }")
    async with (
        FakeBackend(answers(sse(*STREAM))) as up,
        running_gateway(tmp_path, backends={"b": asked(up.url)}) as gateway,
    ):
        answer = await post(gateway.base, body)
    assert up.seen[0].body == (body if sent is None else BODY.replace(b" }", sent + b" }"))
    assert (FRAME in answer.content) is (sent is None)


JSON = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(max_size=6),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=4), inner),
    max_leaves=6,
)
OPTIONS = st.none() | st.dictionaries(
    st.text(max_size=4) | st.just("include_usage"), st.none() | st.just(False) | st.floats(0, 1e9)
)


@given(
    st.dictionaries(st.text(max_size=6), JSON, max_size=3),
    st.dictionaries(st.just("stream_options"), OPTIONS),
    st.integers(0, 9),
    st.sampled_from([None, 0, 3]),
    st.booleans(),
    st.text(max_size=5),
)
def test_the_edit_changes_one_member_of_any_body(
    body: dict[str, Any], options: dict[str, Any], at: int, indent: Any, ascii_only: bool, name: str
) -> None:
    """Odd names, numbers, depths and spaces, with a new model name in the same body."""
    fields = {**body, **options, "model": "old"}
    names = [*fields]
    rotated = {key: fields[key] for key in names[at % len(names) :] + names[: at % len(names)]}
    raw = json.dumps(rotated, ensure_ascii=ascii_only, indent=indent).encode("utf-8", "replace")
    envelope = read_envelope(raw)
    edit = member_edit(envelope, "stream_options", "include_usage", "true")
    assert edit is not None
    expected = {**envelope.fields, "model": name}
    expected["stream_options"] = {**(fields.get("stream_options") or {}), "include_usage": True}
    both = [edit, value_edit(envelope, "model", name)]
    assert json.loads(edited(envelope.text, both)) == expected
    assert edited(envelope.text, both) == edited(envelope.text, both[::-1])
    alone = edited(envelope.text, [edit]).decode()
    assert alone.startswith(envelope.text[: edit.start])
    assert alone.endswith(envelope.text[edit.end :])


async def test_alias_and_option_are_both_set(tmp_path: Path) -> None:
    """A route renames the model in the same body, which may come compressed."""
    body = b'{"messages":[],"stream":true,"model":"quick"}'
    routes = {"quick": RouteSettings((RouteTarget("b", "m"),))}
    async with (
        FakeBackend(answers(sse(*STREAM))) as up,
        running_gateway(tmp_path, backends={"b": asked(up.url)}, routes=routes) as gateway,
    ):
        await post(gateway.base, gzip.compress(body), headers={"content-encoding": "gzip"})
        row = await gateway.row()
    assert up.seen[0].body == (
        b'{"messages":[],"stream":true,"model":"m","stream_options":{"include_usage":true}}'
    )
    assert "content-encoding" not in up.seen[0].headers
    assert (row.prompt_tokens, row.completion_tokens, row.usage_source) == (9, 4, "backend")


async def test_compressed_body_goes_up_decoded_when_it_is_edited(tmp_path: Path) -> None:
    """gzip, without an alias; and as received where nothing is edited."""
    packed = gzip.compress(BODY)
    plain = gzip.compress(BODY.replace(b"true", b"false"))
    async with (
        FakeBackend(answers(sse(*STREAM))) as up,
        running_gateway(tmp_path, backends={"b": asked(up.url)}) as gateway,
    ):
        for body in (packed, plain):
            await post(gateway.base, body, headers={"content-encoding": "gzip"})
    edited_seen, kept = up.seen
    assert edited_seen.body == ASKING
    assert "content-encoding" not in edited_seen.headers
    assert (kept.body, kept.headers["content-encoding"]) == (plain, "gzip")


@pytest.mark.parametrize("surface", ["chat/completions", "completions"])
async def test_usage_is_booked_and_its_event_kept_from_the_client(
    tmp_path: Path, surface: str
) -> None:
    """R19: the client did not ask; both surfaces that know the option."""
    async with (
        FakeBackend(answers(sse(*STREAM))) as up,
        running_gateway(tmp_path, backends={"b": asked(up.url)}) as gateway,
    ):
        answer = await post(gateway.base, BODY, surface)
        row = await gateway.row()
    assert up.seen[0].body == ASKING
    assert answer.content == b"".join(STREAM).replace(FRAME, b"")
    assert (row.prompt_tokens, row.completion_tokens, row.usage_source) == (9, 4, "backend")
    assert (row.outcome, row.finish_reason) == ("succeeded", "stop")


async def test_client_that_asks_gets_exactly_one_usage_event(tmp_path: Path) -> None:
    """R19: nothing is added and nothing taken out."""
    async with (
        FakeBackend(answers(sse(*STREAM))) as up,
        running_gateway(tmp_path, backends={"b": asked(up.url)}) as gateway,
    ):
        answer = await post(gateway.base, ASKING)
        row = await gateway.row()
    assert (up.seen[0].body, answer.content) == (ASKING, b"".join(STREAM))
    assert (row.prompt_tokens, row.usage_source) == (9, "backend")


async def test_nothing_is_touched_unless_the_backend_is_set_so(tmp_path: Path) -> None:
    """R19: the default; usage is estimated and never booked as nothing."""
    async with (
        FakeBackend(answers(sse(DELTA, FINISH, DONE))) as up,
        running_gateway(tmp_path, backends={"b": backend(up.url)}) as gateway,
    ):
        answer = await post(gateway.base, BODY)
        row = await gateway.row()
    assert (up.seen[0].body, answer.content) == (BODY, DELTA + FINISH + DONE)
    assert (row.completion_tokens, row.usage_source) == (1, "estimated")


@pytest.mark.parametrize("surface", ["chat/completions", "embeddings"])
async def test_only_streams_that_know_the_option_are_edited(tmp_path: Path, surface: str) -> None:
    """A whole answer, and a surface without the option."""
    body = BODY if surface == "embeddings" else BODY.replace(b"true", b"false")
    answer = b'{"choices":[],"usage":{"prompt_tokens":1,"completion_tokens":1}}'
    async with (
        FakeBackend(answers(Reply(pieces=[answer]))) as up,
        running_gateway(tmp_path, backends={"b": asked(up.url)}) as gateway,
    ):
        received = await post(gateway.base, body, surface)
    assert (up.seen[0].body, received.content) == (body, answer)


# What is taken out.


async def test_usage_beside_choices_passes_as_it_is(tmp_path: Path) -> None:
    """The backend puts usage into every event; only the one without choices goes."""
    beside = FINISH.replace(b'"usage":null', b'"usage":{"prompt_tokens":9,"completion_tokens":4}')
    filters = b'data: {"choices":[],"prompt_filter_results":[],"usage":null}\n\n'
    async with (
        FakeBackend(answers(sse(filters, DELTA, beside, FRAME, DONE))) as up,
        running_gateway(tmp_path, backends={"b": asked(up.url)}) as gateway,
    ):
        answer = await post(gateway.base, BODY)
    assert answer.content == filters + DELTA + beside + DONE


async def test_compressed_stream_passes_with_its_bytes(tmp_path: Path) -> None:
    """Nothing can be taken out of it by span."""
    packed = gzip.compress(b"".join(STREAM))
    reply = sse(packed)
    reply.headers["content-encoding"] = "gzip"
    async with (
        FakeBackend(answers(reply)) as up,
        running_gateway(tmp_path, backends={"b": asked(up.url)}) as gateway,
        httpx.AsyncClient() as client,
        client.stream("POST", f"{gateway.base}/v1/chat/completions", content=BODY) as answer,
    ):
        raw = b"".join([piece async for piece in answer.aiter_raw()])
        row = await gateway.row()
    assert raw == packed
    assert (row.prompt_tokens, row.usage_source) == (9, "backend")


@pytest.mark.parametrize("last", [b"data: [DONE]", FRAME.rstrip()])
async def test_last_record_without_its_blank_line(tmp_path: Path, last: bytes) -> None:
    """It is no longer held when the stream is over; the event is taken out all the same."""
    async with (
        FakeBackend(answers(sse(DELTA, FINISH, last))) as up,
        running_gateway(tmp_path, backends={"b": asked(up.url)}) as gateway,
    ):
        answer = await post(gateway.base, BODY)
    assert answer.content == DELTA + FINISH + last.replace(FRAME.rstrip(), b"")


async def test_answer_that_is_no_stream_passes_as_it_is(tmp_path: Path) -> None:
    """Whatever it looks like."""
    reply = Reply(headers={"content-type": "text/plain"}, pieces=[FRAME])
    async with (
        FakeBackend(answers(reply)) as up,
        running_gateway(tmp_path, backends={"b": asked(up.url)}) as gateway,
    ):
        answer = await post(gateway.base, BODY)
    assert answer.content == FRAME


async def test_events_move_the_clock_of_an_asked_stream_too(tmp_path: Path) -> None:
    """Silence after an event is that of `idle_s`."""
    async with (
        FakeBackend(answers(sse(DELTA, Gate()))) as up,
        running_gateway(tmp_path, backends={"b": asked(up.url, idle_s=0.1)}) as gateway,
    ):
        await post(gateway.base, BODY)
        row = await gateway.row()
    assert (row.outcome, row.error_type) == ("failed", "idle_s")


@pytest.mark.parametrize("framing", ["chunked", "close"])
async def test_stream_that_breaks_inside_a_held_record_passes_what_was_held(
    tmp_path: Path, framing: Any
) -> None:
    """The half record comes before the error that ends the stream."""
    half = b'data: {"choices":[],"usage":{"prompt_'
    async with (
        FakeBackend(answers(sse(DELTA, half, Cut(), framing=framing))) as up,
        running_gateway(tmp_path, backends={"b": asked(up.url)}) as gateway,
    ):
        answer = await post(gateway.base, BODY)
        row = await gateway.row()
    assert answer.content.startswith(DELTA + half + b"\n\ndata: ")
    assert b"upstream_failed" in answer.content
    assert row.outcome == "failed"


async def test_events_and_comments_are_not_held_up(tmp_path: Path) -> None:
    """Each is with the client while the backend has not sent its next byte."""
    gate, second = Gate(), Gate()
    async with (
        FakeBackend(answers(sse(DELTA, b": ping\n", gate, FRAME[:20], second, FRAME[20:]))) as up,
        running_gateway(tmp_path, backends={"b": asked(up.url)}) as gateway,
        httpx.AsyncClient() as client,
        client.stream("POST", f"{gateway.base}/v1/chat/completions", content=BODY) as answer,
        asyncio.timeout(5),
    ):
        got, pieces = b"", answer.aiter_raw()
        while got != DELTA + b": ping\n":
            got += await anext(pieces)
        gate.open.set()
        await second.reached.wait()
        second.open.set()
        assert b"".join([piece async for piece in pieces]) == b""


# A backend that does not know the option.


async def test_refused_option_is_left_out_and_not_tried_again(tmp_path: Path) -> None:
    """400 to the injected request, 200 to the same one without; then inject is off."""
    async with (
        FakeBackend(refuses_the_option) as up,
        running_gateway(tmp_path, backends={"b": asked(up.url)}) as gateway,
    ):
        first = await post(gateway.base, BODY)
        second = await post(gateway.base, BODY)
        row = await gateway.row()
        async with httpx.AsyncClient() as client:
            counts = (await client.get(f"{gateway.base}/metrics")).text
    assert first.content == second.content == DELTA + FINISH + DONE
    assert [seen.body for seen in up.seen] == [ASKING, BODY, BODY]
    assert (row.status, row.outcome) == (200, "succeeded")
    assert 'tandem_attempts_total{class="inject_refused"} 1.0' in counts


async def test_request_that_is_bad_without_the_option_too_does_not_switch_it_off(
    tmp_path: Path,
) -> None:
    """The client's own 400 reaches it after one repeat; the next stream is asked for usage."""
    replies = [Reply(status=400, pieces=[b"1"]), Reply(status=400, pieces=[b"2"]), sse(*STREAM)]
    async with (
        FakeBackend(lambda seen: replies.pop(0)) as up,
        running_gateway(tmp_path, backends={"b": asked(up.url)}) as gateway,
    ):
        bad = await post(gateway.base, BODY)
        await post(gateway.base, BODY)
    assert (bad.status_code, bad.content) == (400, b"2")
    assert [seen.body for seen in up.seen] == [ASKING, BODY, ASKING]


# The remover alone: input minus exactly that event.

USAGE = 'data: {"choices":[],"usage":{"prompt_tokens":1}}'
RECORDS = st.sampled_from(
    [
        ["data: {}"],
        ['data: {"choices":[{"delta":{"content":"usage"}}],"usage":null}'],
        ['data: {"choices":[{"delta":{}}],"usage":{"prompt_tokens":1}}'],
        ['data: {"choices":[],"usage":null}'],
        ['data: {"choices":[],"usage"'],
        ['data: {"usage":{"prompt_tokens":1}}', 'data: {"choices":[]}'],
        [f": {USAGE}"],
        [": ping", ": pong", "data: x", ": inside", "data: y"],
        ["event: e", "id: 7", "retry: 10", "data: é"],
        ["data", "data:", "data: [DONE]"],
        [],
        [USAGE],
        ['data:{"usage": {}, "choices": [ ]}'],
        ["data: {", 'data: "choices": [', 'data: ], "usage": {"a":', "data: 1}", "data: }"],
        [": before", "event: x", 'data: {"choices":[],"\\u0075sage":{"é":1}}', ": inside"],
    ]
)
ENDS = st.sampled_from(["\n", "\r\n", "\r"])


def without_the_event(raw: bytes) -> bytes:
    """What must pass, found in the whole stream at once."""
    lines = re.findall(rb"[^\r\n]*(?:\r\n|\n|\r)|[^\r\n]+\Z", raw)
    records: list[list[bytes]] = [[]]
    for line in lines:
        records[-1].append(line)
        if not line.removeprefix(BOM).strip(b"\r\n"):
            records.append([])
    for record in records:
        parser = SseParser()
        for event in [*parser.feed(b"".join(record)), *parser.finish()]:
            with contextlib.suppress(ValueError):
                body = json.loads(event.data)
                if type(body) is dict and type(body.get("usage")) is dict and not body["choices"]:
                    record[:] = [line for line in record if line.removeprefix(BOM)[:1] == b":"]
                    return b"".join(line for record in records for line in record)
    return raw


@settings(deadline=None)  # one case is as many streams as there are cuts
@given(st.lists(RECORDS, max_size=5), ENDS, st.none() | st.randoms(), st.booleans(), st.booleans())
@example([[USAGE]], "\n", None, False, True)
@example([[USAGE]], "\n", None, True, True)
@example([[USAGE], [USAGE], ["data: x"]], "\r", None, True, False)
def test_input_minus_exactly_one_event_however_it_is_cut(
    records: list[list[str]], end: str, mixed: Any, has_bom: bool, is_cut_short: bool
) -> None:
    """Every single cut, and byte by byte; CR, LF, CRLF and mixed; a last blank line missing."""
    lines = [line for record in records for line in [*record, ""]]
    ends = [mixed.choice(["\n", "\r\n", "\r"]) if mixed else end for _ in lines]
    raw = "".join(map("".join, zip(lines, ends, strict=True))).encode()
    raw = BOM + raw if has_bom else raw
    if is_cut_short:
        raw = raw.removesuffix(ends[-1].encode()) if ends else raw
    wanted = without_the_event(raw)
    cuts = [[raw[:at], raw[at:]] for at in range(len(raw) + 1)]
    for pieces in [*cuts, [raw[at : at + 1] for at in range(len(raw))]]:
        remover = FrameRemover()
        assert b"".join(map(remover.feed, pieces)) + remover.finish() == wanted, pieces


@pytest.mark.parametrize("end", [b"\n", b"\r\n", b"\r"])
def test_records_and_comments_pass_with_their_last_byte(end: bytes) -> None:
    """What cannot be the event any more is not held back, not even for the LF behind a CR."""
    remover = FrameRemover()
    for part in (b"data: usage" + end + end, b": ping" + end, end, b"data: x" + end + end):
        assert remover.feed(part) == part


@pytest.mark.parametrize("over", [-1, 0, 1])
def test_record_over_the_limit_passes_at_once(over: int) -> None:
    """It is too large to be the event: at the limit it is held, one byte beyond it is not."""
    remover = FrameRemover()
    part = b"data: usage".ljust(USAGE_FRAME_BYTES + over, b"x")
    assert remover.feed(part) == (part if over > 0 else b"")
    rest = [b"y", b"\r", b"\n", b"data: z\n", b"\n"]
    assert b"".join(map(remover.feed, rest)) == (b"" if over > 0 else part) + b"".join(rest)
    assert remover.feed(FRAME + DELTA) == DELTA


def test_record_over_the_limit_ends_with_its_own_blank_line_only() -> None:
    """Its later lines are no record of their own, and the next one is looked at again."""
    remover = FrameRemover()
    part = b"data: ".ljust(USAGE_FRAME_BYTES + 1, b"x")
    for piece in (part, b"\n", FRAME[:-1], b"data: end\n\n"):
        assert remover.feed(piece) == piece
    assert remover.feed(FRAME) == b""
