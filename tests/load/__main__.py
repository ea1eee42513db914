"""`make load`: 64 impatient clients on four lanes of a real gateway and a real worker.

At the end no request may be lost (each ended in an answer, a well-formed refusal or its own
leaving), nobody may have been overtaken within the queue, what was said of waits is compared with
the waits, and memory, descriptors, threads and gauges must be back. A short warm-up comes first.
Ends with status 1 when something is not as it should be. Linux only (/proc).
"""

import argparse
import asyncio
import os
import re
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from proto.messages import Hello
from tests.e2e.server import Server, serving
from tests.e2e.tiny import write_checkpoint
from tests.load.clients import Clients
from tests.load.log import Served, overtaken, part, runs_of, served
from tests.worker.wire import Gateway

LANES = 4
WARM_SHARE, LEAST_WARM_S = 0.25, 10.0
SETTLE_S = 30.0
RUSH_S = 10.0
LOOK_S = 0.25
SAME_LOOKS = 8  # nothing changes for so long: it has settled
MOST_GROWN_MB = {"gateway": 8.0, "worker": 24.0}  # of resident memory
# What estimates may be off by, as a part of the wait (of half of them, and of all but a hundredth)
# or in seconds. On a machine that serves nobody else beside; speeds that change are not foretold.
STATED_P50, STATED_P50_S = 0.35, 1.0
STATED_P99, STATED_P99_S = 1.0, 2.0
CONFIG = """
server: {{state_dir: STATE_DIR}}
worker:
  model: '{model}'
  weights: fp32
  threads: 1
  parallel: {lanes}
  conductor: false  # what waits are the requests that were sent, and no questions about them
  queue: {{size: 16, timeout_s: 30, open_after_s: 1}}
  cache: {{store_mb: 8, spill: {{enabled: false}}}}  # kept on purpose, but it would hide a leak
"""


@dataclass(frozen=True, slots=True)
class Held:
    """What a process holds."""

    rss_mb: float
    files: int
    threads: int


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=300.0)
    parser.add_argument("--clients", type=int, default=64)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--model", type=Path, help="a checkpoint; else a tiny random one")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        faults = _load(Path(folder), options)
    for fault in faults:
        print(f"WRONG: {fault}")
    sys.exit(bool(faults))


def _load(folder: Path, options: argparse.Namespace) -> list[str]:
    (folder / "model").mkdir()
    model = options.model or write_checkpoint(folder / "model")
    config = CONFIG.format(model=model, lanes=LANES)
    with serving(folder, config, OMP_WAIT_POLICY="PASSIVE") as server:
        server.wait_until(True)
        pids = {"gateway": server.process.pid, "worker": _worker_of(server.process.pid)}
        warm = Clients(server.base, options.seed + 1)
        asyncio.run(warm.run(options.clients, max(LEAST_WARM_S, WARM_SHARE * options.seconds)))
        before = _settled(pids)
        begun = len(server.lines)
        clients = Clients(server.base, options.seed)
        asyncio.run(clients.run(options.clients, options.seconds))
        after = _settled(pids)
        gauges = _gauges(server)
        runs = runs_of(server.lines[begun:])
    found = served(runs)
    _show(clients, runs_count=len(runs), found=found, before=before, after=after, gauges=gauges)
    failed = [line for line in server.lines if re.search(r'"event": "(round|run)\.failed"', line)]
    faults = [f"lost: {lost}" for lost in (*warm.lost, *clients.lost)[:5]]
    faults += [f"logged: {line}" for line in failed[:3]]
    faults += _compare(before, after)
    faults += [f"the gauge {name} is {value:g}" for name, value in gauges.items() if value]
    if count := overtaken(found):
        faults.append(f"{count} of {len(found)} were overtaken in the queue")
    return faults + _judge_estimates(found)


def _judge_estimates(found: list[Served]) -> list[str]:
    """Of those that came once the load stood: nothing foretells the rush that it begins with."""
    found = [one for one in found if one.arrived_s >= found[0].arrived_s + RUSH_S]
    if not found:
        return ["nobody was served"]
    wait_s = part((one.wait_s for one in found), 0.5)
    half_s = part((one.error_s for one in found), 0.5)
    last_s = part((one.error_s for one in found), 0.99)
    longest_s = part((one.wait_s for one in found), 0.99)
    faults = []
    if half_s > max(STATED_P50_S, STATED_P50 * wait_s):
        faults.append(f"estimates are off by {half_s:.2f} s in the middle")
    if last_s > max(STATED_P99_S, STATED_P99 * longest_s):
        faults.append(f"estimates are off by {last_s:.2f} s at p99")
    return faults


