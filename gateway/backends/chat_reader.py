"""What the events of an OpenAI chat stream say, read tolerantly, as pieces of an answer.

Knows no socket and no monitor. Counts, finish and model are read as the relay's tap reads them.
Source: OpenAI API reference, "The chat completion chunk object"; `streaming.md` 10 and 11.
"""

import json
from dataclasses import dataclass, field
from typing import Any, Literal

from gateway.backends.think_tags import ThinkTags
from gateway.relay.tap import BYTES_PER_TOKEN
from gateway.relay.usage import Reading, reader_of
from proto.events import Logprobs, TokenLogprob

PieceKind = Literal["reasoning", "text", "call"]
NO_ID = -1  # of a token whose id the server does not say
UNLIKELY = -9999.0  # as OpenAI writes it for what is not among the likeliest

_read = reader_of("chat")


@dataclass(frozen=True, slots=True)
class Piece:
    """Some of an answer, as it came. `tokens`: counted or estimated.

    `is_split`: the server told it from the answer's text by itself.
    """

    kind: PieceKind
    text: str
    tokens: int
    logprobs: tuple[Logprobs, ...] = ()
    is_split: bool = False


@dataclass(slots=True)
class HeldCall:
    """A tool call as far as it was written."""

    id: str
    name: str
    arguments: str = ""
    index: object = field(default=None, compare=False)

    @property
    def is_whole(self) -> bool:
        """Whether its arguments are a JSON object; none at all are an empty one."""
        try:
            return isinstance(json.loads(self.arguments or "{}"), dict)
        except ValueError:
            return False


