"""What the conductor is told of a request, and what it decides. Knows no socket, clock or file.

The words are those of `docs/glossary.md`; the monitor's are in `monitor/verdicts.py`.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

from conductor.client import ClientKind
from conductor.memory.notes import MemoryScope
from conductor.profiles import Profile
from conductor.thinking import ThinkingWish
from proto.chat import Call, Json, Message, Role
from proto.plan import HiddenText, MonitorPlan, Segment, Thinking

TurnKind = Literal["user", "tool_result", "machine", "continuation", "side"]
SideKind = Literal[
    "title", "tags", "follow_ups", "queries", "autocomplete", "image_prompt", "emoji", "merge",
    "compaction", "router", "commit", "count", "probe", "general",
]  # fmt: skip
ClassSource = Literal["header", "rules", "cache", "model", "recorded", "kept", "default", "off"]


@dataclass(frozen=True, slots=True)
class Asked:
    """What a request says beside its conversation, as far as it is looked at.

    `headers`: by lower-case name. `tools`: whether the body has such a member, and anything in it.
    `body_ids`: session ids in the body, by where they stood (`prompt_cache_key`,
    `metadata.session_id`, `metadata.user_id`), the most telling first. `schema_name`: of the
    answer's schema. `request_kind`: what the body's own metadata calls the request (Codex).
    `last_item_id`: of the last input item, where a surface has such ids.
    """

    surface: str
    headers: Mapping[str, str]
    is_stream: bool = False
    max_tokens: int | None = None
    tools: Literal["absent", "empty", "some"] = "absent"
    wish: ThinkingWish = ThinkingWish()
    choices: int = 1
    has_logprobs: bool = False
    temperature: float | None = None
    body_ids: Mapping[str, str] = field(default_factory=dict)
    schema_name: str | None = None
    request_kind: str | None = None
    last_item_id: str | None = None


@dataclass(frozen=True, slots=True)
class Target:
    """What the backend can do that will answer; see `docs/design/conductor.md`.

    `kind`: our own engine, a server that serves one model by itself, or a cloud's API.
    `small_models`: names of its models that clients use for side requests.
    `context_tokens`: of its model, None where nobody knows.
    """

    kind: Literal["engine", "server", "cloud"]
    small_models: frozenset[str] = frozenset()
    context_tokens: int | None = None
    tokenizer_hash: str | None = None
    has_choice: bool = True  # it can be held to one of a list of words
    can_go_on: bool = True  # from text of ours that begins its answer
    can_reason: bool = True  # where nobody knows: what is said of reasoning does no harm then


@dataclass(frozen=True, slots=True)
class Package:
    """A text of an operator's that is placed in notes when it fits the task.

    `hash`: of the text, hex SHA-256. Patterns are regular expressions over the user's text.
    """

    id: str
    title: str
    text: str
    hash: str
    version: str = ""
    classes: tuple[str, ...] = ()
    regex: tuple[str, ...] = ()
    tools: tuple[str, ...] = ()
    file_ext: tuple[str, ...] = ()
    lang: tuple[str, ...] = ()
    not_match: tuple[str, ...] = ()
    priority: int = 0
    max_tokens: int = 600


@dataclass(frozen=True, slots=True)
class Settings:
    """What operators decided: replaced whole when it is read again (`config_rev`)."""

    profiles: Mapping[str, Profile]
    default_profile: str
    packages: Mapping[str, Package]
    config_rev: str


@dataclass(frozen=True, slots=True)
class Facts:
    """Everything a plan depends on beside the conversation.

    `scope`: whose sessions and notes these are, the client's key. `allowed`: profiles that the key
    may use, None for all. `has_turn_nearby`: a request with tools of the same session, else of the
    same key and client, came within the last 10 s.
    """

    settings: Settings
    client: ClientKind
    asked: Asked
    target: Target
    scope: str
    now_ms: int
    allowed: tuple[str, ...] | None = None
    has_turn_nearby: bool = False


@dataclass(frozen=True, slots=True)
class Classified:
    """The kind of task of a turn. `margin`: how clearly the model chose, 0 to 1.

    `fault`: in a word, why the model that was asked has no say in it.
    """

    name: str
    source: ClassSource
    margin: float | None = None
    ms: int | None = None
    fault: str | None = None


@dataclass(frozen=True, slots=True)
class Session:
    """What is kept of a conversation. Hashes, names and counts; never its text.

    `chain`: hash behind its last message; `opening`: behind its first answer, or behind its first
    request where there is none yet. `packages`, `memories`: ids already placed. `lines`: hashes of
    the status lines that were sent.
    """

    scope: str
    key: str
    chain: str
    profile: str
    task_class: str | None = None
    packages: tuple[str, ...] = ()
    memories: tuple[str, ...] = ()
    lines: tuple[str, ...] = ()
    turns: int = 0
    config_rev: str = ""
    created_ms: int = 0
    used_ms: int = 0
    opening: str = ""


@dataclass(frozen=True, slots=True)
class NoteRecord:
    """A note or hidden text as it was placed, so that later turns place it there again.

    `chain`: hash up to and including its message; `message`: of that message alone; `ordinal`: its
    number among equal ones. `part`, `offset`: where hidden text stood in an answer, as a `Segment`
    says it; `part_hash`: of the reasoning, where it stood in that.
    """

    scope: str
    session: str
    chain: str
    message: str
    role: Role
    ordinal: int
    kind: Literal["note", "hidden"]
    text: str
    part: int | None = None
    offset: int | None = None
    ids: tuple[int, ...] | None = None
    tokenizer_hash: str | None = None
    task_class: str | None = None
    version: int = 1
    created_ms: int = 0
    used_ms: int = 0
    part_hash: str | None = None


@dataclass(frozen=True, slots=True)
class JournalLine:
    """One line of the journal: an event, a reason in a word, numbers. Hashes, never text."""

    event: str
    reason: str = ""
    task: str | None = None
    mode: str | None = None
    numbers: Mapping[str, Json] = field(default_factory=dict)
    ms: int | None = None


@dataclass(frozen=True, slots=True)
class SidePlan:
    """How a side request is served. `most_tokens`: None for its own limit. `ends_at_line`: it ends
    at the first line break behind text. `thinking_tokens`: of reasoning at most, where it is on."""

    kind: SideKind
    most_tokens: int | None = None
    ends_at_line: bool = False
    is_thinking: bool = False
    thinking_tokens: int | None = None
    replays_notes: bool = False


@dataclass(frozen=True, slots=True)
class MemoryPlan:
    """What memory notes have to do with one request.

    `reads`: a new session is told of earlier ones. `cuts`: blocks are taken out of the answer, and
    where it `keeps` them, what they hold is stored. `has_tool`: the model has the tool
    `tandem_memory`. `is_looked_at`: by the background writer.
    """

    scope: MemoryScope = MemoryScope("")
    reads: bool = False
    cuts: bool = False
    keeps: bool = False
    has_tool: bool = False
    is_looked_at: bool = False


NO_MEMORY = MemoryPlan()


@dataclass(frozen=True, slots=True)
class TurnPlan:
    """What was decided about one request.

    `call`: what the backend gets, with places of `segments` in it. `session`: as it will be stored,
    None where nothing is; its key stands in `session_key`. `standing`: records of the segments, in
    their order; `changed`: those of them that are to be stored. `memories`: ids of notes in the new
    note. `cap`: output tokens at most,
    whatever the client asked. `sampling`: for fields that the client left out.
    """

    call: Call
    client: ClientKind
    profile: Profile
    turn: TurnKind
    session_key: str
    side: SidePlan | None = None
    task: Classified | None = None
    thinking: Thinking = Thinking()
    segments: tuple[Segment, ...] = ()
    session: Session | None = None
    standing: tuple[NoteRecord, ...] = ()
    changed: tuple[NoteRecord, ...] = ()
    memories: tuple[int, ...] = ()
    memory: MemoryPlan = NO_MEMORY
    monitor: MonitorPlan | None = None
    cap: int | None = None
    sampling: Mapping[str, Json] = field(default_factory=dict)
    lane: Literal["main", "side"] = "main"
    journal: tuple[JournalLine, ...] = ()


@dataclass(frozen=True, slots=True)
class Outcome:
    """What became of a planned request. `note_ids`: of new segments, by key, as the backend's
    tokenizer wrote them; `lines`: hashes of the status lines that were sent; `hidden`: what the
    model was given inside `answer`, which None says there is none of."""

    note_ids: Mapping[str, tuple[int, ...]] = field(default_factory=dict)
    tokenizer_hash: str | None = None
    lines: tuple[str, ...] = ()
    answer: Message | None = None
    hidden: tuple[HiddenText, ...] = ()


@dataclass(frozen=True, slots=True)
class Kept:
    """What is to be stored of a request."""

    session: Session | None = None
    notes: tuple[NoteRecord, ...] = ()
