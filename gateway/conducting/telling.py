"""One answer on its way to its client: status lines go in between, and what was said is noted.

Knows no surface and no store.
"""

from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from typing import Literal

from conductor import status
from conductor.status import StatusLines, Step
from gateway.backends.run import Run, Silence
from proto.chat import Message, reply_message
from proto.events import (
    CallArguments,
    CallEnd,
    CallStart,
    Event,
    Finished,
    Reading,
    ReasoningDelta,
    TextDelta,
    Waiting,
)
from proto.messages import MonitorEvent

# What a person is told of the monitor's acts. Where nothing is written again there is no wait.
_ACTS: dict[str, Step] = {
    "D1": status.LoopClosed(), "D1b": status.LoopClosed(),
    "C3": status.CallRepaired(), "C4": status.CallRepaired(),
    "E1": status.AskedAgain(),
}  # fmt: skip


class Telling:
    """What a client is told of one run. `lines`: its status lines, None for an answer without any;
    they go into `channel`. `first`: the step before the run, told once that is taken. `now_ms`: of
    any one clock. `before_end`: what is waited for before the client has the end."""

    def __init__(
        self,
        run: Run,
        lines: StatusLines | None,
        channel: Literal["reasoning", "content"],
        first: Step | None,
        now_ms: Callable[[], int],
        before_end: Callable[["Telling"], Awaitable[None]] | None = None,
    ) -> None:
        self._run = run
        self._lines = lines
        self._channel = channel
        self._first = first
        self._now_ms = now_ms
        self._before_end = before_end
        self._said: list[Event] = []
        self._told_findings = 0
        self._reading: tuple[int, int] | None = None  # when its prompt was begun, and how far

    @property
    def sent_lines(self) -> tuple[str, ...]:
        """Hashes of the status lines that were written."""
        return () if self._lines is None else tuple(self._lines.sent)

    @property
    def answer(self) -> Message:
        """What was said so far, without status lines."""
        return reply_message(self._said)

    async def events(self) -> AsyncIterator[Event | Silence]:
        """The run's events, and the lines. Raises: what the run does."""
        async for event in self._run.events():
            if not isinstance(event, Silence):  # refused runs say nothing
                first, self._first = self._first, None
                for line in self._show(first):
                    yield line
            if not isinstance(event, ReasoningDelta):  # a loop was closed behind its last words
                for line in self._show(*self._acts()):
                    yield line
            for line in self._show(self._wait(event)):
                yield line
            self._note(event)
            if isinstance(event, Finished) and self._before_end is not None:
                await self._before_end(self)
            yield event
            for line in self._show(*self._acts()):
                yield line

    def _show(self, *steps: Step | None) -> Iterator[Event]:
        for step in steps:
            if self._lines is None or step is None:
                continue
            if (line := self._lines.line(step, self._now_ms())) is not None:
                yield ReasoningDelta(line) if self._channel == "reasoning" else TextDelta(line)

    def _acts(self) -> Iterator[Step | None]:
        fresh = self._run.findings[self._told_findings :]
        self._told_findings += len(fresh)
        return map(_step_of, fresh)

    def _wait(self, event: Event | Silence) -> Step | None:
        match event:
            case Waiting(position, est_wait_ms):
                return status.Queued(position + 1, est_wait_ms)
            case Reading("prefill", done, total):
                return status.Reading(total, self._left_ms(done, total))
        return None

    def _left_ms(self, done: int, total: int) -> int | None:
        """How long the rest of a prompt takes, by the part that was read since the first look."""
        now_ms = self._now_ms()
        began_ms, before = self._reading = self._reading or (now_ms, done)
        if done <= before:
            return None
        return round((now_ms - began_ms) * (total - done) / (done - before))

    def _note(self, event: Event | Silence) -> None:
        match event:
            case TextDelta() | ReasoningDelta() | CallStart() | CallArguments():
                self._said.append(event)
        if self._lines is None:
            return
        match event:
            case TextDelta(text) if text:
                self._lines.showed_text()
            case ReasoningDelta(text):
                self._lines.showed_reasoning(text)
            case CallStart():
                self._lines.call_began()
            case CallEnd():
                self._lines.call_ended()


def _step_of(finding: MonitorEvent) -> Step | None:
    return _ACTS.get(finding.task) if finding.mode == "act" else None
