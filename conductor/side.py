"""Which requests are a client's own helper calls, and how those are served. Knows no session state.

A kind is recognised by the shape of a request; a text's beginning only confirms a shape, because a
user may paste any of these texts. Source: recorded requests of the clients that are named.
"""

import json
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Literal

from conductor.client import ClientKind
from conductor.profiles import SideRules
from conductor.tokens import estimated_tokens
from conductor.turn import SYSTEM_ROLES, last_index
from conductor.types import Asked, Facts, JournalLine, SideKind, SidePlan
from proto.chat import Call, Json, Message, TextPart

# The side lane's room, in tokens (the engine's own; see its side lane).
LANE_PROMPT_TOKENS = 2_048
LANE_OUTPUT_TOKENS = 64
LANE_PROMPT_CHARS = 8 * LANE_PROMPT_TOKENS  # longer texts never fit and need not be estimated

COUNT_SURFACES = frozenset({"count_tokens", "count"})  # Messages; Gemini
PROBE_CHARS = 64  # of the one message of a probe: a word or a short sentence
FORM_FIELDS = 2  # of an answer's schema at most, for the general rule
PLAIN_TYPES = frozenset({"string", "number", "integer"})  # Gemini writes them in capitals

CODEX_METADATA = "x-codex-turn-metadata"  # a JSON document with `request_kind`
CODEX_TURN = "turn"  # what an ordinary request is called there
GEMINI_ROUTER_FIELDS = {"complexity_reasoning", "complexity_score"}
# The model of the session, in its own User-Agent: `GeminiCLI-tui/0.61.0/MODEL (linux; …)`.
_GEMINI_AGENT = re.compile(r"GeminiCLI[^/\s]*/[^/\s]+/(\S+)")

OPENCODE_SYSTEM = "You are a title generator"
OPENCODE_FIRST = "Generate a title for this conversation:"
# opencode words it by version: the history as messages, or quoted in the one message.
OPENCODE_SUMMARY = (
    "Provide a detailed prompt for continuing our conversation",
    "Provide a detailed but concise summary of our conversation",
    "Create a new anchored summary",
    "Update the anchored summary",
)
OPENCODE_QUOTED = "Here is the conversation so far:\n\n<conversation>"
# Gemini CLI, and Qwen Code which was made of it; behind it stands what shall be written.
SNAPSHOT_CLIENTS = frozenset({"gemini-cli", "qwen-code"})
SNAPSHOT = "First, reason in your scratchpad. Then, generate"
HERMES_SUMMARY = "[CONTEXT COMPACTION"
HERMES_TITLE = "session_title"  # the name of its answer's schema
AIDER_COMMIT = "# Diffs:"

WEBUI_TASK = "### Task:"
WEBUI_HISTORY = "<chat_history>"  # the user's words begin there: no sign counts behind it
WEBUI_MERGE = "You have been provided with a set of responses from various models"
WEBUI_EMOJI = "Your task is to reflect the speaker's likely facial expression"
WEBUI_EMOJI_TOKENS = 4  # what it asks for with that
_WEBUI_DOCUMENTS = re.compile(r"<(?:source|context)\b")  # a question about documents, a real turn
# The member that it reads out of the answer, whatever words an admin gave the task; else a word of
# the task's first line. `text` and `prompt` come last, since other tasks may speak of them.
WEBUI_KINDS: tuple[tuple[SideKind, str, str], ...] = (
    ("follow_ups", '"follow_ups"', "next"),
    ("queries", '"queries"', "queries"),
    ("tags", '"tags"', "tags"),
    ("title", '"title"', "title"),
    ("autocomplete", '"text"', "autocompletion"),
    ("image_prompt", '"prompt"', "image generation"),
)
WEBUI_TOKENS: dict[SideKind, int] = {
    "title": 64, "tags": 96, "follow_ups": 384, "queries": 256, "autocomplete": 64,
    "image_prompt": 256, "emoji": 8,
}  # fmt: skip

RULES = SideRules()
TITLE = SidePlan("title", 64)
PLAIN_TITLE = SidePlan("title", 64, ends_at_line=True)
# A summary stands for the whole conversation: its length is its own, its reasoning is short.
COMPACTION = SidePlan("compaction", is_thinking=True, thinking_tokens=512, replays_notes=True)
# An answer put together of several ones is an answer: only the note is left out.
MERGE = SidePlan("merge", is_thinking=True, replays_notes=True)
# Nobody knows what it is, so it may be a user's: nothing is taken from it but a new note.
GENERAL = SidePlan("general", is_thinking=True, replays_notes=True)


