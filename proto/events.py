"""What happens while an answer is written, in neutral form. Knows no wire dialect and no backend.

A backend yields these; a surface renders them. Exactly one `Finished` or `Failed` ends a stream.
"""

from dataclasses import dataclass, field
from typing import Literal

FinishReason = Literal["stop", "length", "tool_calls", "error", "cancelled"]


@dataclass(frozen=True, slots=True)
class Usage:
    """Token counts of one run. The first six as the client shall see them (hidden ones excluded);
    the `upstream_*` five as the model really processed them."""

    prompt_tokens: int
    completion_tokens: int
    cached_tokens: int = 0
    reasoning_tokens: int = 0
    note_tokens: int = 0
    hidden_tokens: int = 0
    upstream_input_tokens: int = 0
    upstream_cached_tokens: int = 0
    upstream_cache_write_tokens: int = 0
    upstream_output_tokens: int = 0
    upstream_reasoning_tokens: int = 0


@dataclass(frozen=True, slots=True)
class Timings:
    """Milliseconds of one run: `queue_ms` arrival to admission, `prompt_ms` admission to first
    token, `ttft_ms` their sum, `decode_ms` first to last token. `forwarded_tokens`: prompt tokens
    that were computed, not taken from a kept state."""

    queue_ms: float = 0.0
    prompt_ms: float = 0.0
    ttft_ms: float = 0.0
    decode_ms: float = 0.0
    total_ms: float = 0.0
    forwarded_tokens: int = 0


@dataclass(frozen=True, slots=True)
class Speculation:
    """Decode rounds of one run: all, plain ones (one row, no draft), and drafted tokens.
    `first_miss[i]`: rounds whose first refused draft token was the i-th."""

    rounds: int = 0
    plain: int = 0
    draft_tokens: int = 0
    draft_accepted: int = 0
    first_miss: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class Waiting:
    """The request waits for its turn. `position` 0 is next."""

    position: int
    est_wait_ms: int


@dataclass(frozen=True, slots=True)
class Reading:
    """The prompt is being read: `done` of `total` tokens, `cached` of them from a kept state."""

    phase: Literal["memory_wait", "prefill"]
    done: int
    total: int
    cached: int


@dataclass(frozen=True, slots=True)
class TokenLogprob:
    """Log-probability of one token: its id, its text, its value."""

    id: int
    text: str
    logprob: float


@dataclass(frozen=True, slots=True)
class Logprobs:
    """The chosen token and the likeliest others, likeliest first."""

    chosen: TokenLogprob
    top: tuple[TokenLogprob, ...] = ()


@dataclass(frozen=True, slots=True)
class TextDelta:
    """A piece of the visible answer. `logprobs`: of the tokens it comes from, where asked for.

    `tokens`: how many those are, 0 where nobody knows; it says nothing of the text.
    """

    text: str
    logprobs: tuple[Logprobs, ...] = ()
    tokens: int = field(default=0, compare=False)


@dataclass(frozen=True, slots=True)
class ReasoningDelta:
    """A piece of the model's reasoning. `tokens`: as in `TextDelta`."""

    text: str
    tokens: int = field(default=0, compare=False)


@dataclass(frozen=True, slots=True)
class CallStart:
    """The model begins a tool call."""

    index: int
    id: str
    name: str


@dataclass(frozen=True, slots=True)
class CallArguments:
    """A piece of a call's arguments; the pieces of one index join to JSON."""

    index: int
    arguments: str


@dataclass(frozen=True, slots=True)
class CallEnd:
    """The call's arguments are complete."""

    index: int


@dataclass(frozen=True, slots=True)
class Finished:
    """The answer is complete. `detail` says why in one word (eos, stop_string, max_tokens, …).

    `thinking_closed_by`: model, call, budget, or None. `choice_margin`: how clearly one of a list
    was chosen, 0 to 1. `reasoned_chars`: of its text, from the start: reasoning, although nothing
    had opened any.
    """

    reason: FinishReason
    detail: str | None
    usage: Usage
    timings: Timings
    speculation: Speculation = Speculation()
    cache_source: str = "none"
    thinking_closed_by: str | None = None
    choice_margin: float | None = None
    reasoned_chars: int = 0


@dataclass(frozen=True, slots=True)
class Failed:
    """The answer broke off. `message` may be shown; the counts are what is known so far."""

    code: str
    message: str
    completion_tokens: int | None = None


Event = (
    Waiting | Reading | TextDelta | ReasoningDelta | CallStart | CallArguments | CallEnd
    | Finished | Failed
)  # fmt: skip
