"""What the worker's threads hand each other: link → preparer → loop → link. Knows no socket.

Frozen, so that nobody shares a thing that changes.
"""

from dataclasses import dataclass
from typing import Literal

from proto.chat import Message
from proto.events import FinishReason
from proto.faults import RefusalCode
from proto.messages import Count, Embed, FromWorker, Submit
from proto.plan import Segment
from worker.grammar.matcher import Matcher
from worker.sampling.chooser import ChoiceTexts
from worker.sampling.params import Sampling
from worker.text.answer import AnswerSyntax
from worker.text.segments import NO_NOTES, Notes


@dataclass(frozen=True, slots=True)
class Arrival:
    """A Submit on its way to the preparer. `arrived_s` by the worker's clock."""

    submit: Submit
    arrived_s: float


@dataclass(frozen=True, slots=True)
class Question:
    """A Count on its way to the preparer. `asker`: the connection that waits for the answer."""

    count: Count
    asker: bytes


@dataclass(frozen=True, slots=True)
class EmbedQuestion:
    """An Embed on its way to the preparer. `arrived_s` by the worker's clock."""

    embed: Embed
    asker: bytes
    arrived_s: float


@dataclass(frozen=True, slots=True)
class CacheQuestion:
    """A Cache on its way to the loop. `kinds`: what a `clear` drops, of `STATE_KINDS`."""

    req_id: str
    asker: bytes
    op: Literal["stats", "clear"]
    kinds: frozenset[str]


@dataclass(frozen=True, slots=True)
class Texts:
    """An Embed that can be answered: the ids of each of its texts, none of them empty."""

    req_id: str
    asker: bytes
    arrived_s: float
    ids: tuple[tuple[int, ...], ...]


@dataclass(frozen=True, slots=True)
class Forget:
    """Nobody waits for a question any more; `req_id` None: for none of that connection's.

    It goes the way of the question, through the preparer, so that it never comes before it.
    """

    asker: bytes
    req_id: str | None = None

    def means(self, texts: Texts) -> bool:
        """Whether this is the question, or one of them."""
        return self.asker == texts.asker and self.req_id in (None, texts.req_id)


@dataclass(frozen=True, slots=True)
class Closing:
    """Ids that end a reasoning block from outside: all of them, and the blank behind a marker."""

    whole: tuple[int, ...] = ()
    blank: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class Prepared:
    """A run that can be queued: its prompt rendered and encoded, its parameters checked.

    `cuts`: positions where a chunk of the prompt must start. `notes`: what of the prompt the client
    did not write. `session`: its conversation, by key.
    `matcher`: of the answer's grammar, made for this run alone. `choices`: where the answer is one
    of a list.
    """

    arrival: Arrival
    prompt: tuple[int, ...]
    prompt_hash: str
    sampling: Sampling
    syntax: AnswerSyntax = AnswerSyntax()
    matcher: Matcher | None = None
    choices: ChoiceTexts | None = None
    closing: Closing = Closing()
    cuts: tuple[int, ...] = ()
    session: str = ""
    notes: Notes = NO_NOTES


@dataclass(frozen=True, slots=True)
class Replied:
    """A reply that its conversation may go on from, on its way to the preparer.

    `ended_s`: when the reply was complete, by the worker's clock. `hidden`: text that stands in it
    and that the client never saw.
    """

    submit: Submit
    reply: Message
    session: str
    ended_s: float
    hidden: tuple[Segment, ...] = ()


@dataclass(frozen=True, slots=True)
class Warmable:
    """What the next prompt of a conversation begins with, to be read ahead in idle time.

    `prompt` is empty where there is no telling, or where it does not fit.
    """

    prompt: tuple[int, ...]
    cuts: tuple[int, ...]
    salt: str
    session: str
    made_s: float


@dataclass(frozen=True, slots=True)
class Rejected:
    """A Submit that ended before it became a run. The facts are those of `Refused`."""

    arrival: Arrival
    code: RefusalCode
    detail: str
    param: str | None = None
    retry_after_ms: int | None = None


@dataclass(frozen=True, slots=True)
class Broken:
    """A Submit on which the worker itself failed. `error`: the fault's type."""

    arrival: Arrival
    error: str


@dataclass(frozen=True, slots=True)
class EndRun:
    """End a run at its next safe point. A run that is gone already is no fault."""

    run_id: str
    finish: Literal["cancelled", "length"]
    detail: str


@dataclass(frozen=True, slots=True)
class Allow:
    """A run may release tokens up to this number."""

    run_id: str
    upto: int


@dataclass(frozen=True, slots=True)
class StartDrain:
    """The process was asked to stop."""


@dataclass(frozen=True, slots=True)
class ThreadDied:
    """Another thread ended by a fault; the process cannot go on."""

    name: str
    error: str


ToPreparer = Arrival | Question | EmbedQuestion | Forget | Replied
ToLoop = (
    Prepared | Rejected | Broken | Texts | Warmable | Forget | CacheQuestion | EndRun | Allow
    | StartDrain | ThreadDied
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Outgoing:
    """A message for the link to send: to `asker`, or to whoever owns its run (None)."""

    message: FromWorker
    asker: bytes | None = None


@dataclass(frozen=True, slots=True)
class Ending:
    """How a run ends."""

    finish: FinishReason
    detail: str
    error: str | None = None
