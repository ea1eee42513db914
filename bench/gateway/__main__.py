"""`make bench-gateway`: one run of the gateway bench from its options to its report.

    python -m bench.gateway --tandem .venv-gateway/bin/tandem --peers .venv-peers/bin

Knows the machine and the order of things; what is measured and how lives beside this file.
"""

import argparse
import fcntl
import json
import os
import platform
import resource
import shutil
import signal
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path

from bench.gateway import load, table
from bench.gateway.load import NEEDED, SCENARIOS, CannotBuild, CannotLoad, Client
from bench.gateway.measure import Bench, Plan, Results, say
from bench.gateway.process import Cores
from bench.gateway.targets import KEY, LITELLM, all_targets, find_programs, versions, why_missing

ROOT = Path(__file__).resolve().parents[2]
FOLDER = ROOT / "build/bench-gateway"
FULL = Plan(SCENARIOS, rounds=7, seconds=0.7, starts=9)
QUICK = Plan(NEEDED, rounds=3, seconds=0.5, starts=5)
QUIET_SHARE = 0.05  # of the machine; when others took more, the report says so


def read_options() -> argparse.Namespace:
    """The command line."""
    options = argparse.ArgumentParser(prog="make bench-gateway BENCH='…'")
    options.add_argument("--quick", action="store_true", help="no LiteLLM, fewer and shorter runs")
    options.add_argument("--rounds", type=int, help=f"{FULL.rounds}; quick: {QUICK.rounds}")
    options.add_argument("--seconds", type=float, help="of load in one cell of one round")
    options.add_argument("--without", action="append", default=[], metavar="NAME")
    options.add_argument("--nice", type=int, default=0, help="below 0 on a busy machine (root)")
    options.add_argument("--tandem", type=Path, required=True, help=argparse.SUPPRESS)
    options.add_argument("--peers", type=Path, required=True, help=argparse.SUPPRESS)
    return options.parse_args()


def main() -> int:
    """Measures and prints. 0 for a finished run, whatever it found."""
    args = read_options()
    base = QUICK if args.quick else FULL
    plan = Plan(
        base.scenarios, args.rounds or base.rounds, args.seconds or base.seconds, base.starts
    )
    programs = find_programs(args.tandem.absolute(), args.peers.absolute())
    without = {*args.without, LITELLM} if args.quick else set(args.without)
    for number in (signal.SIGTERM, signal.SIGINT):  # what was started is stopped on the way out
        signal.signal(number, lambda *_: sys.exit("bench-gateway: stopped"))
    try:
        with alone_in(FOLDER):
            load.build(FOLDER)
            cores = take_cores(args.nice)
            bench = Bench(Client(FOLDER / "load", KEY), FOLDER, cores, plan)
            targets = []
            for target in all_targets(programs):
                if target.name in without:
                    continue
                if (why := why_missing(target, programs)) is not None:
                    bench.leave_out(target.name, why)
                else:
                    targets.append(target)
            began_s, others_before_s = time.monotonic(), busy_cpu_s() - own_cpu_s()
            results = bench.run(targets)
            passed_s = time.monotonic() - began_s
            others_s = max(0.0, busy_cpu_s() - own_cpu_s() - others_before_s)
    except (CannotBuild, CannotLoad) as fault:
        print(f"bench-gateway: {fault}", file=sys.stderr)
        return 1
    found = versions(programs)
    write_raw(results, found)
    for line in head(plan, cores, found, passed_s, others_s):
        print(line)
    print("\n" + "\n".join(table.report(results)))
    return 0


@contextmanager
def alone_in(folder: Path) -> Iterator[None]:
    """An empty folder, for one run at a time: two would spoil each other's numbers."""
    folder.parent.mkdir(parents=True, exist_ok=True)
    with folder.with_suffix(".lock").open("w") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            sys.exit("bench-gateway: another run is going on")
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir()
        yield


def take_cores(nice: int) -> Cores:
    """One core for the gateways, another for everything else, if there is one."""
    usable = sorted(os.sched_getaffinity(0))
    cores = Cores(gateway=usable[0], load=usable[1] if len(usable) > 1 else usable[0])
    os.sched_setaffinity(0, {cores.load})
    os.nice(nice)
    return cores


def busy_cpu_s() -> float:
    """Processor time used by everybody on this machine since it started."""
    fields = [int(word) for word in Path("/proc/stat").read_text().splitlines()[0].split()[1:9]]
    idle, waiting = fields[3], fields[4]
    return (sum(fields) - idle - waiting) / os.sysconf("SC_CLK_TCK")


def own_cpu_s() -> float:
    """The bench's own part of it: its process and all that it started, once they have ended."""
    used = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return sum(one.ru_utime + one.ru_stime for one in used)


def head(
    plan: Plan, cores: Cores, found: dict[str, str], passed_s: float, others_s: float
) -> Iterator[str]:
    """What was measured, where, and how quiet it was there."""
    core_count = os.cpu_count() or 1
    share = others_s / passed_s / core_count
    yield (
        f"{core_count} cores, {platform.machine()}, {platform.system()}; "
        + ", ".join(f"{name} {version}" for name, version in sorted(found.items()))
    )
    yield (
        f"{plan.rounds} round(s) of {plan.seconds:g} s a cell, {passed_s:.0f} s; other work took "
        f"{share:.0%} of the machine"
    )
    if share > QUIET_SHARE:
        yield "NOT QUIET: trust the ratios of processor time, not latencies, rates and start-up"
    if cores.gateway == cores.load:
        yield "ONE CORE for all: latencies and rates hold the load client's and upstream's work"


def write_raw(results: Results, found: dict[str, str]) -> None:
    """Every number of the run, for whoever wants to look closer."""
    path = FOLDER / "results.json"
    path.write_text(json.dumps({"versions": found, **asdict(results)}, indent=1))
    say(f"every number: {path.relative_to(ROOT)}")


if __name__ == "__main__":
    sys.exit(main())
