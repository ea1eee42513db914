"""Events become a completions answer, streamed or whole. Knows no backend and no socket.

Source: OpenAI API reference, "The completion object".
"""

import json
from collections.abc import Iterable
from typing import Any

from gateway.surfaces.chat.render import DONE, usage_object
from proto.chat import reply_message
from proto.events import Event, Finished, TextDelta


class CompletionRenderer:
    """Renders one answer. `created`: epoch seconds."""

    def __init__(
        self, *, answer_id: str, model: str, created: int, include_usage: bool | None
    ) -> None:
        self._head = {
            "id": answer_id,
            "object": "text_completion",
            "created": created,
            "model": model,
        }
        self._include_usage = include_usage

    def chunk(self, event: Event) -> bytes:
        """The bytes of one event in a stream; b"" for events this surface does not show."""
        match event:
            case TextDelta(text):
                return self._event(_choice(text, None)) if text else b""
            case Finished():
                usage = {"usage": usage_object(event.usage)}
                if self._include_usage is None:
                    return self._event(_choice("", event.reason), **usage) + DONE
                last = self._event(_choice("", event.reason))
                return last + (self._event([], **usage) if self._include_usage else b"") + DONE
            case _:
                return b""

    def whole(self, events: Iterable[Event], finished: Finished) -> bytes:
        """The JSON body of an answer that is not streamed."""
        choices = _choice(reply_message(events).text, finished.reason)
        return _dump({**self._head, "choices": choices, "usage": usage_object(finished.usage)})

    def _event(self, choices: list[Any], **more: Any) -> bytes:
        return b"data: " + _dump({**self._head, "choices": choices, **more}) + b"\n\n"


def _choice(text: str, finish: str | None) -> list[Any]:
    return [{"index": 0, "text": text, "logprobs": None, "finish_reason": finish}]


def _dump(value: Any) -> bytes:
    return json.dumps(value, ensure_ascii=False, separators=(",", ":")).encode(errors="replace")
