"""The ground under every grammar: records of a stream, and what a reader learnt. Knows no surface.

Written from the event-stream format's own text (WHATWG HTML, 9.2.5 and 9.2.6), never from the
gateway's parser: line ends CR, LF and CRLF, one leading byte order mark, comments, several `data`
lines of one event.
"""

import json
import re
from dataclasses import dataclass, field
from typing import Any, Literal, NamedTuple, Protocol

LINE_END = re.compile(rb"\r\n|\n|\r")


class GrammarFault(Exception):
    """A stream said something that its surface does not allow there."""


class Torn(NamedTuple):
    """A record that was cut: no client can read it. Only an error may follow."""

    data: bytes


class Event(NamedTuple):
    """One record. `body`: the JSON object in it; None for the mark `[DONE]`."""

    name: str
    body: dict[str, Any] | None


@dataclass(slots=True)
class Told:
    """What a client has learnt from a whole stream.

    `ending`: None when the bytes just ended. `texts` by choice, `calls`: name and arguments.
    `has_mark`: whether the surface's last mark (`[DONE]`, `message_stop`) was there.
    """

    ending: Literal["finished", "failed"] | None = None
    texts: dict[int, str] = field(default_factory=dict)
    calls: list[tuple[str, str]] = field(default_factory=list)
    finishes: dict[int, str] = field(default_factory=dict)
    usages: list[dict[str, Any]] = field(default_factory=list)
    error: dict[str, Any] | None = None
    has_mark: bool = False

    def hear(self, index: int, text: str) -> None:
        """Adds to the text of one choice."""
        self.texts[index] = self.texts.get(index, "") + text

    @property
    def text(self) -> str:
        """The text of the first choice."""
        return self.texts.get(0, "")


def events_of(stream: bytes) -> list[Event | Torn]:
    """Every record of a stream.

    Raises: GrammarFault, when the last record is not closed by a blank line.
    """
    lines = LINE_END.split(stream.removeprefix(b"\xef\xbb\xbf"))
    found: list[Event | Torn] = []
    name, data = b"", None
    for line in lines[:-1]:
        if line:
            key, _, value = line.partition(b":")
            value = value.removeprefix(b" ")
            if key == b"event":
                name = value
            elif key == b"data":
                data = value if data is None else data + b"\n" + value
            continue
        if data is not None:
            found.append(_event(name, data))
        name, data = b"", None
    if lines[-1] or data is not None:
        raise GrammarFault(f"the stream ends inside a record: {lines[-1] or data!r}")
    return found


def _event(name: bytes, data: bytes) -> Event | Torn:
    if data.strip() == b"[DONE]":
        return Event(name.decode(), None)
    try:
        body = json.loads(data.decode())
    except ValueError:  # a character cut in two is torn as well
        return Torn(data)
    must(isinstance(body, dict), "an event's data must be an object", body)
    return Event(name.decode(), body)


class Reader(Protocol):
    """One surface's state machine."""

    def take(self, event: Event | Torn) -> None:
        """Reads the next record. Raises: GrammarFault."""

    def end(self) -> Told:
        """The stream is over. Raises: GrammarFault."""


def told_by(reader: Reader, stream: bytes) -> Told:
    """What a whole stream tells this reader.

    Raises: GrammarFault, also for fields that are missing or of another kind.
    """
    for event in events_of(stream):
        try:
            reader.take(event)
        except (LookupError, TypeError, AttributeError) as fault:
            raise GrammarFault(f"a field is missing or odd in {event!r:.300}") from fault
    return reader.end()


def with_an_end(told: Told) -> Told:
    """Raises: GrammarFault, when the bytes just ended."""
    must(told.ending, "a stream ends with a finish reason or an error")
    return told


def must(is_so: object, rule: str, seen: object = "") -> None:
    """Raises: GrammarFault naming the rule that was broken."""
    if not is_so:
        raise GrammarFault(f"{rule}: {seen!r:.300}")


def whole_call(name: str, arguments: str) -> tuple[str, str]:
    """A finished call, whose arguments join to JSON."""
    try:
        json.loads(arguments)
    except ValueError as fault:
        raise GrammarFault(f"the arguments of {name!r} are no JSON: {arguments!r}") from fault
    return name, arguments
