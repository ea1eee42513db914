"""The rounds: every subject under every load, in turn, and what each run cost. Prints nothing but
progress; knows no ratio and no budget.
"""

import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from bench.gateway.ledger import LedgerCount, LedgerFile
from bench.gateway.load import (
    CannotLoad,
    Client,
    Outcome,
    Scenario,
    nothing_answered,
    size_of,
)
from bench.gateway.process import Cores, Memory, NotStarted, Process, free_ports, start
from bench.gateway.targets import DIRECT, TANDEM, Place, Target

PROBE_S = 0.1  # of load, to learn a subject's speed


@dataclass(frozen=True, slots=True)
class Plan:
    """How much is measured."""

    scenarios: tuple[Scenario, ...]
    rounds: int
    seconds: float  # of load in one cell
    starts: int  # of our gateway, for its start-up time


@dataclass(frozen=True, slots=True)
class Sample:
    """One cell of one round: what the client saw, and the subject's processor time for it."""

    outcome: Outcome
    cpu_s: float

    @property
    def is_good(self) -> bool:
        """Every answer was right."""
        return not self.outcome.errors

    @property
    def cpu_per_answer_us(self) -> float:
        """Of the subject, its work after the answer included."""
        return self.cpu_s * 1e6 / max(1, self.outcome.answers)

    @property
    def cpu_per_event_us(self) -> float:
        """The same for each event of a stream."""
        return self.cpu_s * 1e6 / max(1, self.outcome.events)


@dataclass(slots=True)
class Subject:
    """What is loaded: a running target, or the upstream itself."""

    name: str
    port: int
    process: Process
    ledger: LedgerFile | None = None
    most_rounds: int | None = None
    rewrites: bool = False
    startup_s: float | None = None
    requests: int = 0  # sent to it so far


@dataclass(slots=True)
class Results:
    """All of one run. `samples[scenario][subject]` has one entry a round, from the first on."""

    samples: dict[str, dict[str, list[Sample]]] = field(default_factory=dict)
    first_start_s: float | None = None  # with a new ledger
    starts_s: list[float] = field(default_factory=list)
    starts_cpu_s: list[float] = field(default_factory=list)
    startup_s: dict[str, float | None] = field(default_factory=dict)
    memory: dict[str, Memory] = field(default_factory=dict)
    ledger: LedgerCount | None = None
    left_out: dict[str, str] = field(default_factory=dict)
    faults: dict[str, str] = field(default_factory=dict)

    def of(self, scenario: Scenario, subject: str) -> list[Sample]:
        """One entry a round; empty when it was not measured."""
        return self.samples.get(scenario.name, {}).get(subject, [])


def say(text: str) -> None:
    """Progress, beside the report on standard output."""
    print(f"# {text}", file=sys.stderr, flush=True)


