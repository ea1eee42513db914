"""What this worker has counted since it started, as the samples of a `Beat`. Knows no run.

One owner, the loop; the link reads finished snapshots.
"""

from bisect import bisect_left
from collections import Counter
from collections.abc import Iterator

from proto.chat import Json
from proto.messages import Metric
from worker.record import RunRecord

PREFIX = "tandem_worker_"
BUCKETS_MS = (1, 2, 5, 10, 20, 50, 100, 200, 500, 1_000, 2_000, 5_000, 10_000, 30_000, 60_000)
HISTOGRAMS = ("ttft_ms", "token_ms", "queue_ms", "chunk_ms", "round_ms")

Labels = tuple[tuple[str, str], ...]


class Metrics:
    """Counters and histograms. Labels hold no user, key or text."""

    def __init__(self) -> None:
        self._counters: Counter[tuple[str, Labels]] = Counter()
        self._histograms = {name: _Histogram() for name in HISTOGRAMS}

    def saw_end(self, record: RunRecord) -> None:
        """Counts a run that ended, however it did."""
        timings = record.timings()
        self._count("requests_total", 1, finish=str(record.finish))
        self._count("prompt_tokens_total", record.prompt_tokens)
        self._count("forwarded_tokens_total", record.forwarded_tokens)
        text = record.completion_tokens - record.reasoning_tokens
        self._count("generated_tokens_total", text, kind="text")
        self._count("generated_tokens_total", record.reasoning_tokens, kind="reasoning")
        self._count("generated_tokens_total", record.hidden_tokens, kind="hidden")
        self._count("rounds_total", record.rounds, kind="plain")
        if record.admitted_s is not None:
            self._histograms["queue_ms"].add(timings.queue_ms)
        if record.first_token_s is not None:
            self._histograms["ttft_ms"].add(timings.ttft_ms)
        if record.completion_tokens > 1:
            mean_ms = timings.decode_ms / (record.completion_tokens - 1)
            self._histograms["token_ms"].add(mean_ms)

    def saw_refusal(self, code: str, word: str) -> None:
        """Counts a request that was turned away. `word`: of a closed list, never a sentence."""
        self._count("refused_total", 1, code=code, detail=word)

    def saw_chunk(self, seconds: float) -> None:
        """Counts a chunk of prompt."""
        self._histograms["chunk_ms"].add(seconds * 1000)

    def saw_round(self, seconds: float) -> None:
        """Counts a round."""
        self._histograms["round_ms"].add(seconds * 1000)

    def samples(self, gauges: dict[str, float]) -> tuple[Metric, ...]:
        """All of it now. `gauges`: values that are read, not counted."""
        return tuple(self._samples(gauges))

    def _samples(self, gauges: dict[str, float]) -> Iterator[Metric]:
        for (name, labels), value in self._counters.items():
            yield Metric(PREFIX + name, dict(labels), value)
        for name, histogram in self._histograms.items():
            yield Metric(PREFIX + name, {}, histogram.value())
        for name, gauge in gauges.items():
            yield Metric(PREFIX + name, {}, gauge)

    def _count(self, name: str, by: int, **labels: str) -> None:
        self._counters[name, tuple(labels.items())] += by


class _Histogram:
    def __init__(self) -> None:
        self._counts = [0] * (len(BUCKETS_MS) + 1)
        self._sum = 0.0

    def add(self, value: float) -> None:
        self._counts[bisect_left(BUCKETS_MS, value)] += 1
        self._sum += value

    def value(self) -> Json:
        """Cumulative counts by upper bound, as Prometheus wants them."""
        buckets: dict[str, Json] = {}
        total = 0
        for bound, count in zip((*map(str, BUCKETS_MS), "+Inf"), self._counts, strict=True):
            total += count
            buckets[bound] = total
        return {"buckets": buckets, "sum": round(self._sum, 3), "count": total}
