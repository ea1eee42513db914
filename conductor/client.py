"""Which program is calling, by what it says of itself in headers. Knows no body and no socket.

The first match wins. Nothing is granted by it: it chooses defaults and names rows in the ledger.
"""

from collections.abc import Mapping
from typing import Literal, get_args

ClientKind = Literal[
    "codex", "claude-code", "opencode", "gemini-cli", "qwen-code", "open-webui", "cline",
    "continue", "aider", "openai-agents", "pydantic-ai", "anthropic-sdk", "genai-sdk",
    "openai-sdk", "curl", "dashboard", "hermes", "other",
]  # fmt: skip

_KINDS: frozenset[str] = frozenset(get_args(ClientKind))

# User-Agent prefixes, most telling first.
_AGENTS: tuple[tuple[str, ClientKind], ...] = (
    ("codex_", "codex"),
    ("claude-cli/", "claude-code"),
    ("opencode/", "opencode"),
    ("GeminiCLI", "gemini-cli"),
    ("QwenCode/", "qwen-code"),
    ("ls/JS", "continue"),
    ("Agents/Python", "openai-agents"),
    ("pydantic-ai/", "pydantic-ai"),
    ("Anthropic/", "anthropic-sdk"),
    ("AsyncAnthropic/", "anthropic-sdk"),
    ("google-genai-sdk/", "genai-sdk"),
    ("OpenAI/", "openai-sdk"),
    ("AsyncOpenAI/", "openai-sdk"),
    ("curl/", "curl"),
)


def detect(headers: Mapping[str, str]) -> ClientKind:
    """The kind of client. `headers`: lower-case names."""
    named = headers.get("x-tandem-client", "")
    if named in _KINDS:
        return named  # type: ignore[return-value]
    if headers.get("originator", "").startswith("codex"):
        return "codex"
    if headers.get("x-app") == "cli":
        return "claude-code"
    agent = headers.get("user-agent", "")
    if agent.startswith("Python/") and any(name.startswith("x-openwebui-") for name in headers):
        return "open-webui"
    for prefix, kind in _AGENTS:
        if agent.startswith(prefix):
            return kind
    return "other"
