"""One answer without what its model wrote for later sessions, made of one run or more.

Where a model calls our tool and nothing else, the call is answered and the answer goes on in a
further run; its client sees one answer. Knows no link, no surface and no ledger.
"""

from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from dataclasses import dataclass, replace
from types import TracebackType
from typing import Protocol, Self

from conductor.memory.block import HiddenBlock
from gateway.backends.engine_run import EngineLost
from gateway.backends.run import Run, Silence, Work
from gateway.conducting.memory.answer import MemoryAnswer
from gateway.errors import ApiError
from gateway.ledger.entry import Entry
from proto.chat import Message, TextPart, ToolCall
from proto.events import Event, Finished, Reading, TextDelta, Waiting
from proto.faults import CodecFault, Refusal
from proto.messages import MonitorEvent
from proto.plan import HiddenText

GAP = "\n\n"  # between the texts of two runs: what stood there is not seen


class Taker(Protocol):
    """Takes what was held back. `continuations`: of one request at most, by answered calls."""

    @property
    def has_tool(self) -> bool: ...
    @property
    def continuations(self) -> int: ...

    def answer_to(self, call: ToolCall) -> str:
        """Takes a call of our tool; returns its result."""

    def take(self, blocks: Sequence[HiddenBlock]) -> None:
        """An answer is complete: what was cut out of its text."""


@dataclass(slots=True)
class Leg:
    """One run of an answer. `entry`: its row, the client's own for the first one.

    `begins`: where its text does, in that of the whole answer.
    """

    run: Run
    work: Work
    entry: Entry
    answer: MemoryAnswer
    begins: int = 0
    finished: Finished | None = None
    error_type: str | None = None

    @property
    def hidden_tokens(self) -> int:
        """About how many of those it wrote were held back."""
        usage = None if self.finished is None else self.finished.usage
        written = self.run.completion_tokens if usage is None else usage.completion_tokens
        return self.answer.hidden_tokens(written)


