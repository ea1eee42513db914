"""Answers on the managed way, whoever writes them: what is asked, what comes, and of whom.

Knows no link, no socket and no surface.
"""

from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from types import TracebackType
from typing import Protocol, Self

from conductor.thinking import Effort
from conductor.types import Target
from gateway.ledger.entry import Entry
from proto.chat import Call, Json, Params
from proto.events import Event, Finished
from proto.messages import MonitorEvent
from proto.plan import HiddenText, Plan

SILENCE_S = 2.5  # how often a run that has nothing to say is looked at


class Silence:
    """Nothing came for a while: time to look at clocks and heartbeats."""


class Pauses:
    """Puts a `Silence` where a run has had nothing to say for a while. `now`: in seconds."""

    def __init__(self, now: Callable[[], float]) -> None:
        self._now = now
        self._shown_s = now()

    def filled(self, events: Sequence[Event]) -> Sequence[Event | Silence]:
        """The events of a moment, or a sign that there have been none for long."""
        now_s = self._now()
        if not events and now_s - self._shown_s < SILENCE_S:
            return ()
        self._shown_s = now_s
        return events or (Silence(),)


@dataclass(frozen=True, slots=True)
class Work:
    """What a client asks, and what was decided about it.

    `seed` None: it gave none. `salt`: whose kept prefixes may be used. `effort`: of reasoning, as
    it said. `fields`: the body's own, for what backends read and we do not. `wait_s`: how long it
    waits for an answer that is not streamed, None where nobody knows.
    """

    call: Call
    plan: Plan
    params: Params
    seed: int | None = None
    salt: str = ""
    choices: int = 1
    effort: Effort | None = None
    fields: Mapping[str, Json] = field(default_factory=dict)
    wait_s: float | None = None


class Run(Protocol):
    """One answer, while it is somebody's. Leaving the `async with` block ends it where it is.

    `prompt_tokens` (`note_tokens` of them are not the client's), `completion_tokens`, beside them
    `hidden_tokens`, `calls`: as far as known, also of one that never ends.
    `note_ids`: of the plan's segments, by key, where somebody encoded them with the tokenizer of
    `tokenizer_hash`. `findings`: of the monitor. `hidden`: what it put into the answer.
    """

    @property
    def prompt_tokens(self) -> int | None: ...
    @property
    def note_tokens(self) -> int: ...
    @property
    def completion_tokens(self) -> int: ...
    @property
    def hidden_tokens(self) -> int: ...
    @property
    def calls(self) -> int: ...
    @property
    def note_ids(self) -> dict[str, tuple[int, ...]]: ...
    @property
    def tokenizer_hash(self) -> str | None: ...
    @property
    def findings(self) -> list[MonitorEvent]: ...
    @property
    def hidden(self) -> Sequence[HiddenText]: ...

    async def __aenter__(self) -> Self: ...

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        fault: BaseException | None,
        trace: TracebackType | None,
    ) -> None: ...

    def events(self) -> AsyncIterator[Event | Silence]:
        """The answer's events up to `Finished`, and `Silence` while there are none."""


class Host(Protocol):
    """Who writes answers for one request: our own engine, or a backend. `target`: what it can.

    `is_planned`: the conductor has a say in its requests.
    """

    @property
    def is_planned(self) -> bool: ...
    @property
    def target(self) -> Target: ...

    def saw_no_choice(self) -> None:
        """An answer was none of the choices that it was to be one of."""

    async def start(self, work: Work, entry: Entry, choice: int) -> Run:
        """Begins answer number `choice` of those that the work asks for."""

    def book(self, entry: Entry, runs: Sequence[Run], finished: Finished | None) -> None:
        """Books what the runs took; `finished` None: they broke off."""
