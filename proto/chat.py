"""The conversation as every package sees it. Knows nothing of the four wire dialects.

A surface parses its dialect into a `Call` once; from there on nobody passes bare dicts.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import ClassVar, Literal

from proto.events import CallArguments, CallStart, Event, ReasoningDelta, TextDelta

# JSON as it came: schemas and template arguments are the caller's own and stay opaque.
Json = None | bool | int | float | str | list["Json"] | dict[str, "Json"]

Role = Literal["system", "developer", "user", "assistant", "tool"]


@dataclass(frozen=True, slots=True)
class TextPart:
    """Plain text inside a message."""

    TAG: ClassVar[str] = "text"
    text: str


@dataclass(frozen=True, slots=True)
class ImagePart:
    """An image by URL (`https:` or `data:`)."""

    TAG: ClassVar[str] = "image"
    url: str
    detail: str | None = None


Part = TextPart | ImagePart


@dataclass(frozen=True, slots=True)
class ToolCall:
    """A call the assistant made. `arguments` is the text it wrote, valid JSON or not."""

    id: str
    name: str
    arguments: str


@dataclass(frozen=True, slots=True)
class Message:
    """One message. `call_id` names the call that a `tool` message answers."""

    role: Role
    content: tuple[Part, ...] = ()
    calls: tuple[ToolCall, ...] = ()
    call_id: str | None = None
    name: str | None = None
    reasoning: str | None = None

    @property
    def text(self) -> str:
        """The text parts joined, images left out."""
        return "".join(part.text for part in self.content if isinstance(part, TextPart))


@dataclass(frozen=True, slots=True)
class Tool:
    """A function the model may call. `parameters` is a JSON Schema, None for no parameters."""

    name: str
    description: str | None = None
    parameters: dict[str, Json] | None = None
    strict: bool = False


@dataclass(frozen=True, slots=True)
class ToolChoice:
    """Which calls are allowed. `name` is set exactly when `mode` is `named`."""

    mode: Literal["none", "auto", "required", "named"] = "auto"
    name: str | None = None


@dataclass(frozen=True, slots=True)
class AnswerFormat:
    """A constraint on the answer's text. `spec` is a schema, a pattern, a grammar or choices."""

    kind: Literal["text", "json_object", "json_schema", "choice", "regex", "grammar"] = "text"
    spec: Json = None


@dataclass(frozen=True, slots=True)
class Call:
    """What a client asks of a model, whichever dialect it spoke.

    `template_args` are extra arguments of the chat template. `prompt` is set, and `messages`
    empty, for a raw completion that no template renders.
    """

    model: str
    messages: tuple[Message, ...]
    tools: tuple[Tool, ...] = ()
    tool_choice: ToolChoice = ToolChoice()
    parallel_tool_calls: bool = True
    answer_format: AnswerFormat = AnswerFormat()
    template_args: dict[str, Json] | None = None
    prompt: str | None = None


@dataclass(frozen=True, slots=True)
class Params:
    """How to sample and when to end. None means the model's own default.

    `max_tokens`: output tokens. `stop`: strings searched in visible answer text.
    """

    max_tokens: int | None = None
    stop: tuple[str, ...] = ()
    temperature: float | None = None
    top_p: float | None = None
    top_k: int | None = None
    min_p: float | None = None
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    repetition_penalty: float = 1.0
    logit_bias: dict[str, float] | None = None
    top_logprobs: int | None = None
    cache_prompt: bool = True


def reply_message(events: Iterable[Event]) -> Message:
    """The assistant message that a stream of events adds to the conversation.

    The one place where a reply is put together: whole-body answers and the engine's warm pass
    must agree on it to the byte.
    """
    text: list[str] = []
    reasoning: list[str] = []
    calls: dict[int, tuple[str, str, list[str]]] = {}
    for event in events:
        match event:
            case TextDelta(piece):
                text.append(piece)
            case ReasoningDelta(piece):
                reasoning.append(piece)
            case CallStart(index, call_id, name):
                calls[index] = (call_id, name, [])
            case CallArguments(index, piece):
                calls[index][2].append(piece)
            case _:
                continue
    return Message(
        role="assistant",
        content=(TextPart("".join(text)),) if text else (),
        calls=tuple(
            ToolCall(call_id, name, "".join(pieces) or "{}")
            for _, (call_id, name, pieces) in sorted(calls.items())
        ),
        reasoning="".join(reasoning) or None,
    )
