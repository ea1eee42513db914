"""A real nginx with its own folder, port and process, and not one setting about proxying but one.

Knows no gateway: it passes everything on to whatever address it is given.
"""

import contextlib
import os
import shutil
import socket
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

START_S = 20.0
CONFIG = """
{user}
pid {folder}/nginx.pid;
error_log {folder}/error.log;
worker_processes 1;
events {{}}
http {{
    access_log off;
    client_body_temp_path {folder}/body;
    proxy_temp_path {folder}/proxy;
    fastcgi_temp_path {folder}/fastcgi;
    uwsgi_temp_path {folder}/uwsgi;
    scgi_temp_path {folder}/scgi;
    server {{
        listen 127.0.0.1:{port};
        location / {{ proxy_pass {address}; }}
    }}
}}
"""


@contextlib.contextmanager
def nginx_before(address: str, folder: Path) -> Iterator[str]:
    """Runs nginx in front of an address; yields its own. Its buffering is what nginx ships with."""
    program = _program()
    folder.mkdir()
    port = _free_port()
    user = "user root;" if os.geteuid() == 0 else ""  # its workers write into this folder, too
    file = folder / "nginx.conf"
    file.write_text(CONFIG.format(user=user, folder=folder, port=port, address=address))
    options = ["-e", f"{folder}/error.log", "-c", str(file), "-g", "daemon off;"]
    process = subprocess.Popen([program, *options], stdin=subprocess.DEVNULL)
    try:
        _wait_until_open(port, process, folder / "error.log")
        yield f"http://127.0.0.1:{port}"
    finally:
        process.terminate()
        process.wait(20)


def _program() -> str:
    """Where nginx is. Without it the test does not run, except where everything must: it fails."""
    found = shutil.which("nginx", path=f"{os.environ.get('PATH', os.defpath)}:/usr/sbin")
    if found is not None:
        return found
    if os.environ.get("CI"):
        pytest.fail("nginx is missing: apt-get install nginx")
    pytest.skip("not run: nginx is not installed")


def _free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as probe:
        return int(probe.getsockname()[1])


def _wait_until_open(port: int, process: "subprocess.Popen[bytes]", log: Path) -> None:
    until_s = time.monotonic() + START_S
    while time.monotonic() < until_s:
        assert process.poll() is None, log.read_text()
        with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port)):
            return
        time.sleep(0.02)
    raise AssertionError(f"nginx does not listen: {log.read_text()}")
