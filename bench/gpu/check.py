"""`scripts/gpu-check`: what the engine is and does on this machine's GPU.

    scripts/gpu-check                          # everything, at most 8 minutes
    scripts/gpu-check --only G1 --only G2
    scripts/gpu-check --device cpu --tiny      # does the check itself run?

Reaches nothing and needs torch and numpy alone. Every part runs in a process of its own, so that
one that hangs, fails or takes all memory costs itself only. A part of a later step is a line in
`PARTS`.
Knows the order of things; what is looked at lives beside this file.
"""

import argparse
import json
import multiprocessing
import os
import platform
import subprocess
import time
import traceback
from collections.abc import Callable
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from importlib.metadata import PackageNotFoundError, version
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import torch

from bench.gpu import attention, exactness, machine, memory, pace, rounds, speed
from bench.gpu.notes import Crash, Found, Note, Notes, Stage

ROOT = Path(__file__).resolve().parents[2]
REPORT = "gpu-check.json"
TOTAL_S = 480.0
PACKAGES = ("torch", "triton", "transformers", "flash-attn")
TRACE_CHARS = 2000

INEXACT, NO_DEVICE = 1, 2  # exit statuses


@dataclass(frozen=True, slots=True)
class Part:
    """`is_judged`: it tells right from wrong, so that it must be finished; others measure."""

    name: str
    title: str
    limit_s: float
    run: Callable[[Stage, Notes], None]
    is_judged: bool


DEVICE = Part("device", "what this is", 20.0, machine.run, is_judged=True)
PARTS = (
    Part("G1", "exactness of every family", 100.0, exactness.run, is_judged=True),
    Part("G2", "attention kernels", 70.0, attention.run, is_judged=True),
    Part("G3", "rounds against plain decoding", 90.0, rounds.run, is_judged=True),
    Part("G7", "memory against its prediction", 30.0, memory.run, is_judged=True),
    Part("G4", "speed and prices of a 9B-class hybrid", 115.0, speed.run, is_judged=False),
    Part("G5", "rounds of 4.58 tokens on it", 55.0, pace.run, is_judged=False),
)


def main() -> int:
    """Runs the parts, prints a line for each, writes the report.

    0: all that is judged is exact, however fast; 1: something is not, or was not finished; 2: there
    is no such device.
    """
    began = time.monotonic()
    options = _options()
    stage = Stage(torch.device(options.device), options.tiny)
    wanted = [part for part in PARTS if part.name in (options.only or [p.name for p in PARTS])]
    device = _run(DEVICE, stage, DEVICE.limit_s)
    _print_line(DEVICE, device)
    if not _is_good(DEVICE, device):
        return NO_DEVICE
    found = {DEVICE: device}
    for part in wanted:
        left_s = TOTAL_S - (time.monotonic() - began)
        found[part] = _run(part, stage, min(part.limit_s, left_s))
        _print_line(part, found[part])
    is_exact = all(_is_good(part, one) for part, one in found.items())
    path = _write_report(found, stage, is_exact=is_exact)
    print(f"{'exact' if is_exact else 'NOT EXACT'}; the report is in {path}")
    return 0 if is_exact else INEXACT


def _options() -> argparse.Namespace:
    names = [part.name for part in PARTS]
    options = argparse.ArgumentParser(prog="scripts/gpu-check", description="Checks a GPU.")
    options.add_argument("--device", default="cuda", help="cuda (the default), cuda:1, cpu")
    options.add_argument("--tiny", action="store_true", help="small shapes, to try the check")
    options.add_argument("--only", action="append", choices=names, help="parts, one each time")
    return options.parse_args()


def _run(part: Part, stage: Stage, limit_s: float) -> Found:
    """Runs a part in a child that has not touched the device before, and listens to it."""
    context = multiprocessing.get_context("fork")  # torch is loaded, the device is not in use yet
    ours, theirs = context.Pipe(duplex=False)
    began = time.monotonic()
    child = context.Process(target=_work, args=(part, stage, theirs), daemon=True)
    child.start()
    theirs.close()
    found = Found()
    try:
        while True:
            if not ours.poll(max(0.0, began + limit_s - time.monotonic())):
                found.outcome = "timed out"
                break
            found.add(ours.recv())
    except EOFError:
        child.join(max(0.1, began + limit_s - time.monotonic()))
        found.outcome = "finished" if child.exitcode == 0 and not found.fault else "crashed"
        found.fault = found.fault or ("" if child.exitcode == 0 else f"status {child.exitcode}")
    child.kill()
    child.join()
    found.seconds = time.monotonic() - began
    return found


def _work(part: Part, stage: Stage, to_parent: Connection) -> None:
    def send(note: Note) -> None:
        to_parent.send(note)

    try:
        part.run(stage, Notes(send))
    except Exception as fault:  # noqa: BLE001 - a part's fault is its result
        trace = traceback.format_exc()[-TRACE_CHARS:]
        send(Crash(f"{type(fault).__name__}: {fault}\n{trace}"))
    to_parent.close()


def _is_good(part: Part, found: Found) -> bool:
    holds = all(check.holds for check in found.checks)
    return holds and (found.outcome == "finished" or not part.is_judged)


def _print_line(part: Part, found: Found) -> None:
    wrong = [check for check in found.checks if not check.holds]
    word = "WRONG" if wrong else "ok" if found.outcome == "finished" else found.outcome.upper()
    words = [part.title]
    if found.checks:
        worst = max(found.checks, key=lambda check: check.error / (check.limit or 1.0))
        words.append(
            f"{len(found.checks) - len(wrong)} of {len(found.checks)} checks hold, "
            f"the tightest is {worst.what}: {worst.error:.2g} of {worst.limit:.2g}"
        )
    words += found.remarks
    if found.fault:
        words.append(found.fault.splitlines()[0])
    print(f"{part.name:<7} {word:<10} {found.seconds:6.1f} s  {'; '.join(words)}", flush=True)
    for check in wrong:
        print(f"        {check.what}: {check.error:.3g}, at most {check.limit:.3g} is right")


def _write_report(found: dict[Part, Found], stage: Stage, *, is_exact: bool) -> Path:
    folder = Path(os.environ.get("OUT") or "out")
    folder.mkdir(parents=True, exist_ok=True)
    report = {
        "made_at": datetime.now(UTC).isoformat(timespec="seconds"),
        "commit": _commit(),
        "versions": {"python": platform.python_version(), **_versions()},
        "device": str(stage.device),
        "is_tiny": stage.is_tiny,
        "is_exact": is_exact,
        "parts": {part.name: _as_json(part, one) for part, one in found.items()},
    }
    path = folder / REPORT
    path.write_text(json.dumps(report, indent=2) + "\n")
    return path


def _as_json(part: Part, found: Found) -> dict[str, Any]:
    checks = [{**asdict(check), "holds": check.holds} for check in found.checks]
    return {
        "title": part.title,
        "limit_s": part.limit_s,
        "is_judged": part.is_judged,
        "is_good": _is_good(part, found),
        **asdict(found),
        "checks": checks,
    }


def _versions() -> dict[str, str | None]:
    versions: dict[str, str | None] = {"cuda": torch.version.cuda}
    for name in PACKAGES:
        try:
            versions[name] = version(name)
        except PackageNotFoundError:
            versions[name] = None
    return versions


def _commit() -> str | None:
    try:
        done = subprocess.run(
            ["git", "-C", str(ROOT), "rev-parse", "HEAD"], capture_output=True, text=True
        )
    except OSError:
        return None
    return done.stdout.strip() or None
