"""Grammar of a streamed Anthropic message. Knows no renderer.

Source: the documentation of streamed messages. `message_start`, then blocks, each started, filled
and stopped before the next one, then `message_delta` with the stop reason, then `message_stop`.
`ping` may come anywhere, `error` ends everything, unknown kinds of event are to be passed over.
"""

from typing import Any

from tests.wire.grammar.records import Event, Told, Torn, must, told_by, whole_call, with_an_end

DELTAS = {
    "text": {"text_delta", "citations_delta"},
    "thinking": {"thinking_delta", "signature_delta"},
    "tool_use": {"input_json_delta"},
}


def read(stream: bytes) -> Told:
    """What the stream told; `ending` None where it has no end of its own. Raises: GrammarFault."""
    return told_by(_Reader(), stream)


def check(stream: bytes) -> Told:
    """The same, for a stream that must have exactly one end. Raises: GrammarFault."""
    return with_an_end(read(stream))


class _Reader:
    def __init__(self) -> None:
        self.told = Told()
        self.has_started = False
        self.torn: Torn | None = None
        self.block: dict[str, Any] | None = None
        self.block_count = 0
        self.json = ""

    def take(self, event: Event | Torn) -> None:
        told = self.told
        must(not told.has_mark and not told.error, "nothing follows the end", event)
        if isinstance(event, Torn):
            must(not self.torn, "two torn records", event)
            self.torn = event
            return
        must(event.body is not None, "this surface has no [DONE]")
        body = event.body or {}
        kind = body.get("type")
        must(event.name == kind, "the event's name is its type", (event.name, kind))
        must(not self.torn or kind == "error", "only an error follows a torn record", body)
        if kind == "error":
            self._fail(body)
            return
        if kind not in _STEPS or kind == "ping":
            return
        must(self.has_started or kind == "message_start", "message_start comes first", body)
        _STEPS[kind](self, body)

    def end(self) -> Told:
        told = self.told
        if told.error is not None:
            told.ending = "failed"
        elif told.finishes:
            told.ending = "finished"
        return told

    def _fail(self, body: dict[str, Any]) -> None:
        error = body.get("error")
        is_one = isinstance(error, dict) and error.get("type") and error.get("message")
        must(is_one, "an error has a type and a message", body)
        must(not self.told.finishes, "a stop reason and an error are two ends", body)
        self.told.error = error

    def _message_start(self, body: dict[str, Any]) -> None:
        must(not self.has_started, "one message_start", body)
        message = body["message"]
        must(message.get("role") == "assistant" and message.get("content") == [], "start", message)
        self.has_started = True
        self.told.usages.append(message["usage"])

    def _block_start(self, body: dict[str, Any]) -> None:
        must(self.block is None, "one block at a time", body)
        must(not self.told.finishes, "no block after the stop reason", body)
        must(body.get("index") == self.block_count, "blocks are numbered in order", body)
        self.block, self.json = body["content_block"], ""
        self.block_count += 1
        if self.block["type"] == "tool_use":
            must(self.block.get("id") and self.block.get("name"), "a call has id and name", body)
        self.told.hear(0, self.block.get("text", ""))

    def _block_delta(self, body: dict[str, Any]) -> None:
        must(self.block is not None, "a delta needs an open block", body)
        must(body.get("index") == self.block_count - 1, "a delta names the open block", body)
        assert self.block is not None
        delta = body["delta"]
        allowed = DELTAS.get(self.block["type"], {delta["type"]})
        must(delta["type"] in allowed, f"a delta fits its {self.block['type']} block", delta)
        self.told.hear(0, delta.get("text", ""))
        self.json += delta.get("partial_json", "")

    def _block_stop(self, body: dict[str, Any]) -> None:
        must(self.block is not None, "only an open block stops", body)
        must(body.get("index") == self.block_count - 1, "a stop names the open block", body)
        assert self.block is not None
        if self.block["type"] == "tool_use":
            self.told.calls.append(whole_call(self.block["name"], self.json or "{}"))
        self.block = None

    def _message_delta(self, body: dict[str, Any]) -> None:
        must(self.block is None, "message_delta comes when every block has stopped", body)
        if body.get("usage"):
            self.told.usages.append(body["usage"])
        if (reason := body["delta"].get("stop_reason")) is not None:
            self.told.finishes[0] = reason

    def _message_stop(self, body: dict[str, Any]) -> None:
        must(self.told.finishes, "message_stop follows a stop reason", body)
        self.told.has_mark = True


_STEPS = {
    "message_start": _Reader._message_start,
    "content_block_start": _Reader._block_start,
    "content_block_delta": _Reader._block_delta,
    "content_block_stop": _Reader._block_stop,
    "message_delta": _Reader._message_delta,
    "message_stop": _Reader._message_stop,
}
