"""Every branch of the conductor is taken by its own tests."""

import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]


@pytest.mark.skipif(
    find_spec("torch") is not None, reason="measured once, where the worker is not installed"
)
def test_the_conductors_own_tests_take_each_of_its_branches(tmp_path: Path) -> None:
    coverage = [sys.executable, "-m", "coverage"]
    data = f"--data-file={tmp_path / 'coverage'}"
    tests = ["-m", "pytest", "-q", "-p", "no:cacheprovider", "tests/conductor"]
    told = subprocess.run(
        [*coverage, "run", data, "--branch", "--source=conductor", *tests],
        cwd=ROOT, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert told.returncode == 0, told.stdout[-2000:] + told.stderr[-2000:]
    told = subprocess.run(
        [*coverage, "report", data, "--show-missing", "--skip-covered", "--fail-under=100"],
        cwd=ROOT, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert told.returncode == 0, told.stdout
