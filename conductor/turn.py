"""What kind of turn a request is, and what its user said in it. Knows no session and no model.

Content is text or parts, as clients like it; only its text counts.
"""

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from conductor.types import TurnKind
from proto.chat import Call, ImagePart, Message, Role

# What clients put around or beside a user's words. Source: recorded requests of these clients.
WRAPPERS = (
    "system-reminder",  # Claude Code, in front of the user's text and behind tool results
    "environment_context",  # Codex, a user message of its own
    "session_context",  # Gemini CLI, a user message of its own
    "command-name",  # Claude Code, what a slash command leaves, here and in the next three
    "command-message",
    "command-args",
    "local-command-stdout",
)
_COMMAND = re.compile(r"<command-name>[^<>]*</command-name>")

# How messages begin that a program wrote into the user's place.
MACHINE_PREFIXES = (
    "[CONTEXT COMPACTION",  # Hermes, the summary
    "[System note:",  # Hermes
    "[Runtime note:",  # Hermes
    "Another language model started to solve this problem",  # Codex, the summary
    # Continue, which has a conversation summed up in itself, tools and all
    "Please provide a concise summary of our conversation so far, capturing the key context",
)
# mini-swe-agent, when an answer had no call; the words alone may be a user's.
_TOOL_ERROR = re.compile(r"Tool call error:\s*<error>")

# After a compaction the client itself asks to go on: by one word, or as opencode does. What is left
# of a conversation may be its summary alone, said by the assistant (Continue).
COMPACTED_PREFIXES = (*MACHINE_PREFIXES[:1], *MACHINE_PREFIXES[3:], "What did we do so far?")
_GO_ON = re.compile(r"continue(?: if you have next steps\b.*)?[.!]*", re.IGNORECASE | re.DOTALL)

_WRAPPER = re.compile(rf"<({'|'.join(WRAPPERS)})(?:\s[^<>]*)?>")
SYSTEM_ROLES: tuple[Role, ...] = ("system", "developer")
SPOKEN_ROLES: tuple[Role, ...] = ("user", "assistant", "tool")


@dataclass(frozen=True, slots=True)
class Turn:
    """A request as a step of a conversation. `kind`: never `side`, which shapes decide.

    `text`: the user's own words, empty but in a user's turn. `index`: of the last message that
    counts. `has_files`: there are images or files in it. `is_command`: a slash command's body.
    """

    kind: TurnKind
    text: str = ""
    index: int | None = None
    has_files: bool = False
    is_command: bool = False


def turn_of(call: Call, is_ours: Callable[[str], bool] = lambda line: False) -> Turn:
    """The turn that a call is. `is_ours`: whether a line of text is one that we wrote."""
    index = last_index(call.messages)
    return Turn("machine") if index is None else _turn_at(call.messages, index, is_ours)


def last_user_turn(call: Call) -> Turn:
    """The newest message in which a user said something, as a turn; a machine's without one."""
    for index in range(len(call.messages) - 1, -1, -1):
        if call.messages[index].role == "user":
            turn = _turn_at(call.messages, index, lambda line: False)
            if turn.kind == "user":
                return turn
    return Turn("machine")


def user_words(messages: Sequence[Message]) -> list[str]:
    """What users said themselves in a conversation, a text a message."""
    indices = [index for index, message in enumerate(messages) if message.role == "user"]
    turns = [_turn_at(messages, index, lambda line: False) for index in indices]
    return [turn.text for turn in turns if turn.kind == "user" and turn.text]


def _turn_at(messages: Sequence[Message], index: int, is_ours: Callable[[str], bool]) -> Turn:
    last, before = messages[index], _nearest(messages, index, SPOKEN_ROLES)
    if last.role == "tool":
        return Turn("tool_result", index=index)
    if last.role == "assistant":
        return Turn("continuation", index=index)
    text = own_words(last.text, is_ours)
    has_files = any(isinstance(part, ImagePart) for part in last.content)
    if not text:
        if not has_files:
            return Turn("machine", index=index)
        follows_result = before is not None and before.role == "tool"
        return Turn("tool_result" if follows_result else "user", index=index, has_files=True)
    if text.startswith(MACHINE_PREFIXES) or _TOOL_ERROR.match(text):
        return Turn("machine", index=index)
    if _GO_ON.fullmatch(text) and _is_compacted(messages, index):
        return Turn("machine", index=index)
    is_command = _COMMAND.search(last.text) is not None or _is_bare_command(before)
    return Turn("user", text, index, has_files, is_command)


def last_index(messages: Sequence[Message]) -> int | None:
    """Where the last message stands, system messages behind it left aside; None without one."""
    for index in range(len(messages) - 1, -1, -1):
        if messages[index].role not in SYSTEM_ROLES:
            return index
    return None


def own_words(text: str, is_ours: Callable[[str], bool] = lambda line: False) -> str:
    """A user message without what clients wrapped in, and without lines of ours."""
    lines = _unwrapped(text).split("\n")
    return "\n".join(line for line in lines if not is_ours(line)).strip()


def _unwrapped(text: str) -> str:
    kept: list[str] = []
    unclosed: set[str] = set()  # no closing tag from there on: later ones need no search
    place = 0
    for opening in _WRAPPER.finditer(text):
        name = opening.group(1)
        if opening.start() < place or name in unclosed:
            continue
        closing = text.find(f"</{name}>", opening.end())
        if closing < 0:
            unclosed.add(name)
            continue
        kept.append(text[place : opening.start()])
        place = closing + len(name) + 3
    kept.append(text[place:])
    return "".join(kept)


def _nearest(messages: Sequence[Message], index: int, roles: tuple[Role, ...]) -> Message | None:
    """The last message of these roles before `index`."""
    return next((messages[i] for i in range(index - 1, -1, -1) if messages[i].role in roles), None)


def _is_compacted(messages: Sequence[Message], index: int) -> bool:
    """Whether the message before, or the nearest user message, is what a compaction leaves."""
    before, asked = (_nearest(messages, index, roles) for roles in (SPOKEN_ROLES, ("user",)))
    if asked is None and before is not None and before.role == "assistant":
        return True
    near = (before, asked)
    return any(m is not None and own_words(m.text).startswith(COMPACTED_PREFIXES) for m in near)


def _is_bare_command(before: Message | None) -> bool:
    """Whether the message before is a user's that holds only the name of a command."""
    if before is None or before.role != "user":
        return False
    return _COMMAND.search(before.text) is not None and not own_words(before.text)
