"""Who is next, and what a request hears while it waits. Knows no model and no socket."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from proto.faults import Refusal
from worker.run import Run

QUEUE_FULL_RETRY_MS = 5_000
QUEUE_TIMEOUT_RETRY_MS = 10_000
DRAINING_RETRY_MS = 30_000
REPEAT_S = 10.0  # how often a waiting run hears its place

# Start values of the moving averages, about those of a small model on two cores.
START_PREFILL_TPS = 500.0
START_DECODE_TPS = 20.0
START_OUTPUT_TOKENS = 300.0
WEIGHT = 0.15  # of the newest sample


@dataclass(slots=True)
class Rates:
    """Moving averages of this worker: tokens a second, and tokens an answer has."""

    prefill_tps: float = START_PREFILL_TPS
    decode_tps: float = START_DECODE_TPS
    output_tokens: float = START_OUTPUT_TOKENS

    def saw_prefill(self, tokens: int, seconds: float) -> None:
        """Learns from one chunk."""
        self.prefill_tps = _moved(self.prefill_tps, tokens, seconds)

    def saw_round(self, tokens: int, seconds: float) -> None:
        """Learns from one round."""
        self.decode_tps = _moved(self.decode_tps, tokens, seconds)

    def saw_answer(self, tokens: int) -> None:
        """Learns from a finished run."""
        self.output_tokens += WEIGHT * (tokens - self.output_tokens)

    def seconds_left(self, run: Run) -> float:
        """What the run still needs of a lane, by these averages."""
        unread = len(run.prompt) - (run.slot.kv_len if run.slot else 0)
        written = run.record.completion_tokens
        unwritten = min(run.max_tokens, self.output_tokens) - written
        return max(0, unread) / self.prefill_tps + max(0.0, unwritten) / self.decode_tps


class Queue:
    """Runs that wait, ordered by band and then by arrival. Their number is the queue's own.

    The answers that one request asks for take one place: it is served whole or not at all.
    """

    def __init__(self, size: int, timeout_s: float) -> None:
        self._size = size
        self.timeout_s = timeout_s
        self._waiting: list[Run] = []

    def __len__(self) -> int:
        return len(self._waiting)

    def __iter__(self) -> Iterator[Run]:
        return iter(tuple(self._waiting))  # a copy: runs leave while they are looked at

    @property
    def is_full(self) -> bool:
        """Whether all places are taken."""
        return len({_place(run) for run in self._waiting}) >= self._size

    def add(self, run: Run) -> None:
        """Takes a place. Raises: Refusal (`busy`) when all are taken."""
        beside = sum(_place(waiting) == _place(run) for waiting in self._waiting)
        if self.is_full and not 0 < beside < run.choices:
            raise queue_full()
        self._waiting.append(run)
        self._waiting.sort(key=lambda waiting: waiting.band)  # stable: arrival within a band

    def remove(self, run: Run) -> None:
        """Gives a place up."""
        self._waiting.remove(run)

    def position(self, run: Run) -> int:
        """How many are before it."""
        return self._waiting.index(run)

    def estimate_ms(self, run: Run, running: Iterable[Run], lanes: int, rates: Rates) -> int:
        """How long until its turn: what runs and what is before it, over the lanes."""
        ahead = self._waiting[: self.position(run)]
        seconds = sum(rates.seconds_left(other) for other in (*running, *ahead))
        return int(seconds / lanes * 1000)


def queue_full() -> Refusal:
    """What is told to who finds no place."""
    return Refusal("busy", "queue_full", retry_after_ms=QUEUE_FULL_RETRY_MS)


def queue_timeout() -> Refusal:
    """What is told to who has waited for too long."""
    return Refusal("busy", "queue_timeout", retry_after_ms=QUEUE_TIMEOUT_RETRY_MS)


def draining() -> Refusal:
    """What is told to who comes when the worker is about to stop."""
    return Refusal("draining", "draining", retry_after_ms=DRAINING_RETRY_MS)


def _place(run: Run) -> tuple[object, ...]:
    return run.prompt_key if run.choices > 1 else (run.id,)


def _moved(average: float, tokens: int, seconds: float) -> float:
    if seconds <= 0.0:
        return average
    return average + WEIGHT * (tokens / seconds - average)
