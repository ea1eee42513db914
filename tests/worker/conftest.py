"""What the engine's tests share. Without torch and transformers none of them is collected."""

import importlib.util
import os
import sys
from pathlib import Path
from typing import Any

import pytest

# Before torch is loaded: threads that spin would make the suite crawl beside other work.
os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")

# Not `importorskip`: a skip in a conftest ends the whole session.
if not all(importlib.util.find_spec(name) for name in ("torch", "transformers")):
    collect_ignore_glob = ["test_*.py"]

REAL_STATE = str(Path.home() / ".local" / "state" / "tandem")
WRITES = os.O_WRONLY | os.O_RDWR | os.O_CREAT


def _refuse_the_real_state_folder(event: str, arguments: tuple[Any, ...]) -> None:
    """A test that would change what an installation on this machine keeps fails instead."""
    if event == "open":
        paths = arguments[:1] if (arguments[2] or 0) & WRITES else ()
    else:
        paths = arguments[:2] if event in ("os.mkdir", "os.rename", "os.remove") else ()
    if any(
        isinstance(path, str | os.PathLike) and f"{path}".startswith(REAL_STATE) for path in paths
    ):
        raise PermissionError("a test may not change the real state folder")


sys.addaudithook(_refuse_the_real_state_folder)

MODEL_FILE = "SmolLM2-135M-Instruct.Q4_1.gguf"


@pytest.fixture(scope="session")
def embedded_model() -> Path:
    """The embedded model's file, or a skip that says how to get it."""
    named = os.environ.get("TANDEM_TEST_MODEL")
    state = Path.home() / ".local" / "state" / "tandem"
    path = Path(named) if named else state / "models" / "smollm2" / MODEL_FILE
    if not path.is_file():
        pytest.skip("The embedded model is not there: run `tandem fetch-model` once.")
    return path