class MemoryRun:
    """See `Run`. `begin`: makes the leg of a further run, behind one and with this work."""

    def __init__(
        self, first: Leg, taker: Taker, begin: Callable[[Leg, Work], Awaitable[Leg]]
    ) -> None:
        self.legs = [first]
        self._taker = taker
        self._begin = begin
        self._is_open = False  # the last leg's run
        self._text_chars = 0

    @property
    def prompt_tokens(self) -> int | None:
        """Of the client's own prompt."""
        return self.legs[0].run.prompt_tokens

    @property
    def completion_tokens(self) -> int:
        """Tokens that the client has or will have."""
        return sum(leg.run.completion_tokens - leg.hidden_tokens for leg in self.legs)

    @property
    def note_tokens(self) -> int:
        """Of the client's own prompt."""
        return self.legs[0].run.note_tokens

    @property
    def hidden_tokens(self) -> int:
        """Tokens that it never gets."""
        return sum(leg.run.hidden_tokens + leg.hidden_tokens for leg in self.legs)

    @property
    def hidden(self) -> list[HiddenText]:
        """What was put into the answer, and what was cut out of it, where that stood in it."""
        found: list[HiddenText] = []
        reasoned = 0
        for leg in self.legs:
            put_in = [leg.answer.placed(one) for one in leg.run.hidden]
            cut = [HiddenText(one.text, None, one.offset) for one in leg.answer.whole_blocks]
            for one in sorted((*put_in, *cut), key=lambda one: one.offset):
                begins = leg.begins if one.part is None else reasoned
                found.append(replace(one, offset=begins + one.offset))
            reasoned += leg.answer.reasoning_chars
        return found

    @property
    def calls(self) -> int:
        """Calls that the client has."""
        return sum(leg.answer.calls for leg in self.legs)

    @property
    def note_ids(self) -> dict[str, tuple[int, ...]]:
        """See `Run`."""
        return self.legs[0].run.note_ids

    @property
    def tokenizer_hash(self) -> str | None:
        """See `Run`."""
        return self.legs[0].run.tokenizer_hash

    @property
    def findings(self) -> list[MonitorEvent]:
        """Of the monitors of all runs."""
        return [finding for leg in self.legs for finding in leg.run.findings]

    async def __aenter__(self) -> Self:
        """Raises what the run raises."""
        await self._enter()
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        fault: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self._is_open:
            self._is_open = False
            await self.legs[-1].run.__aexit__(kind, fault, trace)

    async def events(self) -> AsyncIterator[Event | Silence]:
        """See `Run`. Raises what the runs raise."""
        work: Work | None = None
        while True:
            try:
                if work is not None:
                    await self._go_on(work)
                async for event in self._events_of(self.legs[-1]):
                    yield event
            except (ApiError, Refusal, CodecFault, EngineLost) as fault:
                if not self._stands_without(fault):
                    raise
                break
            if self.legs[-1].finished is None:
                return
            if (work := self._next_work(self.legs[-1])) is None:
                break
        yield self._finished()

    async def _enter(self) -> None:
        await self.legs[-1].run.__aenter__()
        self._is_open = True

    async def _go_on(self, work: Work) -> None:
        await self.__aexit__(None, None, None)
        leg = await self._begin(self.legs[-1], work)
        leg.begins = self._text_chars
        self.legs.append(leg)
        await self._enter()

    async def _events_of(self, leg: Leg) -> AsyncIterator[Event | Silence]:
        is_first = leg is self.legs[0]
        async for event in leg.run.events():
            if isinstance(event, Finished):
                leg.finished = event
                break
            if isinstance(event, Silence) or not (is_first or _is_answer(event)):
                yield Silence()  # the client does not wait for its turn any more
                continue
            for shown in leg.answer.take(event):
                for one in self._seen(leg, shown):
                    yield one
        for shown in leg.answer.end():
            for one in self._seen(leg, shown):
                yield one

    def _seen(self, leg: Leg, shown: Event | Silence) -> list[Event | Silence]:
        """What goes out now: the text of a further run is kept apart from that before it."""
        if not isinstance(shown, TextDelta):
            return [shown]
        is_glued = 0 < self._text_chars == leg.begins and not shown.text[:1].isspace()
        if is_glued:
            leg.begins += len(GAP)
            self._text_chars += len(GAP)
        self._text_chars += len(shown.text)
        return [TextDelta(GAP), shown] if is_glued else [shown]

    def _next_work(self, leg: Leg) -> Work | None:
        """What is asked next, where the answer is to go on; what our tool was called with is taken
        either way."""
        assert leg.finished is not None
        said = leg.answer.message()
        results = [
            Message("tool", (TextPart(self._taker.answer_to(call)),), call_id=call.id)
            for call in said.calls
        ]
        is_alone = bool(results) and not leg.answer.calls and leg.finished.reason == "tool_calls"
        if not is_alone or len(self.legs) > self._taker.continuations:
            return None
        work, plan = leg.work, leg.work.plan
        written = leg.finished.usage.completion_tokens - leg.hidden_tokens
        monitor = plan.monitor
        if monitor is not None:
            monitor = replace(monitor, continuations=max(monitor.continuations - 1, 0))
        return replace(
            work,
            call=replace(work.call, messages=(*work.call.messages, said, *results)),
            plan=replace(plan, cap=_left(plan.cap, written), monitor=monitor),
            params=replace(work.params, max_tokens=_left(work.params.max_tokens, written)),
        )

    def _stands_without(self, fault: Exception) -> bool:
        """Whether the answer is one without the run that failed."""
        last = self.legs[-1]
        if last.finished is None:
            last.error_type = "engine_unavailable"
            if isinstance(fault, ApiError | Refusal):
                last.error_type = fault.code
            if len(self.legs) == 1 or self._text_chars > last.begins or last.answer.calls:
                return False
        return self._text_chars > 0 and not isinstance(fault, EngineLost)

    def _finished(self) -> Finished:
        """One end for all runs."""
        self._taker.take([block for leg in self.legs for block in leg.answer.blocks])
        ends = [leg.finished for leg in self.legs if leg.finished is not None]
        first, last = ends[0], ends[-1]
        cut = sum(leg.hidden_tokens for leg in self.legs)
        completion = sum(end.usage.completion_tokens for end in ends) - cut
        usage = replace(
            first.usage,
            completion_tokens=completion,
            reasoning_tokens=min(sum(end.usage.reasoning_tokens for end in ends), completion),
            hidden_tokens=sum(end.usage.hidden_tokens for end in ends) + cut,
        )
        later_ms = sum(end.timings.total_ms for end in ends[1:])
        timings = replace(
            first.timings,
            decode_ms=first.timings.decode_ms + later_ms,
            total_ms=first.timings.total_ms + later_ms,
        )
        has_lost_calls = last.reason == "tool_calls" and not self.calls
        reason = "stop" if has_lost_calls else last.reason
        return replace(
            first, reason=reason, detail=last.detail, usage=usage, timings=timings,
            reasoned_chars=0 if cut else first.reasoned_chars,
        )  # fmt: skip


def _is_answer(event: Event) -> bool:
    return not isinstance(event, (Waiting, Reading))


def _left(limit: int | None, written: int) -> int | None:
    return None if limit is None else max(limit - written, 1)
