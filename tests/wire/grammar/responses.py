"""Grammar of a streamed response of the Responses API. Knows no renderer.

Source: the API reference of response stream events. The name of an event is its `type`; numbers
count up by one; `response.created` is first; an item is added, its parts are opened, filled and
closed, and it is done; a response in a final state is the end. Unknown events are passed over.
"""

from dataclasses import dataclass, field
from typing import Any

from tests.wire.grammar.records import Event, Told, Torn, must, told_by, whole_call, with_an_end

FINAL = {"completed": "finished", "incomplete": "finished", "failed": "failed",
         "cancelled": "failed"}  # fmt: skip


def read(stream: bytes) -> Told:
    """What the stream told; `ending` None where it has no end of its own. Raises: GrammarFault."""
    return told_by(_Reader(), stream)


def check(stream: bytes) -> Told:
    """The same, for a stream that must have exactly one end. Raises: GrammarFault."""
    return with_an_end(read(stream))


@dataclass(slots=True)
class _Item:
    """An item that was added: `parts` are the texts of its open parts, by their index."""

    id: str
    kind: str
    name: str
    parts: dict[int, str] = field(default_factory=dict)
    arguments: str = ""


class _Reader:
    def __init__(self) -> None:
        self.told = Told(has_mark=True)  # the surface has none beside its final event
        self.torn: Torn | None = None
        self.response_id: str | None = None
        self.number: int | None = None
        self.items: dict[int, _Item] = {}
        self.done: set[int] = set()

    def take(self, event: Event | Torn) -> None:
        must(self.told.ending is None, "nothing follows the final event", event)
        if isinstance(event, Torn):
            must(not self.torn, "two torn records", event)
            self.torn = event
            return
        must(event.body is not None, "this surface has no [DONE]")
        body = event.body or {}
        kind = body.get("type", "")
        must(event.name == kind, "the event's name is its type", (event.name, kind))
        self._count(body)
        response = body.get("response") or {}
        is_failure = kind == "error" or response.get("status") == "failed"
        must(not self.torn or is_failure, "only an error follows a torn record", body)
        is_first = self.response_id is None
        must(not is_first or is_failure or kind == "response.created", "created is first", body)
        must(is_first or kind != "response.created", "created comes once", body)
        if "response" in body:
            self._response(response)
        elif kind == "error":
            must(body.get("message"), "an error has a message", body)
            self.told.ending, self.told.error = "failed", body
        elif kind in _STEPS:
            _STEPS[kind](self, body)

    def end(self) -> Told:
        return self.told

    def _count(self, body: dict[str, Any]) -> None:
        """The numbers go on by one. A number may be lost in a torn record."""
        number = body.get("sequence_number")
        must(type(number) is int, "every event has its sequence_number", body)
        assert number is not None
        if self.number is not None:
            most = self.number + (2 if self.torn else 1)
            must(self.number < number <= most, "sequence numbers count up by one", body)
        self.number = number

    def _response(self, response: dict[str, Any]) -> None:
        must(response.get("object") == "response" and response.get("id"), "a response", response)
        must(self.response_id in (None, response["id"]), "a response keeps its id", response)
        self.response_id = response["id"]
        status = response.get("status")
        if response.get("usage"):
            self.told.usages.append(response["usage"])
        if status not in FINAL:
            return
        self.told.ending = "failed" if FINAL[status] == "failed" else "finished"
        if status == "failed":
            error = response.get("error") or {}
            must(error.get("code") and error.get("message"), "an error's fields", response)
            self.told.error = error
        else:
            self.told.finishes[0] = status
            must(set(self.items) == self.done, "every item is done before the end", response)

    def _item(self, body: dict[str, Any]) -> _Item:
        index = body.get("output_index")
        must(index in self.items and index not in self.done, "the item is open", body)
        item = self.items[index]  # type: ignore[index]
        must(body.get("item_id", item.id) == item.id, "an item keeps its id", body)
        return item

    def _added(self, body: dict[str, Any]) -> None:
        index, item = body["output_index"], body["item"]
        must(index == len(self.items), "items are numbered in order", body)
        self.items[index] = _Item(item["id"], item["type"], item.get("name", ""))

    def _item_done(self, body: dict[str, Any]) -> None:
        item = self._item(body)
        must(body["item"]["id"] == item.id, "an item keeps its id", body)
        must(not item.parts, "every part is closed before its item", body)
        if item.kind == "function_call":
            must(body["item"]["arguments"] == item.arguments, "arguments as streamed", body)
            self.told.calls.append(whole_call(item.name, item.arguments))
        self.done.add(body["output_index"])

    def _part_added(self, body: dict[str, Any]) -> None:
        parts = self._item(body).parts
        must(body["content_index"] not in parts, "a part opens once", body)
        parts[body["content_index"]] = body["part"].get("text", "")

    def _text(self, body: dict[str, Any]) -> None:
        item = self._item(body)
        must(body["content_index"] in item.parts, "text belongs to an open part", body)
        item.parts[body["content_index"]] += body["delta"]
        self.told.hear(0, body["delta"])

    def _text_done(self, body: dict[str, Any]) -> None:
        said = self._item(body).parts.get(body["content_index"])
        must(body["text"] == said, "the text as it was streamed", body)

    def _part_done(self, body: dict[str, Any]) -> None:
        said = self._item(body).parts.pop(body["content_index"], None)
        must(body["part"].get("text", "") == said, "the part as it was streamed", body)

    def _arguments(self, body: dict[str, Any]) -> None:
        item = self._item(body)
        must(item.kind == "function_call", "arguments belong to a call", body)
        item.arguments += body["delta"]

    def _arguments_done(self, body: dict[str, Any]) -> None:
        must(body["arguments"] == self._item(body).arguments, "arguments as streamed", body)


_STEPS = {
    "response.output_item.added": _Reader._added,
    "response.output_item.done": _Reader._item_done,
    "response.content_part.added": _Reader._part_added,
    "response.content_part.done": _Reader._part_done,
    "response.output_text.delta": _Reader._text,
    "response.output_text.done": _Reader._text_done,
    "response.function_call_arguments.delta": _Reader._arguments,
    "response.function_call_arguments.done": _Reader._arguments_done,
}
