"""The messages between gateway and worker, one dataclass each. Knows no socket.

The gateway connects a DEALER, the worker binds a ROUTER. Fields that may be absent are None.
"""

from dataclasses import dataclass, field
from typing import Literal

from proto.chat import Call, Json, Params
from proto.events import FinishReason, Logprobs, Speculation, Timings, Usage
from proto.faults import RefusalCode
from proto.plan import Plan

Kind = Literal["reasoning", "text", "call"]

# Where a kept state may lie, from the nearest on.
STATE_KINDS = ("slot", "anchor", "prefix", "session", "disk", "spill")


@dataclass(frozen=True, slots=True)
class Hello:
    """Gateway → worker: first on every connection, and again after a lost lease."""

    gateway_id: str
    incarnation: str
    proto_min: int
    proto_max: int


@dataclass(frozen=True, slots=True)
class Caps:
    """What a worker can do beyond plain text generation."""

    resume_exact: bool = False
    grammar: bool = False
    logprobs: bool = False
    vision: bool = False
    embed: bool = False
    reasoning: bool = False


@dataclass(frozen=True, slots=True)
class Ready:
    """Worker → gateway: the answer to `Hello`. Hashes are hex SHA-256."""

    worker_id: str
    incarnation: str
    proto: int
    model: str
    weights_hash: str
    tokenizer_hash: str
    template_hash: str
    block_size: int
    hash_seed: int
    slots: int
    parallel: int
    max_len: int
    max_rows: int
    families: tuple[str, ...]
    layout: str
    device: str
    row_invariant: bool
    near_tie_ulps: int
    lease_ms: int
    caps: Caps
    kv_events_endpoint: str | None = None
    kv_replay_endpoint: str | None = None


@dataclass(frozen=True, slots=True)
class Resume:
    """How to continue a run that began elsewhere: tokens delivered so far."""

    ids: tuple[int, ...]
    noise_retry: int = 0
    hidden: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class Submit:
    """Gateway → worker: start a run, or attach to it when it lives already.

    `credit`: tokens the worker may send before it hears `Credit`. `deadline_ms`: from arrival,
    0 for none. `choices`: how many runs there are of this prompt, of which this one is `choice`.
    """

    run_id: str
    epoch: int
    start_token: int
    choice: int
    call: Call
    plan: Plan
    params: Params
    seed: int
    cache_salt: str
    credit: int
    resumable: bool = False
    deadline_ms: int = 0
    resume: Resume | None = None
    prompt_hash: str | None = None
    choices: int = 1


@dataclass(frozen=True, slots=True)
class Queued:
    """Worker → gateway: at once, and every 10 s while the run waits."""

    run_id: str
    position: int
    est_wait_ms: int
    prompt_tokens: int
    prompt_hash: str
    tokenizer_hash: str
    note_ids: dict[str, tuple[int, ...]] | None = None
    note_tokens: int = 0  # of the prompt's


@dataclass(frozen=True, slots=True)
class Progress:
    """Worker → gateway: how far the prompt has been read, in tokens."""

    run_id: str
    phase: Literal["memory_wait", "prefill"]
    done: int
    total: int
    cached: int


@dataclass(frozen=True, slots=True)
class CallPart:
    """One step of a tool call inside a `Delta`. `at`: number of the token that completed it.

    A start has `id` and `name`, a piece has `args`, an end has `end`.
    """

    at: int
    index: int
    id: str | None = None
    name: str | None = None
    args: str | None = None
    end: bool = False


@dataclass(frozen=True, slots=True)
class MonitorEvent:
    """An act or a shadow hit of the monitor, for journal and status lines."""

    at: int
    task: str
    mode: Literal["shadow", "act"]
    reason: str
    numbers: dict[str, float] | None = None


@dataclass(frozen=True, slots=True)
class Delta:
    """Worker → gateway: released tokens. `ids`, `pieces`, `kinds`, `hidden` have one entry a token.

    `first` is the number of the first id. A piece is "" while its text is held back; that of a
    hidden token is what a later turn must bring again.
    """

    run_id: str
    first: int
    ids: tuple[int, ...]
    pieces: tuple[str, ...]
    kinds: tuple[Kind, ...]
    hidden: tuple[bool, ...]
    calls: tuple[CallPart, ...] | None = None
    events: tuple[MonitorEvent, ...] | None = None
    retry: int | None = None
    logprobs: tuple[Logprobs | None, ...] | None = None


