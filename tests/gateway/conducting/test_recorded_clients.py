"""Sessions of agents that do not speak chat, in their recorded shapes: what journal and rows say.

Their surfaces are relayed today, so that these requests begin where a surface would have read them.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import count
from pathlib import Path
from typing import Any

import pytest

from conductor.client import detect
from conductor.ports import Question, Reply
from conductor.session import body_ids
from conductor.thinking import ThinkingWish
from conductor.types import Asked, Target
from gateway.conducting.conducting import Conducting, Turn
from gateway.conducting.rooms import Rooms
from gateway.ledger.entry import Entry
from gateway.settings.types import ConductorSettings, NotesSettings, ServerSettings, Settings
from proto.chat import Call, Message, TextPart
from tests.conductor.client_requests import asked_of, call_of, called, result, said
from tests.gateway.harness import SHIPPED

WORDS, MORE = "Which of the two files is the older one?", "And which of them is the longer one?"
ANSWER = said("assistant", "The second one is.")
STRING, INTEGER = {"type": "string"}, {"type": "integer"}


@dataclass(frozen=True, slots=True)
class Sent:
    """One request of a client. `asked`: what it says beside its call."""

    call: Call
    headers: Mapping[str, str]
    asked: Mapping[str, Any] = field(default_factory=dict)

    def read(self) -> Asked:
        return asked_of(self.call, headers=self.headers, **self.asked)


class Model:
    """Answers every question with one class, and keeps the questions."""

    def __init__(self) -> None:
        self.questions: list[Question] = []

    async def ask(self, question: Question) -> Reply:
        self.questions.append(question)
        return Reply("debug", 0.9, 3)


@dataclass(frozen=True, slots=True)
class Told:
    """Of each request: its plan, its row, and its journal lines by event."""

    turns: list[Turn]
    rows: list[Entry]
    lines: list[dict[str, dict[str, Any]]]
    model: Model

    def each(self, event: str) -> list[str | None]:
        """The reason in the journal of each request's line of an event."""
        return [lines[event].get("reason", "") if event in lines else None for lines in self.lines]


async def told(folder: Path, requests: Sequence[Sent]) -> Told:
    """Plans a client's requests one after the other, as the gateway does."""
    conductor = ConductorSettings(notes=NotesSettings(store="memory"))
    rooms = Rooms(Settings(server=ServerSettings(state_dir=folder), conductor=conductor), b"key")
    conducting, model, numbers = Conducting(SHIPPED, rooms), Model(), count(1)
    turns, rows = [], []
    for sent in requests:
        entry = Entry(request_id=f"r{next(numbers)}", ts_ms=1, arrived_s=0.0, client_id="k")
        headers = {name.encode(): value.encode() for name, value in sent.headers.items()}
        entry.client_kind = detect(headers)
        target = Target("engine", tokenizer_hash="t")
        turn = await conducting.plan(sent.call, sent.read(), target, entry, model)
        turn.begin()
        await turn.end((), "stop")
        turns.append(turn)
        rows.append(entry)
    rooms.close()
    texts = [path.read_text() for path in (folder / "journal").glob("*.jsonl")]
    written = [json.loads(line) for text in texts for line in text.splitlines()]
    for line, row in ((line, row) for line in written for row in rows):
        if line["request_id"] == row.request_id:
            assert (line["session"], line["profile"]) == (row.session_hash, row.profile)
    by_request = [
        {line["event"]: line for line in written if line["request_id"] == row.request_id}
        for row in rows
    ]
    return Told(turns, rows, by_request, model)


# -- Claude Code: the Messages API; the title comes first, beside the turn ------------------------

CLAUDE_SESSION = "5e55-10f0"


