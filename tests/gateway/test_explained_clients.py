"""Every client and helper call that shows on chat, as `tandem explain` names it; and mere words.

What only other surfaces show (Codex' compaction, Gemini's router, counting) is in
`tests/conductor/test_side.py`.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gateway.explain import explained
from gateway.settings.load import parse
from gateway.settings.texts import Texts
from gateway.settings.types import Settings

MODEL, SMALL = "led", "pico"
CONFIG = f"""
backends:
  own:
    kind: openai
    base_url: http://127.0.0.1:1/v1
    models: [{MODEL}, {SMALL}]
    small: [{SMALL}]
    conductor: true
"""
AIOHTTP = "Python/3.12 aiohttp/3.11.2"
BILLING = "x-anthropic-billing-header: cc_version=9.9.9; cc_entrypoint=cli;"
RAW = {"user-agent": "OpenAI/Python 2.1.0", "x-stainless-raw-response": "true"}
CONTINUE_TOOLS = ("Read", "Write", "List", "Bash", "Checklist", "Exit")
HERMES = ("terminal", "session_search", "todo")

Body = dict[str, Any]
Messages = list[dict[str, Any]]


def said(role: str, text: str) -> dict[str, Any]:
    return {"role": role, "content": text}


def tool(name: str) -> dict[str, Any]:
    return {"type": "function", "function": {"name": name, "parameters": {"type": "object"}}}


def schema(name: str, *fields: str) -> dict[str, Any]:
    properties = {one: {"type": "string"} for one in fields}
    document = {"type": "object", "properties": properties}
    return {"type": "json_schema", "json_schema": {"name": name, "schema": document}}


@dataclass(frozen=True, slots=True)
class Row:
    """A request of one shape, and what it is. `messages`: around a user's words."""

    client: str
    headers: Mapping[str, str] = field(default_factory=dict)
    tools: tuple[str, ...] = ()
    profile: str = "chat"
    side: str | None = None
    messages: Callable[[str], Messages] = lambda words: [said("user", words)]
    more: Mapping[str, Any] = field(default_factory=dict)

    def body(self, words: str) -> Body:
        body: Body = {"model": MODEL, "messages": self.messages(words), "stream": True, **self.more}
        return {**body, "tools": [tool(name) for name in self.tools]} if self.tools else body

    def prose(self, words: str) -> str:
        """All that it says, as somebody would paste it."""
        texts = [message.get("content") or "" for message in self.messages(words)]
        return "\n".join([*map(str, texts), *self.headers.values(), *self.tools])


def agent(client: str, *tools: str, **headers: str) -> Row:
    named = {name.replace("_", "-"): value for name, value in headers.items()}
    return Row(client, named, tools or ("read", "write"), "coding")


def sdk(client: str, user_agent: str) -> Row:
    return Row(client, {"user-agent": user_agent})


