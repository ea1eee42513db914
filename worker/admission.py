"""Who is next, and what a request hears while it waits. Knows no model and no socket."""

from collections.abc import Iterable, Iterator

from proto.faults import Refusal
from worker.forecast import Work, wait_s
from worker.record import Kind
from worker.run import Run
from worker.turns import Turns

QUEUE_FULL_RETRY_MS = 5_000
QUEUE_TIMEOUT_RETRY_MS = 10_000
DRAINING_RETRY_MS = 30_000
MEMORY_RETRY_MS = 30_000
REPEAT_S = 10.0  # how often a waiting run hears its place

# Start values of the moving averages, about those of a small model on two cores.
START_PREFILL_TPS = 500.0
START_DECODE_TPS = 20.0
START_OUTPUT_TOKENS = 300.0
START_S = 1.0  # of the device's time that the start values weigh as much as
HALF_LIFE_S = 10.0  # of the device's time, after which a step counts half
WEIGHT = 0.15  # of the newest answer
# An answer that is longer than the average already is not about to end: it is expected to go on
# for this part of the average.
OUTLIVED = 0.25
LEAST_USE = 0.1


class Pace:
    """Tokens a second, as a moving average over the time that they took.

    Of sums and not of quotients: a round that gave eight tokens must not count as much as the
    eight that gave one each.
    """

    def __init__(self, start_tps: float) -> None:
        self._tokens, self._seconds = start_tps * START_S, START_S

    @property
    def tps(self) -> float:
        """What it is now."""
        return self._tokens / self._seconds

    def saw(self, tokens: float, seconds: float) -> None:
        """Learns from one step."""
        if seconds <= 0.0:
            return
        kept = 0.5 ** (seconds / HALF_LIFE_S)
        self._tokens = self._tokens * kept + tokens
        self._seconds = self._seconds * kept + seconds


class Rates:
    """Moving averages of this worker: what a lane does with the device alone, and how many tokens
    an answer has, by its kind."""

    def __init__(self) -> None:
        self._prefill, self._decode = Pace(START_PREFILL_TPS), Pace(START_DECODE_TPS)
        self._use = Pace(1.0)  # seconds of chunks and rounds in a second
        self.stepped_s = 0.0  # of them in all, those of short requests included
        self._output_tokens: dict[Kind, float] = {}

    @property
    def prefill_tps(self) -> float:
        """Tokens of prompt read in a second of the device's time."""
        return self._prefill.tps

    @property
    def decode_tps(self) -> float:
        """Tokens written in a second of the device's time."""
        return self._decode.tps

    def saw_prefill(self, tokens: int, seconds: float) -> None:
        """Learns from one chunk."""
        self.stepped_s += seconds
        self._prefill.saw(tokens, seconds)

    def saw_round(self, tokens: int, seconds: float) -> None:
        """Learns from one round."""
        self.stepped_s += seconds
        self._decode.saw(tokens, seconds)

    def saw_turn(self, stepped_s: float, seconds: float) -> None:
        """Learns from a turn of the loop in which runs moved on, `stepped_s` of it in their lanes.

        Short requests, embeddings and the worker's own bookkeeping take time as well.
        """
        self._use.saw(stepped_s, seconds)

    @property
    def use(self) -> float:
        """The part of the time that lanes get for chunks and rounds."""
        return min(1.0, max(LEAST_USE, self._use.tps))

    def saw_answer(self, kind: Kind, tokens: int) -> None:
        """Learns from a finished run."""
        average = self.output_tokens(kind)
        self._output_tokens[kind] = average + WEIGHT * (tokens - average)

    def output_tokens(self, kind: Kind) -> float:
        """How long an answer of this kind is."""
        return self._output_tokens.get(kind, START_OUTPUT_TOKENS)

    def work(self, run: Run, *, is_read: bool = False) -> Work:
        """What the run still needs. `is_read`: another one reads its prompt for it."""
        unread = len(run.prompt) - (run.slot.kv_len if run.slot else 0)
        if is_read or run.shared is not None:
            unread = 0
        written = max(1, run.record.completion_tokens)  # the first comes with the prompt's end
        average = self.output_tokens(run.record.kind)
        unwritten = min(run.max_tokens - written, max(average - written, OUTLIVED * average))
        return Work(max(0, unread) / self.prefill_tps, max(0.0, unwritten) / self.decode_tps)


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

    def estimate_ms(
        self, run: Run, running: Iterable[Run], lanes: int, turns: Turns, rates: Rates
    ) -> int:
        """How long until its turn, by what runs and what is before it."""
        ahead = self._waiting[: self.position(run)]
        works: list[Work] = []
        read: set[object] = set()  # prompts that several answers share
        for other in (*(one for one in running if not one.is_parked), *ahead):
            work = rates.work(other, is_read=other.prompt_key in read)
            work.is_first = turns.is_first(other)
            works.append(work)
            if other.choices > 1:
                read.add(other.prompt_key)
        count = len(works) - len(ahead)
        seconds = wait_s(works[:count], works[count:], lanes, turns.share) / rates.use
        return int(seconds * 1000)


def queue_full() -> Refusal:
    """What is told to who finds no place."""
    return Refusal("busy", "queue_full", retry_after_ms=QUEUE_FULL_RETRY_MS)


def queue_timeout() -> Refusal:
    """What is told to who has waited for too long."""
    return Refusal("busy", "queue_timeout", retry_after_ms=QUEUE_TIMEOUT_RETRY_MS)


def memory_full() -> Refusal:
    """What is told to who has waited for memory for too long."""
    return Refusal("busy", "memory_full", retry_after_ms=MEMORY_RETRY_MS)


def draining() -> Refusal:
    """What is told to who comes when the worker is about to stop."""
    return Refusal("draining", "draining", retry_after_ms=DRAINING_RETRY_MS)


def _place(run: Run) -> tuple[object, ...]:
    return run.prompt_key if run.choices > 1 else (run.id,)
