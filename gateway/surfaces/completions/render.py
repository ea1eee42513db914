"""Events become a completions answer, streamed or whole. Knows no backend and no socket.

Source: OpenAI API reference, "The completion object".
"""

import json
from collections.abc import Iterable, Sequence
from typing import Any

from gateway.surfaces.chat.render import DONE
from gateway.surfaces.usage import timings_object, usage_object
from proto.chat import reply_message
from proto.events import Event, Finished, Logprobs, TextDelta, Usage


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
        self._length = 0  # characters that have gone out

    def chunk(self, event: Event) -> bytes:
        """The bytes of one event in a stream; b"" for events this surface does not show."""
        match event:
            case TextDelta(text, logprobs):
                if not text and not logprobs:
                    return b""
                shown = _logprobs(logprobs, self._length)
                self._length += len(text)
                return self._event([_choice(0, text, None, shown)])
            case Finished():
                usage = {"usage": usage_object(event.usage)}
                timings = {"timings": timings_object(event)}
                choice = _choice(0, "", event.reason)
                if self._include_usage is None:
                    return self._event([choice], **usage, **timings) + DONE
                last = self._event([choice], **timings)
                return last + (self._event([], **usage) if self._include_usage else b"") + DONE
            case _:
                return b""

    def whole(self, answers: Sequence[tuple[Iterable[Event], Finished]], usage: Usage) -> bytes:
        """The JSON body of answers that are not streamed, one choice each."""
        choices = []
        for index, (events, finished) in enumerate(answers):
            pieces = [event for event in events if isinstance(event, TextDelta)]
            found = tuple(one for piece in pieces for one in piece.logprobs)
            text = reply_message(pieces).text
            choices.append(_choice(index, text, finished.reason, _logprobs(found, 0)))
        body = {**self._head, "choices": choices, "usage": usage_object(usage)}
        if len(answers) == 1:
            body["timings"] = timings_object(answers[0][1])
        return _dump(body)

    def _event(self, choices: list[Any], **more: Any) -> bytes:
        return b"data: " + _dump({**self._head, "choices": choices, **more}) + b"\n\n"


def _choice(
    index: int, text: str, finish: str | None, logprobs: dict[str, Any] | None = None
) -> dict[str, Any]:
    return {"index": index, "text": text, "logprobs": logprobs, "finish_reason": finish}


def _logprobs(found: Sequence[Logprobs], start: int) -> dict[str, Any] | None:
    if not found:
        return None
    offsets, at = [], start
    for one in found:
        offsets.append(at)
        at += len(one.chosen.text)
    return {
        "tokens": [one.chosen.text for one in found],
        "token_logprobs": [one.chosen.logprob for one in found],
        "top_logprobs": [{other.text: other.logprob for other in one.top} for one in found],
        "text_offset": offsets,
    }


def _dump(value: Any) -> bytes:
    return json.dumps(value, ensure_ascii=False, separators=(",", ":")).encode(errors="replace")
