"""One run of our own engine, while it is somebody's: messages in, events out. Knows no socket."""

import asyncio
from collections.abc import AsyncIterator
from types import TracebackType
from typing import Protocol, Self

import structlog

from gateway.backends.run import SILENCE_S, Silence
from proto.deltas import HiddenTexts, events_of
from proto.events import Event, Finished, Reading, Waiting
from proto.faults import Refusal
from proto.limits import LINK_CREDIT_TOKENS
from proto.messages import (
    Ack,
    Credit,
    Delta,
    Done,
    FromGateway,
    MonitorEvent,
    Progress,
    Queued,
    Refused,
)
from proto.plan import HiddenText

log = structlog.get_logger(__name__)

RunMessage = Queued | Progress | Delta | Done | Refused


class EngineLost(Exception):
    """No worker holds a lease, or the one that had this run is gone."""


class RunLink(Protocol):
    """What a run needs of the connection that it came from."""

    async def send(self, message: FromGateway) -> bool:
        """Sends a message; False when there is no worker to take it."""

    async def end(self, run: "EngineRun", *, cancel: bool) -> None:
        """Forgets a run; cancels it when it still goes on."""


class EngineRun:
    """One run, while it is somebody's. Leaving the `async with` block cancels it if it still runs.

    `prompt_tokens` (`note_tokens` of them), `completion_tokens` and `hidden_tokens` beside them,
    `calls`: as far as known, also of a run that never ends.
    `note_ids`: what the worker encoded of the plan's segments, by key. `findings`: of the monitor.
    `hidden`: what it put into the answer.
    """

    def __init__(self, link: RunLink, run_id: str) -> None:
        self.run_id = run_id
        self.prompt_tokens: int | None = None
        self.note_tokens = 0
        self.completion_tokens = 0
        self.hidden_tokens = 0
        self.calls = 0
        self.note_ids: dict[str, tuple[int, ...]] = {}
        self.tokenizer_hash: str | None = None
        self.findings: list[MonitorEvent] = []
        self._hidden = HiddenTexts()
        # Bounded by the credit window: the worker sends no more than it was allowed to.
        self._inbox: asyncio.Queue[RunMessage | None] = asyncio.Queue()
        self._link = link
        self._owed = 0  # tokens consumed and not yet given back as credit
        self._is_over = False

    @property
    def hidden(self) -> list[HiddenText]:
        """See `gateway.backends.run.Run`."""
        return self._hidden.found

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        fault: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        await self._link.end(self, cancel=not self._is_over)

    async def events(self) -> AsyncIterator[Event | Silence]:
        """The answer's events up to `Finished`, and `Silence` while there are none.

        Raises: Refusal; EngineLost.
        """
        while True:
            try:
                async with asyncio.timeout(SILENCE_S):
                    message = await self._inbox.get()
            except TimeoutError:
                yield Silence()
                continue
            match message:
                case None:
                    self._is_over = True
                    raise EngineLost
                case Queued():
                    self.prompt_tokens = message.prompt_tokens
                    self.note_tokens = message.note_tokens
                    self.note_ids.update(message.note_ids or {})
                    self.tokenizer_hash = message.tokenizer_hash
                    yield Waiting(message.position, message.est_wait_ms)
                case Progress():
                    yield Reading(message.phase, message.done, message.total, message.cached)
                case Delta():
                    hidden_tokens = sum(message.hidden)
                    self.completion_tokens += len(message.ids) - hidden_tokens
                    self.hidden_tokens += hidden_tokens
                    self.findings += message.events or ()
                    self.calls += sum(part.name is not None for part in message.calls or ())
                    tokens = zip(message.pieces, message.kinds, message.hidden, strict=True)
                    for piece, kind, is_hidden in tokens:
                        self._hidden.see(piece, kind, is_hidden=is_hidden)
                    for event in events_of(message):
                        yield event
                    await self._renew_credit(message)
                case Refused():
                    self._is_over = True
                    raise Refusal(
                        message.code,
                        message.detail,
                        param=message.param,
                        retry_after_ms=message.retry_after_ms,
                    )
                case Done():
                    self._is_over = True
                    await self._link.send(Ack(self.run_id, message.last_token, done=True))
                    if message.finish == "error":
                        log.error("run.failed", run_id=self.run_id, error=message.error)
                        raise EngineLost
                    yield Finished(
                        reason=message.finish,
                        detail=message.detail,
                        usage=message.usage,
                        timings=message.timings,
                        speculation=message.spec,
                        cache_source=message.cache_source,
                        thinking_closed_by=message.thinking_closed_by,
                        choice_margin=message.choice_margin,
                        reasoned_chars=message.reasoned_chars,
                    )
                    return

    def put(self, message: RunMessage | None) -> None:
        """Hands over a message from the worker; None says that the worker is gone."""
        self._inbox.put_nowait(message)

    async def _renew_credit(self, delta: Delta) -> None:
        """A client that reads slowly consumes slowly, and so slows its own run only."""
        self._owed += len(delta.ids)
        if self._owed >= LINK_CREDIT_TOKENS // 2:
            upto = delta.first + len(delta.ids) - 1
            await self._link.send(Ack(self.run_id, upto))
            await self._link.send(Credit(self.run_id, self._owed))
            self._owed = 0