def claude(
    *messages: Message, title: bool = False, surface: str = "messages", **asked: Any
) -> Sent:
    headers = {
        "user-agent": "claude-cli/2.2.0 (external, cli)", "x-app": "cli",
        "x-claude-code-session-id": CLAUDE_SESSION,
    }  # fmt: skip
    billing = f"x-anthropic-billing-header: cc_version=2.2.{len(messages)}; cc_entrypoint=cli;"
    system = Message("system", (TextPart(billing), TextPart("You are an agent.")))
    user = json.dumps({"device_id": "d", "session_id": CLAUDE_SESSION})
    asked = {
        "surface": surface,
        "max_tokens": 32_000,
        "wish": ThinkingWish(effort="high"),
        "tools": "empty" if title else "some",
        "body_ids": body_ids({"metadata": {"user_id": user}}),
        **asked,
    }
    fields = {"title": STRING} if title else None
    tools = () if title else ("Agent", "Bash", "Read")
    return Sent(call_of(system, *messages, tools=tools, fields=fields), headers, asked)


REMINDER = "<system-reminder>\nIt is May.\n</system-reminder>"
CLAUDE_FIRST = (
    Message("user", (TextPart(REMINDER), TextPart(WORDS))),
    said("system", "Agents for the tool Agent: none."),
)
CLAUDE_CALL = (called("Bash"), result("two lines"))
CLAUDE = [
    claude(said("user", f"<session>\n{WORDS}\n</session>\n\nName it."), title=True),
    claude(*CLAUDE_FIRST),
    claude(*CLAUDE_FIRST, *CLAUDE_CALL),
    claude(*CLAUDE_FIRST, *CLAUDE_CALL, ANSWER, said("user", MORE)),
    claude(said("user", "word"), surface="count_tokens"),
]


async def test_claude_code(tmp_path: Path) -> None:
    found = await told(tmp_path, CLAUDE)
    assert {(row.client_kind, row.profile) for row in found.rows} == {("claude-code", "coding")}
    assert found.each("profile") == ["coding"] * 5
    assert len({row.session_hash for row in found.rows}) == 1
    assert [row.side_kind for row in found.rows] == ["title", None, None, None, "count"]
    assert found.each("side") == ["title", None, None, None, "count"]
    assert found.each("class") == [None, "model", "kept", "model", None]
    assert [question.text.count(WORDS) for question in found.model.questions] == [1, 0]
    assert [line.get("note_new") is not None for line in found.lines] == [0, 1, 0, 1, 0]
    replayed = [lines.get("note_replay", {}).get("numbers", {}) for lines in found.lines]
    assert [numbers.get("count") for numbers in replayed] == [None, None, 1, 1, None]
    systems = {turn.plan.call.messages[0].text for turn in found.turns}
    assert systems == {"You are an agent."}  # no billing line in any prompt


# -- Codex: the Responses API; a compaction, and the turn behind it -------------------------------

CODEX_SESSION = "7d5e-55e1"


def codex(*messages: Message, kind: str = "turn", last_item_id: str | None = "msg_1") -> Sent:
    metadata = {"session_id": CODEX_SESSION, "turn_id": "t-1", "request_kind": kind}
    headers = {
        "originator": "codex_exec", "user-agent": "codex_exec/0.170.0 (Linux)",
        "session-id": CODEX_SESSION, "thread-id": CODEX_SESSION,
        "x-codex-window-id": f"{CODEX_SESSION}:0", "x-codex-turn-metadata": json.dumps(metadata),
    }  # fmt: skip
    tools = () if kind == "compaction" else ("exec_command", "view_image")
    asked = {
        "surface": "responses", "tools": "some" if tools else "empty", "request_kind": kind,
        "last_item_id": last_item_id, "body_ids": body_ids({"prompt_cache_key": CODEX_SESSION}),
    }  # fmt: skip
    lead = (said("developer", "You are an agent."), said("developer", "Skills: none."))
    return Sent(call_of(*lead, *messages, tools=tools), headers, asked)


CODEX_FIRST = (
    said("user", "<environment_context>\n<cwd>/w</cwd>\n</environment_context>"),
    said("user", WORDS),
)
CODEX_CALL = (called("exec_command"), result("two lines"))
HANDOVER = "Another language model started to solve this problem. What it found: the second one."
CODEX = [
    codex(*CODEX_FIRST),
    codex(*CODEX_FIRST, *CODEX_CALL, last_item_id="fco_1"),
    codex(
        *CODEX_FIRST, *CODEX_CALL, said("user", "Write a summary for whoever goes on."),
        kind="compaction", last_item_id=None,
    ),
    codex(*CODEX_FIRST, said("user", HANDOVER)),
    codex(*CODEX_FIRST, said("user", HANDOVER), ANSWER, said("user", MORE)),
]  # fmt: skip


