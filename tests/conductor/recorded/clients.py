"""Six programs as they write requests on the chat surface, in words of our own.

Source of the shapes: recorded requests of these programs. Claude Code and Codex speak other
surfaces; here stands what is left of their shapes in chat messages.
"""

import json
from collections.abc import Sequence

from tests.conductor.recorded.talk import Answer, Client, Fields


class Opencode(Client):
    """Compact arguments, empty text beside calls, the first words in quotes."""

    kind = "opencode"
    agent = "opencode/1.18.33 ai-sdk/provider-utils/4.0.23 runtime/bun/1.3.14"
    tools = ("bash", "edit", "read", "write")
    lead = "You mend code in a terminal.\nToday: Monday."

    def headers(self) -> Fields:
        return {**super().headers(), "x-session-affinity": self.name, "x-session-id": self.name}

    def user(self, text: str, is_first: bool) -> list[Fields]:
        return [{"role": "user", "content": f'"{text}"' if is_first else text}]

    def arguments(self, arguments: Fields) -> str:
        return json.dumps(arguments, separators=(",", ":"), ensure_ascii=False)

    def body(self, messages: list[Fields]) -> Fields:
        more = {"max_tokens": 8000, "tool_choice": "auto"}
        return {**super().body(messages), **more, "stream_options": {"include_usage": True}}


class ClaudeCode(Client):
    """Parts with reminders before the first words, a system message behind them, and a mark for
    caches that wanders to the last part of every request."""

    kind = "claude-code"
    agent = "claude-cli/2.1.197 (external, cli)"
    tools = ("Bash", "Edit", "Read", "Task")
    lead = "You are at a desk with tools."
    keeps_reasoning = True
    billing = ""  # where it is given, the first block of every request

    def headers(self) -> Fields:
        return {**super().headers(), "x-app": "cli", "X-Claude-Code-Session-Id": self.name}

    def user(self, text: str, is_first: bool) -> list[Fields]:
        said = {"role": "user", "content": [{"type": "text", "text": text}]}
        if not is_first:
            return [said]
        said["content"] = [{"type": "text", "text": reminder("It is spring.")}, *said["content"]]
        return [said, {"role": "system", "content": "Helpers for the tool Task: search, plan."}]

    def answer(self, answer: Answer, ids: Sequence[str]) -> Fields:
        said = super().answer(answer, ids)
        parts = [{"type": "text", "text": answer.text}] if answer.text else None
        return {**said, "content": parts}

    def body(self, messages: list[Fields]) -> Fields:
        if self.billing:
            block = {"type": "text", "text": f"x-anthropic-billing-header: {self.billing};"}
            messages = [{"role": "system", "content": [block]}, *messages]
        last = messages[-1]
        parts = last["content"]
        if isinstance(parts, str):
            parts = [{"type": "text", "text": parts}]
        marked = [*parts[:-1], {**parts[-1], "cache_control": {"type": "ephemeral"}}]
        messages = [*messages[:-1], {**last, "content": marked}]
        return {**super().body(messages), "max_tokens": 32000}


def reminder(text: str) -> str:
    """What Claude Code writes beside a person's words."""
    return f"<system-reminder>\n{text}\n</system-reminder>"


def user(text: str) -> Fields:
    """Words in a person's place, as every program writes them there."""
    return {"role": "user", "content": text}


class Codex(Client):
    """Two developer messages, the surroundings as a user's message, arguments as they were."""

    kind = "codex"
    agent = "codex_exec/0.171.0 (Debian 12.0.0; x86_64)"
    tools = ("exec_command", "write_stdin", "view_image")
    request_kind = "turn"

    def headers(self) -> Fields:
        told = json.dumps({"session_id": self.name, "request_kind": self.request_kind})
        named = {"session-id": self.name, "thread-id": self.name, "originator": "codex_exec"}
        return {**super().headers(), **named, "x-codex-turn-metadata": told}

    def system(self) -> list[Fields]:
        texts = ("You write patches.", "Skills: none.")
        lead = [{"role": "developer", "content": [input_text(text)]} for text in texts]
        around = "<environment_context>\n  <cwd>/srv</cwd>\n</environment_context>"
        return [*lead, {"role": "user", "content": [input_text(around)]}]

    def user(self, text: str, is_first: bool) -> list[Fields]:
        return [{"role": "user", "content": [input_text(text)]}]

    def body(self, messages: list[Fields]) -> Fields:
        more = {"prompt_cache_key": self.name, "parallel_tool_calls": True, "tool_choice": "auto"}
        return {**super().body(messages), **more}


def input_text(text: str) -> Fields:
    """A part as the Responses surface names it, which the chat surface reads too."""
    return {"type": "input_text", "text": text}


class Hermes(Client):
    """Known by its tools alone: no id. Reasoning comes back, results have names."""

    kind = "hermes"
    agent = "OpenAI/Python 2.24.0"
    tools = ("terminal", "session_search", "memory", "todo")
    lead = "You are helpful, with a terminal."
    keeps_reasoning = True

    def system(self) -> list[Fields]:
        return [{"role": "system", "content": f"{self.lead}\nHost: {self.name}"}]

    def result(self, id_: str, name: str, text: str) -> Fields:
        return {**super().result(id_, name, json.dumps({"output": text, "exit": 0})), "name": name}

    def body(self, messages: list[Fields]) -> Fields:
        return {**super().body(messages), "max_tokens": 65536}


class OpenWebUI(Client):
    """A chat page: no system text, an id only where its admin hands it on."""

    kind = "open-webui"
    agent = "Python/3.11 aiohttp/3.14.5"
    lead = ""

    def headers(self) -> Fields:
        return {**super().headers(), "X-OpenWebUI-Chat-Id": self.name}


class OpenWebUITools(OpenWebUI):
    """The same with its tools, by which it is known, and without an id."""

    tools = ("search_chats", "search_notes", "view_note")

    def headers(self) -> Fields:
        return {"User-Agent": self.agent}


class Plain(Client):
    """Questions and answers by an SDK. Its conversations are known by what is said in them."""

    def system(self) -> list[Fields]:
        return [{"role": "system", "content": f"{self.lead} You are {self.name}."}]
