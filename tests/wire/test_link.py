"""The bytes of every message of the link, and of the answers our own engine gives, do not change.

A change here breaks gateways and workers of different versions, or clients: raise the version, or
mend the change. `link.json` and `surfaces.json` were written once and are read only.
"""

import json
from pathlib import Path
from typing import get_args

import pytest

from gateway.surfaces.chat.reasoning import ReasoningFormat
from gateway.surfaces.chat.render import ChatRenderer
from gateway.surfaces.completions.render import CompletionRenderer
from proto import codec, events, messages
from proto.chat import (
    AnswerFormat,
    Call,
    ImagePart,
    Message,
    Params,
    TextPart,
    Tool,
    ToolCall,
    ToolChoice,
)
from proto.events import (
    CallArguments,
    CallStart,
    Event,
    Finished,
    ReasoningDelta,
    Speculation,
    TextDelta,
    Timings,
    Usage,
    Waiting,
)
from proto.plan import MonitorPlan, MonitorTask, Plan, Segment, Thinking

FOLDER = Path(__file__).parent
LINK: dict[str, str] = json.loads((FOLDER / "link.json").read_text())
SURFACES: dict[str, str] = json.loads((FOLDER / "surfaces.json").read_text())

CALL = Call(
    model="m",
    messages=(
        Message("system", (TextPart("be brief"),)),
        Message("user", (TextPart("é"), ImagePart("data:x", "low"))),
        Message("assistant", calls=(ToolCall("c1", "f", '{"a":1}'),), reasoning="hm"),
        Message("tool", (TextPart("7"),), call_id="c1", name="f"),
    ),
    tools=(Tool("f", "adds", {"type": "object", "properties": {"a": {"type": "integer"}}}, True),),
    tool_choice=ToolChoice("named", "f"),
    parallel_tool_calls=False,
    answer_format=AnswerFormat("json_schema", {"type": "object"}),
    template_args={"enable_thinking": False},
)
PLAN = Plan(
    segments=(Segment("n1", "note", 1, "note", 0, 2, (5, 6), "hash"),),
    thinking=Thinking(True, 512),
    monitor=MonitorPlan({"D1": MonitorTask("act", {"n": 3})}, 1, 1, 100),
    tool_stream="held",
    cap=900,
    lane="side",
    band=0,
    session="s",
    hold_prefix=True,
)
PARAMS = Params(64, ("\n\n",), 0.5, 0.9, 40, 0.05, 0.1, 0.2, 1.1, {"7": -1.0}, 3, False)
USAGE = Usage(10, 4, 2, 1, 0, 0, 10, 2, 0, 4, 1)
TIMINGS = Timings(1.5, 20.0, 21.5, 300.25, 321.75, 8)
CHOICE = events.TokenLogprob(7, "x", -0.5)

EXAMPLES: list[messages.LinkMessage] = [
    messages.Hello("gw:1", "i1", 1, 1),
    messages.Ready(
        "w1", "i2", 1, "m", "wh", "th", "ph", 64, 0, 2, 1, 8192, 1, ("llama",), "bf16", "cpu",
        True, 2, 5000, messages.Caps(grammar=True), "ipc:///kv", None,
    ),
    messages.Submit(
        "r1", 1, 5, 0, CALL, PLAN, PARAMS, 2**63 - 1, "salt", 256, True, 60_000,
        messages.Resume((1, 2, 3), 1, (0,)), "ph", 4,
    ),
    messages.Queued("r1", 2, 1500, 35, "ph", "th", {"n1": (5, 6)}, 9),
    messages.Progress("r1", "prefill", 256, 1024, 128),
    messages.Delta(
        "r1", 7, (1, 2), ("a", ""), ("text", "call"), (False, True),
        (messages.CallPart(8, 0, "c1", "f"), messages.CallPart(8, 0, args="{}", end=True)),
        (messages.MonitorEvent(8, "D1", "shadow", "loop", {"n": 3.0}),), 1,
        (events.Logprobs(CHOICE, (CHOICE,)), None),
    ),
    messages.Ack("r1", 8, True),
    messages.Attach("r1", 2, 5, 1024),
    messages.Cancel("r1", 1, "client left"),
    messages.Done(
        "r1", 8, "stop", USAGE, TIMINGS, Speculation(4, 3, 2, 1, (1, 0)), "none",
        messages.MonitorCounts(1, 2), "eos", "model", 0.25, "bh", None, 7,
    ),
    messages.Refused("busy", "queue_full", "r1", None, None, 5000),
    messages.Credit("r1", 128),
    messages.Count("q1", None, ("a", "b")),
    messages.Counted("q1", (1, 2)),
    messages.Embed("q2", ("a",)),
    messages.Embedded("q2", ((0.5, -0.5),), 3),
    messages.Cache("q3", "clear", ("prefix",)),
    messages.CacheInfo(
        "q3", {"prefix": 1}, {"prefix": 4096}, 4096, {"slot": 7}, {"prefix": 2}, {"too_large": 3},
        9, 1,
    ),
    messages.Beat("busy", 1, 2, 1, 4096, 900.5, 40.25, (messages.Metric("n", {"a": "b"}, 7),)),
    messages.Drain(600_000),
]  # fmt: skip

