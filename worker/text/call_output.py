"""What goes out of an answer with tool calls, in order, and when. Knows no notation of a call."""

from collections.abc import Callable
from typing import Literal

from proto.messages import CallPart

Stream = Literal["live", "held"]


class CallOutput:
    """Collects visible text and the parts of calls; drops echoes and calls beyond `most_calls`.

    `live`: parts of a call go out as they come; under the previous call's name only once its
    arguments differ from that one's. `held`: all of them at the call's end.
    """

    def __init__(self, stream: Stream, most_calls: int | None, new_id: Callable[[], str]) -> None:
        self.at = 0  # number of the token that is being read
        self.count = 0  # calls that went out whole
        self._stream = stream
        self._most_calls = most_calls
        self._new_id = new_id
        self._out: list[str | CallPart] = []
        self._index = 0  # of the open call
        self._previous: tuple[str, str] | None = None  # name and arguments
        self._name: str | None = None  # of the open call, as all below
        self._args: list[str] = []
        self._sent = 0  # pieces of the arguments that went out
        self._is_started = False
        self._compared = 0  # pieces found to be the previous call's
        self._compared_chars = 0

    @property
    def is_started(self) -> bool:
        """Whether a part of the open call has gone out."""
        return self._is_started

    @property
    def is_full(self) -> bool:
        """Whether no further call may go out."""
        return self._most_calls is not None and self._index >= self._most_calls

    def take(self) -> list[str | CallPart]:
        """Everything since the last call."""
        out, self._out = self._out, []
        return out

    def say(self, text: str) -> None:
        """Adds visible text."""
        if text and self._out and isinstance(last := self._out[-1], str):
            self._out[-1] = last + text
        elif text:
            self._out.append(text)

    def write(self, name: str | None, args: str) -> None:
        """The open call's name, once it is known, and the next piece of its arguments."""
        self._name = name
        if args:
            self._args.append(args)
        if name is None or self._stream == "held" or self.is_full:
            return
        if not self._is_started and self._is_echo_so_far():
            return
        self._send(name)

    def end(self) -> None:
        """The open call is complete."""
        assert self._name is not None
        call = (self._name, "".join(self._args))
        is_dropped = not self._is_started and (self.is_full or call == self._previous)
        if not is_dropped:
            self._send(self._name)
            self._out.append(CallPart(at=self.at, index=self._index, end=True))
            self._index += 1
            self.count += 1
            self._previous = call
        self._clear()

    def cut(self, closing: str) -> None:
        """The open call has gone out in part and ends here; `closing` makes it valid."""
        assert self._is_started and self._name is not None
        if closing:
            self._args.append(closing)
        self._send(self._name)
        self._out.append(CallPart(at=self.at, index=self._index, end=True))
        self._index += 1
        self._previous = None
        self._clear()

    def drop(self) -> None:
        """The open call was none, or goes out no more. Nothing of it has gone out."""
        assert not self._is_started
        self._clear()

    def _clear(self) -> None:
        self._name, self._args, self._is_started = None, [], False
        self._sent = self._compared = self._compared_chars = 0

    def _is_echo_so_far(self) -> bool:
        if self._previous is None or self._previous[0] != self._name:
            return False
        for piece in self._args[self._compared :]:
            if not self._previous[1].startswith(piece, self._compared_chars):
                return False
            self._compared += 1
            self._compared_chars += len(piece)
        return True

    def _send(self, name: str) -> None:
        if not self._is_started:
            self._is_started = True
            self._out.append(CallPart(at=self.at, index=self._index, id=self._new_id(), name=name))
        args = "".join(self._args[self._sent :])
        self._sent = len(self._args)
        if args:
            self._out.append(CallPart(at=self.at, index=self._index, args=args))
