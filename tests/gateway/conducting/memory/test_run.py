"""One answer of several runs: what was in them stands at its place in the whole."""

from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass, field
from types import TracebackType
from typing import Any, Self

from conductor.memory.block import HiddenBlock
from conductor.memory.tool import NAME
from gateway.backends.run import Silence, Work
from gateway.conducting.memory.answer import MemoryAnswer
from gateway.conducting.memory.run import Leg, MemoryRun
from gateway.ledger.entry import Entry
from proto.chat import Call, Message, Params, TextPart, ToolCall
from proto.events import (
    CallArguments,
    CallEnd,
    CallStart,
    Event,
    Finished,
    FinishReason,
    Reading,
    ReasoningDelta,
    TextDelta,
    Timings,
    Usage,
    Waiting,
)
from proto.messages import MonitorEvent
from proto.plan import REASONING_PART, HiddenText, Plan

BLOCK = "\n<tandem_memory>\nfact: it rains\n</tandem_memory>"
CALL: list[Event] = [CallStart(0, "c", NAME), CallArguments(0, "{}"), CallEnd(0)]
WORK = Work(Call("m", (Message("user", (TextPart("hi"),)),)), Plan(), Params())


def end(reason: FinishReason = "stop") -> Finished:
    return Finished(reason, "eos", Usage(5, 20), Timings(total_ms=8, decode_ms=5))


@dataclass
class PlainRun:
    """A run that says what stands in a list."""

    said: Sequence[Event]
    hidden: list[HiddenText] = field(default_factory=list)
    findings: list[MonitorEvent] = field(default_factory=list)
    note_ids: dict[str, tuple[int, ...]] = field(default_factory=dict)
    prompt_tokens: int | None = 5
    note_tokens: int = 2
    completion_tokens: int = 20
    hidden_tokens: int = 3
    calls: int = 0
    tokenizer_hash: str | None = "t"
    is_open: bool = False

    async def __aenter__(self) -> Self:
        self.is_open = True
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        fault: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.is_open = False

    async def events(self) -> AsyncIterator[Event | Silence]:
        assert self.is_open
        for event in self.said:
            yield event


@dataclass
class Taker:
    has_tool: bool = True
    continuations: int = 2
    taken: list[HiddenBlock] = field(default_factory=list)

    def answer_to(self, call: ToolCall) -> str:
        return "Kept."

    def take(self, blocks: Sequence[HiddenBlock]) -> None:
        self.taken += blocks


def answer(first: PlainRun, second: PlainRun) -> MemoryRun:
    entry = Entry(request_id="r", ts_ms=1, arrived_s=0.0)

    async def begin(before: Leg, work: Work) -> Leg:
        assert not first.is_open
        return Leg(second, work, entry, MemoryAnswer(has_tool=True))

    return MemoryRun(Leg(first, WORK, entry, MemoryAnswer(has_tool=True)), Taker(), begin)


async def told(run: MemoryRun) -> list[Any]:
    async with run:
        return [event async for event in run.events() if not isinstance(event, Silence)]


async def test_nobody_is_told_that_a_further_run_waits_and_reads() -> None:
    wait, read = Waiting(1, 500), Reading("prefill", 1, 9, 0)
    first = PlainRun([wait, read, *CALL, end("tool_calls")])
    second = PlainRun([wait, read, TextDelta("Ten."), end()])
    *events, finished = await told(answer(first, second))
    assert events == [wait, read, TextDelta("Ten.")]
    assert (finished.reason, finished.timings.total_ms, finished.timings.decode_ms) == (
        "stop", 16, 13,
    )  # fmt: skip
    assert not second.is_open


async def test_what_was_put_in_and_what_was_cut_stand_where_they_stood() -> None:
    first = PlainRun(
        [ReasoningDelta("Hmm."), TextDelta(f"Noted.{BLOCK}\nSo"), *CALL, end("tool_calls")],
        hidden=[
            HiddenText(" Enough.", REASONING_PART, 4),
            HiddenText("Go on.", None, len(f"Noted.{BLOCK}\n")),
        ],
    )
    unclosed = BLOCK.partition("</")[0]
    second = PlainRun(
        [ReasoningDelta("Ah."), TextDelta(f"Ten.{BLOCK}{unclosed}"), end()],
        hidden=[HiddenText(" So.", REASONING_PART, 3), HiddenText("Now.", None, 0)],
    )
    run = answer(first, second)
    *events, finished = await told(run)
    text = "".join(event.text for event in events if isinstance(event, TextDelta))
    assert text == "Noted.\nSo\n\nTen."
    found = {(one.text, one.part): one.offset for one in run.hidden}
    cut = {one.text: one.offset for one in run.hidden if one.text.startswith("\n<")}
    assert found[" Enough.", REASONING_PART] == 4 and found[" So.", REASONING_PART] == 7
    assert (found["Go on.", None], found["Now.", None]) == (7, 11)
    offsets = [one.offset for one in run.hidden if one.text == BLOCK]
    assert offsets == [6, 15] and len(cut) == 1 and len(run.hidden) == 6
    assert run.hidden_tokens == 6 + finished.usage.hidden_tokens
    assert run.completion_tokens == finished.usage.completion_tokens
    assert (run.prompt_tokens, run.note_tokens, run.tokenizer_hash) == (5, 2, "t")


async def test_a_run_that_never_ends_has_no_end() -> None:
    assert await told(answer(PlainRun([TextDelta("Te")]), PlainRun([]))) == [TextDelta("Te")]
    first = PlainRun([*CALL, end("tool_calls")])
    assert await told(answer(first, PlainRun([TextDelta("Te")]))) == [TextDelta("Te")]
