"""What a profile says about turns, and which one a request gets. Knows no file and no header name.

A profile is read and checked once (`gateway.settings`); from there on it is these values.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

from conductor.client import ClientKind
from proto.chat import Json
from proto.plan import MonitorTask

TaskMode = Literal["off", "shadow", "act"]

CLASS_BUDGET = 2_048  # tokens of reasoning in a class that names none: those of `other`
FOR_TOOLS = "tools"  # the profile of requests that offer a function and that no other one claims


@dataclass(frozen=True, slots=True)
class Match:
    """When a profile fits by itself: all given parts must hold."""

    clients: tuple[ClientKind, ...] = ()
    user_agent: tuple[str, ...] = ()  # regular expressions
    headers: Mapping[str, str] = field(default_factory=dict)
    has_tools: bool | None = None
    priority: int = 0


@dataclass(frozen=True, slots=True)
class TaskClass:
    """A kind of task. `budget`: tokens of reasoning; `effort`: a sentence for the note."""

    meaning: str = ""
    budget: int = CLASS_BUDGET
    effort: str = ""
    packages: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Router:
    """How a new user message gets its class."""

    enabled: bool = True
    classifier: Literal["model", "rules", "off"] = "model"
    classes: Mapping[str, TaskClass] = field(default_factory=dict)
    default_class: str = "other"
    timeout_ms: int = 1500
    head_chars: int = 1500
    tail_chars: int = 500
    tool_names: int = 3
    min_margin: float = 0.0


@dataclass(frozen=True, slots=True)
class ThinkingRules:
    """Whose word decides about reasoning, and what is kept for the answer."""

    mode: Literal["class", "client", "off"] = "class"
    reserve_min: int = 512
    reserve_share: float = 0.25


@dataclass(frozen=True, slots=True)
class Rule:
    """An operator's sentence for the note. Every given condition must hold."""

    id: str
    text: str
    classes: tuple[str, ...] = ()
    tools: tuple[str, ...] = ()
    regex: str | None = None


@dataclass(frozen=True, slots=True)
class PackageRules:
    """Which packages may be placed, and how much of them."""

    enabled: bool = False
    per_class: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    max_count: int = 2
    max_tokens: int = 1200


@dataclass(frozen=True, slots=True)
class NoteRules:
    """Whether notes are written, and replayed in later turns."""

    enabled: bool = True
    max_tokens: int = 2000
    replay: bool = True


@dataclass(frozen=True, slots=True)
class SideRule:
    """How one kind of side request is served. `max_output`: tokens, None for the kind's own."""

    enabled: bool = True
    max_output: int | None = None


@dataclass(frozen=True, slots=True)
class SideRules:
    """Side requests: recognised or not, and what is changed of single kinds."""

    enabled: bool = True
    kinds: Mapping[str, SideRule] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class MonitorRules:
    """Changes to the monitor's tasks, and its limits for one request."""

    tasks: Mapping[str, MonitorTask] = field(default_factory=dict)
    continuations: int = 2
    regenerations: int = 1
    hidden_tokens: int = 2048


@dataclass(frozen=True, slots=True)
class StatusRules:
    """Status lines: where they are written and how often."""

    enabled: bool = False
    channel: Literal["reasoning", "content"] = "reasoning"
    steps: tuple[str, ...] = ("queued", "reading", "class", "loop", "repair", "continue")
    min_wait_s: float = 2.0
    min_interval_s: float = 3.0
    max_per_turn: int = 6


@dataclass(frozen=True, slots=True)
class MemoryRules:
    """Memory notes: read into prompts, written by the model, written in the background."""

    read: bool = False
    write: bool = False
    background: bool = False
    scope: Literal["project", "key"] = "project"
    budget_tokens: int = 600


@dataclass(frozen=True, slots=True)
class TranscriptRules:
    """Whether requests with tools leave a block in the session's file, and for how long."""

    enabled: bool = False
    days: int = 30


@dataclass(frozen=True, slots=True)
class Profile:
    """Everything about turns that an operator decides, `extends` resolved."""

    name: str
    description: str = ""
    extends: str | None = None
    match: Match | None = None
    system_prompt: str | None = None
    router: Router = Router()
    thinking: ThinkingRules = ThinkingRules()
    reasoning_format: Literal["reasoning_content", "tags", "both"] = "reasoning_content"
    effort: Literal["on", "off"] = "on"
    rules: tuple[Rule, ...] = ()
    packages: PackageRules = PackageRules()
    note: NoteRules = NoteRules()
    side: SideRules = SideRules()
    monitor: MonitorRules = MonitorRules()
    tool_stream: Literal["live", "held"] = "live"
    status: StatusRules = StatusRules()
    memory: MemoryRules = MemoryRules()
    transcript: TranscriptRules = TranscriptRules()
    sampling: Mapping[str, Json] = field(default_factory=dict)
    max_output: int | None = None


class ProfileFault(Exception):
    """A request cannot have the profile that it names. `names`: those it may have."""

    def __init__(self, asked: str, names: tuple[str, ...]) -> None:
        super().__init__(asked)
        self.asked = asked
        self.names = names


class UnknownProfile(ProfileFault):
    """There is none of this name."""


class ProfileNotAllowed(ProfileFault):
    """The client's key may not use it."""


def choose(
    profiles: Mapping[str, Profile],
    default: str,
    *,
    asked: str | None,
    client: ClientKind,
    user_agent: str,
    headers: Mapping[str, str],
    offers_function_tool: bool,
    allowed: tuple[str, ...] | None,
) -> Profile:
    """The profile of a request.

    `asked`: the name it gives, None without one. `headers`: by lower-case name. `allowed`: profiles
    that its key may use, None for all. Raises: UnknownProfile, ProfileNotAllowed.
    """
    if asked is not None:
        names = tuple(sorted(profiles)) if allowed is None else allowed
        if asked not in profiles:
            raise UnknownProfile(asked, names)
        if asked not in names:
            raise ProfileNotAllowed(asked, names)
        return profiles[asked]
    fitting = [
        (-profile.match.priority, profile.name)
        for profile in profiles.values()
        if profile.match is not None
        and _fits(profile.match, client, user_agent, headers, offers_function_tool)
    ]
    if fitting:
        _, name = min(fitting)
    else:
        name = FOR_TOOLS if offers_function_tool else default
    if allowed is not None and name not in allowed:
        name = allowed[0]
    return profiles[name]


def _fits(
    match: Match,
    client: ClientKind,
    user_agent: str,
    headers: Mapping[str, str],
    has_tools: bool,
) -> bool:
    return (
        (not match.clients or client in match.clients)
        and (
            not match.user_agent
            or any(re.search(pattern, user_agent) for pattern in match.user_agent)
        )
        and all(headers.get(name) == value for name, value in match.headers.items())
        and match.has_tools in (None, has_tools)
    )
