"""One request as the ledger books it: filled in while it runs, closed once. Knows no SQL.

Whatever a backend reports comes in through the `book_*` methods, which keep the invariants between
the columns; the times come from readings of one clock.
"""

from collections.abc import Iterable, Mapping, Sequence
from decimal import Decimal, InvalidOperation
from fractions import Fraction
from hashlib import blake2b
from math import floor
from typing import Any, Literal

from gateway.ledger.row import BLANK, COLUMNS, INT_MAX, UNSAID
from proto.events import Speculation, Timings, Usage

Kind = Literal[
    "generation", "side", "attempt", "classifier", "continuation", "regeneration", "memory",
    "summary", "title", "tool", "embedding", "count", "replay", "cache", "recovery", "other",
]  # fmt: skip
Outcome = Literal["succeeded", "failed", "aborted", "refused", "lost"]
RequestPath = Literal["relay", "managed"]
UsageSource = Literal["backend", "counted", "estimated", "none"]

MICROS = 1_000_000  # the ledger counts money in these parts of a currency unit
NOT_HASHED = frozenset({"stream", "stream_options"})  # a client's own retry may change these
HASHED_HEAD_CHARS = 8 * 1024  # of a long value: with its length and its tail enough to tell it
HASHED_TAIL_CHARS = 24 * 1024  # apart, and no body holds the event loop for more than 0.1 ms


