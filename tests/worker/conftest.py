"""What the engine's tests share: tiny checkpoints and where the embedded model lies."""

import os
from pathlib import Path

import pytest

# Before torch is loaded: threads that spin would make the suite crawl beside other work.
os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
pytest.importorskip("torch")

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
