"""The requests that one answer took, and what they come to in the ledger. Knows no socket.

The first is the client's own row; each further one is a row below it. What the client sees counts
once, whichever of them wrote it.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from gateway.backends.answer_form import Body
from gateway.backends.chat_reader import ChatReader
from gateway.ledger.entry import Entry, Outcome, UsageSource
from proto.events import Timings, Usage
from proto.plan import HiddenText


@dataclass(frozen=True, slots=True)
class Ask:
    """One request to a backend.

    `is_closed`: reasoning is over in it. `call_index`: it is made for that call alone, and the
    rest of what it says is thrown away. `prefix_tokens`: of its prompt, beside the first one's.
    `goes_on`: it does so from a prefix. `was_whole`: without it the answer stands as it is.
    `hidden`: what it puts into the answer.
    """

    body: Body
    kind: Literal["first", "continuation", "regeneration"] = "first"
    is_closed: bool = False
    call_index: int | None = None
    prefix_tokens: int = 0
    goes_on: bool = False
    was_whole: bool = False
    hidden: HiddenText | None = None


@dataclass(slots=True)
class Leg:
    """A request and its answer. `row` None: it is the client's own.

    `was_cut`: we hung up. `is_measured`: the server says usage beside every delta.
    """

    ask: Ask
    reader: ChatReader
    row: Entry | None = None
    status: int = 0
    was_cut: bool = False
    has_failed: bool = False
    is_measured: bool = False
    ended_s: float | None = None
    outcome: Outcome = "aborted"
    error_type: str | None = None

    @property
    def is_counted(self) -> bool:
        """Whether the server's counts are those of what it wrote."""
        is_whole = self.is_measured or not (self.was_cut or self.has_failed)
        return self.reader.reading.has_usage and is_whole

    @property
    def output(self) -> int | None:
        """Tokens it wrote; None for none that anybody knows of."""
        said = self.reader.reading.tokens.output if self.is_counted else None
        return said if said is not None else self.reader.tokens or None

    def end(self, at_s: float, outcome: Outcome, error_type: str | None = None) -> None:
        """It is over; what it took is booked when the whole answer is."""
        if self.row is not None and self.ended_s is None:
            self.ended_s, self.outcome, self.error_type = at_s, outcome, error_type

    def book(self, row: Entry, prompt_estimate: int) -> None:
        """Books this request's own tokens."""
        tokens, source = self.reader.reading.tokens, self._source()
        row.upstream_status = self.status or None
        row.served_model = self.reader.reading.model
        if source == "none":
            return
        prompt = tokens.prompt if self.is_counted else None
        row.book_usage(
            prompt=prompt_estimate if prompt is None else prompt,
            completion=self.output or 0,
            cached=tokens.cached,
            cache_write=tokens.cache_write,
            reasoning=tokens.reasoning if self.is_counted else None,
            source=source,
        )
        if self.reader.reading.cost is not None:
            row.book_cost(self.reader.reading.cost)

    def _source(self) -> UsageSource:
        tokens = self.reader.reading.tokens
        if self.is_counted and tokens.prompt is not None and tokens.output is not None:
            return "backend"
        return "estimated" if self.is_counted or self.reader.tokens else "none"


def book_legs(
    entry: Entry, legs: Sequence[Leg], *, prompt_by_size: int, note: int, hidden: int
) -> None:
    """Books a whole answer: the first request's own tokens, and what the client sees of all.

    `prompt_by_size`: of the first prompt, by its size. `note`, `hidden`: estimates.
    """
    prompt = _prompt_of(legs, prompt_by_size)
    legs[0].book(entry, prompt)
    rows = []
    for leg in legs[1:]:
        assert leg.row is not None
        leg.book(leg.row, prompt + leg.ask.prefix_tokens)
        rows.append(leg.row)
    if entry.usage_source == "none":
        return
    if any(row.usage_source != "backend" for row in rows):
        entry.usage_source = "estimated"
    entry.book_hidden(note=note, hidden=hidden, is_estimated=bool(note or hidden), children=rows)


def hidden_in(legs: Sequence[Leg]) -> list[HiddenText]:
    """What was put into an answer by its further requests that were taken."""
    given = [leg.ask.hidden for leg in legs if not leg.has_failed]
    return [one for one in given if one is not None and one.text]


def _prompt_of(legs: Sequence[Leg], by_size: int) -> int:
    """Tokens of the first prompt: as some server said, less what was put behind it for a later
    request, else by its size."""
    for leg in legs:
        said = leg.reader.reading.tokens.prompt
        if said is not None and leg.is_counted:
            return max(said - leg.ask.prefix_tokens, 0)
    return by_size


def usage_of(entry: Entry) -> Usage:
    """What a row says, as the client is shown it; what nobody knows is 0 there."""
    return Usage(
        prompt_tokens=entry.prompt_tokens or 0,
        completion_tokens=entry.completion_tokens or 0,
        cached_tokens=entry.cached_tokens or 0,
        reasoning_tokens=entry.reasoning_tokens or 0,
        note_tokens=entry.note_tokens or 0,
        hidden_tokens=entry.hidden_tokens or 0,
        upstream_input_tokens=entry.upstream_input_tokens or 0,
        upstream_cached_tokens=entry.upstream_cached_tokens or 0,
        upstream_cache_write_tokens=entry.upstream_cache_write_tokens or 0,
        upstream_output_tokens=entry.upstream_output_tokens or 0,
        upstream_reasoning_tokens=entry.upstream_reasoning_tokens or 0,
    )


def timings_of(entry: Entry, now_s: float) -> Timings:
    """The times of an answer, as they look from here."""
    first_s = now_s if entry.first_delta_s is None else entry.first_delta_s
    last_s = first_s if entry.last_delta_s is None else entry.last_delta_s
    prompt_ms = (first_s - entry.arrived_s) * 1000
    return Timings(
        prompt_ms=prompt_ms,
        ttft_ms=prompt_ms,
        decode_ms=(last_s - first_s) * 1000,
        total_ms=(now_s - entry.arrived_s) * 1000,
        forwarded_tokens=max((entry.prompt_tokens or 0) - (entry.cached_tokens or 0), 0),
    )