@dataclass(frozen=True, slots=True)
class _Seen:
    """One request, as shapes look at it. `spoken`: its messages but system ones."""

    facts: Facts
    asked: Asked
    call: Call
    client: ClientKind
    session_model: str | None
    spoken: tuple[Message, ...]
    fields: Mapping[str, Json]

    @property
    def last_text(self) -> str:
        """Of the last message, where it is a user's."""
        return self.spoken[-1].text if self.spoken and self.spoken[-1].role == "user" else ""

    @property
    def has_history(self) -> bool:
        return any(message.role == "assistant" for message in self.spoken)

    @property
    def is_other_model(self) -> bool:
        return self.session_model is not None and self.call.model != self.session_model

    @property
    def is_small_model(self) -> bool:
        is_listed = self.call.model in self.facts.target.small_models
        return is_listed and self.call.model != self.session_model


def side_of(
    facts: Facts,
    call: Call,
    client: ClientKind,
    session_model: str | None = None,
    rules: SideRules = RULES,
) -> SidePlan | None:
    """How a request is served beside its session; None for a turn.

    `session_model`: the model that turns of the session asked for, None where nobody knows.
    """
    if not rules.enabled:
        return None
    plan = _recognised(facts, call, client, session_model)
    if plan is None:
        return None
    rule = rules.kinds.get(plan.kind)
    most = plan.most_tokens
    if rule is not None:
        if not rule.enabled:
            return None
        if rule.max_output is not None and plan.kind != "general":
            most = rule.max_output
    asked = facts.asked.max_tokens
    if most is not None and asked is not None:
        most = min(most, asked)
    return replace(plan, most_tokens=most)


def lane_of(plan: SidePlan, call: Call) -> Literal["main", "side"]:
    """The lane of a side request: its own where it is surely short, else the queue."""
    if plan.is_thinking or plan.most_tokens is None or plan.most_tokens > LANE_OUTPUT_TOKENS:
        return "main"
    parts = [part for message in call.messages for part in message.content]
    texts = [part.text for part in parts if isinstance(part, TextPart)]
    if len(texts) < len(parts) or sum(map(len, texts)) > LANE_PROMPT_CHARS:
        return "main"
    return "side" if sum(map(estimated_tokens, texts)) <= LANE_PROMPT_TOKENS else "main"


def side_line(plan: SidePlan | None, facts: Facts, call: Call) -> JournalLine | None:
    """What the journal learns: the kind; or that an agent's request without tools has none."""
    if plan is not None:
        return JournalLine("side", plan.kind, numbers={"most_tokens": plan.most_tokens})
    is_agents = facts.has_turn_nearby or any(message.calls for message in call.messages)
    if facts.asked.tools == "some" or not is_agents:
        return None
    numbers: dict[str, Json] = {
        "messages": len(call.messages),
        "fields": len(_fields(call)),
        "max_tokens": facts.asked.max_tokens,
        "is_stream": facts.asked.is_stream,
    }
    return JournalLine("side", "unmatched", numbers=numbers)


def webui_task(asked: Asked, call: Call) -> SideKind | None:
    """The kind of an Open WebUI task by shape and member, whoever sent it; None for a turn."""
    if asked.is_stream or asked.tools == "some":
        return None
    if len(call.messages) != 1 or call.messages[0].role != "user":
        return None
    text = call.messages[0].text
    if text.startswith(WEBUI_MERGE):
        return "merge"
    if text.startswith(WEBUI_EMOJI) and asked.max_tokens == WEBUI_EMOJI_TOKENS:
        return "emoji"
    if not text.startswith(WEBUI_TASK) or _WEBUI_DOCUMENTS.search(text):
        return None
    words = text.removeprefix(WEBUI_TASK).strip().partition(WEBUI_HISTORY)[0]
    by_member = (kind for kind, member, _ in WEBUI_KINDS if member in words)
    first = words.partition("\n")[0]
    by_word = (kind for kind, _, word in WEBUI_KINDS if word in first)
    return next(by_member, None) or next(by_word, None)


def _recognised(
    facts: Facts, call: Call, client: ClientKind, session_model: str | None
) -> SidePlan | None:
    if facts.asked.surface in COUNT_SURFACES:
        return SidePlan("count", 0)
    if facts.asked.tools == "some":
        return None
    last = last_index(call.messages)
    spoken = call.messages[: 0 if last is None else last + 1]
    spoken = tuple(m for m in spoken if m.role not in SYSTEM_ROLES)
    seen = _Seen(facts, facts.asked, call, client, session_model, spoken, _fields(call))
    known = next((plan for is_shape, plan in SHAPES if is_shape(seen)), None)
    if known is not None:
        return known
    task = webui_task(facts.asked, call) if client == "open-webui" else None
    if task is not None:
        return MERGE if task == "merge" else SidePlan(task, WEBUI_TOKENS[task])
    return GENERAL if _is_general(seen) else None


def _is_opencode_title(seen: _Seen) -> bool:
    roles = [message.role for message in seen.call.messages]
    if seen.client != "opencode" or seen.asked.tools != "absent" or not seen.asked.is_stream:
        return False
    if roles != ["system", "user", "user"]:
        return False
    instruction, first, _ = seen.call.messages
    return instruction.text.startswith(OPENCODE_SYSTEM) and first.text.startswith(OPENCODE_FIRST)


