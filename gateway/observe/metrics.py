"""What is counted about requests, and how it is shown to Prometheus. Knows no handler.

Counting is a few additions to plain dicts; prometheus-client is loaded when somebody asks for the
first time. No label holds a key, a user or text.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

from gateway.ledger.entry import Entry

if TYPE_CHECKING:
    from gateway.observe.worker import WorkerCounts

PREFIX = "tandem_"
BUCKETS_MS = (
    1, 2, 5, 10, 25, 50, 100, 250, 500, 1_000, 2_500, 5_000, 10_000, 30_000, 60_000, 300_000,
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Family:
    """One metric: its name without prefix and `_total`, what it means, the names of its labels."""

    name: str
    help: str
    kind: Literal["counter", "gauge", "histogram"]
    labels: tuple[str, ...] = ()


FAMILIES = (
    Family("requests", "Model calls that ended.", "counter",
           ("surface", "path", "backend", "outcome")),
    Family("in_flight", "Requests that a backend is answering now.", "gauge", ("backend",)),
    Family("ttft_ms", "Arrival to the first delta with text, ms.", "histogram", ("backend",)),
    Family("request_ms", "Arrival to the end, ms.", "histogram", ("backend",)),
    Family("tokens", "Tokens as booked.", "counter", ("backend", "kind")),
    Family("attempts", "Requests sent again, by reason.", "counter", ("class",)),
    Family("tap_faults", "Answers that could not be read for the ledger.", "counter"),
    Family("ledger_rows", "Rows of the ledger.", "counter", ("state",)),
    Family("ledger_waiting", "Rows that are neither written nor dropped.", "gauge"),
    Family("link_faults", "Messages on the engine's link that were refused.", "counter", ("kind",)),
    Family("log_lines_dropped", "Log lines that nobody took.", "counter"),
)  # fmt: skip

Labels = tuple[str, ...]
# Of a histogram: how many fell into each bucket and beyond the last, then their sum.
Values = dict[str, dict[Labels, float | list[float]]]
Source = Callable[[], Iterable[tuple[str, Labels, float]]]


class Metrics:
    """The counts of one process. `sources` and `worker` are asked when somebody wants to see."""

    def __init__(self) -> None:
        self.sources: list[Source] = []
        self.worker: Callable[[], WorkerCounts | None] = lambda: None
        self.tap_faults = 0
        self._kinds: dict[tuple[str | None, ...], _OfKind] = {}

    def note_closed(self, entry: Entry) -> None:
        """Counts a request that has ended."""
        key = entry.surface, entry.path, entry.backend, entry.outcome
        seen = self._kinds.get(key)
        if seen is None:
            seen = self._kinds[key] = _OfKind()
        seen.count += 1
        if (total_ms := entry.total_ms) is not None:
            seen.request_ms[bisect_left(BUCKETS_MS, total_ms)] += 1
            seen.request_ms[-1] += total_ms
        if (ttft_ms := entry.ttft_ms) is not None:
            seen.ttft_ms[bisect_left(BUCKETS_MS, ttft_ms)] += 1
            seen.ttft_ms[-1] += ttft_ms
        seen.prompt += entry.prompt_tokens or 0
        seen.completion += entry.completion_tokens or 0
        seen.cached += entry.cached_tokens or 0

    async def shown(self) -> Values:
        """What `/metrics` shows."""
        return self.values()

    async def shown_worker(self) -> WorkerCounts | None:
        """What `/metrics` shows of the engine's worker, which counts for itself."""
        return self.worker()

    def values(self) -> Values:
        """Everything that this process knows now, by family and labels."""
        known = add_up(seen.values(*key) for key, seen in self._kinds.items())
        known["tap_faults"][()] = self.tap_faults
        for source in self.sources:
            for name, labels, value in source():
                known[name][labels] = value
        return known


def add_up(all_values: Iterable[Values]) -> Values:
    """The sums over several processes."""
    total: Values = {family.name: {} for family in FAMILIES}
    for values in all_values:
        for name, by_labels in values.items():
            for labels, value in by_labels.items():
                before = total[name].get(labels)
                if before is None:
                    total[name][labels] = list(value) if isinstance(value, list) else value
                elif isinstance(before, list) and isinstance(value, list):
                    total[name][labels] = [a + b for a, b in zip(before, value, strict=True)]
                elif not isinstance(before, list) and not isinstance(value, list):
                    total[name][labels] = before + value
    return total


def exposition(values: Values, worker: WorkerCounts | None) -> tuple[str, bytes]:
    """Content type and body of `/metrics`.

    Source: Prometheus text exposition format.
    """
    from prometheus_client import CONTENT_TYPE_LATEST, CollectorRegistry, generate_latest

    registry = CollectorRegistry(auto_describe=False)
    registry.register(_Shown(values, worker))
    return CONTENT_TYPE_LATEST, generate_latest(registry)


class _Shown:
    """A collector, as prometheus-client wants it."""

    def __init__(self, values: Values, worker: WorkerCounts | None) -> None:
        self._values = values
        self._worker = worker

    def collect(self) -> Iterator[Any]:
        """Every family with its samples."""
        from prometheus_client.metrics_core import (
            CounterMetricFamily,
            GaugeMetricFamily,
            HistogramMetricFamily,
        )

        for family in FAMILIES:
            name, samples = PREFIX + family.name, self._values[family.name]
            if family.kind == "histogram":
                histogram = HistogramMetricFamily(name, family.help, labels=family.labels)
                for labels, counts in samples.items():
                    assert isinstance(counts, list)
                    histogram.add_metric(labels, _cumulated(counts), counts[-1])
                yield histogram
                continue
            of_kind = CounterMetricFamily if family.kind == "counter" else GaugeMetricFamily
            shown = of_kind(name, family.help, labels=family.labels)
            for labels, value in samples.items():
                assert not isinstance(value, list)
                shown.add_metric(labels, value)
            yield shown
        if self._worker is not None:
            from gateway.observe.worker import shown_families

            yield from shown_families(self._worker)


class _OfKind:
    """Requests of one surface, path, backend and outcome, added up.

    A histogram: each bucket, those beyond, the sum.
    """

    def __init__(self) -> None:
        self.count = 0
        self.request_ms = [0.0] * (len(BUCKETS_MS) + 2)
        self.ttft_ms = [0.0] * (len(BUCKETS_MS) + 2)
        self.prompt = self.completion = self.cached = 0

    def values(
        self, surface: str | None, path: str | None, backend: str | None, outcome: str | None
    ) -> Values:
        """The samples of the families they belong to."""
        backend = backend or "none"
        known: Values = {
            "requests": {
                (surface or "none", path or "none", backend, outcome or "lost"): self.count
            },
            "request_ms": {(backend,): self.request_ms},
            "tokens": {
                (backend, "prompt"): self.prompt,
                (backend, "completion"): self.completion,
                (backend, "cached"): self.cached,
            },
        }
        if any(self.ttft_ms):
            known["ttft_ms"] = {(backend,): self.ttft_ms}
        return known


def _cumulated(counts: list[float]) -> list[tuple[str, float]]:
    total, buckets = 0.0, []
    for limit, count in zip((*map(str, BUCKETS_MS), "+Inf"), counts, strict=False):
        total += count
        buckets.append((limit, total))
    return buckets
