"""The managed way: a request is parsed, planned, run by our own engine and written out.

Knows no socket of a backend and no other request. Loaded only where there is an engine.
"""

import asyncio
import hashlib
import time
from collections.abc import Callable
from secrets import randbits

from gateway.backends.engine import EngineLink, EngineLost, no_engine, refusal_error
from gateway.errors import ApiError
from gateway.exchange import Exchange
from gateway.ledger.entry import Entry, Outcome
from gateway.relay.connection import GatewayStopping
from gateway.routing.table import Target
from gateway.surfaces.answer import MANAGED, Answer
from gateway.surfaces.fields import clean
from gateway.surfaces.params import ManagedRequest
from gateway.surfaces.request import ModelRequest
from proto.events import Finished
from proto.faults import CodecFault, Refusal
from proto.plan import Plan


class Managed:
    """Answers with our own engine. `open_after_s`: when a waiting stream is opened."""

    def __init__(
        self,
        engine: EngineLink,
        open_after_s: float,
        *,
        now: Callable[[], float] = time.monotonic,
        wall: Callable[[], float] = time.time,
    ) -> None:
        self._engine = engine
        self._open_after_s = open_after_s
        self._now = now
        self._wall = wall

    async def serve(
        self, exchange: Exchange, request: ModelRequest, target: Target, entry: Entry
    ) -> Outcome:
        """Answers one request and books what it took.

        Raises: ApiError before anything was sent to the client; ClientLeft, CutShort.
        """
        parsed = MANAGED[exchange.surface].parse(clean(request.envelope.fields))
        answer = Answer(exchange, parsed, target, created=int(self._wall()))
        try:
            finished = await self._run(parsed, answer, entry)
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

    async def _run(self, request: ManagedRequest, answer: Answer, entry: Entry) -> Finished:
        """Submits the run and writes its events to the client as they come."""
        seed = request.seed if request.seed is not None else randbits(63)
        salt = hashlib.blake2b((entry.user_id or "anon").encode(), digest_size=8).hexdigest()
        run = await self._engine.submit(request.call, Plan(), request.params, seed, salt)
        entry.run_id = run.run_id
        async with run:
            try:
                finished = await answer.write(run.events(), self._open_after_s, self._now)
            except BaseException:
                if run.completion_tokens:
                    entry.book_usage(
                        prompt=run.prompt_tokens,
                        completion=run.completion_tokens,
                        source="counted",
                    )
                raise
        entry.book_engine(finished.usage)
        entry.book_timings(finished.timings)
        entry.book_speculation(finished.speculation)
        entry.cache_source = finished.cache_source
        entry.served_model = self._engine.ready.model if self._engine.ready else None
        return finished


async def _end_broken(exchange: Exchange, answer: Answer, entry: Entry, error: ApiError) -> Outcome:
    if not exchange.has_started:
        raise error
    entry.error_type = error.code
    await answer.end_with_error(error)
    return "failed"
