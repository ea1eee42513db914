"""A real `tandem serve` process for tests: its own folder, its own port, ended by its own id."""

import contextlib
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import httpx

START_S = 120.0


class Server:
    """One running server and what it has said so far."""

    def __init__(self, process: "subprocess.Popen[str]", base: str, state_dir: Path) -> None:
        self.process = process
        self.base = base
        self.state_dir = state_dir
        self.lines: list[str] = []

    def stop(self, number: int = signal.SIGTERM) -> int:
        """Sends a signal and waits for the exit status."""
        self.process.send_signal(number)
        return self.process.wait(60)

    def said(self, event: str) -> list[str]:
        """The log lines of one event."""
        return [line for line in self.lines if f'"event": "{event}"' in line]

    def wait_until(self, is_ready: bool, most_s: float = 60.0) -> None:
        """Waits for `/readyz` to say so."""
        until_s = time.monotonic() + most_s
        while time.monotonic() < until_s:
            if (httpx.get(f"{self.base}/readyz").status_code == 200) is is_ready:
                return
            time.sleep(0.1)
        raise AssertionError(f"/readyz did not become {is_ready}: {self.lines[-5:]}")


@contextlib.contextmanager
def serving(folder: Path, config: str, *options: str, **environ: str) -> Iterator[Server]:
    """Serves this configuration until the block ends; yields once it has greeted."""
    state_dir = folder / "state"
    file = folder / "tandem.yaml"
    file.write_text(config.replace("STATE_DIR", str(state_dir)))
    command = [sys.executable, "-m", "gateway.cli", "serve", "--config", str(file), "--port", "0"]
    process = subprocess.Popen(
        [*command, *options],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        env={**os.environ, **environ},
    )
    server = Server(process, "", state_dir)
    greeted = threading.Event()

    def read() -> None:
        assert process.stdout is not None
        for line in process.stdout:
            server.lines.append(line)
            if "Tandem is serving at" in line:
                server.base = line.split(" at ")[1].split(". ")[0]
                greeted.set()
        greeted.set()

    reader = threading.Thread(target=read, daemon=True)
    reader.start()
    try:
        assert greeted.wait(START_S) and server.base, "".join(server.lines)
        yield server
    finally:
        if process.poll() is None:
            process.terminate()
            try:
                process.wait(30)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
        reader.join(10)
        assert process.stdout is not None
        process.stdout.close()
