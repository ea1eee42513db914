"""Small questions to our own engine, each a run on the side lane and a row of its own.

Knows no class and no profile; what is asked and what an answer means is the conductor's.
"""

import asyncio
import time
from collections.abc import Callable

from conductor.ports import PortFault, Question, Reply
from gateway.backends.engine import EngineLink
from gateway.backends.engine_run import EngineLost
from gateway.ledger.books import Books
from gateway.ledger.entry import Entry, Kind, Outcome
from proto.chat import AnswerFormat, Call, Message, Params, TextPart
from proto.events import Finished, TextDelta
from proto.faults import CodecFault, Refusal
from proto.plan import Plan, Thinking


class EngineAsk:
    """Asks for one request, whose `entry` its rows belong to.

    `salt`: whose prefixes the engine may read for it.
    """

    def __init__(
        self,
        engine: EngineLink,
        books: Books,
        entry: Entry,
        *,
        salt: str,
        kind: Kind = "classifier",
        now: Callable[[], float] = time.monotonic,
        wall: Callable[[], float] = time.time,
    ) -> None:
        self._engine = engine
        self._books = books
        self._entry = entry
        self._salt = salt
        self._kind: Kind = kind
        self._asked = 0
        self._now = now
        self._wall = wall

    async def ask(self, question: Question) -> Reply:
        """See `conductor.ports.Ask`. Whoever stops waiting ends the run.

        Raises: PortFault.
        """
        self._asked += 1
        row = self._entry.child(
            request_id=f"{self._entry.request_id}-{self._kind}-{self._asked}",
            ts_ms=int(self._wall() * 1000),
            arrived_s=self._now(),
            kind=self._kind,
        )
        row.backend, row.run_id = "worker", None
        self._books.open(row)
        outcome: Outcome = "failed"
        try:
            async with asyncio.timeout(question.timeout_ms / 1000):
                reply = await self._run(question, row)
            outcome = "succeeded"
            return reply
        except asyncio.CancelledError:
            outcome = "aborted"
            raise
        except TimeoutError as fault:
            row.error_type = "timeout"
            raise PortFault("timeout") from fault
        except (Refusal, CodecFault, EngineLost) as fault:
            row.error_type = fault.code if isinstance(fault, Refusal) else "engine_unavailable"
            raise PortFault(row.error_type) from fault
        finally:
            row.close(self._now(), outcome=outcome)
            self._books.close(row)

    async def _run(self, question: Question, row: Entry) -> Reply:
        began_s, text = self._now(), ""
        params = Params(max_tokens=question.max_tokens, temperature=0.0)
        plan = Plan(thinking=Thinking(on=False), lane="side")
        run = await self._engine.submit(_call(question), plan, params, 0, self._salt)
        async with run:
            async for event in run.events():
                match event:
                    case TextDelta(piece):
                        text += piece
                    case Finished():
                        row.book_engine(event.usage)
                        row.book_timings(event.timings)
                        row.book_speculation(event.speculation)
                        row.cache_source = event.cache_source
                        row.finish_reason = event.reason
                        ms = round((self._now() - began_s) * 1000)
                        return Reply(text, event.choice_margin, ms)
                    case _:
                        continue
        raise EngineLost


def _call(question: Question) -> Call:
    if question.choices:
        form = AnswerFormat("choice", list(question.choices))
    elif question.schema is not None:
        form = AnswerFormat("json_schema", question.schema)
    else:
        form = AnswerFormat()
    messages = (
        Message("system", (TextPart(question.system),)),
        Message("user", (TextPart(question.text),)),
    )
    return Call("", messages, answer_format=form)
