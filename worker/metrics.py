"""What this worker has counted since it started, as the samples of a `Beat`. Knows no run.

One owner, the loop; the link reads finished snapshots.
"""

from bisect import bisect_left
from collections import Counter
from collections.abc import Iterator

from proto.chat import Json
from proto.messages import METRIC_PREFIX, Metric
from worker.record import RunRecord
from worker.speculation.round import Round
from worker.state.facts import CacheFacts

BUCKETS_MS = (1, 2, 5, 10, 20, 50, 100, 200, 500, 1_000, 2_000, 5_000, 10_000, 30_000, 60_000)
BUCKETS_COUNT = (0, 1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64)
BUCKETS_RATIO = (0.5, 0.65, 0.8, 0.9, 1.0, 1.1, 1.25, 1.5, 2.0, 4.0)
HISTOGRAMS: dict[str, tuple[float, ...]] = {
    **dict.fromkeys(("ttft_ms", "token_ms", "queue_ms", "chunk_ms", "round_ms"), BUCKETS_MS),
    **dict.fromkeys(("draft_ms", "verify_ms", "walk_ms", "commit_ms"), BUCKETS_MS),
    **dict.fromkeys(("accepted_per_round", "rows_chosen"), BUCKETS_COUNT),
    "price_ratio": BUCKETS_RATIO,
}

Labels = tuple[tuple[str, str], ...]


class Metrics:
    """Counters and histograms. Labels hold no user, key or text."""

    def __init__(self) -> None:
        self._counters: Counter[tuple[str, Labels]] = Counter()
        self._histograms = {name: _Histogram(bounds) for name, bounds in HISTOGRAMS.items()}

    def saw_end(self, record: RunRecord) -> None:
        """Counts a run that ended, however it did."""
        timings = record.timings()
        self._count("requests_total", 1, finish=str(record.finish))
        self._count("prompt_tokens_total", record.prompt_tokens)
        self._count("forwarded_tokens_total", record.forwarded_tokens)
        if record.start.position:
            source = str(record.start.source)
            self._count("cached_tokens_total", record.start.position, source=source)
        text = record.completion_tokens - record.reasoning_tokens
        self._count("generated_tokens_total", text, kind="text")
        self._count("generated_tokens_total", record.reasoning_tokens, kind="reasoning")
        self._count("generated_tokens_total", record.hidden_tokens, kind="hidden")
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

    def saw_round(self, made: Round, seconds: float) -> None:
        """Counts a decode round."""
        shape = "chain" if made.tree.is_chain else "tree"
        self._count("rounds_total", 1, kind=made.kind, shape=shape)
        for node, source in enumerate(made.tree.sources):
            for one in source:
                name = str(one.name).lower()
                self._count("draft_tokens_total", 1, source=name)
                self._count("draft_accepted_total", int(node in made.path), source=name)
        self._count("near_tie_rows_total", made.near_ties)
        measured = {
            "round_ms": seconds * 1000,
            "draft_ms": made.draft_ms,
            "verify_ms": made.verify_ms,
            "walk_ms": made.walk_ms,
            "commit_ms": made.commit_ms,
            "rows_chosen": len(made.tree),
        }
        if made.tree.drafted:
            measured["accepted_per_round"] = made.accepted
            measured["price_ratio"] = (made.verify_ms + made.commit_ms) / made.price_ms
        for name, value in measured.items():
            self._histograms[name].add(value)

    def samples(self, gauges: dict[str, float], kept: CacheFacts) -> tuple[Metric, ...]:
        """All of it now. `gauges`: values that are read, not counted."""
        return (*self._samples(gauges), *_kept_samples(kept))

    def _samples(self, gauges: dict[str, float]) -> Iterator[Metric]:
        for (name, labels), value in self._counters.items():
            yield Metric(METRIC_PREFIX + name, dict(labels), value)
        for name, histogram in self._histograms.items():
            yield Metric(METRIC_PREFIX + name, {}, histogram.value())
        for name, gauge in gauges.items():
            yield Metric(METRIC_PREFIX + name, {}, gauge)

    def _count(self, name: str, by: int, **labels: str) -> None:
        self._counters[name, tuple(labels.items())] += by


def _kept_samples(kept: CacheFacts) -> Iterator[Metric]:
    by_label = {
        "cache_hits_total": ("source", kept.hits),
        "cache_evictions_total": ("kind", kept.evictions),
        "cache_skipped_total": ("reason", kept.skipped),
        "cache_bytes": ("kind", kept.size_bytes),
        "cache_entries": ("kind", kept.entries),
    }
    for name, (label, values) in by_label.items():
        for value, count in values.items():
            yield Metric(METRIC_PREFIX + name, {label: value}, count)
    yield Metric(METRIC_PREFIX + "cache_misses_total", {}, kept.misses)
    yield Metric(METRIC_PREFIX + "cache_collisions_total", {}, kept.collisions)


class _Histogram:
    def __init__(self, bounds: tuple[float, ...]) -> None:
        self._bounds = bounds
        self._counts = [0] * (len(bounds) + 1)
        self._sum = 0.0

    def add(self, value: float) -> None:
        self._counts[bisect_left(self._bounds, value)] += 1
        self._sum += value

    def value(self) -> Json:
        """Cumulative counts by upper bound, as Prometheus wants them."""
        buckets: dict[str, Json] = {}
        total = 0
        for bound, count in zip((*map(str, self._bounds), "+Inf"), self._counts, strict=True):
            total += count
            buckets[bound] = total
        return {"buckets": buckets, "sum": round(self._sum, 3), "count": total}
