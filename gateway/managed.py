"""The managed way: a request is parsed, planned, run by its host and written out.

Knows no socket of a backend and no other request. Loaded only where something is managed.
"""

import asyncio
import contextlib
import hashlib
import time
from collections.abc import Callable
from typing import Any

from conductor.thinking import thinking_of
from gateway.backends.base import Backend
from gateway.backends.engine import EngineLink, no_engine, refusal_error
from gateway.backends.engine_host import EngineHost
from gateway.backends.engine_run import EngineLost
from gateway.backends.run import Host, Run, Silence, Work
from gateway.embedding import serve_embeddings
from gateway.errors import ApiError
from gateway.exchange import Exchange
from gateway.ledger.entry import Entry, Outcome
from gateway.relay.connection import GatewayStopping
from gateway.relay.forward import upstream_error
from gateway.routing.table import Target
from gateway.surfaces.answer import MANAGED, Answer
from gateway.surfaces.chat.reasoning import ReasoningFormat
from gateway.surfaces.choices import merged
from gateway.surfaces.fields import clean
from gateway.surfaces.params import ManagedRequest
from gateway.surfaces.request import ModelRequest
from proto.events import Event, Finished
from proto.faults import CodecFault, Refusal
from proto.plan import Plan


class Managed:
    """Answers with our own engine, or a backend that the conductor stands before.

    `host_at`: who writes answers at a backend. `open_after_s`: when a waiting stream is opened.
    """

    def __init__(
        self,
        engine: EngineLink | None,
        host_at: Callable[[Backend], Host],
        open_after_s: float,
        *,
        reasoning_format: ReasoningFormat = "reasoning_content",
        now: Callable[[], float] = time.monotonic,
        wall: Callable[[], float] = time.time,
    ) -> None:
        self._engine = engine
        self._host_at = host_at
        self._open_after_s = open_after_s
        self._reasoning_format = reasoning_format
        self._now = now
        self._wall = wall

    async def serve(
        self, exchange: Exchange, request: ModelRequest, target: Target, entry: Entry,
        backend: Backend | None,
    ) -> Outcome:  # fmt: skip
        """Answers one request and books what it took; `backend` None: with our own engine.

        Raises: ApiError before anything was sent to the client; ClientLeft, CutShort.
        """
        if exchange.surface == "embeddings":
            assert self._engine is not None
            return await serve_embeddings(self._engine, exchange, request, target, entry)
        fields = clean(request.envelope.fields)
        parsed = MANAGED[exchange.surface].parse(fields)
        answer = Answer(
            exchange, parsed, target, created=int(self._wall()),
            reasoning_format=self._reasoning_format,
        )  # fmt: skip
        try:
            wait_s = None if parsed.is_stream else exchange.announced_wait_s()
            work = self._work(parsed, fields, entry, wait_s)
            finished = await self._answer(self._host(backend), work, parsed, answer, entry)
        except CodecFault as fault:
            message = f"The request cannot be sent to the engine: {fault}."
            raise ApiError(400, "invalid_request", message) from fault
        except (Refusal, EngineLost) as fault:
            error = refusal_error(fault) if isinstance(fault, Refusal) else no_engine()
            return await _end_broken(exchange, answer, entry, error)
        except ApiError as error:
            return await _end_broken(exchange, answer, entry, error)
        except asyncio.CancelledError:
            reason = exchange.end_reason()
            if not isinstance(reason, GatewayStopping):
                raise reason from None
            stopping = no_engine() if backend is None else upstream_error(reason)
            return await _end_broken(exchange, answer, entry, stopping)
        entry.finish_reason = finished.reason
        entry.status = entry.upstream_status = 200
        return "succeeded"

    def _host(self, backend: Backend | None) -> Host:
        if backend is not None:
            return self._host_at(backend)
        assert self._engine is not None
        return EngineHost(self._engine)

    def _work(
        self, request: ManagedRequest, fields: dict[str, Any], entry: Entry, wait_s: float | None
    ) -> Work:
        """What is asked, and what was decided about it."""
        salt = hashlib.blake2b((entry.user_id or "anon").encode(), digest_size=8).hexdigest()
        plan = Plan(thinking=thinking_of(request.thinking, request.params.max_tokens))
        entry.thinking = plan.thinking.on
        return Work(
            call=request.call,
            plan=plan,
            params=request.params,
            seed=request.seed,
            salt=salt,
            choices=request.choices,
            effort=request.thinking.effort,
            fields=fields,
            wait_s=wait_s,
        )

    async def _answer(
        self, host: Host, work: Work, request: ManagedRequest, answer: Answer, entry: Entry
    ) -> Finished:
        """Starts the runs that a request asks for and writes what they say to the client."""
        runs: list[Run] = []
        finished: Finished | None = None
        try:
            async with contextlib.AsyncExitStack() as stack:
                for choice in range(work.choices):
                    run = await host.start(work, entry, choice)
                    runs.append(await stack.enter_async_context(run))
                if request.is_stream:
                    finished = await answer.stream(runs[0].events(), self._open_after_s, self._now)
                else:
                    finished = await self._write_whole(runs, answer)
        finally:
            if runs:
                host.book(entry, runs, finished)
        return finished

    async def _write_whole(self, runs: list[Run], answer: Answer) -> Finished:
        answers = await _read_together(runs)
        finished = merged([end for _, end in answers])
        answer.write(answers, finished.usage)
        return finished


async def _read_together(runs: list[Run]) -> list[tuple[list[Event], Finished]]:
    reads = [asyncio.create_task(_read_all(run)) for run in runs]
    try:
        return list(await asyncio.gather(*reads))
    finally:
        for read in reads:  # where one of them failed, nobody wants the others
            read.cancel()
        await asyncio.gather(*reads, return_exceptions=True)


async def _read_all(run: Run) -> tuple[list[Event], Finished]:
    seen: list[Event] = []
    async for event in run.events():
        if isinstance(event, Finished):
            return seen, event
        if not isinstance(event, Silence):
            seen.append(event)
    raise EngineLost


async def _end_broken(exchange: Exchange, answer: Answer, entry: Entry, error: ApiError) -> Outcome:
    if not exchange.has_started:
        raise error
    entry.error_type = entry.error_type or error.code
    await answer.end_with_error(error)
    return "failed"
