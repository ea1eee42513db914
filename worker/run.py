"""One generation while it lives: its limits, its answer's text, its record. Knows no device.

One owner, the loop. What crosses to other threads is frozen (`types`).
"""

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal, Protocol

from proto.events import FinishReason, Logprobs, TokenLogprob
from proto.messages import Delta, Kind, MonitorEvent
from worker.grammar.closing import FormCloser
from worker.grammar.matcher import GrammarFault, Matcher
from worker.limits import HELD_TOKENS
from worker.output import Output
from worker.record import Kind as AnswerKind
from worker.record import RunRecord
from worker.sampling.chooser import Chooser, Chosen
from worker.state.ask import Ask
from worker.state.slot import FrozenSlot, Slot
from worker.text.answer import AnswerText, Spoken
from worker.types import Ending, Prepared

NOTE_LOST: tuple[str, Literal["act"], str] = "note", "act", "lost"  # task, mode and reason


@dataclass(frozen=True, slots=True)
class RunLimits:
    """What bounds a run. `default_max_tokens` when the client names none; seconds of a lane."""

    max_len: int
    default_max_tokens: int
    wall_clock_s: float


@dataclass(frozen=True, slots=True)
class Vocabulary:
    """What a run needs to know of the tokens. `token_bytes`: of each id."""

    token_bytes: Sequence[bytes | None]
    end_ids: frozenset[int]
    closer: FormCloser


@dataclass(frozen=True, slots=True)
class PutIn:
    """Tokens that nobody chose and nobody is shown.

    `text`: what a later turn must bring again of them. `closed_by`: who ends the reasoning with
    them. `begins_form`: the answer's form begins behind them.
    """

    ids: tuple[int, ...]
    text: str = ""
    closed_by: str | None = None
    begins_form: bool = False


class Host(Protocol):
    """What holds the run's monitor (`watch.Watched`)."""

    def horizon(self) -> int:
        """Tokens that may be written before the monitor is asked again; at least 1."""
        ...


