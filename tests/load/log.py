"""What the worker's own log says of a load: who came when, and what they were told. Knows no
client."""

import json
from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime

SAME_S = 0.1  # what a line's time may be off by: two that came so close have no order


@dataclass(frozen=True, slots=True)
class Served:
    """A run that was begun. Seconds since the epoch; its wait as it was told first."""

    kind: str
    arrived_s: float
    admitted_s: float
    told_s: float

    @property
    def wait_s(self) -> float:
        """What it waited in the end."""
        return self.admitted_s - self.arrived_s

    @property
    def excess_s(self) -> float:
        """What it was told too much; too little is negative."""
        return self.told_s - self.wait_s

    @property
    def error_s(self) -> float:
        """What it was told, off by so much."""
        return abs(self.excess_s)


def runs_of(lines: Iterable[str]) -> list[dict[str, object]]:
    """The lines `run.finished`, read."""
    return [json.loads(line) for line in lines if '"event": "run.finished"' in line]


def served(runs: Iterable[dict[str, object]]) -> list[Served]:
    """Those that were begun, by arrival; short ones went past the queue and have no place in it."""
    found = []
    for run in runs:
        if not run["forwarded_tokens"] or run["kind"] == "side":
            continue
        ended_s = datetime.fromisoformat(str(run["timestamp"])).timestamp()
        arrived_s = ended_s - _number(run["total_ms"]) / 1000
        admitted_s = arrived_s + _number(run["queue_ms"]) / 1000
        told_s = _number(run["est_wait_ms"]) / 1000
        found.append(Served(str(run["kind"]), arrived_s, admitted_s, told_s))
    return sorted(found, key=lambda one: one.arrived_s)


def overtaken(found: Iterable[Served]) -> int:
    """How many were begun after somebody of the same band who had come later."""
    count, earlier = 0, sorted(found, key=lambda one: one.admitted_s)
    soonest_s = float("inf")  # arrival, of those that were begun later
    for one in reversed(earlier):
        count += soonest_s < one.arrived_s - SAME_S
        soonest_s = min(soonest_s, one.arrived_s)
    return count


def part(values: Iterable[float], share: float) -> float:
    """The value below which this share of them lies; 0 of none."""
    ordered = sorted(values)
    return ordered[int(share * (len(ordered) - 1))] if ordered else 0.0


def _number(value: object) -> float:
    assert isinstance(value, (int, float)), value
    return float(value)
