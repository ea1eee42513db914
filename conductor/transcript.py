"""The block that a request with tools leaves in its session's transcript. Knows no file.

What a secret looks like is told by a function.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from itertools import takewhile

from proto.chat import Message, ToolCall

ARGUMENTS_CHARS = 4_000  # of one call: a written file must not fill the transcript
Mask = Callable[[str], str]


@dataclass(frozen=True, slots=True)
class PastTurn:
    """A request with tools, when it is over. `results`: the call's name and the characters of its
    result, for each result that the request brought."""

    request_id: str
    ended_ms: int
    client: str
    model: str
    profile: str
    task_class: str | None
    results: tuple[tuple[str, int], ...]
    calls: tuple[ToolCall, ...]
    finish: str


def block_of(turn: PastTurn, mask: Mask) -> str:
    """The block: a header, what the request brought, what was called, how it ended."""
    time = datetime.fromtimestamp(turn.ended_ms / 1000, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
    head = f"== {time} {turn.request_id} {turn.client} {turn.model} profile={turn.profile}"
    lines = [_one_line(f"{head} class={turn.task_class or '-'}")]
    lines += [_one_line(f"result {name}: {size:,} characters") for name, size in turn.results]
    for call in turn.calls:
        lines.append(_one_line(f"call {call.name} {_cut(mask(call.arguments))}"))
    lines.append(_one_line(f"finish {turn.finish}"))
    return "\n".join(lines) + "\n\n"


def results_of(messages: Sequence[Message]) -> tuple[tuple[str, int], ...]:
    """What a request brought: the call's name and the characters of its result, for each result
    behind the last thing that somebody said."""
    names = {call.id: call.name for message in messages for call in message.calls}
    brought = list(takewhile(lambda message: message.role == "tool", reversed(messages)))
    return tuple((names.get(one.call_id or "", "-"), len(one.text)) for one in reversed(brought))


def _cut(text: str) -> str:
    left = len(text) - ARGUMENTS_CHARS
    return text if left <= 0 else f"{text[:ARGUMENTS_CHARS]}… ({left:,} characters more)"


def _one_line(text: str) -> str:
    """Blocks are told apart by their lines: what was called must not write any."""
    return "".join(sign if sign.isprintable() else repr(sign)[1:-1] for sign in text)
