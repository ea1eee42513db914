"""A client that talks, the conductor's steps in their order, and the prompt as plain text.

The prompt is written by the simplest template there is, so that equal beginnings can be seen.
"""

import json
from collections.abc import Sequence
from dataclasses import dataclass, field

from conductor.notes.place import Placed, Turn, new_note
from conductor.notes.render import Say
from conductor.notes.replay import Replay, learned, replay
from conductor.ports import Notes, Sessions
from conductor.profiles import NoteRules
from conductor.session import Choice, History, choose, content_key, moved_on, session_ids
from conductor.types import Asked, TurnKind
from proto.chat import ImagePart, Message, TextPart, ToolCall
from proto.plan import REASONING_PART, Segment

TOKENIZER = "tokenizer-1"


def system(text: str) -> Message:
    return Message("system", (TextPart(text),))


def user(*parts: str | ImagePart) -> Message:
    return Message("user", tuple(TextPart(p) if isinstance(p, str) else p for p in parts))


def answer(text: str = "", *calls: tuple[str, str], reasoning: str | None = None) -> Message:
    made = tuple(ToolCall(f"call_{number}", *call) for number, call in enumerate(calls))
    return Message("assistant", (TextPart(text),) if text else (), made, reasoning=reasoning)


def result(text: str, number: int = 0) -> Message:
    return Message("tool", (TextPart(text),), call_id=f"call_{number}")


@dataclass(frozen=True)
class Seen:
    """What one request led to."""

    prompt: str
    choice: Choice
    replayed: Replay
    placed: Placed
    segments: tuple[Segment, ...]

    @property
    def events(self) -> list[tuple[str, str]]:
        lines = (*self.replayed.journal, *self.placed.journal)
        return [(line.event, line.reason) for line in lines]


@dataclass
class Conductor:
    """Plans requests over two ports, as `conductor.plan` does."""

    sessions: Sessions
    notes: Notes
    scope: str = "alice"
    tokenizer_hash: str | None = TOKENIZER
    rules: NoteRules = NoteRules()
    now_ms: int = 1_000
    effort: str = "Think of turn {turn}."
    has_ids: bool = True
    task_class: str = "edit"
    say: Say = field(default_factory=Say)
    shows_reasoning: bool = True

    async def ask(
        self,
        messages: Sequence[Message],
        *,
        session_id: str | None = "ses_1",
        kind: TurnKind | None = None,
        choices: int = 1,
    ) -> Seen:
        """One request; it is stored as a turn."""
        self.now_ms += 1_000
        history = History(tuple(messages))
        asked = Asked("chat", {"x-session-id": session_id} if session_id else {})
        ids = session_ids(asked)
        key = ids[0] if ids else content_key(self.scope, history.messages, ())
        candidates = await self.sessions.find(self.scope, key)
        choice = choose(key, candidates, history, scope=self.scope, is_id=bool(ids))
        found = await self.notes.find(self.scope, history.chains, history.hashes)
        replayed = replay(
            history, found, choice, scope=self.scope, tokenizer_hash=self.tokenizer_hash,
            now_ms=self.now_ms,
        )  # fmt: skip
        say = self.say if self.say != Say() else Say(effort=self.effort.format(turn=self.now_ms))
        turn = Turn(kind or _kind_of(history.messages), choices, self.task_class)
        placed = new_note(
            history, replayed, say, turn, self.rules, scope=self.scope, choice=choice,
            now_ms=self.now_ms,
        )  # fmt: skip
        new = (placed.segment,) if placed.segment else ()
        segments = (*replayed.segments, *new)
        saved = (*replayed.saved, *((placed.record,) if placed.record else ()))
        await self.notes.save(saved)
        if self.has_ids and self.tokenizer_hash is not None:
            ids_of = {segment.key: [*segment.text.encode()] for segment in segments}
            records = (*replayed.standing, *((placed.record,) if placed.record else ()))
            await self.notes.save(learned(records, ids_of, self.tokenizer_hash))
        session = moved_on(choice, history, scope=self.scope, now_ms=self.now_ms)
        await self.sessions.save(session)
        prompt = prompt_of(history.messages, segments, shows_reasoning=self.shows_reasoning)
        return Seen(prompt, choice, replayed, placed, segments)


def prompt_of(
    messages: Sequence[Message], segments: Sequence[Segment], *, shows_reasoning: bool
) -> str:
    """The prompt as text. Arguments are written as templates do it, from their values."""
    order = [segment.message for segment in segments]
    assert order == sorted(order)
    assert len({segment.key for segment in segments}) == len(segments)
    written = []
    for index, message in enumerate(messages):
        at = [segment for segment in segments if segment.message == index]
        written.append(f"[{message.role}]")
        if message.reasoning is not None and shows_reasoning:
            reasoned = [segment for segment in at if segment.part == REASONING_PART]
            written.append(f"({_filled(message.reasoning, reasoned)})")
        images = [part.url for part in message.content if isinstance(part, ImagePart)]
        written += [f"<{url}>" for url in images]
        written.append(_filled(message.text, [one for one in at if one.part is None]))
        for call in message.calls:
            arguments = json.dumps(json.loads(call.arguments), sort_keys=True)
            written.append(f"{{{call.name} {arguments}}}")
    return "".join([*written, "[assistant]"])


def _filled(text: str, segments: Sequence[Segment]) -> str:
    for segment in reversed(segments):
        at = len(text) if segment.offset is None else segment.offset
        text = text[:at] + segment.text + text[at:]
    return text


def _kind_of(messages: tuple[Message, ...]) -> TurnKind:
    said = [message.role for message in messages if message.role not in ("system", "developer")]
    kinds: dict[str, TurnKind] = {"user": "user", "tool": "tool_result"}
    return kinds.get(said[-1], "continuation")
