"""Which conversation a request belongs to, and the hashes that say so. Knows no store and no clock.

The canonical form serves hashes only: no prompt is ever made of it.
"""

import json
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from hashlib import sha256
from itertools import takewhile

from conductor.types import Asked, Session
from proto.chat import Json, Message, TextPart, Tool, ToolCall

# Where clients name their conversation, the most telling first. Source: `spec/clients.md` 7.
ID_HEADERS = (
    "x-tandem-session", "x-session-affinity", "session-id", "session_id", "x-session-id",
    "x-codex-session-id", "x-opencode-session", "x-claude-code-session-id", "x-openwebui-chat-id",
)  # fmt: skip
CHAIN_BEGIN = sha256(b"tandem-chain-1").digest()
# What is hashed for different ends never gives one hash.
ID_DOMAIN, CONTENT_DOMAIN, MESSAGE_DOMAIN = b"tandem-id-1:", b"tandem-content-1:", b"tandem-msg-1:"
SYSTEM_ROLES = ("system", "developer")
_ENCODER = json.JSONEncoder(sort_keys=True, separators=(",", ":"))


def session_ids(asked: Asked) -> tuple[str, ...]:
    """The ids that a request gives for its conversation, hashed, the most telling first."""
    named = [asked.headers.get(name, "") for name in ID_HEADERS]
    ids = [name for name in (*named, *asked.body_ids.values()) if name]
    return tuple(dict.fromkeys(_hash(ID_DOMAIN, _bytes(name)) for name in ids))


def body_ids(fields: Mapping[str, Json]) -> dict[str, str]:
    """The ids in a body, by where they stand. `fields`: its top level, parsed.

    Source: OpenAI, `prompt_cache_key`; Claude Code, `metadata.user_id` holding a JSON document.
    """
    metadata = fields.get("metadata")
    inner = metadata if isinstance(metadata, dict) else {}
    found = {
        "prompt_cache_key": fields.get("prompt_cache_key"),
        "metadata.session_id": inner.get("session_id"),
        "metadata.user_id": _id_inside(inner.get("user_id")),
    }
    return {place: name for place, name in found.items() if isinstance(name, str) and name}


def content_key(scope: str, messages: Sequence[Message], tools: Iterable[Tool]) -> str:
    """What stands for an id where a client gives none. Chats that begin alike share one."""
    leading = takewhile(lambda message: message.role in SYSTEM_ROLES, messages)
    system = [message.text for message in leading]
    first = next((canonical(message) for message in messages if message.role == "user"), b"")
    names = sorted(tool.name for tool in tools)
    return _hash(CONTENT_DOMAIN, _dump([scope, [*system], [*names], first.decode()]))


# -- canonical form and chain ---------------------------------------------------------------------


def canonical(message: Message) -> bytes:
    """A message in the one form that all its legal spellings share.

    Left out are ids, names and reasoning; else nothing is trimmed or folded.
    """
    return _dump([message.role, _content(message), [_call(call) for call in message.calls]])


def link(before: str, message: Message) -> str:
    """The chain's hash behind one more message."""
    return _linked(before, message, canonical(message))


def chain(messages: Sequence[Message]) -> tuple[str, ...]:
    """The hash behind each message; a system message's is the one before."""
    return History(tuple(messages)).chains


@dataclass(frozen=True)
class History:
    """The messages of a request, and their hashes once somebody asks for them."""

    messages: tuple[Message, ...]

    @cached_property
    def chains(self) -> tuple[str, ...]:
        """The hash behind each message; a system message's is the one before."""
        hashes: list[str] = []
        last = CHAIN_BEGIN.hex()
        for message, form in zip(self.messages, self._forms, strict=True):
            last = _linked(last, message, form)
            hashes.append(last)
        return tuple(hashes)

    @cached_property
    def hashes(self) -> tuple[str, ...]:
        """The hash of each message alone."""
        return tuple(_hash(MESSAGE_DOMAIN, form) for form in self._forms)

    @cached_property
    def _forms(self) -> tuple[bytes, ...]:
        return tuple(canonical(message) for message in self.messages)

    @cached_property
    def ordinals(self) -> tuple[int, ...]:
        """How many equal messages stand before each."""
        seen: Counter[str] = Counter()
        numbers: list[int] = []
        for name in self.hashes:
            numbers.append(seen[name])
            seen[name] += 1
        return tuple(numbers)

    @property
    def tip(self) -> str:
        """The hash behind the last message."""
        return self.chains[-1] if self.chains else CHAIN_BEGIN.hex()

    @property
    def opening(self) -> str:
        """The hash behind the first answer, or the tip where there is none yet."""
        pairs = zip(self.messages, self.chains, strict=True)
        return next((name for message, name in pairs if message.role == "assistant"), self.tip)

    @property
    def last_answer(self) -> int:
        """The index of the last answer, -1 without one."""
        roles = [message.role for message in self.messages]
        return len(roles) - 1 - roles[::-1].index("assistant") if "assistant" in roles else -1