class ChatReader:
    """Reads one answer. `tool_names`: what may be called; `one_a_delta`: a delta is a token.

    `is_closed`: its reasoning is over, whatever the server takes it for.
    """

    def __init__(
        self, tool_names: frozenset[str], *, one_a_delta: bool, is_closed: bool = False
    ) -> None:
        self.reading = Reading()
        self.calls: list[HeldCall] = []
        self.tokens = 0  # that were written, as far as known
        self._tool_names = tool_names
        self._one_a_delta = one_a_delta
        self._is_closed = is_closed
        self._tags = ThinkTags(is_closed=is_closed)
        self._counted = 0  # what the server last said of this answer's tokens
        self._bytes = 0

    @property
    def is_thinking(self) -> bool:
        """Whether a block in tags was opened and not closed."""
        return self._tags.is_inside

    def take(self, body: dict[str, Any]) -> list[Piece]:
        """The pieces that one event adds."""
        _read(self.reading, body)
        _read_timings(self.reading, body.get("timings"))
        choice = next(iter(_objects(body.get("choices"))), {})
        if choice.get("index") not in (0, None):  # there is one answer on the managed way
            return []
        delta = choice.get("delta") or choice.get("message")
        if not isinstance(delta, dict):
            return []
        found: list[tuple[PieceKind, str]] = []
        reasoning = _text(delta.get("reasoning_content")) or _text(delta.get("reasoning"))
        if reasoning:
            found.append(("text" if self._is_closed else "reasoning", reasoning))
            self._tags.close()
        if content := _text(delta.get("content")):
            found += self._tags.feed(content)
        written = "".join(self._take_call(call) for call in _objects(delta.get("tool_calls")))
        if written:
            found.append(("call", written))
        return self._pieces(found, _logprobs(choice.get("logprobs")), is_split=bool(reasoning))

    def end(self) -> list[Piece]:
        """What was held back of the text."""
        return self._pieces([*self._tags.end()], ())

    def _pieces(
        self,
        found: list[tuple[PieceKind, str]],
        logprobs: tuple[Logprobs, ...],
        *,
        is_split: bool = False,
    ) -> list[Piece]:
        """The tokens of one event belong to its first piece: the server does not say more."""
        if not found:
            return []
        tokens = self._count(sum(len(text.encode(errors="replace")) for _, text in found))
        pieces = []
        for kind, text in found:
            belong = logprobs if kind == "text" else ()
            pieces.append(Piece(kind, text, tokens, belong, is_split and kind == "reasoning"))
            tokens, logprobs = 0, () if belong else logprobs
        return pieces

    def _count(self, size_bytes: int) -> int:
        """How many tokens an event of so many bytes is: as the server says, a delta, or 4 bytes."""
        self._bytes += size_bytes
        said = self.reading.tokens.output or 0
        if said > self._counted:
            tokens, self._counted = said - self.tokens, said
        elif self._counted:
            tokens = 0
        elif self._one_a_delta:
            tokens = 1
        else:
            tokens = -(-self._bytes // BYTES_PER_TOKEN) - self.tokens
        tokens = max(tokens, 0)
        self.tokens += tokens
        return tokens

    def _take_call(self, body: dict[str, Any]) -> str:
        """One step of a call; returns the text that it adds."""
        function = body.get("function")
        function = function if isinstance(function, dict) else {}
        name = function.get("name") if isinstance(function.get("name"), str) else ""
        arguments = function.get("arguments")
        if isinstance(arguments, dict):
            arguments = json.dumps(arguments, ensure_ascii=False)
        written = arguments if isinstance(arguments, str) else ""
        call = self._call_of(body)
        added = ""
        # Some servers send the whole name again.
        if name and name != call.name and call.name not in self._tool_names:
            call.name += name
            added = name
        call.arguments += written
        return added + written

    def _call_of(self, body: dict[str, Any]) -> HeldCall:
        """The call that a step belongs to: by index, else by id, else the last one; a new id on a
        used index opens a new one."""
        index, said = body.get("index"), body.get("id")
        call_id = said if isinstance(said, str) else ""
        same = [
            call
            for call in self.calls
            if (call.index == index if index is not None else call.id == call_id or not call_id)
        ]
        call = same[-1] if same else None
        if call is not None and not (call_id and call.id and call.id != call_id):
            call.id = call.id or call_id
            return call
        call = HeldCall(call_id, "", index=index)
        self.calls.append(call)
        return call


def estimate(text: str) -> int:
    """Tokens of a text, where nobody counts them: a quarter of its bytes, rounded up."""
    return -(-len(text.encode(errors="replace")) // BYTES_PER_TOKEN)


def _read_timings(reading: Reading, timings: Any) -> None:
    """llama.cpp counts in its times what it leaves out of its usage; asked to, as it writes."""
    if not isinstance(timings, dict):
        return
    counts = [timings.get(name) for name in ("cache_n", "prompt_n", "predicted_n")]
    cached, read, written = (count if type(count) is int else None for count in counts)
    tokens = reading.tokens
    if tokens.cached is None:
        reading.usage(cached=cached)
    if tokens.prompt is None and read is not None:
        reading.usage(prompt=(cached or 0) + read)
    if tokens.output is None or (written is not None and written > tokens.output):
        reading.usage(output=written)


def _logprobs(value: Any) -> tuple[Logprobs, ...]:
    content = value.get("content") if isinstance(value, dict) else None
    return tuple(
        Logprobs(_token(one), tuple(_token(other) for other in _objects(one.get("top_logprobs"))))
        for one in _objects(content)
    )


def _token(value: dict[str, Any]) -> TokenLogprob:
    logprob = value.get("logprob")
    known = logprob if isinstance(logprob, (int, float)) else UNLIKELY
    return TokenLogprob(NO_ID, _text(value.get("token")), float(known))


def _text(value: Any) -> str:
    """Text, or the texts of a list of parts."""
    if isinstance(value, list):
        return "".join(_text(part.get("text")) for part in _objects(value))
    return value if isinstance(value, str) else ""


def _objects(value: Any) -> list[dict[str, Any]]:
    return [item for item in value if isinstance(item, dict)] if isinstance(value, list) else []
