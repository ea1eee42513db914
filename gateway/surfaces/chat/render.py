"""Events become a chat completions answer, streamed or whole. Knows no backend and no socket.

Source: OpenAI API reference, "The chat completion chunk object". Usage stands in exactly one place:
on the finish chunk, or in a chunk of its own where the client asked for that, or nowhere where it
said no.
"""

import json
from collections.abc import Iterable, Sequence
from typing import Any

from gateway.surfaces.chat.logprobs import logprobs_object
from gateway.surfaces.chat.reasoning import ReasoningFormat, ShownReasoning
from gateway.surfaces.usage import timings_object, usage_object
from proto.chat import reply_message
from proto.events import (
    CallArguments,
    CallStart,
    Event,
    Finished,
    Logprobs,
    Reading,
    ReasoningDelta,
    TextDelta,
    Usage,
    Waiting,
)

DONE = b"data: [DONE]\n\n"


class ChatRenderer:
    """Renders one answer. `created`: epoch seconds."""

    def __init__(
        self,
        *,
        answer_id: str,
        model: str,
        created: int,
        include_usage: bool | None,
        reasoning_format: ReasoningFormat = "reasoning_content",
    ) -> None:
        self._head = {"id": answer_id, "created": created, "model": model}
        self._include_usage = include_usage
        self._reasoning_format = reasoning_format
        self._shown = ShownReasoning(reasoning_format)
        self._has_role = False

    def chunk(self, event: Event) -> bytes:
        """The bytes of one event in a stream; b"" for events this surface does not show."""
        return b"".join(self._chunk(shown) for shown in self._shown.events(event))

    def _chunk(self, event: Event) -> bytes:
        match event:
            case TextDelta(text, logprobs):
                return self._delta({"content": text}, logprobs) if text or logprobs else b""
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
            case Reading("memory_wait"):
                return b": waiting for memory\n\n"
            case Reading(_, done, total):
                return f": read {done:,} of {total:,} tokens\n\n".encode()
            case Finished():
                return self._finish(event)
            case _:
                return b""

    def whole(self, answers: Sequence[tuple[Iterable[Event], Finished]], usage: Usage) -> bytes:
        """The JSON body of answers that are not streamed, one choice each."""
        choices = [
            self._choice(index, [*events], finished)
            for index, (events, finished) in enumerate(answers)
        ]
        body = {
            **self._head,
            "object": "chat.completion",
            "choices": choices,
            "usage": usage_object(usage),
        }
        if len(answers) == 1:
            body["timings"] = timings_object(answers[0][1])
        return _dump(body)

    def _choice(self, index: int, events: list[Event], finished: Finished) -> dict[str, Any]:
        shown = ShownReasoning(self._reasoning_format)
        events = [one for event in [*events, finished] for one in shown.events(event)]
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
        found = [one for event in events if isinstance(event, TextDelta) for one in event.logprobs]
        return {
            "index": index,
            "message": message,
            "logprobs": logprobs_object(found) if found else None,
            "finish_reason": finished.reason,
        }

    def _delta(
        self, delta: dict[str, Any], logprobs: tuple[Logprobs, ...] = (), **more: Any
    ) -> bytes:
        if not self._has_role:
            self._has_role = True
            delta = {"role": "assistant", **delta}
        choice: dict[str, Any] = {"index": 0, "delta": delta, "finish_reason": None}
        if logprobs:
            choice["logprobs"] = logprobs_object(logprobs)
        return self._event([{**choice, **more}])

    def _finish(self, finished: Finished) -> bytes:
        usage = {"usage": usage_object(finished.usage)}
        timings = {"timings": timings_object(finished)}
        delta = {} if self._has_role else {"role": "assistant"}
        choice = {"index": 0, "delta": delta, "finish_reason": finished.reason}
        if self._include_usage is None:
            return self._event([choice], **usage, **timings) + DONE
        last = self._event([choice], **timings)
        return last + (self._event([], **usage) if self._include_usage else b"") + DONE

    def _event(self, choices: list[Any], **more: Any) -> bytes:
        chunk = {**self._head, "object": "chat.completion.chunk", "choices": choices, **more}
        return b"data: " + _dump(chunk) + b"\n\n"


def _dump(value: Any) -> bytes:
    return json.dumps(value, ensure_ascii=False, separators=(",", ":")).encode(errors="replace")
