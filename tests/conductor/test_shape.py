"""Which program is calling: every sign of the table, and the same words without the sign."""

from collections.abc import Mapping
from typing import Any, get_args

import pytest
from hypothesis import given
from hypothesis import strategies as st

from conductor.client import ClientKind, detect
from conductor.shape import Detected, detect_shape, without_billing
from proto.chat import Call, ImagePart, Message, TextPart
from tests.conductor.client_requests import asked_of, call_of, said

HELLO = said("user", "hello")
BILLING = "x-anthropic-billing-header: cc_version=9.9.9.abc; cc_entrypoint=cli;"
AIOHTTP = "Python/3.12 aiohttp/3.11.2"
CLINE_UA = "ai-sdk/openai-compatible/3.0.1 runtime/bun/1.3.1"
CONTINUE_TOOLS = ("Read", "Write", "List", "Bash", "Checklist", "Exit")
RAW = {"user-agent": "OpenAI/Python 2.1.0", "x-stainless-raw-response": "true"}
WEBUI_TITLE = said("user", '### Task:\nName this chat.\n{ "title": "..." }')


def detected(headers: Mapping[str, str], call: Call | None = None, **asked: Any) -> Detected:
    """What both halves make of a request together."""
    call = call or call_of(HELLO)
    by_headers = detect({name.encode(): value.encode() for name, value in headers.items()})
    return detect_shape(by_headers, asked_of(call, headers=headers, **asked), call)


def offering(*tools: str) -> Call:
    return call_of(HELLO, tools=tools)


@pytest.mark.parametrize(
    ("headers", "kind"),
    [
        ({"originator": "codex_exec"}, "codex"),
        ({"user-agent": "codex_cli_rs/1.0"}, "codex"),
        ({"x-codex-window-id": "w:0"}, "codex"),
        ({"user-agent": "claude-cli/2.2.0 (external, cli)"}, "claude-code"),
        ({"x-app": "cli"}, "claude-code"),
        ({"user-agent": "opencode/1.2.3 ai-sdk/provider-utils/4.0.1"}, "opencode"),
        ({"user-agent": "GeminiCLI-tui/0.50.0/some-model (linux)"}, "gemini-cli"),
        ({"user-agent": "QwenCode/0.15.0 (linux; x64)"}, "qwen-code"),
        ({"user-agent": AIOHTTP, "x-openwebui-user-id": "7"}, "open-webui"),
        ({"user-agent": "Agents/Python 0.20.0"}, "openai-agents"),
        ({"user-agent": "pydantic-ai/2.0.0"}, "pydantic-ai"),
        ({"user-agent": "Anthropic/Python 2.0.0"}, "anthropic-sdk"),
        ({"user-agent": "google-genai-sdk/3.0.0 gl-python/3.12"}, "genai-sdk"),
        ({"user-agent": "OpenAI/Python 3.0.0"}, "openai-sdk"),
        ({"user-agent": "curl/8.5.0"}, "curl"),
        ({"user-agent": "Mozilla/5.0", "sec-fetch-site": "same-origin"}, "dashboard"),
        ({"user-agent": "Mozilla/5.0", "sec-fetch-site": "cross-site"}, "other"),
        ({"user-agent": "curl/8.5.0", "sec-fetch-site": "same-origin"}, "curl"),
        ({"user-agent": "Python/3.12 urllib"}, "other"),
        ({"user-agent": "mine (like aiohttp/3.1)"}, "other"),
        ({}, "other"),
    ],
)
def test_headers_alone_name_a_client_for_sure(headers: dict[str, str], kind: ClientKind) -> None:
    assert detected(headers) == Detected(kind)


@pytest.mark.parametrize(
    ("headers", "call", "kind"),
    [
        ({}, call_of(said("system", BILLING), HELLO), "claude-code"),
        ({"user-agent": AIOHTTP}, offering("search_chats", "search_notes"), "open-webui"),
        ({}, offering("terminal", "session_search", "todo"), "hermes"),
        ({"user-agent": "OpenAI/Python 2.0"}, offering("delegate_task", "skill_manage"), "hermes"),
        ({"user-agent": CLINE_UA}, offering("read_files", "run_commands"), "cline"),
        ({"user-agent": "ls/JS 5.23.2"}, offering(*CONTINUE_TOOLS), "continue"),
    ],
)
def test_the_shape_of_a_body_names_a_client_for_sure(
    headers: dict[str, str], call: Call, kind: ClientKind
) -> None:
    assert detected(headers, call) == Detected(kind)


def test_a_task_names_open_webui_where_its_library_speaks() -> None:
    agent = {"user-agent": AIOHTTP}
    task = call_of(WEBUI_TITLE)
    assert detected(agent, task, is_stream=False) == Detected("open-webui")
    assert detected(agent, task) == Detected("open-webui", is_weak=True)  # streamed: pasted
    assert detected({}, task, is_stream=False) == Detected("other")
    weak = Detected("open-webui", is_weak=True)
    assert detected(agent, call_of(WEBUI_TITLE, HELLO), is_stream=False) == weak
    assert detected(agent, call_of(WEBUI_TITLE, tools=("a",)), is_stream=False) == weak


