"""Which program is calling, by all that a managed request shows. Knows no session and no profile.

Headers first, as `client.py` reads them for every request; then names of tools and members. Prose
decides nothing: a user may paste any program's prompt.
"""

from dataclasses import dataclass, replace
from typing import get_args

from conductor.client import ClientKind
from conductor.side import webui_task
from conductor.turn import SYSTEM_ROLES
from conductor.types import Asked
from proto.chat import Call, Message, Part, TextPart

_NAMED: dict[str, ClientKind] = {kind: kind for kind in get_args(ClientKind)}
BY_AGENT: tuple[ClientKind, ...] = ("opencode", "gemini-cli", "qwen-code", "open-webui")

# Names of tools that one program alone offers together: two of them are a sign.
SIGNS_TOGETHER = 2
WEBUI_TOOLS = frozenset(
    {"search_chats", "list_knowledge_bases", "query_knowledge_bases", "search_notes"}
)
HERMES_TOOLS = frozenset({"terminal", "session_search", "delegate_task", "skill_manage"})
CLINE_TOOLS = frozenset({"read_files", "search_codebase", "run_commands"})
# Words that any agent may use: only all of them are a sign.
CONTINUE_TOOLS = frozenset({"Read", "Write", "List", "Bash", "Checklist"})

CLINE_AGENT = "ai-sdk/openai-compatible/"
AIDER_AGENT = "OpenAI/Python"
# Claude Code's first system block. It changes between invocations and stands at position 0, where
# it would cost the whole cached prefix.
BILLING = "x-anthropic-billing-header:"


@dataclass(frozen=True, slots=True)
class Detected:
    """The kind of client. `is_weak`: by a sign that others may share, so that it chooses nothing.

    `is_misnamed`: the client named a kind that nobody knows, which is journaled.
    """

    kind: ClientKind
    is_weak: bool = False
    is_misnamed: bool = False


def detect_shape(by_headers: ClientKind, asked: Asked, call: Call) -> Detected:
    """The kind of client of a managed request. `by_headers`: what `client.detect` says.

    A client's own word comes first, then sure signs, then weak ones, then the name of its SDK.
    """
    word = asked.headers.get("x-tandem-client")
    named = _NAMED.get(word or "")
    if named is not None:
        return Detected(named)
    found = _sure(by_headers, asked, call)
    detected = Detected(found) if found is not None else _unsure(by_headers, asked)
    return detected if word is None else replace(detected, is_misnamed=True)


def without_billing(call: Call) -> Call:
    """The call without Claude Code's billing line, for planning and for the engine's prompt."""
    kept: list[Message] = []
    for index, message in enumerate(call.messages):
        if message.role not in SYSTEM_ROLES:
            return replace(call, messages=(*kept, *call.messages[index:]))
        parts = map(_without_line, message.content)
        content = tuple(part for part in parts if part is not None)
        if content or not message.content:
            kept.append(replace(message, content=content))
    return replace(call, messages=tuple(kept))


def _sure(by_headers: ClientKind, asked: Asked, call: Call) -> ClientKind | None:
    """By signs that one program alone has, in the table's order."""
    if by_headers == "codex" or any(name.startswith("x-codex-") for name in asked.headers):
        return "codex"
    if by_headers == "claude-code" or _begins_with_billing(call):
        return "claude-code"
    if by_headers in BY_AGENT:
        return by_headers
    agent = asked.headers.get("user-agent", "")
    tools = {tool.name for tool in call.tools}
    if _is_aiohttp(agent) and (_has_two(tools, WEBUI_TOOLS) or webui_task(asked, call)):
        return "open-webui"
    if _has_two(tools, HERMES_TOOLS):
        return "hermes"
    if agent.startswith(CLINE_AGENT) and _has_two(tools, CLINE_TOOLS):
        return "cline"
    if by_headers == "continue" and tools >= CONTINUE_TOOLS:
        return "continue"
    return None


def _unsure(by_headers: ClientKind, asked: Asked) -> Detected:
    """By a User-Agent that others share, or by the SDK that it names."""
    agent = asked.headers.get("user-agent", "")
    if _is_aiohttp(agent):
        return Detected("open-webui", is_weak=True)
    if by_headers == "continue":
        return Detected("continue", is_weak=True)
    is_raw = asked.headers.get("x-stainless-raw-response") == "true"
    is_strict = asked.temperature == 0 and asked.tools == "absent"
    if agent.startswith(AIDER_AGENT) and is_raw and is_strict:
        return Detected("aider", is_weak=True)
    if by_headers == "other" and asked.headers.get("sec-fetch-site") == "same-origin":
        return Detected("dashboard")  # our own page: browsers let no other page say so
    return Detected(by_headers)


def _is_aiohttp(agent: str) -> bool:
    return agent.startswith("Python/") and " aiohttp/" in agent


def _has_two(tools: set[str], signs: frozenset[str]) -> bool:
    return len(tools & signs) >= SIGNS_TOGETHER


def _begins_with_billing(call: Call) -> bool:
    first = call.messages[0] if call.messages else None
    return first is not None and first.role in SYSTEM_ROLES and first.text.startswith(BILLING)


def _without_line(part: Part) -> Part | None:
    """A part without a billing line at its beginning; None where nothing else stood in it.

    A proxy may have joined the blocks with line breaks: what follows the line is the prompt.
    """
    if not isinstance(part, TextPart) or not part.text.startswith(BILLING):
        return part
    rest = part.text.partition("\n")[2].lstrip("\n")
    return TextPart(rest) if rest else None
