"""`make fuzz`: every target for its share of the time, on one core, and what came of it.

It ends with status 1 when something was found. The input lies in `out/fuzz/finds`; play it again
with `python -m tests.fuzz.target NAME FILE`. What libFuzzer learnt stays in `out/fuzz/corpus`.
"""

import argparse
import os
import re
import subprocess
import sys
import time
from dataclasses import dataclass, field
from pathlib import Path

from tests.fuzz.target import TARGETS

OUT = Path("out/fuzz")
HANG_S = 25  # an input that takes so long is a find; they take milliseconds
MOST_MB = 1024
LEAST_S = 5  # what is left of a target's time when it is not worth starting again
TARGET = (sys.executable, "-m", "tests.fuzz.target")


@dataclass(slots=True)
class Result:
    """What came of one target."""

    name: str
    executions: int = 0
    features: int = 0
    edges: int = 0
    seconds: float = 0.0
    finds: list[str] = field(default_factory=list)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=int, default=300, help="for all targets together")
    parser.add_argument("targets", nargs="*", default=TARGETS)
    options = parser.parse_args()
    os.sched_setaffinity(0, {max(os.sched_getaffinity(0))})
    results = [run(name, options.seconds / len(options.targets)) for name in options.targets]
    print(f"{'target':10}{'executions':>12}{'a second':>10}{'edges':>7}{'features':>10}  finds")
    for result in results:
        rate = result.executions / max(result.seconds, 1)
        print(f"{result.name:10}{result.executions:12,}{rate:10,.0f}{result.edges:7}"
              f"{result.features:10,}  {', '.join(result.finds) or 'none'}")  # fmt: skip
    sys.exit(any(result.finds for result in results))


def run(name: str, seconds: float) -> Result:
    """Fuzzes one target until its time is over or something is found."""
    corpus, finds, log = OUT / "corpus" / name, OUT / "finds", OUT / f"{name}.log"
    finds.mkdir(parents=True, exist_ok=True)
    subprocess.run([*TARGET, name, "--seeds", str(corpus)], check=True, capture_output=True)
    result = Result(name)
    begun_s = time.monotonic()
    while (left_s := seconds - (time.monotonic() - begun_s)) >= LEAST_S and not result.finds:
        options = [
            f"-max_total_time={left_s:.0f}", f"-timeout={HANG_S}", f"-rss_limit_mb={MOST_MB}",
            f"-dict={corpus.with_suffix('.dict')}", f"-artifact_prefix={finds}/{name}-",
            "-print_final_stats=1",
        ]  # fmt: skip
        with log.open("w") as out:
            done = subprocess.run([*TARGET, name, str(corpus), *options], stderr=out, stdout=out)
        said = log.read_text(errors="replace")
        _count(result, said)
        if done.returncode:
            _note_find(result, said, log)
    result.seconds = time.monotonic() - begun_s
    return result


def _count(result: Result, said: str) -> None:
    executed = re.search(r"stat::number_of_executed_units: (\d+)", said)
    result.executions += int(executed[1]) if executed else 0
    for edges, features in re.findall(r"cov: (\d+) ft: (\d+)", said)[-1:]:
        result.edges, result.features = int(edges), int(features)


def _note_find(result: Result, said: str, log: Path) -> None:
    """A find, unless it is a hang that cannot be seen again: then the machine stood still."""
    written = re.search(r"Test unit written to (\S+)", said)
    if written is None:
        result.finds.append(f"see {log}")
        return
    again = [*TARGET, result.name, written[1], f"-timeout={HANG_S}"]
    if "timeout-" in written[1] and not subprocess.run(again, capture_output=True).returncode:
        Path(written[1]).unlink()
        return
    result.finds.append(written[1])
    print(f"{result.name}: {written[1]}\n{_fault(said)}")


def _fault(said: str) -> str:
    begin = said.find("Traceback (most recent call last)")
    return said[begin : said.find("\n\n", begin)] if begin >= 0 else said[-2000:]


if __name__ == "__main__":
    main()
