"""Events become a chat completions answer, streamed or whole. Knows no backend and no socket.

Source: OpenAI API reference, "The chat completion chunk object". Usage stands in exactly one place:
on the finish chunk, or in a chunk of its own where the client asked for that, or nowhere where it
said no.
"""

import json
from collections.abc import Iterable
from typing import Any

from proto.chat import reply_message
from proto.events import (
    CallArguments,
    CallStart,
    Event,
    Finished,
    ReasoningDelta,
    TextDelta,
    Usage,
    Waiting,
)

DONE = b"data: [DONE]\n\n"


class ChatRenderer:
    """Renders one answer. `created`: epoch seconds."""

    def __init__(
        self, *, answer_id: str, model: str, created: int, include_usage: bool | None
    ) -> None:
        self._head = {"id": answer_id, "created": created, "model": model}
        self._include_usage = include_usage
        self._has_role = False

    def chunk(self, event: Event) -> bytes:
        """The bytes of one event in a stream; b"" for events this surface does not show."""
        match event:
            case TextDelta(text):
                return self._delta({"content": text}) if text else b""
            case ReasoningDelta(text):
                return self._delta({"reasoning_content": text}) if text else b""
            case CallStart(index, call_id, name):
                function = {"name": name, "arguments": ""}
                call = {"index": index, "id": call_id, "type": "function", "function": function}
                return self._delta({"tool_calls": [call]})
            case CallArguments(index, arguments):
                call = {"index": index, "function": {"arguments": arguments}}
                return self._delta({"tool_calls": [call]})
            case Waiting(position, est_wait_ms):
                seconds = round(est_wait_ms / 1000)
                return f": waiting at position {position}, about {seconds} s\n\n".encode()
            case Finished():
                return self._finish(event)
            case _:
                return b""

    def whole(self, events: Iterable[Event], finished: Finished) -> bytes:
        """The JSON body of an answer that is not streamed."""
        reply = reply_message(events)
        message: dict[str, Any] = {"role": "assistant", "content": reply.text}
        if reply.reasoning is not None:
            message["reasoning_content"] = reply.reasoning
        if reply.calls:
            message["content"] = reply.text or None
            message["tool_calls"] = [
                {
                    "id": call.id,
                    "type": "function",
                    "function": {"name": call.name, "arguments": call.arguments},
                }
                for call in reply.calls
            ]
        choice = {
            "index": 0,
            "message": message,
            "logprobs": None,
            "finish_reason": finished.reason,
        }
        return _dump(
            {
                **self._head,
                "object": "chat.completion",
                "choices": [choice],
                "usage": usage_object(finished.usage),
            }
        )

    def _delta(self, delta: dict[str, Any], finish: str | None = None, **more: Any) -> bytes:
        if not self._has_role:
            self._has_role = True
            delta = {"role": "assistant", **delta}
        return self._event([{"index": 0, "delta": delta, "finish_reason": finish}], **more)

    def _finish(self, finished: Finished) -> bytes:
        usage = usage_object(finished.usage)
        if self._include_usage is None:
            return self._delta({}, finished.reason, usage=usage) + DONE
        last = self._delta({}, finished.reason)
        return last + (self._event([], usage=usage) if self._include_usage else b"") + DONE

    def _event(self, choices: list[Any], **more: Any) -> bytes:
        chunk = {**self._head, "object": "chat.completion.chunk", "choices": choices, **more}
        return b"data: " + _dump(chunk) + b"\n\n"


def usage_object(usage: Usage) -> dict[str, Any]:
    """Token counts under the names of the chat surface."""
    return {
        "prompt_tokens": usage.prompt_tokens,
        "completion_tokens": usage.completion_tokens,
        "total_tokens": usage.prompt_tokens + usage.completion_tokens,
        "prompt_tokens_details": {"cached_tokens": usage.cached_tokens},
        "completion_tokens_details": {"reasoning_tokens": usage.reasoning_tokens},
    }


def _dump(value: Any) -> bytes:
    return json.dumps(value, ensure_ascii=False, separators=(",", ":")).encode(errors="replace")