async def test_codex(tmp_path: Path) -> None:
    found = await told(tmp_path, CODEX)
    assert {(row.client_kind, row.profile) for row in found.rows} == {("codex", "coding")}
    assert found.each("profile") == ["coding"] * 5
    assert len({row.session_hash for row in found.rows}) == 1
    assert [row.side_kind for row in found.rows] == [None, None, "compaction", None, None]
    assert found.each("side") == [None, None, "compaction", None, None]
    assert found.each("class") == ["model", "kept", None, "kept", "model"]
    assert [turn.plan.turn for turn in found.turns] == [
        "user", "tool_result", "side", "machine", "user",
    ]  # fmt: skip
    assert [WORDS in question.text for question in found.model.questions] == [True, False]
    assert "note_new" not in found.lines[2]
    assert found.lines[2]["note_replay"]["numbers"]["count"] == 1  # the summary reads old notes


# -- Gemini CLI: its router asks a smaller model first; no sign of the session --------------------


def gemini(*messages: Message, **asked: Any) -> Sent:
    headers = {"user-agent": "GeminiCLI-tui/0.60.0/big-pro (linux; x64)"}
    system = said("system", "You are an agent.")
    tools = ("run_shell_command", "read_file")
    call = call_of(system, *messages, tools=tools, model="big-pro")
    return Sent(call, headers, {"surface": "gemini", **asked})


CONTEXT = "<session_context>\nIt is May.\n</session_context>"
GEMINI_FIRST = (Message("user", (TextPart(CONTEXT), TextPart(WORDS))),)
GEMINI_CALL = (called("run_shell_command"), result("two lines"))
ROUTER = Sent(
    call_of(
        said("system", "Say how hard the task is."), said("user", CONTEXT), said("user", WORDS),
        model="small-flash",
        fields={"complexity_reasoning": STRING, "complexity_score": INTEGER},
    ),
    {"user-agent": "GeminiCLI-tui/0.60.0/big-pro (linux; x64)"},
    {"surface": "gemini", "is_stream": False},
)  # fmt: skip
GEMINI = [
    ROUTER,
    gemini(*GEMINI_FIRST),
    gemini(*GEMINI_FIRST, *GEMINI_CALL),
    gemini(*GEMINI_FIRST, *GEMINI_CALL, ANSWER, said("user", MORE)),
]


async def test_gemini_cli(tmp_path: Path) -> None:
    found = await told(tmp_path, GEMINI)
    assert {(row.client_kind, row.profile) for row in found.rows} == {("gemini-cli", "coding")}
    assert found.each("profile") == ["coding"] * 4
    assert len({row.session_hash for row in found.rows[1:]}) == 1  # known by what it begins with
    assert [row.side_kind for row in found.rows] == ["router", None, None, None]
    assert found.each("side") == ["router", None, None, None]
    assert found.each("class") == [None, "model", "kept", "model"]
    assert [CONTEXT in question.text for question in found.model.questions] == [False, False]
    assert found.each("note_new") == [None, "user", None, "user"]


@pytest.mark.parametrize("requests", [CLAUDE, CODEX, GEMINI], ids=["claude", "codex", "gemini"])
async def test_prompts_grow_at_their_end_alone(tmp_path: Path, requests: list[Sent]) -> None:
    """A turn's prompt, with its notes, is the beginning of the next one's."""
    found = await told(tmp_path, requests)
    plans = [turn.plan for turn in found.turns if turn.plan.side is None]
    texts = [
        [f"{message.role}:{message.text}{note_of(plan, index)}"
         for index, message in enumerate(plan.call.messages)]
        for plan in plans
    ]  # fmt: skip
    assert texts[1][: len(texts[0])] == texts[0]


def note_of(plan: Any, index: int) -> str:
    return "".join(one.text for one in plan.segments if one.message == index)