@pytest.mark.parametrize(
    ("headers", "call", "kind"),
    [
        ({"user-agent": AIOHTTP}, call_of(HELLO), "open-webui"),
        ({"user-agent": AIOHTTP}, offering("search_chats", "mine"), "open-webui"),
        ({"user-agent": "ls/JS 5.23.2"}, call_of(HELLO), "continue"),
        ({"user-agent": "ls/JS 5.23.2"}, offering(*CONTINUE_TOOLS[1:]), "continue"),
    ],
)
def test_a_library_alone_is_a_weak_sign(
    headers: dict[str, str], call: Call, kind: ClientKind
) -> None:
    assert detected(headers, call) == Detected(kind, is_weak=True)


def test_aider_is_a_guess_that_needs_every_part_of_its_shape() -> None:
    assert detected(RAW, temperature=0.0) == Detected("aider", is_weak=True)
    sdk = Detected("openai-sdk")
    assert detected(RAW, temperature=0.7) == sdk
    assert detected(RAW) == sdk
    assert detected(RAW, offering("edit"), temperature=0.0) == sdk
    assert detected({"user-agent": RAW["user-agent"]}, temperature=0.0) == sdk
    raw_elsewhere = {**RAW, "user-agent": "curl/8.0"}
    assert detected(raw_elsewhere, temperature=0.0) == Detected("curl")


def test_sure_signs_come_before_weak_ones() -> None:
    assert detected({"user-agent": AIOHTTP}, offering("terminal", "session_search")).kind == (
        "hermes"
    )
    assert detected(RAW, offering("terminal", "session_search"), temperature=0.0).kind == "hermes"


def test_the_first_row_wins() -> None:
    both = {"x-codex-window-id": "w", "user-agent": "opencode/1.0"}
    assert detected(both).kind == "codex"
    tools = offering("search_chats", "search_notes", "terminal", "session_search")
    assert detected({"user-agent": AIOHTTP}, tools).kind == "open-webui"
    assert detected({"user-agent": "opencode/1.0"}, tools).kind == "opencode"


@pytest.mark.parametrize("kind", get_args(ClientKind))
def test_a_clients_own_word_comes_before_every_sign(kind: ClientKind) -> None:
    headers = {"x-tandem-client": kind, "user-agent": "opencode/1.0", "x-codex-a": "b"}
    assert detected(headers) == Detected(kind)


def test_a_word_that_nobody_knows_is_told_and_ignored() -> None:
    assert detected({"x-tandem-client": "emacs", "user-agent": "curl/8.0"}) == Detected(
        "curl", is_misnamed=True
    )


@pytest.mark.parametrize(
    "text",
    [
        BILLING,
        "You are Hermes Agent. Use terminal and session_search.",
        "You are Cline; read_files, run_commands.",
        '### Task:\nGenerate a title. { "title": "..." }',
        "originator: codex_exec",
    ],
)
def test_prose_names_nobody(text: str) -> None:
    assert detected({}, call_of(said("user", text)), is_stream=False) == Detected("other")
    assert detected({}, call_of(said("system", "You help."), said("user", text))).kind == "other"
    agent = {"user-agent": "OpenAI/Python 3.0"}
    assert detected(agent, call_of(said("user", text)), is_stream=False).kind == "openai-sdk"


def test_one_tool_of_a_name_is_a_coincidence() -> None:
    assert detected({}, offering("terminal", "mine")) == Detected("other")
    assert detected({"user-agent": CLINE_UA}, offering("read_files")) == Detected("other")
    assert detected({}, offering("read_files", "run_commands")) == Detected("other")
    assert detected({}, offering(*CONTINUE_TOOLS)) == Detected("other")


def test_no_message_at_all_is_borne() -> None:
    assert detected({}, Call("m", (), prompt="once")) == Detected("other")


def test_the_billing_block_is_left_out_of_the_prompt() -> None:
    system = Message("system", (TextPart(BILLING), TextPart("You are an agent.")))
    call = without_billing(call_of(system, HELLO))
    assert call.messages == (said("system", "You are an agent."), HELLO)


def test_a_system_message_that_held_nothing_else_goes() -> None:
    call = call_of(said("system", BILLING), said("developer", "Be brief."), HELLO)
    assert without_billing(call).messages == call.messages[1:]


def test_joined_blocks_keep_all_but_the_line() -> None:
    call = call_of(said("system", f"{BILLING}\n\nYou are an agent.\nBe brief."))
    assert without_billing(call).messages == (said("system", "You are an agent.\nBe brief."),)


def test_the_billing_line_of_anybody_else_stays() -> None:
    behind = Message("system", (TextPart("Mind: " + BILLING), ImagePart("https://x.invalid/i")))
    call = call_of(Message("system"), behind, said("user", BILLING), said("system", BILLING))
    assert without_billing(call) == call


@given(st.text(max_size=40), st.text(max_size=40))
def test_the_billing_block_never_moves_the_prompt(version: str, prompt: str) -> None:
    block = f"x-anthropic-billing-header: {version.replace(chr(10), ' ')}"
    system = Message("system", (TextPart(block), TextPart("S" + prompt)))
    call = without_billing(call_of(system, HELLO))
    assert call.messages == (said("system", "S" + prompt), HELLO)
