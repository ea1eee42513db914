"""From the ids of an answer to what may be shown: text, reasoning, calls. Knows no run.

Token → characters → reasoning or answer → call or text → ended by a stop string. Each step holds
back only what it cannot judge yet.
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from secrets import token_hex

from proto.chat import Tool
from proto.messages import CallPart, Kind
from worker.text.call_output import Stream
from worker.text.detokenize import Detokenizer, StopSearch
from worker.text.reasoning import ReasoningForm, ReasoningText, Span
from worker.text.tool_calls import CallText


@dataclass(frozen=True, slots=True)
class AnswerSyntax:
    """How the answer of one request is to be read.

    `is_open`: the prompt leaves the reasoning open. `is_formed`: behind it a grammar is followed.
    `most_calls`: None where there is no limit. `takes_any_name`: a call of a tool that is not
    offered is one too, since a monitor will judge it.
    """

    stops: tuple[str, ...] = ()
    reasoning: ReasoningForm = ReasoningForm("none")
    is_open: bool = False
    is_thinking: bool = False
    is_formed: bool = False
    tools: tuple[Tool, ...] = ()
    tool_stream: Stream = "live"
    most_calls: int | None = None
    takes_any_name: bool = False


@dataclass(frozen=True, slots=True)
class Spoken:
    """What one token lets out: a piece of one kind, and steps of calls."""

    kind: Kind
    piece: str
    calls: tuple[CallPart, ...] = ()


class AnswerText:
    """Reads one answer. After a stop string nothing more comes (`is_stopped`)."""

    def __init__(
        self,
        token_bytes: Sequence[bytes | None],
        syntax: AnswerSyntax,
        new_id: Callable[[], str] = lambda: f"call_{token_hex(12)}",
    ) -> None:
        self.is_stopped = False
        self.last_raw = ""  # what the last token completed, as it was written
        self._closing = syntax.reasoning.close
        self._detokenizer = Detokenizer(token_bytes)
        self._reasoning = ReasoningText(
            syntax.reasoning,
            is_open=syntax.is_open,
            is_thinking=syntax.is_thinking,
            names=[tool.name for tool in syntax.tools],
            is_formed=syntax.is_formed,
        )
        self._calls = CallText(
            syntax.tools,
            stream=syntax.tool_stream,
            most_calls=syntax.most_calls,
            new_id=new_id,
            takes_any_name=syntax.takes_any_name,
        )
        self._search = StopSearch(syntax.stops)
        # A token shows one kind; what it lets out of another one waits for the next token.
        self._waiting: list[Span] = []

    @property
    def is_reasoning(self) -> bool:
        """Whether the next token still belongs to the reasoning."""
        return self._reasoning.is_open

    @property
    def closed_by(self) -> str | None:
        """What ended the reasoning: the model, a call, or nothing so far."""
        return self._reasoning.closed_by

    @property
    def reasoned_chars(self) -> int:
        """Of the text, from the start: reasoning, although nothing had opened any."""
        return self._reasoning.reasoned_chars

    @property
    def calls(self) -> int:
        """Calls that are complete."""
        return self._calls.calls

    @property
    def is_in_call(self) -> bool:
        """Whether a call has begun and is not complete."""
        return self._calls.is_in_call

    @property
    def cut_call(self) -> str:
        """Of a call that a limit cut: what of it is text at the answer's end."""
        return self._calls.cut_text

    @property
    def is_clean(self) -> bool:
        """Whether no call has begun, and nothing is held back that may begin one."""
        return self._reasoning.is_clean and self._calls.is_clean

    def push(self, token: int, number: int) -> Spoken:
        """Takes the token with this number of the run."""
        self.last_raw = self._detokenizer.push(token)
        return self._say(self._read(self.last_raw, number), number)

    def close_reasoning(self) -> None:
        """The closing marker was put in, and nobody wrote it."""
        for span in self._reasoning.push(self._closing):
            self._waiting.append(span)

    def finish(self, number: int, *, is_cut: bool) -> Spoken:
        """What was held back, at the end. `is_cut`: a limit ended the answer, not the model."""
        said = self._read(self._detokenizer.finish(), number)
        for span in self._reasoning.finish():
            said += self._read_span(span, number)
        if not self.is_stopped:
            said += self._read_parts(self._calls.finish(number, is_cut=is_cut))
        if not self.is_stopped:
            said.append(Span("text", self._search.finish()))
        waiting, self._waiting = self._waiting, []
        pieces = [*waiting, *(part for part in said if isinstance(part, Span))]
        calls = tuple(part for part in said if isinstance(part, CallPart))
        kinds = {span.kind for span in pieces if span.text}
        # Two kinds in the last token of all: nothing follows that the second could wait for.
        kind: Kind = "reasoning" if kinds == {"reasoning"} else "text"
        return Spoken(kind, "".join(span.text for span in pieces), calls)

    def _read(self, text: str, number: int) -> list[Span | CallPart]:
        said: list[Span | CallPart] = []
        for span in self._reasoning.push(text):
            said += self._read_span(span, number)
        return said

    def _read_span(self, span: Span, number: int) -> list[Span | CallPart]:
        if span.kind == "reasoning":
            return [span]
        return [] if self.is_stopped else self._read_parts(self._calls.push(span.text, number))

    def _read_parts(self, parts: Iterable[str | CallPart]) -> list[Span | CallPart]:
        """Text and steps of calls, up to a stop string in the text."""
        said: list[Span | CallPart] = []
        for part in parts:
            if isinstance(part, CallPart):
                said.append(part)
                continue
            released = self._search.push(part)
            said.append(Span("text", released.text))
            if released.is_stopped:
                self.is_stopped = True
                break
        return said

    def _say(self, said: list[Span | CallPart], number: int) -> Spoken:
        calls = tuple(part for part in said if isinstance(part, CallPart))
        spans = [*self._waiting, *(p for p in said if isinstance(p, Span) and p.text)]
        if not spans:
            return Spoken("call" if calls or self.is_in_call else self._kind(), "", calls)
        kind = spans[0].kind
        count = next((i for i, span in enumerate(spans) if span.kind != kind), len(spans))
        self._waiting = spans[count:]
        return Spoken(kind, "".join(span.text for span in spans[:count]), calls)

    def _kind(self) -> Kind:
        return "reasoning" if self.is_reasoning else "text"
