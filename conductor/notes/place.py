"""Whether a new note is written, and where it stands. Knows no store and no wording.

Only the last message can have one: everything before it was sent in an earlier turn and stays.
"""

from collections.abc import Iterable
from dataclasses import dataclass, replace

from conductor.notes.render import Rendered, Say, render, says
from conductor.notes.replay import Replay, segment_of
from conductor.profiles import NoteRules
from conductor.session import SYSTEM_ROLES, Choice, History
from conductor.tokens import estimated_tokens, rough_tokens
from conductor.types import JournalLine, NoteRecord, TurnKind
from proto.chat import ImagePart, Json, Message, Tool
from proto.plan import Segment

MESSAGE_TOKENS = 8  # of what a template writes around a message
IMAGE_TOKENS = 1_024  # of an image of usual size


@dataclass(frozen=True, slots=True)
class Placed:
    """A new note, or why there is none: then only `journal` says something.

    `said`: what is in it.
    """

    segment: Segment | None = None
    record: NoteRecord | None = None
    said: Rendered = Rendered()
    journal: tuple[JournalLine, ...] = ()


@dataclass(frozen=True, slots=True)
class Turn:
    """What decides about a new note beside its words.

    `kind`: of the request's last message. `room_tokens`: what the context leaves beside prompt and
    answer, None where nobody knows.
    """

    kind: TurnKind
    choices: int = 1
    task_class: str | None = None
    room_tokens: int | None = None


def new_note(
    history: History,
    replayed: Replay,
    say: Say,
    turn: Turn,
    rules: NoteRules,
    *,
    scope: str,
    choice: Choice,
    now_ms: int,
) -> Placed:
    """The note of this turn, if there is to be one.

    `say`: all that would fit the turn; what stands already in a note is not said again in one
    behind a tool result, a package nowhere. `replayed`: what stands.
    """
    index = place_of(history.messages)
    if index is None or not rules.enabled or turn.choices > 1:
        return Placed()
    if turn.kind not in ("user", "tool_result") or is_seen(history, replayed, choice):
        return Placed()
    said = render(_unsaid(say, replayed, turn.kind), rules.max_tokens)
    left_out = _lost("piece", len(said.left_out))
    if not said.text:
        return Placed(journal=left_out)
    tokens = estimated_tokens(said.text)
    if turn.room_tokens is not None and tokens > turn.room_tokens:
        return Placed(journal=(*left_out, *_lost("room", 1)))
    record = NoteRecord(
        scope=scope,
        session=choice.key,
        chain=history.chains[index],
        message=history.hashes[index],
        role=history.messages[index].role,
        ordinal=history.ordinals[index],
        kind="note",
        text=said.text,
        task_class=turn.task_class,
        created_ms=now_ms,
        used_ms=now_ms,
    )
    numbers: dict[str, Json] = {"message": index, "tokens": tokens}
    line = JournalLine("note_new", turn.kind, task=turn.task_class, numbers=numbers)
    return Placed(segment_of(record, index, None), record, said, (*left_out, line))


def place_of(messages: tuple[Message, ...]) -> int | None:
    """The index of the message at whose end a note may stand: the last one, or none.

    None where that is an answer or the system prompt, or while results of parallel calls are out.
    """
    turn = len(messages)
    while turn and messages[turn - 1].role in SYSTEM_ROLES:
        turn -= 1
    if not turn or messages[turn - 1].role == "assistant":
        return None
    asked = turn
    while asked and messages[asked - 1].role == "tool":
        asked -= 1
    results, calls = turn - asked, len(messages[asked - 1].calls) if asked else 0
    return None if 0 < results < calls else len(messages) - 1


def is_seen(history: History, replayed: Replay, choice: Choice) -> bool:
    """Whether this very turn was asked before: a retry, or an answer to be written again."""
    if choice.session is not None and choice.session.chain == history.tip:
        return True
    return replayed.at(history) is not None


def room_left(
    messages: Iterable[Message],
    tools: Iterable[Tool],
    replayed: Replay,
    *,
    context_tokens: int,
    answer_tokens: int,
) -> int:
    """About how many tokens the context leaves for a new note, rather too few than too many."""
    texts = [segment.text for segment in replayed.segments]
    images = count = 0
    for message in messages:
        count += 1
        images += sum(isinstance(part, ImagePart) for part in message.content)
        texts += [message.text, message.reasoning or ""]
        texts += [call.name + call.arguments for call in message.calls]
    texts += [f"{tool.name}{tool.description or ''}{tool.parameters or ''}" for tool in tools]
    prompt_tokens = sum(map(rough_tokens, texts))
    prompt_tokens += count * MESSAGE_TOKENS + images * IMAGE_TOKENS
    return context_tokens - answer_tokens - prompt_tokens


def _unsaid(say: Say, replayed: Replay, kind: TurnKind) -> Say:
    """What is left to say. Behind a tool result nothing, unless something fires that does not
    stand yet or no note stands at all."""
    notes = [record.text for record in replayed.notes]

    def stands(text: str) -> bool:
        return any(says(note, text) for note in notes)

    packages = tuple(package for package in say.packages if not stands(package.text))
    memories = tuple((name, text) for name, text in say.memories if not stands(text))
    how_to_write = "" if stands(say.how_to_write) else say.how_to_write
    if kind == "user" or not notes:
        return replace(say, packages=packages, memories=memories, how_to_write=how_to_write)
    rules = tuple(rule for rule in say.rules if not stands(rule.text))
    if not rules and not packages:
        return Say()
    return Say(rules=rules, packages=packages, memories=memories)


def _lost(reason: str, count: int) -> tuple[JournalLine, ...]:
    return (JournalLine("note_lost", reason, numbers={"count": count}),) if count else ()