class Entry:
    """One request (or one further call made for it), from arrival to its one `close`.

    `arrived_s`, `first_delta_s`, `last_delta_s` and the `now_s` of `close` are readings of one
    monotonic clock. The other fields are columns of the ledger; nothing changes after `close`.

    An entry's own dictionary holds its columns: from the start those that most requests come to
    know (replacing is quicker than adding), others once they are set; until then the class answers
    for them. What is no column lies in slots beside it.
    """

    __slots__ = (
        "__dict__", "arrived_s", "decode_s", "first_delta_s", "is_booked", "is_closed",
        "last_delta_s",
    )  # fmt: skip

    arrived_s: float
    first_delta_s: float | None
    last_delta_s: float | None
    decode_s: float | None
    is_closed: bool
    is_booked: bool

    request_id: str
    ts_ms: int
    parent_request_id: str | None = None
    run_id: str | None = None
    conversation_id: str | None = None
    kind: Kind = "generation"
    attempt: int = 1
    body_hash: str | None = None
    idem_hash: str | None = None
    client_id: str = "anon"
    user_id: str | None = None
    client_kind: str | None = None
    surface: str | None = None
    path: RequestPath | None = None
    stream: int | None = None
    model: str | None = None
    backend: str | None = None
    upstream_key: str | None = None
    upstream_model: str | None = None
    served_model: str | None = None
    profile: str | None = None
    config_rev: str | None = None
    task_class: str | None = None
    class_source: str | None = None
    side_kind: str | None = None
    session_hash: str | None = None
    status: int | None = None
    upstream_status: int | None = None
    outcome: Outcome | None = None
    finish_reason: str | None = None
    error_type: str | None = None
    prompt_tokens: int | None = None
    cached_tokens: int | None = None
    cache_write_tokens: int | None = None
    completion_tokens: int | None = None
    reasoning_tokens: int | None = None
    upstream_input_tokens: int | None = None
    upstream_cached_tokens: int | None = None
    upstream_cache_write_tokens: int | None = None
    upstream_output_tokens: int | None = None
    upstream_reasoning_tokens: int | None = None
    note_tokens: int | None = None
    hidden_tokens: int | None = None
    usage_source: UsageSource = "none"
    adjusted: int = 0
    tool_calls: int | None = None
    max_tokens: int | None = None
    queue_ms: int | None = None
    prompt_ms: int | None = None
    ttft_ms: int | None = None
    decode_ms: int | None = None
    total_ms: int | None = None
    classify_ms: int | None = None
    decode_tps: float | None = None
    prefill_tps: float | None = None
    blocks: int | None = None
    draft_tokens: int | None = None
    draft_accepted: int | None = None
    cache_source: str | None = None
    thinking: bool | None = None
    thinking_closed_by: str | None = None
    monitor_acts: int | None = None
    monitor_shadows: int | None = None
    sandbox_cpu_ms: int | None = None
    degraded: str | None = None
    memory_used: str | None = None
    currency: str | None = None
    cost_micros: int | None = None
    cost_source: Literal["provider"] | None = None
    version: str | None = None
    code_sha: str | None = None

    def __init__(self, *, request_id: str, ts_ms: int, arrived_s: float, **columns: Any) -> None:
        """A request that has arrived. Raises: TypeError for a name that is no column."""
        if not columns.keys() <= ENTRY_COLUMNS:
            raise TypeError(f"no column of an entry: {sorted(columns.keys() - ENTRY_COLUMNS)}")
        self.__dict__ = known = _USUAL.copy()
        known.update(columns)
        known["request_id"] = request_id
        known["ts_ms"] = ts_ms
        self.arrived_s = arrived_s
        self.first_delta_s = self.last_delta_s = self.decode_s = None
        self.is_closed = self.is_booked = False

    def saw_delta(self, now_s: float) -> None:
        """A delta with content, reasoning or tool text went by."""
        if self.first_delta_s is None:
            self.first_delta_s = now_s
        self.last_delta_s = now_s

    def book_usage(
        self,
        *,
        prompt: int | None,
        completion: int | None,
        source: UsageSource,
        cached: int | None = None,
        cache_write: int | None = None,
        reasoning: int | None = None,
    ) -> None:
        """Books what the backend reported (or was counted), shown as it was; replaces, never adds.

        `prompt` includes cached and written tokens, `completion` includes reasoning. Parts larger
        than their whole are cut to it, and impossible counts are unknown.
        """
        prompt, completion = _count(prompt), _count(completion)
        if cached is not None:
            cached = _part(cached, prompt)
        if cache_write is not None:
            cache_write = _part(cache_write, _rest(prompt, cached))
        if reasoning is not None:
            reasoning = _part(reasoning, completion)
        self.upstream_input_tokens = self.prompt_tokens = prompt
        self.upstream_output_tokens = self.completion_tokens = completion
        self.upstream_cached_tokens = self.cached_tokens = cached
        self.upstream_cache_write_tokens = self.cache_write_tokens = cache_write
        self.upstream_reasoning_tokens = self.reasoning_tokens = reasoning
        if self.note_tokens is not None or self.hidden_tokens is not None:
            self.note_tokens = self.hidden_tokens = None
        self.adjusted = 0
        self.usage_source = source

    def book_hidden(
        self, *, note: int, hidden: int, is_estimated: bool, children: Sequence["Entry"] = ()
    ) -> None:
        """Takes notes and hidden output out of what is shown. Call it after `book_usage`.

        `children`: continuations and regenerations, booked already; their output is a part of this
        answer, and what of it was thrown away counts as `hidden`.
        """
        calls = (self, *children)
        output = _sum(call.upstream_output_tokens for call in calls)
        self.note_tokens = _part(note, self.upstream_input_tokens)
        self.hidden_tokens = _part(hidden, output)
        self.adjusted = int(is_estimated)
        self._show()
        self.completion_tokens = _rest(output, self.hidden_tokens)
        reasoning = _sum(call.upstream_reasoning_tokens for call in calls)
        self.reasoning_tokens = _part(reasoning, self.completion_tokens)

    def book_engine(self, usage: Usage) -> None:
        """Books the usage that our own engine reported, shown and processed."""
        self.prompt_tokens = usage.prompt_tokens
        self.cached_tokens = usage.cached_tokens
        self.cache_write_tokens = usage.upstream_cache_write_tokens
        self.completion_tokens = usage.completion_tokens
        self.reasoning_tokens = usage.reasoning_tokens
        self.upstream_input_tokens = usage.upstream_input_tokens
        self.upstream_cached_tokens = usage.upstream_cached_tokens
        self.upstream_cache_write_tokens = usage.upstream_cache_write_tokens
        self.upstream_output_tokens = usage.upstream_output_tokens
        self.upstream_reasoning_tokens = usage.upstream_reasoning_tokens
        self.note_tokens = usage.note_tokens
        self.hidden_tokens = usage.hidden_tokens
        self.usage_source = "backend"
        self.adjusted = 0

    def book_timings(self, timings: Timings) -> None:
        """Books our own engine's times: `ttft` is `queue` + `prompt` exactly, also when rounded."""
        self.queue_ms = round(timings.queue_ms)
        self.prompt_ms = round(timings.prompt_ms)
        self.ttft_ms = self.queue_ms + self.prompt_ms
        self.decode_ms = round(timings.decode_ms)
        self.decode_s = timings.decode_ms / 1000
        prompt_s = timings.prompt_ms / 1000
        if timings.forwarded_tokens > 0 and prompt_s > 0:
            self.prefill_tps = timings.forwarded_tokens / prompt_s

    def book_speculation(self, speculation: Speculation) -> None:
        """Books the decode rounds of our own engine."""
        self.blocks = speculation.rounds
        self.draft_tokens = speculation.draft_tokens
        self.draft_accepted = speculation.draft_accepted

    def book_cost(self, cost: Decimal | str, currency: str = "USD") -> None:
        """Books the cost that the provider stated; text that is no amount is ignored."""
        try:
            amount = Decimal(cost)
        except InvalidOperation:
            return
        if amount.is_finite() and 0 <= amount < INT_MAX:
            self.cost_micros = floor(Fraction(amount) * MICROS + Fraction(1, 2))
            self.currency = currency
            self.cost_source = "provider"

    def child(
        self, *, request_id: str, ts_ms: int, arrived_s: float, kind: Kind, attempt: int = 1
    ) -> "Entry":
        """A further upstream call made for this request: whose it is stays the same, and who
        answers until it is said otherwise. A run of our own engine is never that of another."""
        return Entry(
            request_id=request_id,
            ts_ms=ts_ms,
            arrived_s=arrived_s,
            parent_request_id=self.parent_request_id or self.request_id,
            kind=kind,
            attempt=attempt,
            conversation_id=self.conversation_id,
            client_id=self.client_id,
            user_id=self.user_id,
            client_kind=self.client_kind,
            surface=self.surface,
            path=self.path,
            stream=self.stream,
            model=self.model,
            backend=self.backend,
            upstream_key=self.upstream_key,
            upstream_model=self.upstream_model,
            profile=self.profile,
            config_rev=self.config_rev,
            session_hash=self.session_hash,
            version=self.version,
            code_sha=self.code_sha,
        )

    def close(
        self,
        now_s: float,
        *,
        outcome: Outcome,
        status: int | None = None,
        finish_reason: str | None = None,
        error_type: str | None = None,
    ) -> None:
        """Ends the request: its outcome, its times and its rates. Then hand it to the ledger.

        Raises: AssertionError at the second call.
        """
        if self.is_closed:
            raise AssertionError(f"entry closed twice: {self.request_id}")
        self.is_closed = True
        self.outcome = outcome
        if status is not None:
            self.status = status
        if finish_reason:
            self.finish_reason = finish_reason
        if error_type:
            self.error_type = error_type
        self.total_ms = _ms(now_s - self.arrived_s)
        if outcome == "refused":
            self._forget_usage_and_speed()
        if self.parent_request_id is not None:
            self._show_nothing()
        self._settle_times()

    def columns(self) -> dict[str, Any]:
        """The columns that are known, by name, not yet fitted to what a column can hold."""
        known = {name: value for name, value in self.values().items() if value is not None}
        return {**UNSAID, **known}

    def values(self) -> dict[str, Any]:
        """What was set of them, as quickly as it goes: also as None."""
        return self.__dict__.copy()

    def _settle_times(self) -> None:
        if self.ttft_ms is None and self.first_delta_s is not None:
            self.ttft_ms = _ms(self.first_delta_s - self.arrived_s)
        if self.decode_s is None and self.first_delta_s is not None:
            self.decode_s = (self.last_delta_s or self.first_delta_s) - self.first_delta_s
            self.decode_ms = _ms(self.decode_s)
        tokens = self.completion_tokens or 0
        if self.decode_s and self.decode_s > 0 and tokens >= 2:
            self.decode_tps = (tokens - 1) / self.decode_s  # the first one belongs to the prefill

    def _show(self) -> None:
        """Shown is what was processed, without notes and hidden output."""
        self.prompt_tokens = _rest(self.upstream_input_tokens, self.note_tokens)
        self.completion_tokens = _rest(self.upstream_output_tokens, self.hidden_tokens)
        self.cached_tokens = _part(self.upstream_cached_tokens, self.prompt_tokens)
        rest = _rest(self.prompt_tokens, self.cached_tokens)
        self.cache_write_tokens = _part(self.upstream_cache_write_tokens, rest)
        self.reasoning_tokens = _part(self.upstream_reasoning_tokens, self.completion_tokens)

    def _show_nothing(self) -> None:
        self.prompt_tokens = self.cached_tokens = self.cache_write_tokens = None
        self.completion_tokens = self.reasoning_tokens = None

    def _forget_usage_and_speed(self) -> None:
        self._show_nothing()
        self.upstream_input_tokens = self.upstream_cached_tokens = None
        self.upstream_cache_write_tokens = None
        self.upstream_output_tokens = self.upstream_reasoning_tokens = None
        self.note_tokens = self.hidden_tokens = None
        self.usage_source = "none"
        self.first_delta_s = self.last_delta_s = self.decode_s = None
        self.ttft_ms = self.decode_ms = self.prompt_ms = None
        self.prefill_tps = None


