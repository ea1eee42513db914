"""An answer as far as it was written, whichever request wrote it: what a client has of it, what is
held, and what the next request goes on from. Knows no socket, no body and no monitor.
"""

from collections.abc import Iterator, Sequence

from conductor.monitor.ends import OWN_END
from conductor.monitor.verdicts import End, Finish, MadeCall
from gateway.backends.chat_reader import HeldCall, Piece, estimate
from gateway.errors import ApiError
from proto.chat import Call
from proto.events import CallArguments, CallEnd, CallStart, Event, ReasoningDelta, TextDelta

# Finish reasons of servers that are not the standard ones; what is in neither is `stop`.
_LENGTHS = frozenset({"length", "max_tokens", "max_length", "model_length"})
_FAULTS = frozenset({"error", "abort", "aborted"})
# Of an end that the model chose; servers say the same of one at a stop string. A filter's is none.
_OWN_ENDS = frozenset({None, "stop", "eos", "eos_token", "end_turn"})


class Written:
    """One answer. `shown_tokens`, `hidden_tokens`: of what was written, thrown away is hidden.

    `is_split`: the server itself tells its reasoning from its text. `has_stops`: stop strings may
    end it too.
    """

    def __init__(self, call: Call, *, has_stops: bool = False) -> None:
        self.calls: list[HeldCall] = []  # until the answer is over
        self.reasoning = ""
        self.text = ""
        self.shown_tokens = 0
        self.hidden_tokens = 0
        self.is_in_call = False  # it ended inside one
        self.is_split = False
        self.closed_by: str | None = None
        self.tail = ""  # text that the monitor kept back until the end
        self._raw_finish: str | None = None
        self._has_stops = has_stops
        self._call_tokens = 0
        forced = call.tool_choice.mode in ("required", "named")
        self._most_calls = 1 if forced and not call.parallel_tool_calls else None

    @property
    def is_open(self) -> bool:
        """Whether reasoning was begun and nothing came behind it."""
        return bool(self.reasoning) and self.closed_by is None

    @property
    def finish(self) -> Finish:
        """Why it ended, in a standard word."""
        if self.is_in_call or (self._raw_finish in _LENGTHS and not self.calls):
            return "length"
        return "tool_calls" if self.calls else "stop"

    @property
    def detail(self) -> str:
        """Why it ended: `eos` where the model chose to for sure, else the server's word."""
        is_own = self._raw_finish in _OWN_ENDS and not self._has_stops
        return OWN_END if is_own or self._raw_finish is None else self._raw_finish

    def add(self, piece: Piece) -> None:
        """A piece came."""
        if piece.kind == "reasoning":
            self.reasoning += piece.text
            self.is_split |= piece.is_split
        elif self.is_open:
            self.closed_by = "model"
        if piece.kind == "text":
            self.text += piece.text
        if piece.kind == "call":
            self._call_tokens += piece.tokens
        self.shown_tokens += piece.tokens

    def end(self, raw_finish: str | None) -> None:
        """A request's answer is over. Raises: ApiError where the server says that it failed."""
        if raw_finish in _FAULTS:
            raise ApiError(502, "upstream_failed", "The backend broke the answer off.")
        self._raw_finish = raw_finish

    def take_calls(self, calls: Sequence[HeldCall]) -> None:
        """Calls that a request added, without those that have no name."""
        self.calls += [call for call in calls if call.name]
        if self._raw_finish in _LENGTHS and self.calls and not self.calls[-1].is_whole:
            self._hide(self.calls.pop())
            self.is_in_call = True

    def replace_call(self, index: int, calls: Sequence[HeldCall]) -> None:
        """A call was made again; where it was not, the old one stays."""
        made = next((call for call in calls if call.name), None)
        if made is None:
            return
        self._hide(self.calls[index])
        made.id = made.id or self.calls[index].id
        self.calls[index] = made

    def drop_calls(self) -> None:
        """All of them will be made again."""
        self.hidden_tokens += self._call_tokens
        self.shown_tokens -= self._call_tokens
        self._call_tokens = 0
        self.calls.clear()

    def made(self) -> tuple[MadeCall, ...]:
        """The calls, as a monitor sees them."""
        return tuple(
            MadeCall(index, call.name, call.arguments) for index, call in enumerate(self.calls)
        )

    def as_end(self, *, is_thinking: bool, room: int) -> End:
        """The end, as a monitor sees it. `is_thinking`: the server left a block of reasoning
        open."""
        return End(
            finish=self.finish,
            detail=self.detail,
            has_text=bool(self.text.strip()),
            calls=len(self.calls),
            is_open=is_thinking or self.is_open,
            is_in_call=self.is_in_call,
            room=room,
        )

    def correct(self, calls: Sequence[MadeCall]) -> None:
        """Puts these in the place of the calls with their index; those that are not named go."""
        ids = {index: call.id for index, call in enumerate(self.calls)}
        self.calls = [HeldCall(ids.get(one.index, ""), one.name, one.arguments) for one in calls]

    def keep(self, count: int) -> None:
        """The first calls stay, the others go."""
        while len(self.calls) > count:
            self._hide(self.calls.pop())

    def call_events(self) -> Iterator[Event]:
        """The calls as the client gets them: whole, each once.

        Raises: ApiError where one was cut, for agents carry out what they get.
        """
        self._drop_echoes()
        for index, call in enumerate(self.calls):
            if not call.is_whole:
                message = "The backend's answer broke off inside a tool call."
                raise ApiError(502, "upstream_failed", message)
            yield CallStart(index, call.id or f"call_stream_{index + 1}", call.name)
            yield CallArguments(index, call.arguments or "{}")
            yield CallEnd(index)

    def _drop_echoes(self) -> None:
        kept: list[HeldCall] = []
        for call in self.calls:
            is_echo = bool(kept) and (kept[-1].name, kept[-1].arguments) == (
                call.name,
                call.arguments,
            )
            if is_echo or len(kept) == self._most_calls:
                self._hide(call)
            else:
                kept.append(call)
        self.calls = kept

    def _hide(self, call: HeldCall) -> None:
        """It was written, and the client does not get it."""
        tokens = min(estimate(call.name + call.arguments), self._call_tokens)
        self._call_tokens -= tokens
        self.shown_tokens -= tokens
        self.hidden_tokens += tokens


def event_of(piece: Piece, text: str) -> Event | None:
    """What the client gets of a piece, with this text in its place; calls wait for their end."""
    match piece.kind:
        case "reasoning":
            return ReasoningDelta(text, piece.tokens) if text else None
        case "text":
            if not text and not piece.logprobs:
                return None
            return TextDelta(text, piece.logprobs, piece.tokens)
        case "call":
            return None
