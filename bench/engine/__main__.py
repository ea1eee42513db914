"""`make bench-engine`: the engine beside transformers and llama.cpp, from options to report.

    python -m bench.engine --llamacpp .venv-llamacpp/bin/python

Knows the machine and the order of things; what is measured and how lives beside this file.
"""

import argparse
import hashlib
import logging
import os
import platform
import resource
import statistics
import subprocess
import sys
import tempfile
import time
import warnings
from pathlib import Path

import structlog
import torch
import transformers

from bench.engine import levels, rows, weights
from bench.engine.contenders import Contender, LlamaCpp, Ours, Transformers
from bench.engine.rounds import Series, alternate, cell, prompt_of
from bench.engine.sessions import LEAST_RATIO, Sessions
from bench.engine.speculation import Setup, Speculation
from proto.worker_settings import WeightLayout
from worker.settings import physical_cores

ROOT = Path(__file__).resolve().parents[2]
PARTS = ("embedded", "rows", "families", "speculation", "sessions")
ROUNDS = 7
SPECULATION_ROUNDS = 5
SESSION_ROUNDS = 3  # of two sessions each
TOKENS = 64  # of an answer of the embedded model
FAMILY_TOKENS = 48
EMBEDDED_VOCAB = 49_152
QUIET_SHARE = 0.05  # of the machine; when others took more, the report says so
DTYPES: tuple[WeightLayout, ...] = ("fp32", "bf16")


def main() -> int:
    """Measures and prints. 0 for a finished run, whatever it found."""
    options = argparse.ArgumentParser(prog="make bench-engine BENCH='…'")
    options.add_argument("--only", action="append", choices=PARTS)
    options.add_argument("--rounds", type=int, default=ROUNDS)
    options.add_argument("--threads", type=int, default=physical_cores())
    options.add_argument("--model", type=Path, default=Path.home() / rows.EMBEDDED)
    options.add_argument("--nice", type=int, default=0, help="below 0 on a busy machine (root)")
    options.add_argument("--block", type=Path, help="a folder made by `tandem train-drafter`")
    options.add_argument("--llamacpp", type=Path, help=argparse.SUPPRESS)
    args = options.parse_args()
    os.nice(args.nice)
    _quieten()
    torch.set_num_threads(args.threads)
    run = Run(args)
    began_s, others_before_s = time.monotonic(), _busy_cpu_s() - _own_cpu_s()
    for part in args.only or PARTS:
        getattr(run, part)()
    passed_s = time.monotonic() - began_s
    others_s = max(0.0, _busy_cpu_s() - _own_cpu_s() - others_before_s)
    share = others_s / passed_s / (os.cpu_count() or 1)
    print("\n".join([*_head(run, passed_s, share), *run.lines, *run.verdicts()]))
    return 0


