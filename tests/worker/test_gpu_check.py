"""The check of a GPU, run on the CPU with tiny shapes: its own code, its report, its exit status.

What it says of a GPU nobody knows here; that no part of it fails for want of something, we do.
"""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
LIMIT_S = 120
# What a machine with a GPU need not have. On sys.path this is loaded before anything else.
BARE_MACHINE = """
import sys

ABSENT = {absent!r}


class Absent:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in ABSENT:
            raise ModuleNotFoundError(f"No module named {{name!r}}", name=name)


sys.meta_path.insert(0, Absent())
"""
ABSENT = (
    "structlog", "zmq", "msgpack", "gguf", "llguidance", "tokenizers", "jinja2", "safetensors",
    "yaml", "transformers", "flash_attn", "httpx", "pytest",
)  # fmt: skip
# Parts of which each ends in another way, in the place of the real ones.
ENDINGS = """
import os, sys, time
sys.path.insert(0, {root!r})
from bench.gpu import check

def hangs(stage, notes):
    notes.check("before it hangs", 0.0, 1.0)
    time.sleep(60)

def fails(stage, notes):
    notes.number("before", 1)
    raise RuntimeError("out of luck")

def dies(stage, notes):
    os._exit(7)

def is_wrong(stage, notes):
    notes.check("half", 0.5, 1.0)
    notes.check("not a number", float("nan"), 1.0)

def is_right(stage, notes):
    notes.check("exact", 0.0, 0.0)

endings = dict(hangs=hangs, fails=fails, dies=dies, is_wrong=is_wrong, is_right=is_right)
check.PARTS = tuple(
    check.Part(name, name, 0.5 if name == "hangs" else 30.0, run, is_judged={judged})
    for name, run in endings.items()
)
sys.exit(check.main())
"""


def _run(command: list[str], folder: Path, **environ: str) -> subprocess.CompletedProcess[str]:
    # One thread: the machine that runs the tests has other work.
    env = {**os.environ, "OMP_NUM_THREADS": "1", "OUT": str(folder / "out"), **environ}
    done = subprocess.run(
        [sys.executable, *command], capture_output=True, text=True, env=env, timeout=LIMIT_S
    )
    assert "Traceback" not in done.stderr, done.stderr
    return done


def _report(folder: Path) -> dict[str, Any]:
    report: dict[str, Any] = json.loads((folder / "out" / "gpu-check.json").read_text())
    return report


def test_the_check_needs_torch_and_numpy_alone_and_reports_every_part(tmp_path: Path):
    bare = tmp_path / "bare"
    bare.mkdir()
    (bare / "sitecustomize.py").write_text(BARE_MACHINE.format(absent=ABSENT))
    command = [str(ROOT / "scripts" / "gpu-check"), "--device", "cpu", "--tiny"]
    done = _run(command, tmp_path, PYTHONPATH=str(bare))
    assert done.returncode == 0, done.stdout + done.stderr
    report = _report(tmp_path)
    assert (report["is_exact"], report["is_tiny"], report["device"]) == (True, True, "cpu")
    parts = report["parts"]
    assert list(parts) == ["device", "G1", "G2", "G3", "G7", "G4", "G5"]
    assert [line.split()[0] for line in done.stdout.splitlines()[:-1]] == list(parts)
    assert all(part["outcome"] == "finished" and part["is_good"] for part in parts.values())
    assert [len(parts[name]["checks"]) for name in ("G1", "G2", "G3", "G7")] == [24, 24, 54, 4]
    # The oracle must be able to tell: logits are far larger than what they may be off.
    numbers = parts["G1"]["numbers"]
    assert all(numbers[name] > 0.5 for name in numbers if name.startswith("logit_std"))
    assert numbers["qwen3 in bf16"]["rows"] == 48
    # Nor could rounds that are never compared, or never close.
    numbers = parts["G3"]["numbers"]
    assert numbers["qwen3 in float32, greedy texts"]["rows"] == 80
    assert 0 < numbers["qwen3 in bfloat16, rows"]["near_ties"] < 40
    assert parts["G4"]["numbers"]["context_32"].keys() == {
        "step_ms", "floor_ms", "share_of_bandwidth", "prefill_tokens_per_s",
    }  # fmt: skip
    assert "64" in parts["G4"]["numbers"]["in_plain_steps"]["256"]["tree"]
    for way, rows in {"plain": 1, "chain of 8 rows": 8, "tree of 16 rows": 16}.items():
        paced = parts["G5"]["numbers"][way]
        assert paced["rows"] == rows
        assert round(paced["tokens_a_round"], 1) == (1.0 if rows == 1 else 4.6)
        speed = paced["tokens_a_round"] / paced["plain_steps_a_round"]
        assert abs(paced["times_plain"] / speed - 1) < 1e-6
    assert sum(part["limit_s"] for part in parts.values()) <= 480


def test_a_part_that_hangs_fails_dies_or_is_wrong_costs_itself_only(tmp_path: Path):
    code = ENDINGS.format(root=str(ROOT), judged=True)
    done = _run(["-c", code, "--device", "cpu"], tmp_path)
    assert done.returncode == 1
    parts = _report(tmp_path)["parts"]
    outcomes = {name: (part["outcome"], part["is_good"]) for name, part in parts.items()}
    assert outcomes == {
        "device": ("finished", True),
        "hangs": ("timed out", False),
        "fails": ("crashed", False),
        "dies": ("crashed", False),
        "is_wrong": ("finished", False),
        "is_right": ("finished", True),
    }
    assert parts["hangs"]["checks"][0]["what"] == "before it hangs"
    assert parts["hangs"]["seconds"] < 10
    assert parts["fails"]["numbers"] == {"before": 1}
    assert "out of luck" in parts["fails"]["fault"]
    assert "7" in parts["dies"]["fault"]
    assert [check["holds"] for check in parts["is_wrong"]["checks"]] == [True, False]


def test_only_what_is_wrong_counts_where_nothing_is_judged(tmp_path: Path):
    code = ENDINGS.format(root=str(ROOT), judged=False)
    arguments = ["--device", "cpu", "--only", "hangs", "--only", "fails", "--only", "is_right"]
    done = _run(["-c", code, *arguments], tmp_path)
    assert done.returncode == 0
    assert list(_report(tmp_path)["parts"]) == ["device", "hangs", "fails", "is_right"]
    done = _run(["-c", code, "--device", "cpu", "--only", "is_wrong"], tmp_path)
    assert done.returncode == 1


def test_a_machine_without_the_device_is_told_so(tmp_path: Path):
    code = ENDINGS.format(root=str(ROOT), judged=True)
    done = _run(["-c", code, "--device", "xpu"], tmp_path)
    assert done.returncode == 2
    assert done.stdout.startswith("device")
    assert not (tmp_path / "out").exists()