def message_hash(message: Message) -> str:
    """The hash of a message alone."""
    return _hash(MESSAGE_DOMAIN, canonical(message))


# -- which session it is --------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Choice:
    """The session of a request.

    `session`: the stored one that it goes on from, None for a new one. `is_whole`: the history
    begins with all that was seen of it; else it was edited, pruned or regenerated. `task_class`:
    what is kept; an id keeps it even where the history is another, as behind a compaction.
    """

    key: str
    session: Session | None = None
    is_whole: bool = False
    task_class: str | None = None

    @property
    def is_new(self) -> bool:
        """Whether nothing of this history was seen under its key."""
        return self.session is None


def choose(
    key: str, candidates: Iterable[Session], history: History, *, scope: str, is_id: bool
) -> Choice:
    """The stored session with which a request shares the longest known beginning.

    An id alone is never trusted: where no hash agrees the session is a new one.
    `candidates`: what is stored under `key`, last used first. `is_id`: it was given by the client.
    """
    places = {name: index for index, name in enumerate(history.chains)}
    ours = [session for session in candidates if (session.scope, session.key) == (scope, key)]
    best, depth = None, -1
    for session in ours:
        known = max(places.get(session.chain, -1), places.get(session.opening, -1))
        if known > depth:
            best, depth = session, known
    if best is None:
        return Choice(key, task_class=ours[0].task_class if is_id and ours else None)
    return Choice(key, best, is_whole=best.chain in places, task_class=best.task_class)


def moved_on(choice: Choice, history: History, *, scope: str, now_ms: int) -> Session:
    """The session behind this request, to be stored when it was a turn; a side request is none."""
    before = choice.session or Session(
        scope, choice.key, history.tip, profile="", task_class=choice.task_class, created_ms=now_ms
    )
    return replace(
        before,
        chain=history.tip,
        opening=history.opening,
        turns=before.turns + 1,
        used_ms=now_ms,
    )


def _id_inside(text: Json) -> Json:
    if not isinstance(text, str):
        return None
    try:
        document = json.loads(text)
    except (ValueError, RecursionError):
        return None
    return document.get("session_id") if isinstance(document, dict) else None


def _content(message: Message) -> list[Json]:
    """Runs of text and digests of images, in their order."""
    runs: list[Json] = []
    text = ""
    for part in message.content:
        if isinstance(part, TextPart):
            text += part.text
            continue
        runs += [text] if text else []
        runs.append({"image": sha256(_bytes(part.url)).hexdigest()})
        text = ""
    return [*runs, text] if text else runs


def _call(call: ToolCall) -> list[Json]:
    try:
        # No text at all is how some clients write no arguments.
        value = json.loads(call.arguments.strip() or "{}", parse_constant=_refuse)
        return [call.name, "json", _dump(_plain(value)).decode()]
    except (ValueError, RecursionError):
        return [call.name, "raw", call.arguments]


def _refuse(name: str) -> Json:
    raise ValueError(name)  # NaN is no JSON


def _plain(value: Json) -> Json:
    """The value with each whole number written in one way."""
    match value:
        case dict():
            return {name: _plain(inner) for name, inner in value.items()}
        case list():
            return [_plain(inner) for inner in value]
        case float() if value.is_integer():  # JavaScript writes 1.0 as 1
            return int(value)
        case _:
            return value


def _linked(before: str, message: Message, form: bytes) -> str:
    if message.role in SYSTEM_ROLES:
        return before
    return sha256(bytes.fromhex(before) + form).hexdigest()


def _dump(value: Json) -> bytes:
    """One text for one value; pure ASCII, so that lone surrogates do no harm."""
    return _ENCODER.encode(value).encode("ascii")


def _bytes(text: str) -> bytes:
    return text.encode(errors="surrogatepass")


def _hash(domain: bytes, content: bytes) -> str:
    return sha256(domain + content).hexdigest()
