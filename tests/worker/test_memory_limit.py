"""Requests near the declared peak, under a limit of the system: none passes it, none hangs."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from tiny_checkpoints import write_tiny

SCRIPT = Path(__file__).with_name("memory_load.py")
ROOT = SCRIPT.parents[2]
FAT = {"num_hidden_layers": 8, "num_attention_heads": 8, "num_key_value_heads": 8, "head_dim": 64}


@pytest.mark.skipif(not Path("/proc/self/clear_refs").exists(), reason="Linux says what is held.")
@pytest.mark.parametrize("count", [40, pytest.param(200, marks=pytest.mark.long)])
def test_requests_near_the_peak_never_pass_it_and_all_end(count: int, tmp_path: Path):
    write_tiny("llama", tmp_path, max_position_embeddings=4_096, **FAT)  # 32 KiB a token
    done = subprocess.run(
        [sys.executable, str(SCRIPT), str(tmp_path), str(count), "7"],
        capture_output=True, text=True, timeout=900, cwd=ROOT,
        env={**os.environ, "PYTHONPATH": str(ROOT), "MALLOC_ARENA_MAX": "1"},
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-3000:]
    told = json.loads(done.stdout.splitlines()[-1])
    print(told)
    assert sum(told["ended"].values()) == count
    assert not any(end.startswith("error") for end in told["ended"])
    assert told["left"] == [0, 0, 0] and told["free_slots"] == 4
    assert told["most_bytes"] <= told["peak_bytes"]
    assert sum(told["reclaimed"].values()) > 0  # it was near the peak
    assert told["ended"].get("length/max_tokens", 0) > count / 4
