"""Reasoning and answer apart, as the text comes. Knows no run, no budget and no surface.

Markers and the blank lines around them belong to neither. What comes out depends on the
characters, never on how they were cut into pieces.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal

from worker.text.answer_lines import AnswerLines
from worker.text.call_syntax import CALL, held_length
from worker.text.json_call import JsonCall
from worker.text.json_copy import BLANKS

_FUNCTION = "<function"


@dataclass(frozen=True, slots=True)
class ReasoningForm:
    """How a family writes its reasoning: not at all, all of it, or behind the prompt's `open`."""

    opens: Literal["none", "model", "prompt"]
    open: str = "<think>"
    close: str = "</think>"


@dataclass(frozen=True, slots=True)
class Span:
    """Text of one kind."""

    kind: Literal["reasoning", "text"]
    text: str


ClosedBy = Literal["model", "call"]

# opening: an `open` may come; closed: blanks and a second `close` may come.
_Where = Literal["opening", "reasoning", "call", "closed", "answer"]


class ReasoningText:
    """Splits the text of an answer. Held back is only what may begin a marker.

    `is_open`: the prompt ends inside a block. `names`: of the offered tools; a call of one ends
    the block, unless the answer has a form (`is_formed`), which begins behind the marker alone.
    """

    def __init__(
        self,
        form: ReasoningForm,
        *,
        is_open: bool,
        is_thinking: bool,
        names: Iterable[str],
        is_formed: bool = False,
    ) -> None:
        self._form = form
        self._names = frozenset(names)
        self._markers = (form.close, CALL) if self._names and not is_formed else (form.close,)
        self._closed_by: ClosedBy | None = None
        self._where: _Where = "answer"
        if is_open:
            self._where = "reasoning"
        elif is_thinking and form.opens == "model":
            self._where = "opening"
        self._held = ""
        self._has_reasoning = False  # some went out, so that blank lines are no leading ones
        self.reasoned_chars = 0  # of the text: it was reasoning, as a close marker behind it says
        self._text_chars = 0
        self._call = _PossibleCall("", form.close, self._names)
        self._answer = AnswerLines(form.close, has_tools=bool(self._names))
        self._out: list[Span] = []

    @property
    def is_open(self) -> bool:
        """Whether the block is open: a token read while it is counts as reasoning."""
        return self._where in ("reasoning", "call")

    @property
    def is_clean(self) -> bool:
        """Whether nothing is held back but blanks."""
        return not (self._held.strip() or self._answer.is_holding)

    @property
    def closed_by(self) -> ClosedBy | None:
        """What ended the block; None when it is open or there was none."""
        return self._closed_by

    def push(self, piece: str) -> list[Span]:
        """Takes a piece of the answer; returns what became certain, in order."""
        if self._form.opens == "none":
            return [Span("text", piece)] if piece else []
        rest = piece
        while rest:
            match self._where:
                case "opening":
                    rest = self._read_opening(rest)
                case "reasoning":
                    rest = self._read_reasoning(rest)
                case "call":
                    rest = self._read_call(rest)
                case "closed":
                    rest = self._read_closed(rest)
                case "answer":
                    rest = self._read_answer(rest)
        return self._take()

    def finish(self) -> list[Span]:
        """What was held back, at the end of the answer. A block left open stays reasoning."""
        match self._where:
            case "reasoning":
                self._reason(self._held)
            case "call":
                self._reason(self._call.raw)
                self._where = "reasoning"
            case "opening":
                self._say(self._held)
            case "closed":
                self._say(_without_blank_lines(self._held))
            case "answer":
                self._say(self._answer.finish())
        self._held = ""
        return self._take()

    def _read_opening(self, piece: str) -> str:
        text = self._held + piece
        begun = text.lstrip()
        self._held = ""
        if begun.startswith(self._form.open):
            self._where = "reasoning"
            return begun[len(self._form.open) :]
        if begun.startswith(self._form.close):
            return self._close("model", begun[len(self._form.close) :])
        if self._form.open.startswith(begun) or self._form.close.startswith(begun):
            self._held = text
            return ""
        self._where = "answer"
        return text

    def _read_reasoning(self, piece: str) -> str:
        text = self._held + piece
        found = [(at, marker) for marker in self._markers if (at := text.find(marker)) >= 0]
        end, marker = min(found, default=(len(text) - held_length(text, *self._markers), ""))
        blank = self._blank_before(text[:end])
        self._reason(text[:blank])
        self._held = ""
        behind = end + len(marker)
        if not marker:
            self._held = text[blank:]
            return ""
        if marker != CALL:
            return self._close("model", text[behind:])
        self._call = _PossibleCall(text[blank:behind], self._form.close, self._names)
        self._where = "call"
        return text[behind:]

    def _read_call(self, piece: str) -> str:
        behind = self._call.read(piece)
        match self._call.outcome:
            case "closed":
                reasoning = self._call.raw.removesuffix(self._form.close)
                self._reason(reasoning[: self._blank_before(reasoning)])
                return self._close("model", piece[behind:])
            case "call":
                self._closed_by, self._where = "call", "answer"
                return self._call.raw.lstrip() + piece[behind:]
            case "none":
                self._reason(self._call.raw)
                self._where = "reasoning"
                return self._call.unread + piece[behind:]
        return ""

    def _read_closed(self, piece: str) -> str:
        text = self._held + piece
        begun = text.lstrip()
        self._held = ""
        if begun.startswith(self._form.close):
            return begun[len(self._form.close) :]
        if self._form.close.startswith(begun):
            self._held = text
            return ""
        self._where = "answer"
        return _without_blank_lines(text)

    def _read_answer(self, piece: str) -> str:
        text, rest = self._answer.read(piece)
        self._say(text)
        if rest is None:
            return ""
        if self._closed_by is None and not self._answer.has_call:
            self.reasoned_chars = self.reasoned_chars or self._text_chars
        self._where = "closed"
        return rest

    def _close(self, by: ClosedBy, rest: str) -> str:
        self._closed_by, self._where = by, "closed"
        return rest

    def _blank_before(self, text: str) -> int:
        """Where the blank lines begin that are dropped if a marker follows `text`."""
        visible = len(text.rstrip())
        if not visible and not self._has_reasoning:
            return 0
        newline = text.find("\n", visible)
        return newline if newline >= 0 else len(text)

    def _reason(self, text: str) -> None:
        if not self._has_reasoning:
            text = _without_blank_lines(text)
        if text:
            self._has_reasoning = True
            self._add(Span("reasoning", text))

    def _say(self, text: str) -> None:
        if text:
            self._text_chars += len(text)
            self._add(Span("text", text))

    def _add(self, span: Span) -> None:
        if self._out and self._out[-1].kind == span.kind:
            span = Span(span.kind, self._out.pop().text + span.text)
        self._out.append(span)

    def _take(self) -> list[Span]:
        out, self._out = self._out, []
        return out


