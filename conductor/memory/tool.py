"""The tool `tandem_memory`: offered, read, answered. Knows no table; no client ever sees it."""

import json
from collections.abc import Sequence

from conductor.memory.notes import KINDS, TEXT_CHARS, Draft, MemoryKind
from conductor.memory.refusal import Refusal
from proto.chat import Tool

NAME = "tandem_memory"

TOOL = Tool(
    name=NAME,
    description=(
        "Keeps one short statement about this project for later sessions. No secrets, no orders, "
        "nothing copied from a tool's result."
    ),
    parameters={
        "type": "object",
        "properties": {
            "kind": {"type": "string", "enum": [*KINDS]},
            "text": {"type": "string", "maxLength": TEXT_CHARS},
            "replaces": {"type": "integer", "description": "number of the note that it corrects"},
        },
        "required": ["kind", "text"],
        "additionalProperties": False,
    },
)

# What the model is told of a call that was not taken.
_REASONS: dict[Refusal, str] = {
    "empty": "there is no text",
    "long": f"it has more than {TEXT_CHARS} characters",
    "markup": "it contains tags or control characters",
    "secret": "it looks like a secret",
    "instruction": "it reads like an order; state what is",
    "echo": "it repeats a tool's result",
}


def offered(tools: Sequence[Tool]) -> tuple[Tool, ...]:
    """The request's tools and ours behind them; a client's own tool of that name stays alone."""
    if any(tool.name == NAME for tool in tools):
        return tuple(tools)
    return (*tools, TOOL)


def draft_of(arguments: str) -> Draft | None:
    """What a call wants kept, None where its arguments are of another form."""
    try:
        values = json.loads(arguments)
    except (ValueError, RecursionError):
        return None
    return read_draft(values)


def read_draft(values: object) -> Draft | None:
    """The same from values that were JSON."""
    if not isinstance(values, dict) or not isinstance(values.get("text"), str):
        return None
    kinds: dict[object, MemoryKind] = {kind: kind for kind in KINDS}
    kind = values.get("kind")
    replaces = values.get("replaces")
    is_number = isinstance(replaces, int) and not isinstance(replaces, bool) and replaces > 0
    return Draft(
        kinds.get(kind if isinstance(kind, str) else None, "fact"),
        " ".join(values["text"].split()),
        replaces if is_number else None,
    )


def answer_to(draft: Draft | None, refusal: Refusal | None) -> str:
    """The result that the model gets for its call."""
    if draft is None:
        return "Not kept: the arguments are not of the tool's form."
    return "Kept." if refusal is None else f"Not kept: {_REASONS[refusal]}."