ENTRY_COLUMNS = frozenset(COLUMNS) & Entry.__annotations__.keys()
_USUAL = BLANK | {name: getattr(Entry, name, None) for name in BLANK.keys() & ENTRY_COLUMNS}


def body_hash(key: bytes, text: str, spans: Mapping[str, tuple[int, int]]) -> str:
    """Keyed hash of a JSON body, 16 hex, the same for a client's own retry of it.

    `spans`: where the value of each top-level field stands in `text`, in characters. The order of
    the fields, the space between them, `stream` and `stream_options` do not count. `key`: of this
    installation, at most 64 bytes.
    """
    pieces: list[str] = []
    for name in sorted(spans):
        if name not in NOT_HASHED:
            start, end = spans[name]
            if end - start > HASHED_HEAD_CHARS + HASHED_TAIL_CHARS:
                head = text[start : start + HASHED_HEAD_CHARS]
                pieces += (name, str(end - start), head, text[end - HASHED_TAIL_CHARS : end])
            else:
                pieces += (name, text[start:end])
    # JSON has no NUL in it: two different bodies do not read alike.
    hashed = "\0".join(pieces).encode(errors="surrogatepass")
    return blake2b(hashed, key=key, digest_size=8).hexdigest()


def _count(value: int | None) -> int | None:
    return value if value is not None and 0 <= value <= INT_MAX else None


def _sum(values: Iterable[int | None]) -> int | None:
    known = [value for value in values if value is not None]
    return _count(sum(known)) if known else None


def _part(value: int | None, whole: int | None) -> int | None:
    known = _count(value)
    return None if known is None or whole is None else min(known, whole)


def _rest(whole: int | None, part: int | None) -> int | None:
    return None if whole is None else whole - (part or 0)


def _ms(seconds: float) -> int:
    return max(0, round(seconds * 1000))
