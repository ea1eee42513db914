"""The numbered tokens of one run: what they said, which of them went out, and which are held.

Knows no limit, no engine and no monitor. A token that is dropped before it went out never had a
number; what reads the text is then made again from those that are left.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from itertools import chain
from secrets import token_hex

from conductor.monitor.verdicts import Phase
from proto.deltas import HiddenTexts
from proto.events import Logprobs
from proto.messages import CallPart, Delta, Kind, MonitorEvent
from proto.plan import Segment
from worker.limits import HELD_TOKENS
from worker.text.answer import AnswerSyntax, AnswerText, Spoken


@dataclass(slots=True)
class Written:
    """A token of the answer, or one that was put in (`is_hidden`, `closes`: the reasoning).

    `raw`: the characters that it completed, as the model wrote them.
    """

    id: int
    said: Spoken
    phase: Phase
    raw: str = ""
    logprobs: Logprobs | None = None
    is_reasoning: bool = False
    is_end: bool = False
    is_hidden: bool = False
    closes: bool = False


class Output:
    """What a run has written. `first`: number of its first token. `log`: from that one on."""

    def __init__(
        self, run_id: str, first: int, token_bytes: Sequence[bytes | None], syntax: AnswerSyntax
    ) -> None:
        self.log: list[Written] = []
        self.reviewed = 0  # tokens that the monitor has seen
        self.sent = 0  # tokens that went out
        self.retry = 0  # how often something was written again
        self.holds_calls = False  # from where a call may begin until the answer's end
        self._held_from: int | None = None
        self._run_id, self._first = run_id, first
        self._token_bytes, self._syntax = token_bytes, syntax
        self._call_ids: list[str] = []
        self._ids_used = 0
        self.text = AnswerText(token_bytes, syntax, self.new_id)

    @property
    def number(self) -> int:
        """Of the next token."""
        return self._first + len(self.log)

    @property
    def held(self) -> int:
        """Tokens that wait for the end of the answer's calls."""
        return 0 if self._held_from is None else len(self.log) - self._held_from

    @property
    def has_unsent(self) -> bool:
        """Whether tokens were written that did not go out yet."""
        return self.sent < len(self.log)

    def write(self, token: int, *, is_end: bool) -> Written:
        """Reads a token of the model's."""
        text, was_reasoning, was_in_call = self.text, self.text.is_reasoning, self.text.is_in_call
        said = Spoken("text", "") if is_end else text.push(token, self.number)
        is_reasoning = was_reasoning or text.is_reasoning
        phase: Phase = "reasoning" if is_reasoning else "answer"
        if not is_reasoning and (was_in_call or text.is_in_call or said.calls):
            phase = "call"
        raw = "" if is_end else text.last_raw
        written = Written(
            token, said, phase, raw, is_reasoning=is_reasoning, is_end=is_end
        )  # fmt: skip
        if self.holds_calls and not is_end:
            self._hold(is_possible=phase != "reasoning" and not text.is_clean)
        self.log.append(written)
        return written

    def put_in(self, ids: Sequence[int], text: str, kind: Kind, *, closes: bool) -> None:
        """Notes tokens that nobody chose. `text`: what a later turn must bring again of them."""
        if closes:
            self.text.close_reasoning()
        phase: Phase = "reasoning" if kind == "reasoning" else "answer"
        for place, token in enumerate(ids):
            said = Spoken(kind, "" if place else text)
            closing = closes and place == 0
            self.log.append(Written(token, said, phase, is_hidden=True, closes=closing))

    def rewind(self, length: int) -> list[Written]:
        """Drops all but the first `length` tokens, none of which went out; returns them."""
        assert length >= self.sent, "what went out cannot be written again"
        dropped = self.log[length:]
        del self.log[length:]
        self.reviewed = min(self.reviewed, length)
        if self._held_from is not None and self._held_from >= length:
            self._held_from = None
        self._ids_used = 0
        self.text = AnswerText(self._token_bytes, self._syntax, self.new_id)
        for place, written in enumerate(self.log):
            if written.closes:
                self.text.close_reasoning()
            if not written.is_hidden:
                self.text.push(written.id, self._first + place)
        return dropped

    def release(
        self, events: Iterable[MonitorEvent] = (), *, is_over: bool = False
    ) -> Delta | None:
        """What goes out of it now; None for nothing. At the end nothing is held any more."""
        upto = len(self.log) if is_over or self._held_from is None else self._held_from
        tokens, first = self.log[self.sent : upto], self._first + self.sent
        if not tokens:
            return None
        self.sent = upto
        calls = tuple(chain.from_iterable(token.said.calls for token in tokens))
        logprobs = tuple(token.logprobs for token in tokens if token.logprobs is not None)
        told = tuple(replace(event, at=max(event.at, first)) for event in events)
        return Delta(
            self._run_id,
            first,
            tuple(token.id for token in tokens),
            tuple(token.said.piece for token in tokens),
            tuple(token.said.kind for token in tokens),
            tuple(token.is_hidden for token in tokens),
            calls=calls or None,
            events=told or None,
            retry=self.retry or None,
            logprobs=logprobs or None,
        )

    def hidden_segments(self, message: int) -> tuple[Segment, ...]:
        """The hidden text in the answer, as the next turn has it in this message."""
        texts = HiddenTexts()
        for one in self.log:
            texts.see(one.said.piece, one.said.kind, is_hidden=one.is_hidden)
        return tuple(
            Segment(f"answer-{n}", "hidden", message, one.text, one.part, one.offset)
            for n, one in enumerate(texts.found)
        )

    def parts(self) -> dict[int, list[tuple[int, CallPart]]]:
        """The parts of each call, and which token brought them."""
        found: dict[int, list[tuple[int, CallPart]]] = {}
        for place, written in enumerate(self.log):
            for part in written.said.calls:
                found.setdefault(part.index, []).append((place, part))
        return found

    def call_start(self, index: int) -> int | None:
        """At which token a call began that did not go out; None where there is none."""
        start = self._held_from
        if start is None:
            return None
        raw, marker = "", -1
        offsets = []
        for written in self.log[start:]:
            offsets.append(len(raw))
            raw += written.raw
        for _ in range(index + 1):
            marker = raw.find("<tool_call>", marker + 1)
            if marker < 0:
                return start if index == 0 else None
        return start + max(n for n, offset in enumerate(offsets) if offset <= marker)

    def let_go(self) -> None:
        """Holds no calls from now on."""
        self._held_from, self.holds_calls = None, False

    def _hold(self, *, is_possible: bool) -> None:
        if self._held_from is None:
            self._held_from = len(self.log) if is_possible else None
        elif self.held >= HELD_TOKENS:
            self.let_go()
        elif not (is_possible or self.text.calls):
            self._held_from = None

    def new_id(self) -> str:
        """The id of the next call: the one that it had, where it is read again."""
        if self._ids_used == len(self._call_ids):
            self._call_ids.append(f"call_{token_hex(12)}")
        self._ids_used += 1
        return self._call_ids[self._ids_used - 1]