EVENTS: list[Event] = [
    Waiting(1, 2500),
    ReasoningDelta("hm"),
    TextDelta("é😀\n"),
    TextDelta("x", (events.Logprobs(CHOICE, (CHOICE,)),)),
    CallStart(0, "call_1", "f"),
    CallArguments(0, '{"a":1}'),
    Finished("tool_calls", "eos", USAGE, TIMINGS),
]


def test_there_is_an_example_of_every_message() -> None:
    kinds = [type(example) for example in EXAMPLES]
    assert set(kinds) == set(get_args(messages.LinkMessage)) and len(kinds) == len(set(kinds))


@pytest.mark.parametrize("example", EXAMPLES, ids=lambda example: type(example).__name__)
def test_the_bytes_of_a_message_do_not_change(example: messages.LinkMessage) -> None:
    golden = bytes.fromhex(LINK[type(example).__name__])
    assert codec.encode(example) == golden
    assert codec.decode(golden) == example


def test_an_answer_of_an_older_worker_is_read() -> None:
    golden = bytes.fromhex(
        "86a17601a174a94361636865496e666fa67265715f6964a27133a7656e747269657381a67072"
        "6566697801aa73697a655f627974657381a6707265666978cd1000ad636c65617265645f6279"
        "746573cd1000"
    )
    expected = messages.CacheInfo("q3", {"prefix": 1}, {"prefix": 4096}, 4096)
    assert codec.decode(golden) == expected


def rendered() -> dict[str, bytes]:
    """Every surface of our own engine, streamed with each wish for usage, and whole."""
    finished = EVENTS[-1]
    assert isinstance(finished, Finished)
    found: dict[str, bytes] = {}
    for name, kind in (("chat", ChatRenderer), ("completions", CompletionRenderer)):
        for usage in (None, True, False):
            renderer = kind(answer_id="id-1", model="m", created=1, include_usage=usage)
            found[f"{name} stream {usage}"] = b"".join(map(renderer.chunk, EVENTS))
            found[f"{name} whole"] = renderer.whole([(EVENTS[:-1], finished)], USAGE)
            two = [(EVENTS[:-1], finished), (EVENTS[:-3], finished)]
            found[f"{name} two choices"] = renderer.whole(two, USAGE)
    for form in get_args(ReasoningFormat):
        renderer = ChatRenderer(
            answer_id="id-1", model="m", created=1, include_usage=None, reasoning_format=form
        )
        found[f"chat stream {form}"] = b"".join(map(renderer.chunk, EVENTS))
        found[f"chat whole {form}"] = renderer.whole([(EVENTS[:-1], finished)], USAGE)
    return found


@pytest.mark.parametrize("name", SURFACES)
def test_the_bytes_of_an_answer_do_not_change(name: str) -> None:
    assert rendered()[name].decode() == SURFACES[name]


def test_every_answer_has_its_golden_bytes() -> None:
    assert rendered().keys() == SURFACES.keys()
