"""The managed way: a request is parsed, planned, run by our own engine and written out.

Knows no socket of a backend and no other request. Loaded only where there is an engine.
"""

import asyncio
import contextlib
import hashlib
import time
from collections.abc import Callable
from secrets import randbits

from conductor.thinking import thinking_of
from gateway.backends.engine import EngineLink, no_engine, refusal_error
from gateway.backends.engine_run import EngineLost, EngineRun, Silence
from gateway.embedding import serve_embeddings
from gateway.errors import ApiError
from gateway.exchange import Exchange
from gateway.ledger.entry import Entry, Outcome
from gateway.relay.connection import GatewayStopping
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
    """Answers with our own engine. `open_after_s`: when a waiting stream is opened."""

    def __init__(
        self,
        engine: EngineLink,
        open_after_s: float,
        *,
        reasoning_format: ReasoningFormat = "reasoning_content",
        now: Callable[[], float] = time.monotonic,
        wall: Callable[[], float] = time.time,
    ) -> None:
        self._engine = engine
        self._open_after_s = open_after_s
        self._reasoning_format = reasoning_format
        self._now = now
        self._wall = wall

    async def serve(
        self, exchange: Exchange, request: ModelRequest, target: Target, entry: Entry
    ) -> Outcome:
        """Answers one request and books what it took.

        Raises: ApiError before anything was sent to the client; ClientLeft, CutShort.
        """
        if exchange.surface == "embeddings":
            return await serve_embeddings(self._engine, exchange, request, target, entry)
        parsed = MANAGED[exchange.surface].parse(clean(request.envelope.fields))
        answer = Answer(
            exchange, parsed, target, created=int(self._wall()),
            reasoning_format=self._reasoning_format,
        )  # fmt: skip
        try:
            finished = await self._answer(parsed, answer, entry)
        except CodecFault as fault:
            message = f"The request cannot be sent to the engine: {fault}."
            raise ApiError(400, "invalid_request", message) from fault
        except (Refusal, EngineLost) as fault:
            error = refusal_error(fault) if isinstance(fault, Refusal) else no_engine()
            return await _end_broken(exchange, answer, entry, error)
        except asyncio.CancelledError:
            reason = exchange.end_reason()
            if not isinstance(reason, GatewayStopping):
                raise reason from None
            return await _end_broken(exchange, answer, entry, no_engine())
        entry.finish_reason = finished.reason
        entry.status = entry.upstream_status = 200
        return "succeeded"

    async def _answer(self, request: ManagedRequest, answer: Answer, entry: Entry) -> Finished:
        """Submits the runs that a request asks for and writes what they say to the client."""
        seed = request.seed if request.seed is not None else randbits(63)
        salt = hashlib.blake2b((entry.user_id or "anon").encode(), digest_size=8).hexdigest()
        plan = Plan(thinking=thinking_of(request.thinking, request.params.max_tokens))
        entry.thinking = plan.thinking.on
        runs: list[EngineRun] = []
        async with contextlib.AsyncExitStack() as stack:
            for choice in range(request.choices):
                run = await self._engine.submit(
                    request.call, plan, request.params, seed, salt, choice, request.choices
                )
                runs.append(await stack.enter_async_context(run))
                entry.run_id = entry.run_id or run.run_id
            try:
                if request.is_stream:
                    finished = await answer.stream(runs[0].events(), self._open_after_s, self._now)
                else:
                    finished = await self._write_whole(runs, answer)
            except BaseException:
                _book_what_is_known(entry, runs)
                raise
        self._book(entry, finished)
        entry.tool_calls = sum(run.calls for run in runs) or None
        return finished

    async def _write_whole(self, runs: list[EngineRun], answer: Answer) -> Finished:
        answers = await _read_together(runs)
        finished = merged([end for _, end in answers])
        answer.write(answers, finished.usage)
        return finished

    def _book(self, entry: Entry, finished: Finished) -> None:
        entry.book_engine(finished.usage)
        entry.book_timings(finished.timings)
        entry.book_speculation(finished.speculation)
        entry.cache_source = finished.cache_source
        entry.thinking_closed_by = finished.thinking_closed_by
        entry.served_model = self._engine.ready.model if self._engine.ready else None


async def _read_together(runs: list[EngineRun]) -> list[tuple[list[Event], Finished]]:
    reads = [asyncio.create_task(_read_all(run)) for run in runs]
    try:
        return list(await asyncio.gather(*reads))
    finally:
        for read in reads:  # where one of them failed, nobody wants the others
            read.cancel()
        await asyncio.gather(*reads, return_exceptions=True)


async def _read_all(run: EngineRun) -> tuple[list[Event], Finished]:
    seen: list[Event] = []
    async for event in run.events():
        if isinstance(event, Finished):
            return seen, event
        if not isinstance(event, Silence):
            seen.append(event)
    raise EngineLost


def _book_what_is_known(entry: Entry, runs: list[EngineRun]) -> None:
    written = sum(run.completion_tokens for run in runs)
    if written:
        prompt = runs[0].prompt_tokens
        entry.book_usage(prompt=prompt, completion=written, source="counted")


async def _end_broken(exchange: Exchange, answer: Answer, entry: Entry, error: ApiError) -> Outcome:
    if not exchange.has_started:
        raise error
    entry.error_type = error.code
    await answer.end_with_error(error)
    return "failed"
