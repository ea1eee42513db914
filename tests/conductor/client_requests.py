"""Requests of the shapes that clients send, in our own words. Knows no wire dialect."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from conductor.client import ClientKind
from conductor.types import Asked, Facts, Settings, Target
from proto.chat import AnswerFormat, Call, Json, Message, Role, TextPart, Tool, ToolCall

SMALL = "pico-1b"
MODEL = "TandemLLM"


def said(role: Role, text: str, **more: Any) -> Message:
    """A message of one text."""
    return Message(role, (TextPart(text),) if text else (), **more)


def called(name: str = "shell", arguments: str = "{}") -> Message:
    """An assistant's message with one call."""
    return Message("assistant", calls=(ToolCall("call_1", name, arguments),))


def result(text: str = "done") -> Message:
    """The result of that call."""
    return said("tool", text, call_id="call_1")


def call_of(
    *messages: Message,
    tools: tuple[str, ...] = (),
    model: str = MODEL,
    fields: Mapping[str, Json] | None = None,
) -> Call:
    """A call; `fields`: the properties of its answer's schema."""
    form = AnswerFormat()
    if fields is not None:
        form = AnswerFormat("json_schema", {"type": "object", "properties": dict(fields)})
    offered = tuple(Tool(name) for name in tools)
    return Call(model, messages, offered, answer_format=form)


def asked_of(call: Call, surface: str = "chat", **more: Any) -> Asked:
    """What a request says beside its call. Streamed, unless told."""
    more = {"headers": {}, "is_stream": True, "tools": "some" if call.tools else "absent", **more}
    return Asked(surface, **more)


def facts_of(asked: Asked, client: ClientKind = "other", **more: Any) -> Facts:
    """Facts about a request to a backend that has one small model."""
    settings = Settings({}, "chat", {}, "rev-1")
    target = Target("engine", small_models=frozenset({SMALL}))
    return replace(Facts(settings, client, asked, target, "key-1", 1_000), **more)
