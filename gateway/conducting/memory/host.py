"""A host before another one: its answers are cut, and go on behind calls of our tool.

Each further run has a row of its own below the client's. Knows no link and no surface.
"""

import time
from collections.abc import Callable, Sequence
from dataclasses import replace

from conductor.types import Target
from gateway.backends.run import Host, Run, Work
from gateway.conducting.memory.answer import MemoryAnswer
from gateway.conducting.memory.run import Leg, MemoryRun, Taker
from gateway.ledger.books import Books
from gateway.ledger.entry import Entry, Outcome
from proto.events import Finished, Usage


class MemoryHost:
    """See `Host`."""

    def __init__(
        self,
        host: Host,
        books: Books,
        taker: Taker,
        *,
        now: Callable[[], float] = time.monotonic,
        wall: Callable[[], float] = time.time,
    ) -> None:
        self._host = host
        self._books = books
        self._taker = taker
        self._now = now
        self._wall = wall
        self._runs: list[MemoryRun] = []
        self._further = 0

    @property
    def is_planned(self) -> bool:
        """See `Host`."""
        return self._host.is_planned

    @property
    def target(self) -> Target:
        """See `Host`."""
        return self._host.target

    def saw_no_choice(self) -> None:
        """See `Host`."""
        self._host.saw_no_choice()

    async def start(self, work: Work, entry: Entry, choice: int) -> MemoryRun:
        """See `Host`. Raises what the host raises."""
        first = await self._host.start(work, entry, choice)
        answer = MemoryAnswer(has_tool=self._taker.has_tool)
        run = MemoryRun(Leg(first, work, entry, answer), self._taker, self._begin)
        self._runs.append(run)
        return run

    def book(self, entry: Entry, runs: Sequence[Run], finished: Finished | None) -> None:
        """See `Host`."""
        legs = [leg for run in self._runs for leg in run.legs]
        further = [leg for leg in legs if leg.entry is not entry]
        if finished is None:
            end = legs[0].finished if further else None
            self._host.book(entry, [run.legs[0].run for run in self._runs], end)
        else:
            self._host.book(entry, runs, finished)
        for leg in further:
            self._host.book(leg.entry, [leg.run], leg.finished)
            # What happened in all of them is told in the client's row.
            leg.entry.monitor_acts = leg.entry.monitor_shadows = leg.entry.tool_calls = None
        cut = sum(leg.hidden_tokens for leg in legs)
        if cut or further:
            rows = [leg.entry for leg in further]
            _book_shown(entry, rows, cut, None if finished is None else finished.usage)
        for leg in further:
            self._close(leg.entry, "succeeded" if leg.finished else "aborted", leg.error_type)

    async def _begin(self, before: Leg, work: Work) -> Leg:
        """The run in which an answer goes on. Raises what the host raises."""
        self._further += 1
        entry = self._runs[0].legs[0].entry
        row = entry.child(
            request_id=f"{entry.request_id}-memory-{self._further}",
            ts_ms=int(self._wall() * 1000),
            arrived_s=self._now(),
            kind="continuation",
        )
        self._books.open(row)
        if work.wait_s is not None:
            spent_s = row.arrived_s - before.entry.arrived_s
            work = replace(work, wait_s=max(work.wait_s - spent_s, 0.001))
        try:
            run = await self._host.start(work, row, 0)
        except BaseException as fault:
            self._close(row, "failed" if isinstance(fault, Exception) else "aborted", None)
            raise
        return Leg(run, work, row, MemoryAnswer(has_tool=True))

    def _close(self, row: Entry, outcome: Outcome, error_type: str | None) -> None:
        row.close(self._now(), outcome="failed" if error_type else outcome, error_type=error_type)
        self._books.close(row)


def _book_shown(entry: Entry, rows: Sequence[Entry], cut: int, shown: Usage | None) -> None:
    """What the client sees of all runs counts in its row. `cut`: of it, about, what was held back.

    `shown`: what it was told, None where it was told nothing.
    """
    if entry.usage_source == "none":
        return
    calls = (entry, *rows)
    if shown is None:
        completion = max(sum(call.completion_tokens or 0 for call in calls) - cut, 0)
        reasoning = min(sum(call.reasoning_tokens or 0 for call in calls), completion)
        hidden = sum(call.hidden_tokens or 0 for call in calls) + cut
    else:
        completion, reasoning = shown.completion_tokens, shown.reasoning_tokens
        hidden = shown.hidden_tokens
    entry.completion_tokens, entry.reasoning_tokens = completion, reasoning
    entry.hidden_tokens = hidden
    entry.adjusted = max(int(cut > 0), *(call.adjusted for call in calls))
    if any(row.usage_source == "estimated" for row in rows):
        entry.usage_source = "estimated"
    entry.last_delta_s = next(
        (row.last_delta_s for row in reversed(rows) if row.last_delta_s is not None),
        entry.last_delta_s,
    )