CLIENTS = {
    "codex, originator": agent("codex", originator="codex_exec"),
    "codex, agent": agent("codex", user_agent="codex_cli_rs/1.0"),
    "codex, header": agent("codex", x_codex_window_id="w:0"),
    "claude-code, agent": agent("claude-code", user_agent="claude-cli/2.2.0 (external, cli)"),
    "claude-code, app": agent("claude-code", x_app="cli"),
    "claude-code, billing": Row(
        "claude-code", {}, ("Bash",), "coding",
        messages=lambda words: [said("system", BILLING), said("user", words)],
    ),
    "opencode": agent("opencode", user_agent="opencode/1.2.3 ai-sdk/provider-utils/4.0.1"),
    "gemini-cli": agent("gemini-cli", user_agent="GeminiCLI-tui/0.50.0/pro (linux)"),
    "qwen-code": agent("qwen-code", user_agent="QwenCode/0.15.0 (linux; x64)"),
    "cline": agent("cline", "read_files", "run_commands", user_agent="ai-sdk/openai-compatible/3"),
    "continue": agent("continue", *CONTINUE_TOOLS, user_agent="ls/JS 5.23.2"),
    "open-webui, header": Row(
        "open-webui", {"user-agent": AIOHTTP, "x-openwebui-user-id": "7"}, (), "chat-app"
    ),
    "open-webui, tools": Row(
        "open-webui", {"user-agent": AIOHTTP}, ("search_chats", "search_notes"), "chat-app"
    ),
    "open-webui, weak": Row("open-webui", {"user-agent": AIOHTTP}),
    "continue, weak": Row("continue", {"user-agent": "ls/JS 5.23.2"}),
    "aider, weak": Row("aider", RAW, more={"temperature": 0}),
    "hermes": Row("hermes", {"user-agent": "OpenAI/Python 3.0"}, HERMES, "hermes"),
    "openai-agents": sdk("openai-agents", "Agents/Python 0.20.0"),
    "pydantic-ai": sdk("pydantic-ai", "pydantic-ai/2.0.0"),
    "anthropic-sdk": sdk("anthropic-sdk", "Anthropic/Python 2.0.0"),
    "genai-sdk": sdk("genai-sdk", "google-genai-sdk/3.0.0"),
    "openai-sdk": sdk("openai-sdk", "OpenAI/Python 3.0.0"),
    "openai-sdk, tools": Row("openai-sdk", {"user-agent": "OpenAI/JS 5.0"}, ("look",), "tools"),
    "curl": sdk("curl", "curl/8.5.0"),
    "dashboard": Row("dashboard", {"user-agent": "Mozilla/5.0", "sec-fetch-site": "same-origin"}),
    "other": Row("other", {"user-agent": "mine/1.0"}),
    "its own word": Row("aider", {"x-tandem-client": "aider", **RAW}, (), "coding"),
}  # fmt: skip


def opencode_title(words: str) -> Messages:
    begin = "Generate a title for this conversation:\n"
    return [said("system", "You are a title generator. Be short."), said("user", begin),
            said("user", words)]  # fmt: skip


def history(*last: str) -> Callable[[str], Messages]:
    def messages(words: str) -> Messages:
        return [said("system", "You shorten."), said("user", words), said("assistant", "Done."),
                *(said("user", text) for text in last)]  # fmt: skip

    return messages


def webui(kind: str, begin: str, **more: Any) -> Row:
    headers = {"user-agent": AIOHTTP}
    more = {"stream": False, **more}
    return Row(
        "open-webui", headers, (), "chat-app", kind,
        lambda words: [said("user", f"{begin}\n<chat_history>\n{words}\n</chat_history>")], more,
    )  # fmt: skip


OPENCODE = {"user-agent": "opencode/1.2.3"}
EMOJI = "Your task is to reflect the speaker's likely facial expression."
MERGE = "You have been provided with a set of responses from various models."
SNAPSHOT = "First, reason in your scratchpad. Then, generate the <state_snapshot>."
SIDES = {
    "opencode title": Row("opencode", OPENCODE, (), "coding", "title", opencode_title),
    "claude title": Row(
        "claude-code", {"user-agent": "claude-cli/2.2.0"}, (), "coding", "title",
        lambda words: [said("user", f"<session>\n{words}\n</session>\n\nName it.")],
        {"tools": [], "max_tokens": 32_000, "response_format": schema("t", "title")},
    ),
    "hermes title": Row(
        "openai-sdk", {"user-agent": "OpenAI/Python 3.0"}, (), "chat", "title",
        more={"stream": False, "max_tokens": 512,
              "response_format": schema("session_title", "title")},
    ),
    "webui title": webui("title", '### Task:\nName it. { "title": "" }', max_tokens=1000),
    "webui tags": webui("tags", '### Task:\nSort it. { "tags": [] }'),
    "webui follow-ups": webui("follow_ups", '### Task:\nGo on. { "follow_ups": [] }'),
    "webui queries": webui("queries", '### Task:\nSearch? { "queries": [] }'),
    "webui autocomplete": webui("autocomplete", '### Task:\nComplete it. { "text": "" }'),
    "webui image prompt": webui("image_prompt", '### Task:\nDraw it. { "prompt": "" }'),
    "webui emoji": webui("emoji", EMOJI, max_tokens=4),
    "webui merge": webui("merge", MERGE),
    "opencode compaction": Row(
        "opencode", OPENCODE, (), "coding", "compaction",
        history("Provide a detailed prompt for continuing our conversation above."),
    ),
    "opencode compaction, quoted": Row(
        "opencode", OPENCODE, (), "coding", "compaction",
        lambda words: [
            said("system", "You shorten."),
            said("user", f"Here is the conversation so far:\n\n<conversation>\n{words}"),
        ],
    ),
    "qwen compaction": Row(
        "qwen-code", {"user-agent": "QwenCode/0.15.0"}, (), "coding", "compaction",
        history(SNAPSHOT), {"stream": False},
    ),
    "hermes compaction": Row(
        "openai-sdk", {"user-agent": "OpenAI/Python 3.0"}, (), "chat", "compaction",
        history("[CONTEXT COMPACTION] Sum up what is above."),
    ),
    "aider commit": Row(
        "aider", RAW, (), "chat", "commit",
        lambda words: [said("system", "One line."), said("user", f"# Diffs:\n+{words}")],
        {"stream": False, "temperature": 0, "model": SMALL},
    ),
    "probe": Row(
        "curl", {"user-agent": "curl/8.5.0"}, (), "chat", "probe",
        lambda words: [said("user", words)], {"max_tokens": 1},
    ),
}  # fmt: skip
ROWS = {**CLIENTS, **SIDES}
WORDS = st.text("abc xyz.?ä", min_size=1, max_size=40).map(lambda text: f"Why {text}")
FEW = settings(max_examples=8, deadline=None)