class Run:
    """A run from the queue to its end."""

    def __init__(
        self,
        prepared: Prepared,
        limits: RunLimits,
        vocabulary: Vocabulary,
    ) -> None:
        submit = prepared.arrival.submit
        self.prepared = prepared
        self.said: list[Delta] | None = None  # what went out, where a next turn is likely
        self.id = submit.run_id
        self.band = submit.plan.band
        self.lane = submit.plan.lane
        self.prompt = prepared.prompt
        self.prompt_hash = prepared.prompt_hash
        self.cuts = prepared.cuts
        # Whose caches it may read and leave something in.
        self.salt = submit.cache_salt if submit.params.cache_prompt else None
        self.choices = submit.choices
        # Runs of one prompt that a client asked for together read it once.
        self.prompt_key = (submit.cache_salt, submit.seed, prepared.prompt_hash)
        self.allowed = submit.start_token - 1 + submit.credit  # the last number it may release
        self.out = Output(self.id, submit.start_token, vocabulary.token_bytes, prepared.syntax)
        self.host: Host | None = None  # of its monitor, where it has one
        self.chooser = Chooser(
            prepared.sampling,
            prepared.prompt,
            number=submit.start_token,
            matcher=prepared.matcher,
            is_free=prepared.syntax.is_open,
            choices=prepared.choices,
        )
        self.record = RunRecord(
            self.id,
            prepared.arrival.arrived_s,
            kind_of(prepared),
            prompt_tokens=len(prepared.prompt),
            notes=prepared.notes,
        )
        self.slot: Slot | None = None
        self.aside: FrozenSlot | None = None  # its state, while another run has its slot
        self.is_starved = False  # it found no memory to grow, and waits for another one's end
        self.waits_since_s: float | None = None  # for memory, before it starts
        self.shared: Any = None  # the state of its prompt, where another run has read it
        self.told_s = prepared.arrival.arrived_s  # when it last heard of its place or progress
        self.wish: Ending | None = None  # an end asked for from outside
        self.ending: Ending | None = None  # the end that its last token brought
        # What the gateway is to write into its journal, with the next tokens.
        self.events = [MonitorEvent(self.number, *NOTE_LOST) for _ in prepared.notes.lost]
        self.is_thinking = prepared.syntax.is_thinking
        self.thinking_closed_by: str | None = None
        self.budget = submit.plan.thinking.budget
        self.closing = prepared.closing
        self.due: PutIn | None = None  # before the next token is chosen
        self._calls_under_form: int | None = None  # behind the next one the answer is free again
        self._end_of_form: deque[int] | None = None  # completes a form that is cut at a cap
        self._vocabulary = vocabulary
        self._room = limits.max_len - len(self.prompt)
        self._cap = submit.plan.cap
        wanted = submit.params.max_tokens or limits.default_max_tokens
        self._wanted = min(wanted, self._cap or wanted)
        self._wall_clock_s = limits.wall_clock_s
        self._deadline_s = submit.deadline_ms / 1000 if submit.deadline_ms > 0 else None

    def ask(self, *, is_side: bool) -> Ask:
        """What it needs a slot for."""
        return Ask(
            self.prompt,
            self.chooser,
            self.cuts,
            self.salt,
            self.max_tokens,
            is_side=is_side,
            is_shared=self.shared is not None,
        )

    @property
    def max_tokens(self) -> int:
        """Tokens it may write: what was asked for, clamped to the room."""
        return min(self._wanted, self._room)

    @property
    def is_reading(self) -> bool:
        """Whether part of its prompt is still to be forwarded."""
        return self.slot is not None and self.slot.kv_len < len(self.prompt)

    @property
    def is_parked(self) -> bool:
        """Whether it decodes but has no credit for the next token, or no memory."""
        has_state = self.slot is not None or self.aside is not None
        is_held_up = self.number - self.out.held > self.allowed or self.is_starved
        return has_state and not self.is_reading and is_held_up

    @property
    def margin(self) -> float | None:
        """How clearly the choice was made, where the answer is one of a list."""
        return self.chooser.margin

    @property
    def number(self) -> int:
        """Of its next token."""
        return self.out.number

    @property
    def text(self) -> AnswerText:
        """What reads its answer."""
        return self.out.text

    @property
    def hidden_due(self) -> PutIn | None:
        """What is to be put in before the next token is chosen."""
        if self.is_reading or self.slot is None:
            return None
        is_watched = self.budget is not None and self.due is None and self.text.is_reasoning
        if is_watched and self.record.reasoning_tokens >= (self.budget or 0):
            return PutIn(self.closing.whole, closed_by="budget", begins_form=True)
        return self.due

    # What a token brings.

    def take(self, chosen: Chosen, now_s: float) -> bool:
        """Reads a chosen token; whether the next one may be chosen right behind it."""
        before = self.out.log[-1].phase if self.out.log else None
        was_reasoning = self.text.is_reasoning
        is_end = chosen.token in self._vocabulary.end_ids
        written = self.out.write(chosen.token, is_end=is_end)
        self.record.count_token(now_s, is_reasoning=written.is_reasoning)
        if was_reasoning and not self.text.is_reasoning:
            self.thinking_closed_by = self.text.closed_by
            self._begin_form(self.closing.blank if self.text.closed_by == "model" else ())
        if self._calls_under_form is not None and self.text.calls > self._calls_under_form:
            self.follow(None)
        self.ending = self._ending(is_end=is_end, now_s=now_s)
        if self.ending is not None:
            written.said, self.ending = self._finish(written.said, self.ending, is_end=is_end)
        if chosen.logprob is not None and not is_end:
            written.logprobs = self._logprobs(chosen)
        # A monitor is asked at each change, so that no cut of a round shows in what it decides.
        is_seam = self.host is not None and before not in (None, written.phase)
        # Where credit, context or a cap ends no round goes further (`most_next`).
        return self.ending is None and not self.hidden_due and not is_seam

    def follow(self, matcher: Matcher | None, *, is_one_call: bool = False) -> None:
        """Goes on under this grammar, or freely. `is_one_call`: until one more call is complete."""
        self.chooser.follow(matcher, retry=self.out.retry)
        self._calls_under_form = self.text.calls if is_one_call and matcher else None

    def complete(self, path: Sequence[int]) -> None:
        """Ends the answer by these tokens, which complete what was begun."""
        self._end_of_form = deque(path)

    def stop(self, finish: FinishReason) -> None:
        """The monitor ends it here; what was held back goes out."""
        if self.ending is None and self.out.log:
            last = self.out.log[-1]
            last.said, _ = self._finish(last.said, Ending("length", "monitor"), is_end=False)
        self.ending = Ending(finish, "monitor")

    def drop(self, length: int) -> None:
        """All but the first `length` tokens were not written after all."""
        dropped = self.out.rewind(length)
        record, chosen = self.record, [one for one in dropped if not one.is_hidden]
        self.chooser.rewind(len(dropped), [one.id for one in chosen])
        record.completion_tokens -= len(chosen)
        record.reasoning_tokens -= sum(one.is_reasoning for one in chosen)
        record.hidden_tokens -= len(dropped) - len(chosen)
        record.discarded_tokens += len(dropped)
        self.ending = self.due = None

    def release(self, *, is_over: bool = False) -> Delta | None:
        """What goes out now of the tokens that were taken; None for nothing."""
        is_over = is_over or self.ending is not None
        delta = self.out.release(self.events, is_over=is_over)
        if delta is not None:
            self.events = []
            if self.said is not None:
                self.said.append(delta)
        return delta

    def take_hidden(self, put_in: PutIn) -> None:
        """Notes tokens that were put in, and that the client never sees."""
        closes = put_in.closed_by is not None and self.text.is_reasoning
        if closes:
            self.thinking_closed_by = put_in.closed_by
        is_reasoning = closes or put_in.begins_form or self.text.is_reasoning
        kind: Kind = "reasoning" if is_reasoning else "text"
        self.out.put_in(put_in.ids, put_in.text, kind, closes=closes)
        self.due = None
        if put_in.begins_form:
            self._begin_form(())
        self.record.hidden_tokens += len(put_in.ids)

    def next_of_end(self) -> Chosen | None:
        """The next token that completes a form which met its cap; None elsewhere."""
        return Chosen(self._end_of_form.popleft()) if self._end_of_form else None

    def _begin_form(self, blank: tuple[int, ...]) -> None:
        """Behind the reasoning the answer's form begins, once the template's blank is there."""
        if blank and self.chooser.is_free and self.chooser.matcher:
            self.due = PutIn(blank, begins_form=True)
        self.chooser.is_free = False

    def _ending(self, *, is_end: bool, now_s: float) -> Ending | None:
        if self.text.is_stopped:
            return Ending("stop", "stop_string")
        if is_end:
            return Ending("stop", "eos")
        if self._end_of_form is not None:
            return None if self._end_of_form else Ending("stop", "schema")
        ending = self.ending_by_length() or self.ending_by_clock(now_s)
        if ending is not None and ending.detail == "max_tokens" and self._wanted == self._cap:
            return self._complete_form(ending)
        return ending

    def _complete_form(self, ending: Ending) -> Ending | None:
        """At a cap of ours a form is completed, where a short way is found."""
        matcher = self.chooser.matcher
        if matcher is None or self.chooser.is_free:
            return ending
        try:
            path = self._vocabulary.closer.find(matcher)
        except GrammarFault:  # the library gives up at this place: cut like any other text
            path = None
        if path is None:
            return ending
        self._end_of_form = deque(path)
        return None if path else Ending("stop", "schema")

    def _finish(self, said: Spoken, ending: Ending, *, is_end: bool) -> tuple[Spoken, Ending]:
        """The last token also lets out what was held back, and may thereby meet a stop string."""
        tail = self.text.finish(self.number, is_cut=not is_end)
        # Reasoning and text in one last token: what is to be read must not pass for reasoning.
        kinds = {part.kind for part in (said, tail) if part.piece}
        kind: Kind = "text" if "text" in kinds or not kinds else kinds.pop()
        said = Spoken(kind, said.piece + tail.piece, said.calls + tail.calls)
        if self.text.is_stopped:
            ending = Ending("stop", "stop_string")
        if ending.finish == "stop" and self.text.calls:
            ending = replace(ending, finish="tool_calls")
        return said, ending

    def _logprobs(self, chosen: Chosen) -> Logprobs:
        assert chosen.logprob is not None
        shown = ((chosen.token, chosen.logprob), *chosen.top)
        spelled = self._vocabulary.token_bytes
        first, *others = (
            TokenLogprob(token, (spelled[token] or b"").decode(errors="replace"), value)
            for token, value in shown
        )
        return Logprobs(first, tuple(others))

    # Its ends.

    @property
    def most_next(self) -> int:
        """Tokens that it may write in one round, by all its limits; not parked, at least one."""
        unasked = self._wanted - self.record.completion_tokens
        # What is held is not sent, so that it needs no credit yet.
        credit = HELD_TOKENS if self.out.held else self.allowed - self.number + 1
        horizon = unasked if self.host is None else self.host.horizon()
        return max(1, min(unasked, self.room_left(), credit, horizon))

    @property
    def tokens_left(self) -> int:
        """Tokens that it may still write by all its limits but credit."""
        return max(0, min(self._wanted - self.record.completion_tokens, self.room_left()))

    def room_left(self) -> int:
        """Tokens that still fit into the context."""
        return self._room - self.record.completion_tokens - self.record.hidden_tokens

    def ending_by_length(self) -> Ending | None:
        """The end that its written tokens bring, if any."""
        if self.record.completion_tokens >= self._wanted:
            return Ending("length", "max_tokens")
        return Ending("length", "context") if self.room_left() <= 0 else None

    def ending_by_clock(self, now_s: float) -> Ending | None:
        """The end that its deadline or the wall clock brings, if any."""
        arrived, admitted = self.record.arrived_s, self.record.admitted_s
        is_late = self._deadline_s is not None and now_s - arrived >= self._deadline_s
        if admitted is not None:
            is_late = is_late or now_s - admitted >= self._wall_clock_s
        return Ending("length", "wall_clock") if is_late else None


def kind_of(prepared: Prepared) -> AnswerKind:
    """What decides most how long its answer will be."""
    if prepared.syntax.is_thinking:
        return "thinking"
    call = prepared.arrival.submit.call
    if call.tools and call.tool_choice.mode != "none":
        return "tools"
    return "plain" if prepared.matcher is None else "form"
