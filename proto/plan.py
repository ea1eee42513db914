"""What the conductor decided for one run, as the worker is told. Knows not how it decided."""

from dataclasses import dataclass
from typing import Literal

from proto.chat import Json

REASONING_PART = -1  # the `part` of a segment that stands in an answer's reasoning


@dataclass(frozen=True, slots=True)
class Segment:
    """Text placed in the prompt that the client did not write.

    It stands in `message` (index), inside content part `part` (its whole text when None, its
    reasoning when `REASONING_PART`), at character `offset` (the end when None). `ids` are used as
    they are when `tokenizer_hash` is the worker's own.
    """

    key: str
    kind: Literal["note", "hidden"]
    message: int
    text: str
    part: int | None = None
    offset: int | None = None
    ids: tuple[int, ...] | None = None
    tokenizer_hash: str | None = None


@dataclass(frozen=True, slots=True)
class HiddenText:
    """Text that the model was given inside its answer. `part`, `offset`: as a `Segment` says it."""

    text: str
    part: int | None
    offset: int


@dataclass(frozen=True, slots=True)
class Thinking:
    """Whether the model may reason, and for how many tokens at most (None: no budget)."""

    on: bool = False
    budget: int | None = None


@dataclass(frozen=True, slots=True)
class MonitorTask:
    """One watch task of the monitor."""

    mode: Literal["off", "shadow", "act"]
    params: dict[str, Json] | None = None


@dataclass(frozen=True, slots=True)
class MonitorPlan:
    """Tasks by id, and how often the monitor may intervene in one request."""

    tasks: dict[str, MonitorTask]
    continuations: int = 2
    regenerations: int = 1
    hidden_tokens: int = 2048


@dataclass(frozen=True, slots=True)
class Plan:
    """Everything the worker needs to know beside the conversation and the sampling.

    `cap`: output tokens at most, whatever the client asked. `band`: 0 premium to 3 background.
    """

    segments: tuple[Segment, ...] = ()
    thinking: Thinking = Thinking()
    monitor: MonitorPlan | None = None
    tool_stream: Literal["live", "held"] = "live"
    cap: int | None = None
    lane: Literal["main", "side"] = "main"
    band: int = 1
    session: str | None = None
    hold_prefix: bool = False
