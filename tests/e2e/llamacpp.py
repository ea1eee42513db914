"""llama.cpp's servers with the embedded model's file, as processes of the tests."""

import contextlib
import os
import socket
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import httpx

from gateway.embedded_model import model_path
from gateway.settings.types import Settings

MODEL = Path(os.environ.get("TANDEM_TEST_MODEL") or model_path(Settings().state_dir, "smollm2"))
PYTHON = os.environ.get("TANDEM_LLAMACPP_PYTHON", ".venv-llamacpp/bin/python")
BINARY = os.environ.get("TANDEM_LLAMA_SERVER")  # llama.cpp's own `llama-server`, where there is one
START_S = 120.0


def python_server(port: int) -> list[str]:
    """The command of llama-cpp-python's server."""
    return [PYTHON, "-m", "llama_cpp.server", "--model", str(MODEL), "--n_ctx", "1024",
            "--host", "127.0.0.1", "--port", str(port), "--n_threads", "2"]  # fmt: skip


def native_server(port: int, *options: str) -> list[str]:
    """The command of llama.cpp's own server."""
    assert BINARY is not None
    return [BINARY, "-m", str(MODEL), "--host", "127.0.0.1", "--port", str(port), "-t", "2",
            "--no-webui", *options]  # fmt: skip


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


@contextlib.contextmanager
def started(command: list[str], port: int) -> Iterator[None]:
    """Runs a server until the block ends; yields once it lists its models."""
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        until_s = time.monotonic() + START_S
        while not _is_ready(port):
            assert process.poll() is None, "the backend ended"
            assert time.monotonic() < until_s, "the backend did not start"
            time.sleep(0.2)
        yield
    finally:
        process.terminate()
        process.wait(20)


def _is_ready(port: int) -> bool:
    try:
        return httpx.get(f"http://127.0.0.1:{port}/v1/models").status_code == 200
    except httpx.TransportError:
        return False
