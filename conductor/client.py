"""Which program is calling, by what it says of itself in headers. Knows no body and no socket.

The first match wins. Nothing is granted by it: it chooses defaults and names rows in the ledger.
"""

from collections.abc import Mapping
from functools import lru_cache
from typing import Literal, get_args

ClientKind = Literal[
    "codex", "claude-code", "opencode", "gemini-cli", "qwen-code", "open-webui", "cline",
    "continue", "aider", "openai-agents", "pydantic-ai", "anthropic-sdk", "genai-sdk",
    "openai-sdk", "curl", "dashboard", "hermes", "other",
]  # fmt: skip

_NAMED: dict[bytes, ClientKind] = {kind.encode(): kind for kind in get_args(ClientKind)}

_SIGNS = frozenset({b"x-tandem-client", b"originator", b"x-app"})

# User-Agent prefixes, most telling first.
_AGENTS: tuple[tuple[bytes, ClientKind], ...] = (
    (b"codex_", "codex"),
    (b"claude-cli/", "claude-code"),
    (b"opencode/", "opencode"),
    (b"GeminiCLI", "gemini-cli"),
    (b"QwenCode/", "qwen-code"),
    (b"ls/JS", "continue"),
    (b"Agents/Python", "openai-agents"),
    (b"pydantic-ai/", "pydantic-ai"),
    (b"Anthropic/", "anthropic-sdk"),
    (b"AsyncAnthropic/", "anthropic-sdk"),
    (b"google-genai-sdk/", "genai-sdk"),
    (b"OpenAI/", "openai-sdk"),
    (b"AsyncOpenAI/", "openai-sdk"),
    (b"curl/", "curl"),
)


def detect(headers: Mapping[bytes, bytes]) -> ClientKind:
    """The kind of client. `headers`: by lower-case name."""
    if not _SIGNS.isdisjoint(headers):
        named = _NAMED.get(headers.get(b"x-tandem-client", b""))
        if named is not None:
            return named
        if headers.get(b"originator", b"").startswith(b"codex"):
            return "codex"
        if headers.get(b"x-app") == b"cli":
            return "claude-code"
    agent = headers.get(b"user-agent", b"")
    if agent.startswith(b"Python/") and any(name.startswith(b"x-openwebui-") for name in headers):
        return "open-webui"
    return _kind_of(agent)


@lru_cache(maxsize=256)
def _kind_of(agent: bytes) -> ClientKind:
    for prefix, kind in _AGENTS:
        if agent.startswith(prefix):
            return kind
    return "other"
