"""The report: one table of the subjects, one of ratios against their budgets. Measures nothing.

A ratio is formed in each round, between numbers taken seconds apart; what is printed is the median
over the rounds with the least and the most. A round in which either side answered wrongly has none.
"""

import statistics
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from bench.gateway.load import ALONE, BURST, BUSY, FIRST, PACED, Scenario
from bench.gateway.measure import Results, Sample
from bench.gateway.targets import DIRECT, ENVOY, FLOOR, LITELLM, NGINX, RAW, TANDEM

Number = Callable[[Sample], float]


@dataclass(frozen=True, slots=True)
class Line:
    """One number with its budget: the median of `values` must not be above (below) `limit`."""

    title: str
    values: Sequence[float]
    limit: float | None = None
    at_least: bool = False
    unit: str = ""

    @property
    def verdict(self) -> str:
        """Whether the budget holds."""
        if self.limit is None:
            return ""
        if not self.values:
            return "not measured"
        above = statistics.median(self.values) - self.limit
        return "holds" if (-above if self.at_least else above) <= 0 else "missed"

    @property
    def budget(self) -> str:
        """The limit in words."""
        if self.limit is None:
            return ""
        return f"{'≥' if self.at_least else '≤'} {self.limit:g}{self.unit}"

    def markdown(self) -> str:
        """A row of the table."""
        return (
            f"| {self.title} | {spread(self.values, self.unit)} | {self.budget} | {self.verdict} |"
        )


def cpu_us(sample: Sample) -> float:
    """CPU of one request."""
    return sample.cpu_per_answer_us


def event_us(sample: Sample) -> float:
    """CPU of one event."""
    return sample.cpu_per_event_us


def first_us(sample: Sample) -> float:
    """Time to the first event, the middle one."""
    return sample.outcome.first_byte_p50_us


def budget_lines(results: Results) -> list[Line]:
    """What must hold, and the yardsticks beside it."""

    def cpu(above: str, below: str) -> list[float]:
        return ratios(results, BUSY, cpu_us, above, below)

    memory = results.memory.get(TANDEM)
    return [
        Line("CPU per request, c64: tandem / nginx", cpu(TANDEM, NGINX), 5.3),
        Line("CPU per request, c64: tandem / Envoy", cpu(TANDEM, ENVOY), 2),
        Line("CPU per request, c64: LiteLLM / tandem", cpu(LITELLM, TANDEM), 80, at_least=True),
        Line("first event added, p50: tandem / nginx", added_ratios(results, TANDEM, NGINX), 2.3),
        Line(
            "CPU per streamed event, paced: tandem / nginx",
            ratios(results, PACED, event_us, TANDEM, NGINX),
            2.8,
        ),
        Line("RSS of tandem after the load", [memory.rss_mb] if memory else [], 40, unit=" MB"),
        Line("start-up of tandem to its first answer", results.starts_s, 0.5, unit=" s"),
        Line("the same in processor time", results.starts_cpu_s, unit=" s"),
        Line(
            "the same with a new ledger",
            [] if results.first_start_s is None else [results.first_start_s],
            unit=" s",
        ),
        Line("yardstick: CPU per request, c64: tandem / py-raw", cpu(TANDEM, RAW)),
        Line("yardstick: CPU per request, c64: tandem / py-floor", cpu(TANDEM, FLOOR)),
    ]


def ratios(
    results: Results, scenario: Scenario, number: Number, above: str, below: str
) -> list[float]:
    """above / below, for each round in which both answered rightly."""
    pairs = zip(results.of(scenario, above), results.of(scenario, below), strict=False)
    return [number(a) / number(b) for a, b in pairs if a.is_good and b.is_good and number(b) > 0]


def added_ratios(results: Results, above: str, below: str) -> list[float]:
    """The same of what each adds to the direct line's time to the first event."""
    three = zip(*(results.of(FIRST, name) for name in (above, below, DIRECT)), strict=False)
    return [
        (first_us(a) - first_us(d)) / (first_us(b) - first_us(d))
        for a, b, d in three
        if a.is_good and b.is_good and d.is_good and first_us(b) > first_us(d)
    ]


@dataclass(frozen=True, slots=True)
class Column:
    """One number of every subject. `over_direct`: the direct line's number is taken off."""

    head: str
    scenario: Scenario
    number: Number
    over_direct: bool = False