class Bench:
    """One run. Everything that it starts it stops, in whatever way it ends."""

    def __init__(self, client: Client, folder: Path, cores: Cores, plan: Plan) -> None:
        self.results = Results()
        self._client = client
        self._folder = folder
        self._cores = cores
        self._plan = plan
        self._body_bytes: dict[str, int] = {}

    def run(self, targets: list[Target]) -> Results:
        """Measures the targets and the direct line."""
        ports = free_ports(1 + len(targets))
        places = {
            target.name: Place(port, ports[0], self._folder / target.name)
            for target, port in zip(targets, ports[1:], strict=True)
        }
        with ExitStack() as running:
            direct = self._upstream(ports[0])
            running.callback(direct.process.stop)
            self._learn_answers(direct)
            asked = {
                target.name: self._time_starts(target, places[target.name])
                for target in targets
                if target.name == TANDEM
            }
            subjects = [direct]
            for target in targets:
                subject = self._started(target, places[target.name], asked.get(target.name, 0))
                if subject is not None:
                    running.callback(subject.process.stop)
                    subjects.append(subject)
            for scenario in self._plan.scenarios:
                self._measure(scenario, subjects)
            for subject in subjects:
                self.results.memory[subject.name] = subject.process.memory()
                self.results.startup_s[subject.name] = subject.startup_s
        for subject in subjects:
            if subject.ledger is not None:
                self.results.ledger = subject.ledger.count(subject.requests)
        return self.results

    def _upstream(self, port: int) -> Subject:
        command = [str(self._folder / "upstream"), "--port", str(port)]
        process = Process(DIRECT, command, self._folder / "upstream.log", None)
        try:
            process.wait_answer(port, start_s=5)
        except BaseException:
            process.stop()
            raise
        return Subject(DIRECT, port, process)

    def _learn_answers(self, direct: Subject) -> None:
        """The length of the upstream's answers, which a gateway must not change."""
        for scenario in self._plan.scenarios:
            outcome = self._client.run(direct.port, scenario, scenario.conns, is_warm=True)
            if outcome.errors:
                raise CannotLoad(f"the upstream itself answers wrongly: {outcome.complaint}")
            self._body_bytes[scenario.name] = outcome.body_bytes

    def _time_starts(self, target: Target, place: Place) -> int:
        """Starts and stops our gateway several times; how many of its answers were asked for."""
        answers = 0
        for number in range(self._plan.starts + 1):
            try:
                process, startup_s = start(target, place, self._cores)
            except NotStarted as fault:
                say(f"{target.name}: {fault}")
                return answers
            cpu_s = process.cpu_s()
            process.stop()
            answers += process.answers
            if number == 0:
                self.results.first_start_s = startup_s
            else:
                self.results.starts_s.append(startup_s)
                self.results.starts_cpu_s.append(cpu_s)
        return answers

    def _started(self, target: Target, place: Place, asked_before: int) -> Subject | None:
        """A running target whose answers are right; None, and noted, otherwise."""
        try:
            process, startup_s = start(target, place, self._cores)
        except NotStarted as fault:
            self.leave_out(target.name, str(fault))
            return None
        subject = Subject(target.name, place.port, process, startup_s=startup_s)
        subject.rewrites, subject.most_rounds = target.rewrites, target.most_rounds
        subject.requests = asked_before + process.answers
        if target.ledger is not None:
            subject.ledger = LedgerFile(place.folder / target.ledger)
        with stopped_on_failure(process):
            for scenario in self._plan.scenarios:
                outcome = self._load(subject, scenario, scenario.conns, is_warm=True)
                if outcome.errors:
                    self.leave_out(target.name, f"{scenario.name}: {complaint_of(outcome)}")
                    process.stop()
                    return None
        say(f"{target.name}: first answer after {startup_s:.2f} s, answers are right")
        return subject

    def leave_out(self, name: str, why: str) -> None:
        """Notes that a target is not measured."""
        say(f"{name}: left out: {why}")
        self.results.left_out[name] = why

    def _measure(self, scenario: Scenario, subjects: list[Subject]) -> None:
        """All rounds of one scenario; every other round goes the other way."""
        began_s = time.monotonic()
        sizes = {subject.name: self._size(scenario, subject) for subject in subjects}
        for subject in subjects:
            cpu_when_idle_s(subject)
        cells: dict[str, list[Sample]] = {subject.name: [] for subject in subjects}
        for number in range(self._plan.rounds):
            for subject in subjects if number % 2 == 0 else reversed(subjects):
                if subject.most_rounds is not None and number >= subject.most_rounds:
                    continue
                sample = self._sample(scenario, subject, sizes[subject.name])
                cells[subject.name].append(sample)
                if not sample.is_good:
                    fault = f"{scenario.name}, round {number + 1}: {complaint_of(sample.outcome)}"
                    self.results.faults.setdefault(subject.name, fault)
                    say(f"{subject.name}: {fault}")
        self.results.samples[scenario.name] = cells
        say(f"{scenario.name}: {self._plan.rounds} rounds in {time.monotonic() - began_s:.0f} s")

    def _size(self, scenario: Scenario, subject: Subject) -> int:
        """How many requests fill the time; the probes also warm the subject up."""
        probe = self._load(subject, scenario, size_of(scenario, 0, 0), is_warm=True)
        if probe.seconds < PROBE_S:  # too short to tell
            again = size_of(scenario, probe.requests_per_s, PROBE_S)
            probe = self._load(subject, scenario, again, is_warm=True)
        return size_of(scenario, probe.requests_per_s, self._plan.seconds)

    def _sample(self, scenario: Scenario, subject: Subject, requests: int) -> Sample:
        before_s = subject.process.cpu_s()
        outcome = self._load(subject, scenario, requests)
        return Sample(outcome, cpu_when_idle_s(subject) - before_s)

    def _load(
        self, subject: Subject, scenario: Scenario, requests: int, *, is_warm: bool = False
    ) -> Outcome:
        try:
            outcome = self._client.run(
                *(subject.port, scenario, requests),
                body_bytes=self._body_bytes[scenario.name],
                rewrites=subject.rewrites,
                is_warm=is_warm,
            )
        except CannotLoad as fault:  # one that died must not end the others' run
            return nothing_answered(requests, str(fault))
        subject.requests += outcome.answers
        return outcome


def cpu_when_idle_s(subject: Subject) -> float:
    """A subject's processor time once nothing is left to do; its rows are written by then."""
    if subject.ledger is not None:
        subject.ledger.wait_booked(subject.requests)
    return subject.process.idle_cpu_s()


@contextmanager
def stopped_on_failure(process: Process) -> Iterator[None]:
    """Ends the process when the block does not come to its end."""
    try:
        yield
    except BaseException:
        process.stop()
        raise


def complaint_of(outcome: Outcome) -> str:
    """What was wrong, in one line."""
    return f"{outcome.errors} of {outcome.answers} answers wrong; {outcome.complaint}"
