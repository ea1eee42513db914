"""Workers that were started: real processes with tiny checkpoints. Knows no message."""

import json
import os
import subprocess
import sys
import threading
from dataclasses import replace
from pathlib import Path
from typing import Any

from tiny_checkpoints import write_tiny
from tiny_text import tiny_tokenizer

from proto.codec import to_wire
from proto.worker_settings import Launch, WorkerSettings

WAIT_S = 60.0


def write_served(kind: str, folder: Path, **changes: Any) -> None:
    """A tiny checkpoint with a tokenizer of its own and no template."""
    write_tiny(kind, folder, **changes)
    (folder / "tokenizer.json").write_text(tiny_tokenizer().serialized)
    # An id that a random model hardly ever writes: runs end by length.
    (folder / "generation_config.json").write_text(json.dumps({"eos_token_id": 2}))


class WorkerProcess:
    """A started worker; its log lines are read as they come."""

    def __init__(self, launch: Launch, *options: str) -> None:
        command = [sys.executable, "-m", "worker", "--launch", json.dumps(to_wire(launch))]
        self.process = subprocess.Popen(
            [*command, *options],
            stdin=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env={**os.environ, "OMP_NUM_THREADS": "1"},
        )
        self.lines: list[str] = []
        self.started = threading.Event()
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def _read(self) -> None:
        assert self.process.stderr is not None
        for line in self.process.stderr:
            self.lines.append(line)
            if "worker.started" in line:
                self.started.set()
        self.started.set()

    def wait(self) -> int:
        status = self.process.wait(WAIT_S)
        self._reader.join(WAIT_S)
        return status

    def close(self) -> None:
        if self.process.poll() is None:
            self.process.kill()
        self.wait()
        for stream in (self.process.stdin, self.process.stderr):
            if stream is not None and not stream.closed:
                stream.close()


def launch_of(checkpoint: Path, folder: Path, **changes: Any) -> Launch:
    """A launch in plain fp32, with socket and state below `folder`; some of it changed."""
    settings = WorkerSettings(model=str(checkpoint), weights="fp32", threads=1)
    launch = Launch(
        settings, "tiny", str(checkpoint), f"ipc://{folder}/w.sock", str(folder), drain_s=30.0
    )
    return replace(launch, **changes)
