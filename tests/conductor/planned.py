"""A conductor with everything it needs, in memory: what a test says is what it is told."""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from conductor.classes import CLASSES
from conductor.classify import Answers
from conductor.conductor import close, plan
from conductor.memory.notes import MemoryEntry, MemoryNote, MemoryScope
from conductor.ports import PortFault, Ports, Question, Reply
from conductor.profiles import NoteRules, Profile, Router, ThinkingRules
from conductor.types import (
    Asked,
    Facts,
    NoteRecord,
    Outcome,
    Package,
    Session,
    Settings,
    Target,
    TurnPlan,
)
from proto.chat import Call, Message, TextPart, Tool

TOOL = Tool("read_file")
ENGINE = Target("engine", tokenizer_hash="t")
NOTHING = Outcome()
ROUTER = Router(classes=CLASSES)
CHAT = Profile("chat", router=ROUTER)
TOOLS = Profile(
    "tools",
    router=Router(enabled=False, classes=CLASSES),
    thinking=ThinkingRules(mode="client"),
    effort="off",
    note=NoteRules(enabled=False, replay=False),
)


def said(role: str, text: str) -> Message:
    """A message of one text."""
    return Message(role, (TextPart(text),))  # type: ignore[arg-type]


@dataclass
class World:
    """The ports, which remember what they were asked. `fault`: a port that fails, by name."""

    answer: str = "debug"
    fault: str = ""
    questions: list[Question] = field(default_factory=list)
    stored: list[Session] = field(default_factory=list)
    records: dict[tuple[object, ...], NoteRecord] = field(default_factory=dict)
    memories: tuple[MemoryNote, ...] = ()
    searched: list[MemoryScope] = field(default_factory=list)

    async def ask(self, question: Question) -> Reply:
        self.questions.append(question)
        if self.fault == "ask":
            raise PortFault("timeout")
        return Reply(self.answer, 0.9, 12)

    async def search(
        self, scope: MemoryScope, words: Sequence[str], limit: int
    ) -> Sequence[MemoryNote]:
        self.searched.append(scope)
        if self.fault == "memory":
            raise PortFault("database")
        return self.memories[:limit]

    async def add(self, entries: Sequence[MemoryEntry]) -> None:
        raise AssertionError("a plan adds nothing")

    async def note_used(self, scope: MemoryScope, ids: Sequence[int], now_ms: int) -> None:
        raise AssertionError("a plan uses nothing yet")

    async def find_sessions(self, scope: str, key: str) -> Sequence[Session]:
        if self.fault == "sessions":
            raise PortFault("timeout")
        return [one for one in reversed(self.stored) if (one.scope, one.key) == (scope, key)]

    async def find_notes(
        self, scope: str, chains: Sequence[str], messages: Sequence[str]
    ) -> Sequence[NoteRecord]:
        if self.fault == "notes":
            raise PortFault("database")
        return [
            one
            for one in self.records.values()
            if one.scope == scope and (one.chain in chains or one.message in messages)
        ]

    def keep(self, made: TurnPlan, outcome: Outcome = NOTHING) -> None:
        """Stores what `close` says, as the notebook does."""
        kept = close(made, outcome)
        if kept.session is not None:
            name = (kept.session.scope, kept.session.key, kept.session.opening)
            others = [one for one in self.stored if (one.scope, one.key, one.opening) != name]
            self.stored = [*others, kept.session]
        for record in kept.notes:
            place = record.scope, record.chain, record.kind, record.session
            self.records[*place, record.part, record.offset] = record


class _Sessions:
    def __init__(self, world: World) -> None:
        self.find = world.find_sessions

    async def save(self, session: Session) -> None:
        raise AssertionError("a plan saves nothing")


class _Notes:
    def __init__(self, world: World) -> None:
        self.find = world.find_notes

    async def save(self, records: Sequence[NoteRecord]) -> None:
        raise AssertionError("a plan saves nothing")


async def planned(
    world: World,
    *messages: Message,
    profile: Profile = CHAT,
    tools: Sequence[Tool] = (),
    packages: Sequence[Package] = (),
    target: Target = ENGINE,
    **asked: object,
) -> TurnPlan:
    """The plan of one request. `asked`: fields of `Asked`, `near` for a turn nearby, `scope` for
    another key's, `has_memory` for a store of memory notes."""
    near, scope = bool(asked.pop("near", False)), asked.pop("scope", "k:1")
    allowed = asked.pop("allowed", None)
    memory = world if asked.pop("has_memory", True) else None
    request = replace(
        Asked("chat", {}, is_stream=True, tools="some" if tools else "absent"),
        **asked,  # type: ignore[arg-type]
    )
    settings = Settings(
        {"chat": CHAT, "tools": TOOLS, profile.name: profile},
        profile.name,
        {package.id: package for package in packages},
        "rev1",
    )
    facts = Facts(settings, "other", request, target, scope, 1_000_000, allowed, near)  # type: ignore[arg-type]
    ports = Ports(world, _Sessions(world), _Notes(world), memory)
    return await plan(Call("m", messages, tuple(tools)), facts, ports, Answers())
