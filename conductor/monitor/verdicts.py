"""What a host tells the monitor of a run, and what it may answer. Knows no host and no task.

One object watches one run. It is synchronous and sees text and counts, never a token's id.
"""

from dataclasses import dataclass
from typing import Literal, Protocol

from proto.chat import AnswerFormat, Json, Tool

Phase = Literal["reasoning", "answer", "call"]
Finish = Literal["stop", "length", "tool_calls"]


@dataclass(frozen=True, slots=True)
class PastCall:
    """A call of an earlier turn, and the text of its result where there is one."""

    name: str
    arguments: str
    result: str | None = None


@dataclass(frozen=True, slots=True)
class PromptFacts:
    """What is known before anything is forwarded.

    `room`: tokens that the context leaves. `budget`: tokens of reasoning, None without one.
    `past`: calls of the conversation, oldest first. `may_regenerate`: the host can roll back.
    `is_plain`: one answer, unconstrained, without log-probabilities; elsewhere only the tasks that
    watch the reasoning act.
    """

    prompt_tokens: int
    room: int
    is_thinking: bool
    budget: int | None = None
    tools: tuple[Tool, ...] = ()
    past: tuple[PastCall, ...] = ()
    is_plain: bool = True
    may_regenerate: bool = True


@dataclass(frozen=True, slots=True)
class Block:
    """Committed tokens of one phase, in the order they were written.

    `text`: what they let out, as the model wrote it; `tokens`: how many they are; `room`: tokens
    left to the run. A block never spans two phases.
    """

    phase: Phase
    text: str
    tokens: int
    room: int


@dataclass(frozen=True, slots=True)
class MadeCall:
    """A call of this answer. `arguments`: the text as written. `is_sent`: the client has it."""

    index: int
    name: str
    arguments: str
    is_sent: bool = False


@dataclass(frozen=True, slots=True)
class Calls:
    """All calls of the answer, complete. `text`: the visible text beside them.

    `held`: text that the host would send next and has not yet sent, such as markup of a call that
    it could not read; only this can be replaced. `is_cut`: a limit ended the answer.
    """

    calls: tuple[MadeCall, ...]
    text: str = ""
    held: str = ""
    is_cut: bool = False


@dataclass(frozen=True, slots=True)
class End:
    """The end token or a limit, before it is reported.

    `has_text`, `calls`: what the client has or will have of this answer. `is_open`: the reasoning
    was not closed. `is_in_call`: a call was begun and is not complete.
    """

    finish: Finish
    detail: str
    has_text: bool
    calls: int
    is_open: bool
    is_in_call: bool = False
    room: int = 0


@dataclass(frozen=True, slots=True)
class Continue:
    """Goes on. `text` or `calls` stand in for what the host still holds."""

    text: str | None = None
    calls: tuple[MadeCall, ...] | None = None


@dataclass(frozen=True, slots=True)
class Inject:
    """Appends hidden text to the context and decodes on."""

    text: str


@dataclass(frozen=True, slots=True)
class CloseReasoning:
    """Forwards `bridge` and the model's close marker as real tokens, then decodes the answer.

    `by`: the task that closed.
    """

    bridge: str
    by: str


@dataclass(frozen=True, slots=True)
class Stop:
    """Ends the run; the first `keep_calls` calls stay, all where None."""

    finish: Finish
    keep_calls: int | None = None


@dataclass(frozen=True, slots=True)
class CallForm:
    """A grammar for one call: of this tool, or any of the offered ones where None."""

    tool: str | None = None


Form = AnswerFormat | CallForm


@dataclass(frozen=True, slots=True)
class Constrain:
    """Writes on under a form, until the end of the call or of the answer.

    `spec` None: the shortest valid end of what was begun.
    """

    spec: Form | None
    until: Literal["call", "answer"] = "call"


@dataclass(frozen=True, slots=True)
class Regenerate:
    """Rolls back to before call `index` (the answer where None) and decodes again under `spec`.

    Only for what was not sent. `note`: hidden text that goes before the new try.
    """

    index: int | None
    spec: Form | None = None
    note: str | None = None


Verdict = Continue | Inject | CloseReasoning | Stop | Constrain | Regenerate
GO_ON = Continue()

ALLOWED: dict[str, tuple[type[Verdict], ...]] = {
    "before_prefill": (Continue, Inject, Constrain, Stop),
    "on_block": (Continue, CloseReasoning, Constrain, Stop),
    "on_end": (Continue, Inject, CloseReasoning, Regenerate, Stop),
    "on_calls": (Continue, Constrain, Regenerate, Stop),
}

CLOSED_BY = {"D1": "loop", "D1b": "loop", "D2": "budget"}  # tasks, as the ledger calls them


@dataclass(frozen=True, slots=True)
class Finding:
    """An act or a shadow hit, for journal and status lines. Numbers and a word, never text."""

    task: str
    mode: Literal["shadow", "act"]
    reason: str
    numbers: dict[str, Json] | None = None


class Watch(Protocol):
    """What a host needs of a monitor (`monitor.Monitor`, or a scripted one in tests)."""

    def before_prefill(self, facts: PromptFacts) -> Verdict: ...
    def on_block(self, block: Block) -> Verdict: ...
    def on_calls(self, calls: Calls) -> Verdict: ...
    def on_end(self, end: End) -> Verdict: ...
    def horizon(self) -> int: ...
    def take_findings(self) -> tuple[Finding, ...]: ...