def _worker_of(pid: int) -> int:
    for task in Path(f"/proc/{pid}/task").iterdir():
        for child in (task / "children").read_text().split():
            if b"worker" in Path(f"/proc/{child}/cmdline").read_bytes():
                return int(child)
    raise AssertionError("the gateway has no worker")


def _settled(pids: dict[str, int]) -> dict[str, Held]:
    """What the processes hold once that has stopped changing."""
    until_s = time.monotonic() + SETTLE_S
    last, same_looks = {name: _held(pid) for name, pid in pids.items()}, 0
    while time.monotonic() < until_s and same_looks < SAME_LOOKS:
        time.sleep(LOOK_S)
        now = {name: _held(pid) for name, pid in pids.items()}
        same_looks = same_looks + 1 if now == last else 0
        last = now
    return last


def _held(pid: int) -> Held:
    status = Path(f"/proc/{pid}/status").read_text()
    rss_kb, threads = (int(re.findall(rf"^{name}:\s+(\d+)", status, re.M)[0])
                       for name in ("VmRSS", "Threads"))  # fmt: skip
    return Held(round(rss_kb / 1024, 1), len(os.listdir(f"/proc/{pid}/fd")), threads)


def _gauges(server: Server) -> dict[str, float]:
    """What runs and waits, as the worker's beat says it."""
    names = ("running", "waiting", "side_running", "parked")
    with Gateway(f"ipc://{server.state_dir}/worker.sock", b"gw:load") as link:
        link.say(Hello("gw:load", "i", 1, 1))
        link.hear()
        link.hear_beat()
        beat = link.hear_beat()  # made after the load, whatever the first one was
    metrics = beat["metrics"]
    assert isinstance(metrics, list)
    values = {metric["name"]: metric["value"] for metric in metrics}
    return {name: float(values[f"tandem_worker_{name}"]) for name in names}


def _compare(before: dict[str, Held], after: dict[str, Held]) -> list[str]:
    parts: list[tuple[str, Callable[[Held], float]]] = [
        ("file descriptors", lambda held: held.files),
        ("threads", lambda held: held.threads),
    ]
    faults = []
    for name, held in before.items():
        grown_mb = after[name].rss_mb - held.rss_mb
        if grown_mb > MOST_GROWN_MB[name]:
            faults.append(f"the {name} has grown by {grown_mb:.1f} MB")
        for what, of in parts:
            if of(after[name]) > of(held):
                faults.append(f"{what} of the {name}: {of(held)} before, {of(after[name])} after")
    return faults


def _show(
    clients: Clients, *, runs_count: int, found: list[Served], before: dict[str, Held],
    after: dict[str, Held], gauges: dict[str, float],
) -> None:  # fmt: skip
    print(f"{sum(clients.asked.values()):,} requests, {runs_count:,} runs, {len(found):,} of them "
          f"served in turn; {clients.estimates_shown:,} estimates shown")  # fmt: skip
    for title, counts in (("asked", clients.asked), ("ended", clients.ends)):
        print(title)
        for name, count in counts.most_common():
            print(f"  {name:34}{count:8,}")
    print(f"{'seconds':36}{'p50':>8}{'p90':>8}{'p99':>8}")
    lines: list[tuple[str, list[float]]] = [
        ("wait in the queue", [one.wait_s for one in found]),
        ("estimate, off by", [one.error_s for one in found]),
        ("estimate, too much by", [one.excess_s for one in found]),
    ]
    for name, values in lines:
        print(f"  {name:34}" + "".join(f"{part(values, of):8.2f}" for of in (0.5, 0.9, 0.99)))
    print(f"  overtaken                         {overtaken(found):8}")
    print(f"{'':36}{'before':>8}{'after':>8}")
    for name, held in before.items():
        for what in ("rss_mb", "files", "threads"):
            values_ = getattr(held, what), getattr(after[name], what)
            print(f"  {name + ', ' + what:34}" + "".join(f"{value:8g}" for value in values_))
    print("gauges: " + ", ".join(f"{name} {value:g}" for name, value in gauges.items()))


if __name__ == "__main__":
    main()
