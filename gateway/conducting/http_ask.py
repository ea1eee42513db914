"""Small questions to an HTTP backend, each a request and a row of its own.

Knows no class and no profile; what is asked and what an answer means is the conductor's.
"""

import asyncio
import math
from collections.abc import Sequence

from conductor.ports import PortFault, Question, Reply
from gateway.backends.answer_form import Body, choice_fields, chosen, form_fields
from gateway.backends.base import SELF_SERVED
from gateway.backends.chat_body import encoded, without_thinking
from gateway.backends.chat_reader import ChatReader, estimate
from gateway.backends.event_stream import EventStream
from gateway.backends.http import Place
from gateway.backends.legs import Ask, Leg
from gateway.backends.run import Silence
from gateway.errors import ApiError
from gateway.ledger.entry import Entry, Kind, Outcome
from gateway.relay.connection import UpstreamFault, UpstreamTimeout
from gateway.relay.forward import upstream_error
from proto.chat import AnswerFormat
from proto.events import Logprobs

LIKELIEST = 5  # tokens looked at to see how clearly one was chosen


class HttpAsk:
    """Asks for one request, whose `entry` its rows belong to. `model`: as the backend knows it."""

    def __init__(
        self, place: Place, entry: Entry, model: str, *, kind: Kind = "classifier"
    ) -> None:
        self._place = place
        self._entry = entry
        self._model = model
        self._kind: Kind = kind
        self._asked = 0

    async def ask(self, question: Question) -> Reply:
        """See `conductor.ports.Ask`. Whoever stops waiting ends the request.

        Raises: PortFault.
        """
        row = self._row()
        backend = self._place.backend
        if 0 < backend.settings.max_in_flight <= backend.in_flight:
            row.error_type = "backend_busy"
            self._close(row, "refused")
            raise PortFault("backend_busy")
        backend.in_flight += 1
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
        except (ApiError, UpstreamFault) as fault:
            error = upstream_error(fault) if isinstance(fault, UpstreamFault) else fault
            is_late = isinstance(fault, UpstreamTimeout)
            row.error_type = "timeout" if is_late else error.code
            raise PortFault(row.error_type) from fault
        finally:
            backend.in_flight -= 1
            self._close(row, outcome)

    def _row(self) -> Entry:
        self._asked += 1
        place = self._place
        row = self._entry.child(
            request_id=f"{self._entry.request_id}-{self._kind}-{self._asked}",
            ts_ms=int(place.wall() * 1000),
            arrived_s=place.now(),
            kind=self._kind,
        )
        row.backend, row.upstream_key = place.backend.name, place.backend.key_label
        row.upstream_model = self._model
        place.books.open(row)
        return row

    def _close(self, row: Entry, outcome: Outcome) -> None:
        row.close(self._place.now(), outcome=outcome)
        self._place.books.close(row)

    async def _run(self, question: Question, row: Entry) -> Reply:
        place, began_s = self._place, self._place.now()
        reader = ChatReader(
            frozenset(), one_a_delta=place.backend.settings.tokens_per_delta == "one"
        )
        leg = Leg(Ask(self._body(question)), reader)
        sent = f"{question.system}\n{question.text}"
        stream = EventStream(
            place.client, place.backend, encoded(leg.ask.body),
            sent=sent.encode(errors="replace"), now=place.now,
        )  # fmt: skip
        text, found = "", list[Logprobs]()
        try:
            while (event := await stream.next()) is not None:
                for piece in () if isinstance(event, Silence) else reader.take(event):
                    row.saw_delta(place.now())
                    text += piece.text if piece.kind == "text" else ""
                    found += piece.logprobs
            text += "".join(piece.text for piece in reader.end() if piece.kind == "text")
        except BaseException:
            leg.has_failed = True
            raise
        finally:
            leg.status = stream.status
            leg.book(row, estimate(sent))
            row.finish_reason = reader.reading.finish
            await stream.close()
        ms = round((place.now() - began_s) * 1000)
        return self._reply(question, text, found, ms)

    def _reply(self, question: Question, text: str, found: Sequence[Logprobs], ms: int) -> Reply:
        """Raises: ApiError for an answer that is none of the choices."""
        if not question.choices:
            return Reply(text, None, ms)
        choice = chosen(text, question.choices)
        if choice is None:
            # Servers ignore what they do not know: the other name is tried next time.
            backend = self._place.backend
            backend.has_new_choice = not backend.has_new_choice
            raise ApiError(502, "no_choice", "The backend answered something else.")
        return Reply(choice, margin_of(found[0], question.choices) if found else None, ms)

    def _body(self, question: Question) -> Body:
        backend = self._place.backend
        flavor = backend.settings.flavor
        body: Body = {
            "model": self._model,
            "messages": [
                {"role": "system", "content": question.system},
                {"role": "user", "content": question.text},
            ],
            "stream": True,
            "stream_options": {"include_usage": True},
            "max_tokens": question.max_tokens,
            "temperature": 0,
        }
        if question.choices:
            body |= choice_fields(question.choices, flavor, is_new=backend.has_new_choice)
        elif question.schema is not None:
            body |= form_fields(AnswerFormat("json_schema", question.schema), flavor) or {}
        if flavor not in SELF_SERVED:
            if question.choices:  # they come wrapped in JSON there
                body["max_tokens"] = question.max_tokens + WRAPPING_TOKENS
            return body
        if question.choices:
            body |= {"logprobs": True, "top_logprobs": LIKELIEST}
        return without_thinking(body)


WRAPPING_TOKENS = 12  # of `{"choice":""}`, however they are cut


def margin_of(first: Logprobs, choices: Sequence[str]) -> float | None:
    """How clearly the first token chose, 0 to 1: the best choice's share less the next one's.

    None where it is the beginning of no choice.
    """
    shares = dict.fromkeys(choices, 0.0)
    for token in first.top or (first.chosen,):
        begin = token.text.strip()
        fitting = [choice for choice in choices if begin and choice.startswith(begin)]
        for choice in fitting:
            shares[choice] += math.exp(min(token.logprob, 0.0)) / len(fitting)
    whole = sum(shares.values())
    if not whole:
        return None
    best, *others = sorted(shares.values(), reverse=True)
    return (best - max(others, default=0.0)) / whole
