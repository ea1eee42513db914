"""What the engine's worker says of itself in its beats, checked and shown. Knows no socket.

A worker is another process, perhaps of another version: what is odd among its samples is left out
and counted, and never in the way of the rest. Loaded only where there is an engine.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

from proto.limits import LINK_LABEL_CHARS, LINK_LABELS, LINK_SERIES
from proto.messages import Metric

if TYPE_CHECKING:
    from gateway.backends.engine import EngineLink

HELP = "Of the engine's worker."
WORKER_ID_CHARS = 16  # of the id that are in the label: with our own workers, all

_NAME = re.compile(r"tandem_worker_[a-zA-Z0-9_]+")
_LABEL = re.compile(r"(?!__)[a-zA-Z_][a-zA-Z0-9_]*")
_BOUND = re.compile(r"[0-9]{1,12}(\.[0-9]{1,12})?")
_OUR_LABELS = {"worker", "le"}

Kind = Literal["counter", "gauge", "histogram"]


@dataclass(frozen=True, slots=True)
class WorkerCounts:
    """The samples of one life of a worker, all of which can be shown."""

    worker: str
    incarnation: str
    samples: tuple[Metric, ...] = ()

    def grown(self) -> float:
        """All its counters together: of two states of one life, the later one has no less."""
        return sum(map(_counted, self.samples))

    def to_json(self) -> list[Any]:
        """As `from_json` takes it."""
        samples = [[sample.name, sample.labels, sample.value] for sample in self.samples]
        return [self.worker, self.incarnation, samples]

    @staticmethod
    def from_json(known: list[Any]) -> WorkerCounts:
        """What `to_json` made."""
        worker, incarnation, samples = known
        return WorkerCounts(worker, incarnation, tuple(Metric(*sample) for sample in samples))


class BeatReader:
    """The last beat on a link while its worker holds a lease, looked at when somebody asks.

    `left_out_count`: samples that could not be shown, of all beats that were looked at.
    """

    def __init__(self, link: EngineLink) -> None:
        self.left_out_count = 0
        self._link = link
        self._said: tuple[Metric, ...] = ()
        self._samples: tuple[Metric, ...] = ()  # those of them that can be shown

    def counts(self) -> WorkerCounts | None:
        """What the worker said last; None where there is none."""
        ready, beat = self._link.ready, self._link.last_beat
        if ready is None:
            return None
        said = beat.metrics if beat else ()
        if said is not self._said:
            self._said, self._samples = said, tuple(showable(said))
            self.left_out_count += len(said) - len(self._samples)
        worker = "".join(filter(str.isprintable, ready.worker_id[:WORKER_ID_CHARS]))
        return WorkerCounts(worker, ready.incarnation, self._samples)


def newest(own: WorkerCounts, others: Iterable[WorkerCounts]) -> WorkerCounts:
    """Of what several processes have heard from our worker, the latest. They all hear the same, so
    nothing is added up; what they know of other workers, or of its earlier life, does not count."""
    same = [o for o in others if (o.worker, o.incarnation) == (own.worker, own.incarnation)]
    return max((own, *same), key=WorkerCounts.grown)


def showable(samples: tuple[Metric, ...]) -> Iterator[Metric]:
    """Those that Prometheus takes, at most LINK_SERIES lines of them.

    The first sample of a family says what the others are: their kind and the names of their labels.
    """
    families: dict[str, tuple[Kind, set[str]]] = {}
    owners: dict[str, str] = {}  # the family of each name that stands in a line
    seen: set[tuple[str, frozenset[tuple[str, str]]]] = set()
    lines_left = LINK_SERIES
    for sample in samples[:LINK_SERIES]:
        name, lines = sample.name, _line_count(sample)
        if lines > lines_left or not _is_sound(sample):
            continue
        series, family = (name, frozenset(sample.labels.items())), (_kind(sample), {*sample.labels})
        is_of_another = any(owners.get(line, name) != name for line in _line_names(sample))
        if series in seen or families.get(name, family) != family or is_of_another:
            continue
        seen.add(series)
        families[name] = family
        owners.update(dict.fromkeys(_line_names(sample), name))
        lines_left -= lines
        yield sample


def shown_families(counts: WorkerCounts) -> Iterator[Any]:
    """The samples as prometheus-client wants them, each family in one piece."""
    from prometheus_client.metrics_core import (
        CounterMetricFamily,
        GaugeMetricFamily,
        HistogramMetricFamily,
    )

    of_kind: dict[Kind, Any] = {
        "counter": CounterMetricFamily,
        "gauge": GaugeMetricFamily,
        "histogram": HistogramMetricFamily,
    }
    families: dict[str, list[Metric]] = {}
    for sample in counts.samples:
        families.setdefault(sample.name, []).append(sample)
    for name, samples in families.items():
        labels = sorted(samples[0].labels)
        shown = of_kind[_kind(samples[0])](name, HELP, labels=("worker", *labels))
        for sample in samples:
            values = (counts.worker, *(sample.labels[label] for label in labels))
            match sample.value:
                case {"buckets": dict(buckets), "sum": total}:
                    shown.add_metric(values, [*buckets.items()], total)
                case value:
                    shown.add_metric(values, value)
        yield shown


def _kind(sample: Metric) -> Kind:
    if sample.name.endswith("_total"):
        return "counter"
    return "histogram" if isinstance(sample.value, dict) else "gauge"


def _counted(sample: Metric) -> float:
    match _kind(sample), sample.value:
        case "counter", float() | int() as count:
            return count
        case "histogram", {"count": float() | int() as count}:
            return count
    return 0


def _line_count(sample: Metric) -> int:
    match sample.value:
        case {"buckets": dict(buckets)}:
            return len(buckets) + 2
    return 1


def _line_names(sample: Metric) -> tuple[str, ...]:
    name = sample.name
    if _kind(sample) == "histogram":
        return name, f"{name}_bucket", f"{name}_sum", f"{name}_count"
    return (name,)


def _is_sound(sample: Metric) -> bool:
    if len(sample.name) > LINK_LABEL_CHARS or not _NAME.fullmatch(sample.name):
        return False
    if len(sample.labels) > LINK_LABELS or not all(map(_is_label, sample.labels.items())):
        return False
    match _kind(sample), sample.value:
        case "histogram", {"buckets": dict(buckets), "sum": total, "count": count}:
            return _is_finite(total) and _are_buckets(buckets, count)
        case "counter", value:
            return _is_count(value)
        case "gauge", value:
            return _is_number(value)
    return False


def _is_label(label: tuple[str, str]) -> bool:
    name, value = label
    return (
        max(len(name), len(value)) <= LINK_LABEL_CHARS
        and name not in _OUR_LABELS
        and _LABEL.fullmatch(name) is not None
        and value.isprintable()  # a zero byte ends the whole answer for some of its readers
    )


def _are_buckets(buckets: dict[str, Any], count: Any) -> bool:
    """Whether bounds rise up to `+Inf`, and the counts with them up to `count`."""
    *bounds, last = buckets or [""]
    if last != "+Inf" or not all(map(_BOUND.fullmatch, bounds)):
        return False
    limits, counts = [*map(float, bounds)], [*buckets.values()]
    return (
        all(map(_is_count, counts))
        and counts[-1] == count
        and counts == sorted(counts)
        and limits == sorted({*limits})
    )


def _is_count(value: Any) -> bool:
    return _is_finite(value) and value >= 0


def _is_finite(value: Any) -> bool:
    return _is_number(value) and math.isfinite(value)


def _is_number(value: Any) -> bool:
    return type(value) in (int, float)  # True is none
