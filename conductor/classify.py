"""Which kind of task a turn is. Knows no host of the model: it asks through a port, once or never.

Only a new user message asks. A fault costs a worse class and never the request.
"""

from collections import OrderedDict
from dataclasses import dataclass
from hashlib import sha256

from conductor.class_rules import choices_of, ruled
from conductor.ports import Ask, PortFault, Question, Reply
from conductor.profiles import Profile
from conductor.question import question_of
from conductor.turn import Turn, last_user_turn
from conductor.types import Classified, Facts, JournalLine
from proto.chat import Call

CACHED_ANSWERS = 10_000  # about 2 MB: a working day of a team


@dataclass(frozen=True, slots=True)
class Past:
    """What is known of a turn from its session.

    `previous`: the session's class. `is_seen`: this very message came before, as a retry does;
    `recorded`: the class that it got then.
    """

    previous: str | None = None
    is_seen: bool = False
    recorded: str | None = None


@dataclass(frozen=True, slots=True)
class AnswerKey:
    """What an answer depends on. `text`: a hash, so that no text is kept."""

    text: bytes
    profile: str
    config_rev: str
    previous: str | None
    choices: tuple[str, ...]


class Answers:
    """Answers of the classifier by what they depend on; the least recently used one goes first."""

    def __init__(self, most: int = CACHED_ANSWERS) -> None:
        self._most = most
        self._kept: OrderedDict[AnswerKey, Reply] = OrderedDict()

    def __len__(self) -> int:
        return len(self._kept)

    def find(self, key: AnswerKey) -> Reply | None:
        """The answer to the same question, if it is kept."""
        reply = self._kept.get(key)
        if reply is not None:
            self._kept.move_to_end(key)
        return reply

    def keep(self, key: AnswerKey, reply: Reply) -> None:
        """Keeps an answer, in place of the one that was used longest ago."""
        self._kept[key] = reply
        self._kept.move_to_end(key)
        if len(self._kept) > self._most:
            self._kept.popitem(last=False)


async def classify(
    turn: Turn,
    call: Call,
    facts: Facts,
    profile: Profile,
    past: Past,
    *,
    ask: Ask,
    answers: Answers,
) -> Classified:
    """The class of a turn, which the model decides only for a user's new message."""
    router = profile.router
    if not router.enabled or router.classifier == "off":
        return Classified(router.default_class, "off")
    classes = router.classes
    previous = past.previous if past.previous in classes else None
    recorded = past.recorded if past.recorded in classes else None
    if turn.kind == "user" and past.is_seen and recorded is not None:
        return Classified(recorded, "recorded")
    is_new = turn.kind == "user" and not past.is_seen
    if not is_new and previous is not None:
        return Classified(previous, "kept")
    choices = choices_of(facts.asked.headers, classes)
    if len(choices) == 1 and len(classes) > 1:
        return Classified(choices[0], "header")
    words = turn if turn.kind == "user" else last_user_turn(call)
    known = ruled(words, choices, previous)
    if known is not None:
        return known
    if not is_new or router.classifier == "rules" or len(choices) < 2:
        return _fallback(profile, previous)
    key = AnswerKey(_hash(turn.text), profile.name, facts.settings.config_rev, previous, choices)
    cached = answers.find(key)
    if cached is not None:
        return _chosen(cached, profile, previous, is_cached=True)
    tools = [tool.name for tool in call.tools]
    question = question_of(turn.text, tools, previous, router=router, choices=choices)
    reply = await _asked(ask, question)
    if isinstance(reply, str):
        return _fallback(profile, previous, fault=reply)
    answers.keep(key, reply)
    return _chosen(reply, profile, previous)


def class_line(task: Classified) -> JournalLine:
    """What the journal learns of a class."""
    reason = task.source if task.fault is None else task.fault
    return JournalLine(
        "class", reason, numbers={"class": task.name, "margin": task.margin}, ms=task.ms
    )


async def _asked(ask: Ask, question: Question) -> Reply | str:
    """A valid answer, its text one of the choices; or a word for what went wrong."""
    try:
        reply = await ask.ask(question)
    except PortFault as fault:
        return fault.reason
    name = reply.text.strip()
    return Reply(name, reply.margin, reply.ms) if name in question.choices else "invalid"


def _chosen(
    reply: Reply, profile: Profile, previous: str | None, *, is_cached: bool = False
) -> Classified:
    """The class that the model chose, or the previous one where it was not sure."""
    ms = None if is_cached else reply.ms
    is_unsure = reply.margin is not None and reply.margin < profile.router.min_margin
    if is_unsure and previous is not None:
        return Classified(previous, "kept", reply.margin, ms)
    return Classified(reply.text, "cache" if is_cached else "model", reply.margin, ms)


def _fallback(profile: Profile, previous: str | None, fault: str | None = None) -> Classified:
    if previous is not None:
        return Classified(previous, "kept", fault=fault)
    return Classified(profile.router.default_class, "default", fault=fault)


def _hash(text: str) -> bytes:
    return sha256(text.encode("utf-8", "surrogatepass")).digest()
