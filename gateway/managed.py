"""The managed way: a request is parsed, planned, run by its host and written out.

Knows no socket of a backend and no other request. Loaded only where something is managed.
"""

import asyncio
import contextlib
import hashlib
import time
from collections.abc import AsyncIterator, Callable, Iterator
from typing import Any

from conductor.thinking import thinking_of
from gateway.backends.base import Backend
from gateway.backends.engine import EngineLink, no_engine, refusal_error
from gateway.backends.engine_run import EngineLost
from gateway.backends.run import Host, Run, Silence, Work
from gateway.conducting.ask import HostAsk
from gateway.conducting.conducting import Conducting, Turn
from gateway.conducting.facts import asked_of
from gateway.conducting.hosts import Hosts
from gateway.embedding import serve_embeddings
from gateway.errors import ApiError
from gateway.exchange import Exchange
from gateway.ledger.books import Books
from gateway.ledger.entry import Entry, Outcome
from gateway.relay.connection import GatewayStopping
from gateway.relay.forward import upstream_error
from gateway.routing.table import Target
from gateway.surfaces.answer import MANAGED, Answer
from gateway.surfaces.choices import merged
from gateway.surfaces.fields import clean
from gateway.surfaces.params import ManagedRequest
from gateway.surfaces.request import ModelRequest
from proto.events import Event, Finished
from proto.faults import CodecFault, Refusal
from proto.plan import Plan


class Managed:
    """Answers with our own engine, or a backend that the conductor stands before.

    `hosts`: who writes answers. `conducting` None: our own engine is asked for what
    the client says, and nothing more. `open_after_s`: when a waiting stream is opened.
    """

    def __init__(
        self,
        engine: EngineLink | None,
        hosts: Hosts,
        open_after_s: float,
        books: Books,
        *,
        conducting: Conducting | None,
        now: Callable[[], float] = time.monotonic,
        wall: Callable[[], float] = time.time,
    ) -> None:
        self._engine = engine
        self._hosts = hosts
        self._open_after_s = open_after_s
        self._books = books
        self._conducting = conducting
        self._now = now
        self._wall = wall

    async def serve(
        self, exchange: Exchange, request: ModelRequest, target: Target, entry: Entry,
        backend: Backend | None, allowed: tuple[str, ...] | None,
    ) -> Outcome:  # fmt: skip
        """Answers one request and books what it took; `backend` None: with our own engine.
        `allowed`: profiles of its key, None for all.

        Raises: ApiError before anything was sent to the client; ClientLeft, CutShort.
        """
        if exchange.surface == "embeddings":
            assert self._engine is not None
            return await serve_embeddings(self._engine, exchange, request, target, entry)
        fields = clean(request.envelope.fields)
        parsed = MANAGED[exchange.surface].parse(fields)
        host = self._hosts.at(backend)
        turn = await self._plan(exchange, parsed, fields, host, backend, entry, allowed)
        if turn is not None:
            answering = self._hosts.answering(host, backend, entry)
            host = turn.memory.over(host, answering, self._books, entry, _salt(entry))
        answer = Answer(
            exchange, parsed, target, created=int(self._wall()),
            profile=None if turn is None else turn.plan.profile,
        )  # fmt: skip
        try:
            wait_s = None if parsed.is_stream else exchange.announced_wait_s()
            work = self._work(parsed, fields, entry, turn, wait_s)
            finished = await self._answer(host, work, parsed, answer, entry, turn)
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

    async def _plan(
        self,
        exchange: Exchange,
        request: ManagedRequest,
        fields: dict[str, Any],
        host: Host,
        backend: Backend | None,
        entry: Entry,
        allowed: tuple[str, ...] | None,
    ) -> Turn | None:
        """What the conductor decides; None where it has no say: a raw prompt is no turn."""
        is_chat = exchange.surface == "chat"
        if self._conducting is None or not host.is_planned or not is_chat:
            return None
        surface = exchange.surface or ""
        asked = asked_of(surface, _headers(exchange), fields, request)
        answering = self._hosts.answering(host, backend, entry)
        ask = HostAsk(answering, self._books, entry, salt=_salt(entry))
        return await self._conducting.plan(request.call, asked, host.target, entry, ask, allowed)

    def _work(
        self, request: ManagedRequest, fields: dict[str, Any], entry: Entry, turn: Turn | None,
        wait_s: float | None,
    ) -> Work:  # fmt: skip
        """What is asked, and what was decided about it."""
        salt, call, params = _salt(entry), request.call, request.params
        if turn is None:
            plan = Plan(thinking=thinking_of(request.thinking, params.max_tokens))
        else:
            (call, plan), params = turn.work(salt), turn.params(params, fields)
        entry.thinking = plan.thinking.on
        return Work(
            call=call,
            plan=plan,
            params=params,
            seed=request.seed,
            salt=salt,
            choices=request.choices,
            effort=request.thinking.effort,
            fields=fields,
            wait_s=wait_s,
        )

    async def _answer(
        self, host: Host, work: Work, request: ManagedRequest, answer: Answer, entry: Entry,
        turn: Turn | None,
    ) -> Finished:  # fmt: skip
        """Starts the runs that a request asks for and writes what they say to the client."""
        runs: list[Run] = []
        told: list[AsyncIterator[Event | Silence]] = []
        finished: Finished | None = None
        if turn is not None:
            turn.begin()
        try:
            async with contextlib.AsyncExitStack() as stack:
                for choice in range(work.choices):
                    run = await host.start(work, entry, choice)
                    runs.append(await stack.enter_async_context(run))
                    told.append(run.events() if turn is None else turn.tell(run))
                if request.is_stream:
                    finished = await answer.stream(told[0], self._open_after_s, self._now)
                else:
                    finished = await _write_whole(told, answer)
        finally:
            if runs:
                host.book(entry, runs, finished)
            if turn is not None:
                await turn.end(runs, None if finished is None else finished.reason)
        return finished


async def _write_whole(told: list[AsyncIterator[Event | Silence]], answer: Answer) -> Finished:
    answers = await _read_together(told)
    finished = merged([end for _, end in answers])
    answer.write(answers, finished.usage)
    return finished


async def _read_together(
    told: list[AsyncIterator[Event | Silence]],
) -> list[tuple[list[Event], Finished]]:
    reads = [asyncio.create_task(_read_all(events)) for events in told]
    try:
        return list(await asyncio.gather(*reads))
    finally:
        for read in reads:  # where one of them failed, nobody wants the others
            read.cancel()
        await asyncio.gather(*reads, return_exceptions=True)


async def _read_all(events: AsyncIterator[Event | Silence]) -> tuple[list[Event], Finished]:
    seen: list[Event] = []
    async for event in events:
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


def _salt(entry: Entry) -> str:
    """Whose kept prefixes a request may use."""
    return hashlib.blake2b((entry.user_id or "anon").encode(), digest_size=8).hexdigest()


def _headers(exchange: Exchange) -> Iterator[tuple[str, str]]:
    for name, value in exchange.fields.items():
        yield name.decode("latin-1"), value.decode("latin-1")
