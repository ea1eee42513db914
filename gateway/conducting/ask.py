"""The conductor's small questions to who answers a request: each a run and a row of its own.

Knows no class and no profile; what is asked and what an answer means is the conductor's.
"""

import asyncio
import time
from collections.abc import Callable
from dataclasses import dataclass, replace

from conductor.ports import PortFault, Question, Reply
from gateway.backends.answer_form import choice_schema, chosen
from gateway.backends.engine_run import EngineLost
from gateway.backends.run import Host, Work
from gateway.errors import ApiError
from gateway.ledger.books import Books
from gateway.ledger.entry import Entry, Kind, Outcome
from proto.chat import AnswerFormat, Call, Message, Params, TextPart
from proto.events import Finished, TextDelta
from proto.faults import CodecFault, Refusal
from proto.plan import Plan, Thinking

BACKGROUND_BAND = 3  # nobody waits for what is asked behind a request
WRAPPING_TOKENS = 12  # of `{"choice":""}`, however they are cut


@dataclass(frozen=True, slots=True)
class Answering:
    """Who answers questions, as the ledger names it, and with which of its models."""

    host: Host
    model: str
    backend: str | None = None
    upstream_key: str | None = None


class HostAsk:
    """Asks for one request, whose `entry` its rows belong to.

    `salt`: whose prefixes may be read for it.
    """

    def __init__(
        self,
        answering: Answering,
        books: Books,
        entry: Entry,
        *,
        salt: str,
        kind: Kind = "classifier",
        now: Callable[[], float] = time.monotonic,
        wall: Callable[[], float] = time.time,
    ) -> None:
        self._answering = answering
        self._host = answering.host
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
        row = self._row()
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
        except (ApiError, Refusal, CodecFault, EngineLost) as fault:
            row.error_type = _word(fault)
            raise PortFault(row.error_type) from fault
        finally:
            row.close(self._now(), outcome=outcome)
            self._books.close(row)

    def _row(self) -> Entry:
        self._asked += 1
        row = self._entry.child(
            request_id=f"{self._entry.request_id}-{self._kind}-{self._asked}",
            ts_ms=int(self._wall() * 1000),
            arrived_s=self._now(),
            kind=self._kind,
        )
        row.backend, row.upstream_key = self._answering.backend, self._answering.upstream_key
        row.upstream_model = self._answering.model
        return row

    async def _run(self, question: Question, row: Entry) -> Reply:
        began_s, text = self._now(), ""
        has_choice = self._host.target.has_choice
        wrapping = 0 if has_choice or not question.choices else WRAPPING_TOKENS
        params = Params(max_tokens=question.max_tokens + wrapping, temperature=0.0)
        plan = Plan(thinking=Thinking(on=False), lane="side")
        if self._kind == "memory":
            plan = replace(plan, band=BACKGROUND_BAND)
        call = _call(self._answering.model, question, has_choice=has_choice)
        run = await self._host.start(Work(call, plan, params, 0, self._salt), row, 0)
        finished: Finished | None = None
        try:
            async with run:
                async for event in run.events():
                    match event:
                        case TextDelta(piece):
                            text += piece
                        case Finished():
                            finished = event
        finally:
            self._host.book(row, [run], finished)
        if finished is None:
            raise EngineLost
        row.finish_reason = finished.reason
        ms = round((self._now() - began_s) * 1000)
        if question.choices:
            choice = chosen(text, question.choices)
            if choice is None:
                self._host.saw_no_choice()
                row.error_type = "no_choice"
                raise PortFault("no_choice")
            text = choice
        return Reply(text, finished.choice_margin, ms)


def _word(fault: ApiError | Refusal | CodecFault | EngineLost) -> str:
    return fault.code if isinstance(fault, (ApiError, Refusal)) else "engine_unavailable"


def _call(model: str, question: Question, *, has_choice: bool) -> Call:
    if question.choices and has_choice:
        form = AnswerFormat("choice", list(question.choices))
    elif question.choices:
        form = AnswerFormat("json_schema", choice_schema(question.choices))
    elif question.schema is not None:
        form = AnswerFormat("json_schema", question.schema)
    else:
        form = AnswerFormat()
    messages = (
        Message("system", (TextPart(question.system),)),
        Message("user", (TextPart(question.text),)),
    )
    return Call(model, messages, answer_format=form)
