"""The load: which scenarios there are, how much of each, and the answers checked. Knows no gateway.

The client (load.c) and the upstream (upstream.c) are in C, so that they cost less than what is
measured and every answer can be checked.
"""

import json
import shutil
import subprocess
from dataclasses import dataclass
from pathlib import Path

HERE = Path(__file__).resolve().parent
CHUNKS = 64  # events of a stream, before usage and [DONE]
GAP_MS = 10  # between the events of a paced stream
EVENTS = CHUNKS + 2
RUN_S = 60  # the longest one run may take
MOST_REQUESTS = 40_000


class CannotBuild(Exception):
    """No C compiler, or one that refuses."""


class CannotLoad(Exception):
    """The client could not run: nobody listens, for example."""


@dataclass(frozen=True, slots=True)
class Scenario:
    """One kind of load. `share`: of the seconds asked for; a paced stream alone takes 0.65 s."""

    name: str
    conns: int
    stream: bool = False
    model: str = "mock"
    share: float = 1.0
    warm_rounds: int = 1  # requests on each connection that are not timed


BUSY = Scenario("c64", conns=64)
FIRST = Scenario("first", conns=1, stream=True, model="mock-first", share=1.2)
PACED = Scenario("paced", conns=32, stream=True, model="mock-slow", share=2.0, warm_rounds=0)
ALONE = Scenario("c1", conns=1, share=0.7)
BURST = Scenario("burst", conns=32, stream=True)
SCENARIOS = (BUSY, FIRST, PACED, ALONE, BURST)
NEEDED = (BUSY, FIRST, PACED)  # what the budgets are about


@dataclass(frozen=True, slots=True)
class Outcome:
    """What the client saw in one run. The fields are those that load.c prints."""

    answers: int  # all, the untimed ones too
    errors: int
    first_bad_status: int
    reconnects: int
    events: int  # all, the untimed ones too
    body_bytes: int  # of the last answer
    seconds: float
    requests_per_s: float
    events_per_s: float
    latency_p50_us: float
    latency_p99_us: float
    first_byte_p50_us: float
    first_byte_p99_us: float
    gap_p99_us: float
    complaint: str = ""


def nothing_answered(requests: int, complaint: str) -> Outcome:
    """The outcome of a run that could not be."""
    return Outcome(0, requests, *(0,) * 4, *(0.0,) * 8, complaint=complaint)


def build(folder: Path) -> None:
    """Compiles client and upstream. Raises: CannotBuild."""
    compiler = shutil.which("cc") or shutil.which("gcc") or shutil.which("clang")
    if compiler is None:
        raise CannotBuild("a C compiler is needed (Debian: apt-get install gcc libc6-dev)")
    for name in ("upstream", "load"):
        command = [compiler, "-O2", "-o", str(folder / name), str(HERE / f"{name}.c")]
        done = subprocess.run(command, capture_output=True, text=True)
        if done.returncode:
            raise CannotBuild(f"{compiler} cannot build {name}.c:\n{done.stderr}")


@dataclass(frozen=True, slots=True)
class Client:
    """The load client. `body_bytes` is the length of the upstream's answer by scenario."""

    program: Path
    key: str

    def run(
        self,
        port: int,
        scenario: Scenario,
        requests: int,
        *,
        body_bytes: int | None = None,
        rewrites: bool = False,
        is_warm: bool = False,
    ) -> Outcome:
        """Sends so many requests and checks every answer. Raises: CannotLoad.

        An answer must have 200 and, unless the target rewrites answers, exactly `body_bytes` and
        the upstream's number of events; a rewritten stream, at least one event a token.
        """
        command = [str(self.program), "--port", str(port), "--requests", str(requests)]
        command += ["--conns", str(scenario.conns), "--model", scenario.model, "--key", self.key]
        command += ["--max-seconds", str(RUN_S)]
        if not is_warm:
            command += ["--warm", str(scenario.conns * scenario.warm_rounds)]
        if scenario.stream:
            limit = "--least-events" if rewrites else "--expect-events"
            command += ["--stream", "1", limit, str(CHUNKS if rewrites else EVENTS)]
        if body_bytes is not None and not rewrites:
            command += ["--expect-bytes", str(body_bytes)]
        done = subprocess.run(command, capture_output=True, text=True, timeout=RUN_S + 30)
        complaint = "; ".join(done.stderr.splitlines())
        if not done.stdout:
            raise CannotLoad(complaint or f"the load client ended with {done.returncode}")
        return Outcome(**json.loads(done.stdout), complaint=complaint)


def size_of(scenario: Scenario, requests_per_s: float, seconds: float) -> int:
    """Requests for a run of about that many seconds, whole rounds over the connections."""
    wanted = min(MOST_REQUESTS, requests_per_s * seconds * scenario.share)
    least = 30 if scenario.conns == 1 else 1
    return scenario.conns * max(least, round(wanted / scenario.conns))
