"""What the engine's tests share. Without torch and transformers none of them is collected."""

import importlib.util
import os
from pathlib import Path

import pytest

# Before torch is loaded: threads that spin would make the suite crawl beside other work.
os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")

# Not `importorskip`: a skip in a conftest ends the whole session.
if not all(importlib.util.find_spec(name) for name in ("torch", "transformers")):
    collect_ignore_glob = ["test_*.py"]

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