class _PossibleCall:
    """Text from a call's marker inside reasoning, until it is known what it is.

    A function's tag or a JSON object with a known name makes it a call; `close` before either
    ends the block in the middle of it.
    """

    def __init__(self, begun: str, close: str, names: frozenset[str]) -> None:
        self.outcome: Literal["reading", "call", "closed", "none"] = "reading"
        self.unread = ""  # what `none` leaves, of earlier pieces too; not part of `raw`
        self._close = close
        self._read: list[str] = [begun]
        self._tail = ""
        self._tag = ""
        self._names = names
        self._json: JsonCall | None = None

    @property
    def raw(self) -> str:
        """What was read, as written."""
        return "".join(self._read).removesuffix(self.unread)

    def read(self, text: str) -> int:
        """Reads on; returns where the first character not read stands."""
        for at, char in enumerate(text):
            self._read.append(char)
            self._tail = (self._tail + char)[-len(self._close) :]
            if self._tail == self._close:
                self.outcome = "closed"
            elif self._json is not None:
                self._read_json(self._json, char)
            else:
                self._read_tag(char)
            if self.outcome != "reading":
                return at + 1
        return len(text)

    def _read_json(self, call: JsonCall, char: str) -> None:
        is_read = call.read(char, 0) > 0
        if call.name is not None:
            self.outcome = "call"
        elif call.outcome == "failed":
            self.outcome = "none"
            self.unread = call.unread + ("" if is_read else char)

    def _read_tag(self, char: str) -> None:
        self._tag += char
        if self._tag == "{":
            self._json = JsonCall(self._names)
        elif self._tag in BLANKS:
            self._tag = ""
        elif self._tag == _FUNCTION:
            self.outcome = "call"
        elif not _FUNCTION.startswith(self._tag):
            self.outcome, self.unread = "none", self._tag


def _without_blank_lines(text: str) -> str:
    """`text` from its first line that is not blank on; "" when there is none."""
    begun = text.lstrip()
    return text[text.rfind("\n", 0, len(text) - len(begun)) + 1 :] if begun else ""
