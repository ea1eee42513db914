"""What the scripted provider answers, whatever the dialect. Knows no bytes and no socket.

Without tools, or with a tool's result at hand, it is always the same text; with tools and no result
yet, a call of the first tool. The counts differ from request to request: no two can be mixed up.
"""

import json
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

# Characters of one to four bytes in UTF-8, so that a cut at any byte shows.
PIECES = ("Tandem ", "rides ", "über die ", "長い橋 ", "🚲.")
TEXT = "".join(PIECES)
ARGUMENT = "Lisboa, über 橋"  # in every required text field of a call
CREATED_S = 1_700_000_000


class Refused(Exception):
    """The provider does not do what it was asked to."""

    def __init__(self, status: int, message: str) -> None:
        super().__init__(message)
        self.status = status


@dataclass(frozen=True, slots=True)
class Request:
    """One request as it arrived. `path` begins behind the dialect's own part of the address."""

    number: int
    method: str
    path: str
    query: str
    headers: dict[str, str]
    body: Any

    @property
    def model(self) -> str:
        """The name that the body asks for."""
        return str(self.body["model"])


@dataclass(frozen=True, slots=True)
class Usage:
    """Tokens as an answer states them; prompt includes cached and written, output reasoning.

    None: the answer says nothing about it.
    """

    prompt: int | None = None
    output: int | None = None
    cached: int | None = None
    written: int | None = None
    reasoning: int | None = None


@dataclass(frozen=True, slots=True)
class Call:
    """A call of one of the client's tools."""

    id: str
    name: str
    arguments: dict[str, str]

    @property
    def json(self) -> str:
        """The arguments as the text that OpenAI's surfaces want them in."""
        return json.dumps(self.arguments, ensure_ascii=False)


@dataclass(frozen=True, slots=True)
class Reply:
    """What a request is answered with, and what a ledger should know of it.

    `content`: the JSON body, or the events of a stream, each as its bytes. `usage` None: the answer
    carries none. A list of models has neither surface nor model.
    """

    surface: str | None
    model: str | None
    content: dict[str, Any] | list[bytes]
    finish: str | None = None
    usage: Usage | None = None
    call: Call | None = None
    kind: str = "generation"

    @property
    def is_stream(self) -> bool:
        """Whether the answer is a stream of events."""
        return isinstance(self.content, list)


def counts(number: int) -> Usage:
    """The counts of the n-th request."""
    return Usage(
        prompt=1000 + number, output=100 + number, cached=number % 50, written=number % 7,
        reasoning=number % 11,
    )  # fmt: skip


def call_of(number: int, name: str, schema: dict[str, Any] | None) -> Call:
    """A call of a tool whose parameters have this JSON Schema: required text fields are filled."""
    fields = (schema or {}).get("properties", {})
    required = (schema or {}).get("required", [])
    arguments = {
        field: ARGUMENT for field in required if str(fields[field].get("type")).lower() == "string"
    }
    return Call(f"call_{number}", name, arguments)


def cut(text: str, count: int = 3) -> list[str]:
    """The text in pieces of about the same length, none of them empty."""
    size = max(1, -(-len(text) // count))
    return [text[at : at + size] for at in range(0, len(text), size)]


def data(body: Any, *, end: str = "\n\n") -> bytes:
    """A server-sent event that has nothing but data."""
    return f"data: {json.dumps(body, ensure_ascii=False)}{end}".encode()


def event(body: dict[str, Any]) -> bytes:
    """A server-sent event named by its `type`."""
    return f"event: {body['type']}\n".encode() + data(body)


def objects(value: Any) -> Iterable[dict[str, Any]]:
    """The objects of a list; nothing where there is no list."""
    return [item for item in value if isinstance(item, dict)] if isinstance(value, list) else []
