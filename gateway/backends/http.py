"""One answer of an HTTP backend, made of one or more requests.

Knows no surface: a call goes in, neutral events come out. Where the monitor has a reasoning closed
or a call made again, the request that runs is ended and another one goes on in its place; the
client sees one answer.
"""

import time
from collections.abc import AsyncIterator, Callable, Sequence
from dataclasses import dataclass
from types import TracebackType
from typing import Self

from conductor.monitor.verdicts import (
    CLOSED_BY,
    Block,
    Calls,
    CloseReasoning,
    Constrain,
    Continue,
    Inject,
    PromptFacts,
    Regenerate,
    Stop,
    Verdict,
)
from gateway.backends.answer_form import Body
from gateway.backends.base import Backend
from gateway.backends.chat_body import MEASURED_FLAVORS, chat_body, encoded, prompt_texts
from gateway.backends.chat_reader import ChatReader, Piece, estimate
from gateway.backends.event_stream import EventStream
from gateway.backends.further import closing, going_on, held_to, without_prefix
from gateway.backends.legs import Ask, Leg, book_legs, hidden_in, timings_of, usage_of
from gateway.backends.run import Pauses, Silence, Work
from gateway.backends.watching import MakeWatch, State, Watching, past_calls
from gateway.backends.written import Written, event_of
from gateway.errors import ApiError
from gateway.ledger.books import Books
from gateway.ledger.entry import Entry
from gateway.relay.client import UpstreamClient
from gateway.relay.connection import Clock, UpstreamBroken, UpstreamFault
from gateway.relay.forward import busy_error, note_fault, upstream_error
from proto.events import Event, Finished, TextDelta
from proto.messages import MonitorEvent
from proto.plan import HiddenText

MOST_ROOM = 2**31 - 1  # tokens, where nobody says how many there may be


@dataclass(frozen=True, slots=True)
class Place:
    """What runs at a backend need. `make_watch`: of their monitors, None for no monitor.

    `now`: the ledger's clock in seconds; `wall`: epoch seconds.
    """

    backend: Backend
    client: UpstreamClient
    books: Books
    make_watch: MakeWatch | None = None
    now: Callable[[], float] = time.monotonic
    wall: Callable[[], float] = time.time


