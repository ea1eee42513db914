"""Grammar of a streamed chat completion, and of a streamed legacy completion. Knows no renderer.

Source: the API reference of chat completion chunks. A stream is chunks of one id; each choice ends
with one finish reason and says nothing after it; usage alone comes once, behind all of them;
`[DONE]` comes last. An error is an object with `error`, followed by `[DONE]`.
"""

from typing import Any

from tests.wire.grammar.records import (
    Event,
    GrammarFault,
    Told,
    Torn,
    must,
    told_by,
    whole_call,
    with_an_end,
)


def read(stream: bytes) -> Told:
    """What the stream told; `ending` None where it has no end of its own. Raises: GrammarFault."""
    return told_by(_Reader(), stream)


def check(stream: bytes) -> Told:
    """The same, for a stream that must have exactly one end. Raises: GrammarFault."""
    return with_an_end(read(stream))


class _Reader:
    def __init__(self) -> None:
        self.told = Told()
        self.id: str | None = None
        self.has_usage_chunk = False
        self.torn: Torn | None = None
        self.calls: dict[tuple[int, int], list[str]] = {}  # choice, call: id, name, arguments

    def take(self, event: Event | Torn) -> None:
        must(not self.told.has_mark, "nothing follows [DONE]", event)
        is_over = self.torn is None or self.told.error is not None
        must(is_over or _is_error(event), "only an error follows a torn record", event)
        if isinstance(event, Torn):
            self.torn = event
            return
        must(not event.name, "records carry no event name", event.name)
        if event.body is None:
            self.told.has_mark = True
            return
        must(self.told.error is None, "nothing but [DONE] follows an error", event.body)
        if "error" in event.body:
            self._fail(event.body["error"])
        else:
            self._chunk(event.body)

    def end(self) -> Told:
        told = self.told
        is_finished = bool(told.finishes) and told.finishes.keys() >= self._choices()
        if told.error is not None:
            must(not is_finished, "a finish reason and an error are two ends", told.finishes)
            must(told.has_mark, "[DONE] follows an error")
            told.ending = "failed"
            return told
        if is_finished:
            told.ending = "finished"
        for (choice, _), (_, name, arguments) in sorted(self.calls.items()):
            is_whole = told.finishes.get(choice) in ("tool_calls", "stop")
            told.calls.append(whole_call(name, arguments) if is_whole else (name, arguments))
        return told

    def _choices(self) -> set[int]:
        return self.told.texts.keys() | {choice for choice, _ in self.calls}

    def _fail(self, error: Any) -> None:
        must(isinstance(error, dict) and error.get("message"), "an error has a message", error)
        self.told.error = error

    def _chunk(self, body: dict[str, Any]) -> None:
        must(isinstance(body.get("choices"), list), "a chunk has choices", body)
        kind = body.get("object")
        must(kind in (None, "chat.completion.chunk", "text_completion"), "object", kind)
        must(self.id in (None, body.get("id")), "one id in every chunk", body.get("id"))
        self.id = body.get("id")
        if body.get("usage") is not None:
            self.told.usages.append(body["usage"])
        if not body["choices"]:
            if body.get("usage") is not None:
                must(not self.has_usage_chunk, "usage alone comes once", body)
                self.has_usage_chunk = True
            return
        must(not self.has_usage_chunk, "only [DONE] follows the usage chunk", body)
        for choice in body["choices"]:
            self._choice(choice)

    def _choice(self, choice: dict[str, Any]) -> None:
        index = choice.get("index")
        must(type(index) is int and index >= 0, "a choice has an index", choice)
        delta = choice.get("delta", {"content": choice.get("text", "")})
        says = bool(delta.get("content") or delta.get("tool_calls"))
        must(not says or index not in self.told.finishes, "silent after its end", choice)
        must(delta.get("role") in (None, "assistant"), "the role is assistant", delta)
        self.told.hear(index, delta.get("content") or "")
        for call in delta.get("tool_calls") or []:
            self._call(index, call)
        if (finish := choice.get("finish_reason")) is not None:
            must(index not in self.told.finishes, "one finish reason a choice", choice)
            self.told.finishes[index] = finish

    def _call(self, choice: int, call: dict[str, Any]) -> None:
        must(type(call.get("index")) is int, "every delta of a call has its index", call)
        function = call.get("function") or {}
        key = choice, call["index"]
        if key not in self.calls:
            must(call.get("id") and function.get("name"), "a call begins with id and name", call)
            self.calls[key] = [call["id"], function["name"], ""]
        must(call.get("id") in (None, "", self.calls[key][0]), "a call keeps its id", call)
        self.calls[key][2] += function.get("arguments") or ""


def _is_error(event: Event | Torn) -> bool:
    if isinstance(event, Torn):
        raise GrammarFault("two torn records")
    return event.body is not None and "error" in event.body