@cache
def configured() -> Settings:
    return parse(Path("tandem.yaml"), Texts(CONFIG), {})


def kinds(body: Body, headers: Mapping[str, str]) -> tuple[str, str, str | None]:
    found = explained(configured(), body, dict(headers))
    return found["client"], found["profile"], found["side"]


@pytest.mark.parametrize("row", ROWS.values(), ids=ROWS.keys())
@given(words=WORDS)
@FEW
def test_a_shape_gives_its_client_profile_and_kind(row: Row, words: str) -> None:
    assert kinds(row.body(words), row.headers) == (row.client, row.profile, row.side)


@pytest.mark.parametrize("row", ROWS.values(), ids=ROWS.keys())
@given(words=WORDS)
@FEW
def test_the_same_prose_without_the_shape_does_not(row: Row, words: str) -> None:
    text = row.prose(words)
    turn = {"model": MODEL, "messages": [said("user", text)], "stream": True}
    assert kinds(turn, {}) == ("other", "chat", None)
    assert kinds({**turn, "tools": [tool("look")]}, {}) == ("other", "tools", None)
    framed = {**turn, "messages": [said("system", text), said("user", text)]}
    if BILLING not in text:  # at the beginning of a system text it is the sign
        assert kinds(framed, {}) == ("other", "chat", None)


@pytest.mark.parametrize("row", SIDES.values(), ids=SIDES.keys())
@given(words=WORDS)
@FEW
def test_a_clients_turn_that_quotes_its_helper_call_is_a_turn(row: Row, words: str) -> None:
    body = {"model": MODEL, "stream": True, "tools": [tool("look")]}
    found = kinds({**body, "messages": [said("user", row.prose(words))]}, row.headers)
    assert found[2] is None


# Rows that ask for their client; the others are known by their shape alone.
BINDING = ("opencode", "claude-code", "qwen-code", "open-webui")
BOUND = {name: row for name, row in SIDES.items() if row.client in BINDING}


@pytest.mark.parametrize("row", BOUND.values(), ids=BOUND.keys())
@given(words=WORDS)
@FEW
def test_the_whole_shape_from_any_other_client_is_a_turn(row: Row, words: str) -> None:
    for agent_name in ("mine/1.0", "curl/8.5.0", "OpenAI/Python 3.0", "ls/JS 5"):
        assert kinds(row.body(words), {"user-agent": agent_name})[2] is None


@pytest.mark.parametrize("name", [name for name in SIDES if name not in ("probe", "claude title")])
@given(words=WORDS)
@FEW
def test_a_shape_that_is_streamed_as_it_never_is_is_a_turn(name: str, words: str) -> None:
    row = SIDES[name]
    other = not row.body(words)["stream"]
    is_free = "compaction" in name or name == "hermes title"  # recorded in both ways
    found = kinds({**row.body(words), "stream": other}, row.headers)[2]
    assert found == (row.side if is_free else None)
