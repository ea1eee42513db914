"""Grammar of a streamed Gemini answer (`alt=sse`). Knows no renderer.

Source: the reference of `streamGenerateContent`. Every record is a response of its own, without an
event name; a candidate's last one has its `finishReason`; there is no closing mark. An error is an
object with `error`, and the last record.
"""

from typing import Any

from tests.wire.grammar.records import Event, Told, Torn, must, told_by, with_an_end


def read(stream: bytes) -> Told:
    """What the stream told; `ending` None where it has no end of its own. Raises: GrammarFault."""
    return told_by(_Reader(), stream)


def check(stream: bytes) -> Told:
    """The same, for a stream that must have exactly one end. Raises: GrammarFault."""
    return with_an_end(read(stream))


class _Reader:
    def __init__(self) -> None:
        self.told = Told(has_mark=True)  # the surface has none
        self.torn: Torn | None = None

    def take(self, event: Event | Torn) -> None:
        must(self.told.error is None, "nothing follows an error", event)
        if isinstance(event, Torn):
            must(not self.torn, "two torn records", event)
            self.torn = event
            return
        must(not event.name, "records carry no event name", event.name)
        must(event.body is not None, "this surface has no [DONE]")
        body = event.body or {}
        must(not self.torn or "error" in body, "only an error follows a torn record", body)
        if "error" in body:
            self._fail(body["error"])
            return
        if body.get("usageMetadata"):
            self.told.usages.append(body["usageMetadata"])
        if body.get("promptFeedback", {}).get("blockReason"):
            self.told.finishes[0] = body["promptFeedback"]["blockReason"]
        for candidate in body.get("candidates", []):
            self._candidate(candidate)

    def end(self) -> Told:
        told = self.told
        is_finished = bool(told.finishes) and told.finishes.keys() >= told.texts.keys()
        if told.error is not None:
            must(not is_finished, "a finish reason and an error are two ends", told.finishes)
            told.ending = "failed"
        elif is_finished:
            told.ending = "finished"
        return told

    def _fail(self, error: Any) -> None:
        is_one = isinstance(error, dict) and type(error.get("code")) is int
        must(is_one and error.get("message") and error.get("status"), "an error's fields", error)
        self.told.error = error

    def _candidate(self, candidate: dict[str, Any]) -> None:
        index = candidate.get("index", 0)
        parts = candidate.get("content", {}).get("parts", [])
        must(index not in self.told.finishes or not parts, "silent after its end", candidate)
        self.told.hear(index, "")
        for part in parts:
            self.told.hear(index, part.get("text", ""))
            if "functionCall" in part:
                call = part["functionCall"]
                must(isinstance(call.get("args", {}), dict), "arguments are an object", call)
                self.told.calls.append((call["name"], repr(call.get("args", {}))))
        if candidate.get("finishReason"):
            self.told.finishes[index] = candidate["finishReason"]