class HttpRun:
    """One answer of a backend. See `gateway.backends.run.Run`."""

    def __init__(self, place: Place, work: Work, entry: Entry) -> None:
        self.prompt_tokens: int | None = None
        self.note_tokens = sum(estimate(segment.text) for segment in work.plan.segments)
        self.calls = 0
        self.note_ids: dict[str, tuple[int, ...]] = {}
        self.tokenizer_hash = None
        self._place = place
        self._backend = place.backend
        self._work = work
        self._entry = entry
        self._watching = Watching(place.backend, work.plan.monitor, place.make_watch)
        self._is_measured = (
            self._watching.is_on and place.backend.settings.flavor in MEASURED_FLAVORS
        )
        self._body: Body = {}
        self._written = Written(work.call, has_stops=bool(work.params.stop))
        self._legs: list[Leg] = []
        self._stream: EventStream | None = None
        self._next: Ask | None = None
        self._stop: Stop | None = None
        self._is_booked = False
        self._pauses = Pauses(place.now)

    @property
    def findings(self) -> list[MonitorEvent]:
        """Of the monitor, so far."""
        return self._watching.findings

    @property
    def hidden(self) -> list[HiddenText]:
        """What was put into the answer."""
        return hidden_in(self._legs)

    @property
    def completion_tokens(self) -> int:
        """Tokens of the answer that the client has or will have."""
        return self._written.shown_tokens

    @property
    def hidden_tokens(self) -> int:
        """Tokens of it that the client never gets."""
        return self._written.hidden_tokens

    async def __aenter__(self) -> Self:
        """Raises: ApiError when the backend has as many requests as it may have."""
        limit = self._backend.settings.max_in_flight
        if 0 < limit <= self._backend.in_flight:
            raise busy_error(self._backend)
        self._backend.in_flight += 1
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        fault: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._backend.in_flight -= 1
        try:
            if self._stream is not None:
                await self._stream.close()
        finally:
            if not self._is_booked and self._legs:
                self._legs[-1].has_failed = True
                self._book()

    async def events(self) -> AsyncIterator[Event | Silence]:
        """The answer's events up to `Finished`, and `Silence` while there are none.

        Raises: ApiError.
        """
        ask = self._first()
        while ask is not None:
            leg = self._begin(ask)
            stream = self._stream
            assert stream is not None
            try:
                while not leg.was_cut and (body := await stream.next()) is not None:
                    events = (
                        [] if isinstance(body, Silence) else self._take(leg, leg.reader.take(body))
                    )
                    for event in self._pauses.filled(events):
                        yield event
                if not leg.was_cut:
                    for event in self._take(leg, leg.reader.end()):
                        yield event
                    self._check_end(leg, stream)
                ask = self._after(leg)
            except (ApiError, UpstreamFault) as fault:
                ask = self._after_fault(leg, stream, fault)
            leg.status = stream.status
            await stream.close()
        if self._stop is not None and self._stop.keep_calls is not None:
            self._written.keep(self._stop.keep_calls)
        if self._written.tail:
            yield TextDelta(self._written.tail)
        for event in self._written.call_events():
            yield event
        yield self._finished()

    # The first request, and what comes of an answer.

    def _first(self) -> Ask | None:
        """Raises: ApiError 400 for what cannot be asked of this backend."""
        flavor, work = self._backend.settings.flavor, self._work
        self._body = chat_body(
            work, self._entry.upstream_model or work.call.model, flavor,
            is_measured=self._is_measured, is_new=self._backend.has_new_choice,
        )  # fmt: skip
        self.prompt_tokens = estimate("".join(prompt_texts(work)))
        verdict = self._watching.begin(self._facts(self.prompt_tokens))
        match verdict:
            case Stop():
                self._stop = verdict
                return None
            case Constrain(spec):
                return Ask(held_to(self._body, flavor, spec, None, None).body)
            case _:
                return Ask(self._body)

    def _facts(self, prompt_tokens: int) -> PromptFacts:
        call, plan, params = self._work.call, self._work.plan, self._work.params
        return PromptFacts(
            prompt_tokens=prompt_tokens,
            room=self._room(),
            is_thinking=plan.thinking.on,
            budget=plan.thinking.budget,
            tools=call.tools,
            past=past_calls(call),
            is_plain=call.answer_format.kind == "text" and params.top_logprobs is None,
        )

    def _begin(self, ask: Ask) -> Leg:
        settings = self._backend.settings
        reader = ChatReader(
            frozenset(tool.name for tool in self._work.call.tools),
            one_a_delta=settings.tokens_per_delta == "one",
            is_closed=ask.is_closed,
        )
        leg = Leg(ask, reader, self._row(ask), is_measured=self._is_measured)
        self._legs.append(leg)
        self._stream = EventStream(
            self._place.client,
            self._backend,
            encoded(ask.body),
            sent="\n".join(prompt_texts(self._work)).encode(errors="replace"),
            total=self._total(),
            now=self._place.now,
        )
        return leg

    def _row(self, ask: Ask) -> Entry | None:
        """The row of a further request; the first one's is the client's."""
        if ask.kind == "first":
            return None
        row = self._entry.child(
            request_id=f"{self._entry.request_id}-{ask.kind}-{len(self._legs)}",
            ts_ms=int(self._place.wall() * 1000),
            arrived_s=self._place.now(),
            kind=ask.kind,
        )
        self._place.books.open(row)
        return row

    def _total(self) -> tuple[Clock, float] | None:
        """The clock over the whole answer that ends first, from its arrival on."""
        spent_s = self._place.now() - self._entry.arrived_s
        clocks: list[tuple[Clock, float]] = []
        if self._backend.settings.total_s:
            clocks.append(("total_s", self._backend.settings.total_s))
        if self._work.wait_s is not None:
            clocks.append(("client timeout", self._work.wait_s))
        if not clocks:
            return None
        name, limit_s = min(clocks, key=lambda clock: clock[1])
        return name, max(limit_s - spent_s, 0.001)

    def _take(self, leg: Leg, pieces: Sequence[Piece]) -> list[Event]:
        """What the client gets of these; what the monitor says to them ends the request."""
        events: list[Event] = []
        for piece in pieces:
            self._entry.saw_delta(self._place.now())
            if leg.ask.call_index is not None and piece.kind != "call":
                self._written.hidden_tokens += piece.tokens
                continue
            self._written.add(piece)
            phase = "answer" if piece.kind == "text" else piece.kind
            block = Block(phase, piece.text, piece.tokens, self._room())
            verdict = self._watching.block(block, self._state(leg))
            changed = verdict.text if isinstance(verdict, Continue) else None
            if (event := event_of(piece, piece.text if changed is None else changed)) is not None:
                events.append(event)
            if isinstance(verdict, (CloseReasoning, Stop)):
                leg.was_cut = True
                self._carry_out(verdict, was_whole=False)
                break
        return events

    def _carry_out(self, verdict: Verdict, *, was_whole: bool) -> None:
        """Notes what comes next; nothing where the answer goes on as it is."""
        flavor, written = self._backend.settings.flavor, self._written
        match verdict:
            case CloseReasoning(bridge, by):
                written.closed_by = CLOSED_BY.get(by, by)
                self._next = closing(self._body, flavor, written, bridge, was_whole=was_whole)
            case Inject(text):
                has_prefix = self._backend.can_go_on
                self._next = going_on(self._body, flavor, written, text, has_prefix=has_prefix)
            case Regenerate(index, spec, note):
                if index is None:
                    written.drop_calls()
                self._next = held_to(self._body, flavor, spec, note, index)
            case Stop():
                self._stop = verdict
            case _:
                return

    def _check_end(self, leg: Leg, stream: EventStream) -> None:
        """Raises: UpstreamBroken for an end that is none; ApiError for a fault it names."""
        finish = leg.reader.reading.finish
        if finish is None and not stream.is_done:
            fault = UpstreamBroken("it ended without a finish", before_answer=False)
            note_fault(self._backend, fault)
            raise fault
        self._written.end(finish)

    def _after(self, leg: Leg) -> Ask | None:
        """The next request, if there is one, once this one's answer is there."""
        if not leg.was_cut:
            if leg.ask.call_index is None:
                self._written.take_calls(leg.reader.calls)
            else:
                self._written.replace_call(leg.ask.call_index, leg.reader.calls)
            self._ask_at_end(leg)
        leg.end(self._place.now(), "succeeded")
        ask, self._next = self._next, None
        return ask

    def _ask_at_end(self, leg: Leg) -> None:
        written = self._written
        if written.calls:
            calls = Calls(written.made(), written.text)
            verdict = self._watching.calls(calls, self._state(leg))
            if isinstance(verdict, Continue) and verdict.calls is not None:
                written.correct(verdict.calls)
            self._carry_out(verdict, was_whole=True)
        if self._next is None and self._stop is None:
            end = written.as_end(is_thinking=leg.reader.is_thinking, room=self._room())
            verdict = self._watching.end(end, self._state(leg))
            if isinstance(verdict, Continue) and verdict.text is not None:
                written.tail = verdict.text
            self._carry_out(verdict, was_whole=True)

    def _after_fault(self, leg: Leg, stream: EventStream, fault: Exception) -> Ask | None:
        """The next request where one of ours was not taken. Raises: ApiError for all else."""
        error = fault if isinstance(fault, ApiError) else None
        if isinstance(fault, UpstreamFault):
            if leg.reader.reading.finish is not None and not leg.was_cut:
                self._written.end(leg.reader.reading.finish)  # all was said before it broke
                return self._after(leg)
            error = upstream_error(fault)
        assert error is not None
        leg.has_failed, leg.status = True, stream.status
        self._entry.upstream_status = self._legs[0].status or stream.status or None
        leg.end(self._place.now(), "failed", error.code)
        if leg.ask.kind == "first" or leg.reader.tokens:
            self._entry.error_type = getattr(fault, "clock", error.code)
            raise error from fault
        self._watching.note_refused(self._state(leg))
        was_refused = error.code == "provider_rejected_request"
        if was_refused and leg.ask.goes_on:
            self._backend.can_go_on = False
        if leg.ask.was_whole:
            return None
        if was_refused and leg.ask.goes_on and not self._written.text:
            return without_prefix(self._body, self._written)
        raise error from fault

    def _finished(self) -> Finished:
        written, stop = self._written, self._stop
        self.calls = len(written.calls)
        self._book()
        return Finished(
            reason=written.finish if stop is None else stop.finish,
            detail=written.detail,
            usage=usage_of(self._entry),
            timings=timings_of(self._entry, self._place.now()),
            thinking_closed_by=written.closed_by,
        )

    def _book(self) -> None:
        """Books every request of the answer, once."""
        self._is_booked = True
        if self._legs:
            book_legs(
                self._entry,
                self._legs,
                prompt_by_size=self.prompt_tokens or 0,
                note=self.note_tokens,
                hidden=self._written.hidden_tokens,
            )
            self.prompt_tokens = self._entry.upstream_input_tokens
        for leg in self._legs:
            if leg.row is not None:
                ended_s = self._place.now() if leg.ended_s is None else leg.ended_s
                leg.row.close(ended_s, outcome=leg.outcome, error_type=leg.error_type)
                self._place.books.close(leg.row)

    def _state(self, leg: Leg) -> State:
        written = self._written
        return State(
            at=written.shown_tokens + written.hidden_tokens,
            has_text=bool(written.text.strip()),
            has_calls=bool(written.calls or leg.reader.calls),
        )

    def _room(self) -> int:
        limits = [self._work.params.max_tokens, self._work.plan.cap]
        most = min((limit for limit in limits if limit is not None), default=MOST_ROOM)
        return max(most - self._written.shown_tokens, 0)