class Run:
    """What one run measures. `lines`: its report so far; `loads`: the load behind each round."""

    def __init__(self, args: argparse.Namespace) -> None:
        self.lines: list[str] = []
        self.loads: list[float] = []
        self.args = args
        self.versions = {"torch": torch.__version__, "transformers": transformers.__version__}
        self._judged: list[str] = []
        self._notes: list[str] = []

    def embedded(self) -> None:
        """The embedded model in every layout; each form of the text."""
        with tempfile.TemporaryDirectory() as folder:
            contenders = self._embedded_contenders(Path(folder))
            prompt = prompt_of(EMBEDDED_VOCAB)
            text = contenders[0].write(prompt, TOKENS, None).tokens
            for name, follow in (("each its own text", None), ("all one text", text)):
                series = self._alternate(contenders, prompt, TOKENS, follow)
                self._table(f"embedded model, {name}", series)
            for contender in contenders:
                if isinstance(contender, LlamaCpp):
                    contender.close()
        lines = (*levels.floor("bf16"), *levels.STRONG, *levels.BESIDE)
        self._judged += [line.verdict(series, "embedded, one text") for line in lines]
        ours = series["tandem bf16"]
        self._notes += levels.notes_on_vllm(
            {phase: statistics.median(ours.of(phase)) for phase in ("decode", "prefill")}
        )

    def rows(self) -> None:
        """What a verify costs."""
        self.lines += ["", *rows.table(self.args.model, ("bf16", "int8", "q4", "mixed"), ROUNDS)]
        self.loads.append(os.getloadavg()[0])

    def families(self) -> None:
        """A random model of each family beside transformers'."""
        for family in weights.FAMILIES:
            with tempfile.TemporaryDirectory() as folder:
                path = Path(folder) / family
                weights.write_random(family, path)
                contenders: list[Contender] = []
                for dtype in DTYPES:
                    contenders += [Ours(path, dtype), Transformers(path, dtype)]
            prompt = prompt_of(weights.SHAPE["vocab_size"])
            text = contenders[0].write(prompt, FAMILY_TOKENS, None).tokens
            series = self._alternate(contenders, prompt, FAMILY_TOKENS, text)
            self._table(f"random {family}, all one text", series)
            for dtype in DTYPES:
                self._judged += [line.verdict(series, family) for line in levels.floor(dtype)]

    def speculation(self) -> None:
        """What guessing tokens brings on the embedded model."""
        with tempfile.TemporaryDirectory() as folder:
            setup = Setup(
                self.args.model,
                Path(folder),
                min(self.args.rounds, SPECULATION_ROUNDS),
                self.args.threads,
                self.args.llamacpp,
                self.args.block,
                self._watch,
            )
            part = Speculation(setup)
            part.measure()
        self.versions |= part.versions
        self.lines += part.lines
        self._judged += part.verdicts

    def sessions(self) -> None:
        """What is read again in an agent's session, and what not."""
        sessions = Sessions(self.args.model, "bf16", self._watch)
        sessions.measure(min(self.args.rounds, SESSION_ROUNDS))
        self.lines += sessions.lines()
        self._judged += [
            f"| session | {what} | {found} | ≥ {LEAST_RATIO:.0f} "
            f"| {levels.said(found, LEAST_RATIO)} |"
            for what, found in sessions.ratios()
        ]

    def verdicts(self) -> list[str]:
        """A line for each level and ratio."""
        head = [
            "",
            "| level | of the same round | median [least–most] | asked | |",
            "|---" * 5 + "|",
        ]
        return [*head, *self._judged, "", *self._notes]

    def _embedded_contenders(self, folder: Path) -> list[Contender]:
        model, python = self.args.model, self.args.llamacpp
        weights.write_safetensors(model, folder / "safetensors")
        made: list[Contender] = [Ours(model, "bf16"), Transformers(folder / "safetensors", "bf16")]
        made += [Ours(model, layout) for layout in ("int8", "q4", "mixed")]
        if python is None or not python.exists():
            self._notes.append("llama.cpp is left out: no environment with llama-cpp-python.")
            return made
        files = {"Q4_1": model}
        for kind in weights.FILE_TYPES:
            files[kind] = folder / f"{kind}.gguf"
            weights.rewrite_gguf(model, files[kind], kind)
        peers = [LlamaCpp(python, file, kind, self.args.threads) for kind, file in files.items()]
        self.versions["llama-cpp-python"] = peers[0].version
        return [*made, *peers]

    def _alternate(
        self, contenders: list[Contender], prompt: list[int], count: int, follow: list[int] | None
    ) -> dict[str, Series]:
        return alternate(
            contenders, prompt, count, self.args.rounds, follow=follow, watch=self._watch
        )

    def _watch(self) -> None:
        self.loads.append(os.getloadavg()[0])

    def _table(self, title: str, series: dict[str, Series]) -> None:
        self.lines += ["", f"| {title}: tokens/s | decode | prefill |", "|---|---|---|"]
        self.lines += [
            f"| {name} | {cell(one.decode)} | {cell(one.prefill)} |" for name, one in series.items()
        ]
        print(self.lines[-len(series) - 2], file=sys.stderr)  # a sign of life


def _quieten() -> None:
    warnings.simplefilter("ignore")
    transformers.utils.logging.set_verbosity_error()
    transformers.utils.logging.disable_progress_bar()
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.ERROR))


def _head(run: Run, passed_s: float, share: float) -> list[str]:
    """What was measured, where, and how quiet it was there."""
    found = ", ".join(f"{name} {version}" for name, version in sorted(run.versions.items()))
    said = subprocess.run(
        ["git", "describe", "--always", "--dirty", "--abbrev=10"],
        cwd=ROOT, capture_output=True, text=True, check=False,
    )  # fmt: skip
    lines = [
        f"{os.cpu_count()} cores, {run.args.threads} threads, {platform.machine()}, "
        f"{torch.backends.cpu.get_cpu_capability()}; {found}, Python {platform.python_version()}",
        f"tandem {said.stdout.strip() or '?'}, code {_code_hash()}, {run.args.model.name}",
        f"{run.args.rounds} rounds, median [least–most], {passed_s:.0f} s; load "
        f"{min(run.loads):.1f}–{max(run.loads):.1f}, other work took {share:.0%} of the machine",
    ]
    if share > QUIET_SHARE:
        lines.append("NOT QUIET: trust the ratios that are far from their target, and no others")
    if os.environ.get("OMP_WAIT_POLICY", "").upper() == "PASSIVE":
        lines.append("PASSIVE: torch's threads sleep between operations, which costs it a third")
    return lines


def _code_hash() -> str:
    """Of everything that runs in a worker."""
    sources = sorted([*(ROOT / "worker").rglob("*.py"), *(ROOT / "proto").rglob("*.py")])
    return hashlib.sha256(b"".join(path.read_bytes() for path in sources)).hexdigest()[:12]


def _busy_cpu_s() -> float:
    """Processor time used by everybody on this machine since it started."""
    fields = [int(word) for word in Path("/proc/stat").read_text().splitlines()[0].split()[1:9]]
    idle, waiting = fields[3], fields[4]
    return (sum(fields) - idle - waiting) / os.sysconf("SC_CLK_TCK")


def _own_cpu_s() -> float:
    """The bench's own part of it: its process and all that it started, once they have ended."""
    used = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return sum(one.ru_utime + one.ru_stime for one in used)


if __name__ == "__main__":
    sys.exit(main())