COLUMNS = (
    Column("CPU µs/request, c64", BUSY, cpu_us),
    Column("requests/s, c64", BUSY, lambda s: s.outcome.requests_per_s),
    Column("first event added µs, p50", FIRST, first_us, over_direct=True),
    Column("CPU µs/event, paced", PACED, event_us),
    Column("gap ms, p99, paced", PACED, lambda s: s.outcome.gap_p99_us / 1e3),
    Column("c1 added µs, p50", ALONE, lambda s: s.outcome.latency_p50_us, over_direct=True),
    Column("c1 added µs, p99", ALONE, lambda s: s.outcome.latency_p99_us, over_direct=True),
    Column("CPU µs/event, burst", BURST, event_us),
    Column("events/s, burst", BURST, lambda s: s.outcome.events_per_s),
)


def subject_table(results: Results) -> Iterator[str]:
    """Markdown: a row for every subject, cheapest request first."""
    columns = [column for column in COLUMNS if column.scenario.name in results.samples]
    heads = [column.head for column in columns]
    heads = ["", *heads, "start-up s", "RSS MB", "PSS MB", "wrong answers"]
    yield f"| {' | '.join(heads)} |"
    yield "|---" * len(heads) + "|"
    for name in sorted(results.memory, key=lambda name: median_cpu(results, name)):
        startup_s, memory = results.startup_s[name], results.memory[name]
        cells = [spread(column_values(results, column, name)) for column in columns]
        cells.append("" if startup_s is None else f"{startup_s:.2f}")
        cells += [f"{memory.rss_mb:.0f}", f"{memory.pss_mb:.0f}", str(wrong_answers(results, name))]
        yield f"| {name} | {' | '.join(cells)} |"


def column_values(results: Results, column: Column, name: str) -> list[float]:
    """One number a round; rounds with wrong answers have none."""
    if column.over_direct and name == DIRECT:
        return []
    pairs = zip(
        results.of(column.scenario, name), results.of(column.scenario, DIRECT), strict=False
    )
    return [
        column.number(s) - (column.number(d) if column.over_direct else 0)
        for s, d in pairs
        if s.is_good and (d.is_good or not column.over_direct)
    ]


def median_cpu(results: Results, name: str) -> float:
    """For the order of the rows; a subject without right answers comes last."""
    values = [cpu_us(sample) for sample in results.of(BUSY, name) if sample.is_good]
    return statistics.median(values) if values else float("inf")


def wrong_answers(results: Results, name: str) -> int:
    """Over all rounds of all scenarios."""
    rows = [samples.get(name, []) for samples in results.samples.values()]
    return sum(sample.outcome.errors for row in rows for sample in row)


def spread(values: Sequence[float], unit: str = "") -> str:
    """Median, and the least and the most when there are several."""
    if not values:
        return "–"
    middle = f"{digits(statistics.median(values))}{unit}"
    if len(values) == 1:
        return middle
    return f"{middle} [{digits(min(values))}–{digits(max(values))}]"


def digits(value: float) -> str:
    """Three digits that mean something."""
    size = abs(value)
    if size >= 100:
        return f"{value:,.0f}"
    return f"{value:.1f}" if size >= 10 else f"{value:.2f}"


def report(results: Results) -> Iterator[str]:
    """Everything that was found, as lines of Markdown."""
    yield from subject_table(results)
    yield ""
    lines = budget_lines(results)
    yield "| of the same round | median [least–most] | budget | |"
    yield "|---|---|---|---|"
    yield from (line.markdown() for line in lines)
    yield ""
    for line in lines:
        if line.verdict == "missed":
            yield f"missed: {line.title}: {spread(line.values, line.unit)}, budget {line.budget}"
    if (memory := results.memory.get(TANDEM)) is not None:
        yield f"tandem's memory after the load: RSS {memory.rss_mb:.1f}, PSS {memory.pss_mb:.1f} MB"
    if (ledger := results.ledger) is not None:
        word = "complete" if ledger.is_complete else "NOT COMPLETE"
        yield (
            f"ledger: {ledger.rows:,} rows for {ledger.requests:,} requests, {ledger.right_rows:,} "
            f"with the upstream's token counts: {word}"
        )
    for name, why in results.left_out.items():
        yield f"left out: {name}: {why}"
    for name, fault in results.faults.items():
        yield f"wrong answers: {name}: {fault}"