@dataclass(frozen=True, slots=True)
class Ack:
    """Gateway → worker: records up to token `upto` are safe; `done` acknowledges `Done`."""

    run_id: str
    upto: int
    done: bool = False


@dataclass(frozen=True, slots=True)
class Attach:
    """Gateway → worker: send the run's records from `from_token` on. A higher epoch takes over."""

    run_id: str
    epoch: int
    from_token: int
    credit: int


@dataclass(frozen=True, slots=True)
class Cancel:
    """Gateway → worker: end the run at its next safe point. Acknowledged by `Done`."""

    run_id: str
    epoch: int
    reason: str


@dataclass(frozen=True, slots=True)
class MonitorCounts:
    """What the monitor did in a run."""

    acts: int = 0
    shadows: int = 0


@dataclass(frozen=True, slots=True)
class Done:
    """Worker → gateway: the end of a run; repeated until acknowledged.

    `reasoned_chars`: of its text, from the start: reasoning, although nothing had opened any.
    """

    run_id: str
    last_token: int
    finish: FinishReason
    usage: Usage
    timings: Timings
    spec: Speculation
    cache_source: str
    monitor: MonitorCounts
    detail: str | None = None
    thinking_closed_by: str | None = None
    choice_margin: float | None = None
    last_block_hash: str | None = None
    error: str | None = None
    reasoned_chars: int = 0


@dataclass(frozen=True, slots=True)
class Refused:
    """Worker → gateway: a run or a question that will not be served."""

    code: RefusalCode
    detail: str
    run_id: str | None = None
    req_id: str | None = None
    param: str | None = None
    retry_after_ms: int | None = None


@dataclass(frozen=True, slots=True)
class Credit:
    """Gateway → worker: `tokens` more may be sent."""

    run_id: str
    tokens: int


@dataclass(frozen=True, slots=True)
class Count:
    """Gateway → worker: how many tokens are in this call, or in each of these texts?"""

    req_id: str
    call: Call | None = None
    texts: tuple[str, ...] | None = None


@dataclass(frozen=True, slots=True)
class Counted:
    """Worker → gateway: one count for a call, one for each text otherwise."""

    req_id: str
    tokens: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Embed:
    """Gateway → worker: embed these texts (only with `caps.embed`)."""

    req_id: str
    texts: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Embedded:
    """Worker → gateway: one unit vector a text, and the tokens read in all."""

    req_id: str
    vectors: tuple[tuple[float, ...], ...]
    tokens: int


@dataclass(frozen=True, slots=True)
class Cache:
    """Gateway → worker: what is kept of earlier requests? `clear` drops it first.

    `kinds`: of `STATE_KINDS`, what is to be dropped; None for all of them.
    """

    req_id: str
    op: Literal["stats", "clear"]
    kinds: tuple[str, ...] | None = None


@dataclass(frozen=True, slots=True)
class CacheInfo:
    """Worker → gateway: what is kept now, and what came of it since the worker started.

    By kind, but for `skipped` (by reason) and what belongs to no kind: lookups that found nothing
    (`misses`) or another prompt under the same hash (`collisions`).
    """

    req_id: str
    entries: dict[str, int]
    size_bytes: dict[str, int]
    cleared_bytes: int | None = None
    hits: dict[str, int] = field(default_factory=dict)
    evictions: dict[str, int] = field(default_factory=dict)
    skipped: dict[str, int] = field(default_factory=dict)
    misses: int = 0
    collisions: int = 0


METRIC_PREFIX = "tandem_worker_"  # of the names of a worker's metrics


@dataclass(frozen=True, slots=True)
class Metric:
    """One sample of a worker metric. A histogram's value is a map of buckets, sum and count."""

    name: str
    labels: dict[str, str]
    value: Json


@dataclass(frozen=True, slots=True)
class Beat:
    """Both ways, every second: the sender lives. Rates are tokens a second."""

    state: str
    running: int = 0
    queued: int = 0
    free_slots: int = 0
    kv_bytes_free: int = 0
    prefill_tps: float = 0.0
    decode_tps: float = 0.0
    metrics: tuple[Metric, ...] = ()


@dataclass(frozen=True, slots=True)
class Drain:
    """Worker → gateway: no new Submit; what runs has `deadline_ms` to finish."""

    deadline_ms: int


FromGateway = Hello | Submit | Ack | Attach | Cancel | Credit | Count | Embed | Cache | Beat
FromWorker = (
    Ready | Queued | Progress | Delta | Done | Refused | Counted | Embedded | CacheInfo | Beat
    | Drain
)  # fmt: skip
LinkMessage = FromGateway | FromWorker