def _is_claude_title(seen: _Seen) -> bool:
    wish, text = seen.asked.wish, seen.last_text.lstrip()
    return (
        seen.client == "claude-code"
        and seen.asked.tools == "empty"
        and len(seen.spoken) == 1
        and text.startswith("<session>")
        and "</session>" in text
        and set(seen.fields) == {"title"}
        and wish.is_on is None
        and wish.tokens is None
        and not seen.is_other_model
    )


def _is_hermes_title(seen: _Seen) -> bool:
    return seen.asked.schema_name == HERMES_TITLE and len(seen.fields) == 1


def _is_codex_compaction(seen: _Seen) -> bool:
    return (
        seen.client == "codex"
        and seen.asked.tools == "empty"
        and _codex_kind(seen.asked.headers) == seen.asked.request_kind == "compaction"
        and bool(seen.last_text)
        and seen.asked.last_item_id is None
    )


def _is_opencode_compaction(seen: _Seen) -> bool:
    if seen.client != "opencode":
        return False
    if seen.has_history:
        return seen.last_text.lstrip().startswith(OPENCODE_SUMMARY)
    return len(seen.spoken) == 1 and seen.last_text.startswith(OPENCODE_QUOTED)


def _is_snapshot(seen: _Seen) -> bool:
    is_asked = seen.last_text.lstrip().startswith(SNAPSHOT)
    return seen.client in SNAPSHOT_CLIENTS and seen.has_history and is_asked


def _is_hermes_compaction(seen: _Seen) -> bool:
    return seen.has_history and seen.last_text.lstrip().startswith(HERMES_SUMMARY)


def _is_gemini_router(seen: _Seen) -> bool:
    agent = _GEMINI_AGENT.match(seen.asked.headers.get("user-agent", ""))
    session_model = seen.session_model or (agent and agent.group(1))
    return (
        seen.client == "gemini-cli"
        and seen.asked.surface == "gemini"
        and not seen.asked.is_stream
        and set(seen.fields) == GEMINI_ROUTER_FIELDS
        and seen.call.model != session_model
    )


def _is_aider_commit(seen: _Seen) -> bool:
    return (
        [message.role for message in seen.call.messages] == ["system", "user"]
        and not seen.asked.is_stream
        and seen.asked.temperature == 0
        and (seen.is_small_model or seen.is_other_model)
        and seen.last_text.startswith(AIDER_COMMIT)
    )


def _is_probe(seen: _Seen) -> bool:
    is_short = len(seen.call.messages) == 1 and 0 < len(seen.last_text) <= PROBE_CHARS
    return seen.asked.max_tokens == 1 and is_short


def _is_general(seen: _Seen) -> bool:
    """Whether a request stands beside an agent's turn and looks small. A guess."""
    if not seen.facts.has_turn_nearby:
        return False
    is_form = 0 < len(seen.fields) <= FORM_FIELDS and all(map(_is_plain, seen.fields.values()))
    marked = _codex_kind(seen.asked.headers)
    is_marked = marked is not None and marked != CODEX_TURN
    return is_form or not seen.asked.is_stream or seen.is_small_model or is_marked


SHAPES: tuple[tuple[Callable[[_Seen], bool], SidePlan], ...] = (
    (_is_opencode_title, PLAIN_TITLE),
    (_is_claude_title, TITLE),
    (_is_hermes_title, TITLE),
    (_is_codex_compaction, COMPACTION),
    (_is_opencode_compaction, COMPACTION),
    (_is_snapshot, COMPACTION),
    (_is_hermes_compaction, COMPACTION),
    (_is_gemini_router, SidePlan("router", 256)),
    (_is_aider_commit, SidePlan("commit", 128)),
    (_is_probe, SidePlan("probe", 1)),
)


def _fields(call: Call) -> Mapping[str, Json]:
    """The properties of the answer's schema, by name; none without one."""
    spec = call.answer_format.spec
    if call.answer_format.kind != "json_schema" or not isinstance(spec, dict):
        return {}
    properties = spec.get("properties")
    return properties if isinstance(properties, dict) else {}


def _is_plain(schema: Json) -> bool:
    """Whether a field holds text or a number, `null` beside it or not."""
    kind = schema.get("type") if isinstance(schema, dict) else None
    kinds = {str(name).lower() for name in (kind if isinstance(kind, list) else [kind])}
    return bool(kinds & PLAIN_TYPES) and kinds <= PLAIN_TYPES | {"null"}


def _codex_kind(headers: Mapping[str, str]) -> str | None:
    """What Codex calls its request in its header, a JSON document; None where it says nothing."""
    try:
        metadata = json.loads(headers.get(CODEX_METADATA, ""))
    except (ValueError, RecursionError):
        return None
    kind = metadata.get("request_kind") if isinstance(metadata, dict) else None
    return kind if isinstance(kind, str) else None
