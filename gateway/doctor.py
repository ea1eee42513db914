"""`tandem doctor`: what this machine and this configuration can do.

Knows every room a little and changes nothing. One finding a line, with its fix.
"""

import json
import os
import platform
import shutil
import socket
import sys
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Literal

import httpx

from gateway.backends.base import Backend
from gateway.backends.catalog import list_request
from gateway.embedded_model import REGISTRY, model_path
from gateway.preflight import CommandFailed, check_packages
from gateway.settings.load import SettingsError, find_file, load
from gateway.settings.types import Settings

LEAST_FREE_BYTES = 2 * 1024**3
BACKEND_S = 2.0
WORKER_PACKAGES = ("torch", "numpy", "safetensors", "gguf", "tokenizers", "jinja2")
MODES = {"ok": "ok  ", "warn": "warn", "bad": "BAD "}

Level = Literal["ok", "warn", "bad"]


@dataclass(frozen=True, slots=True)
class Finding:
    """One thing looked at. `fix` is empty when nothing needs to be done."""

    level: Level
    subject: str
    fact: str
    fix: str = ""


def examine(config: str | None, environ: Mapping[str, str]) -> list[Finding]:
    """Looks at everything; never raises for what it finds."""
    findings = [*_machine(), *_packages()]
    try:
        settings = load(find_file(config, environ), environ)
    except SettingsError as fault:
        findings += [Finding("bad", "configuration", str(p), "edit it") for p in fault.problems]
        return findings
    findings += [*_state(settings), *_port(settings), *_worker(settings)]
    for name, backend in settings.backends.items():
        findings.append(_backend(Backend(name, backend)))
    return findings


def render(findings: list[Finding], *, as_json: bool) -> str:
    """The findings as lines, or as JSON."""
    if as_json:
        return json.dumps([asdict(finding) for finding in findings], indent=2)
    lines = []
    for finding in findings:
        fix = f"  → {finding.fix}" if finding.fix else ""
        lines.append(f"{MODES[finding.level]} {finding.subject:<16} {finding.fact}{fix}")
    return "\n".join(lines)


def _machine() -> Iterator[Finding]:
    cores = os.cpu_count() or 0
    yield Finding("ok", "machine", f"{platform.system()} {platform.machine()}, {cores} cores")
    good = sys.version_info >= (3, 11)
    python = f"Python {platform.python_version()}"
    yield Finding("ok" if good else "bad", "python", python, "" if good else "use 3.11 or newer")
    if Path("/proc/driver/nvidia").is_dir() or Path("/dev/nvidiactl").exists():
        yield Finding("ok", "gpu", "an NVIDIA driver is loaded")
    else:
        yield Finding("ok", "gpu", "none; the worker runs on the CPU")


def _packages() -> Iterator[Finding]:
    try:
        check_packages()
        yield Finding("ok", "packages", "all four come from one place")
    except CommandFailed as fault:
        yield Finding("bad", "packages", str(fault))
    found, missing = [], []
    for name in WORKER_PACKAGES:
        try:
            found.append(f"{name} {version(name)}")
        except PackageNotFoundError:
            missing.append(name)
    if missing:
        fix = "pip install 'tandem-llm[worker]' to run the engine here"
        yield Finding("warn", "worker packages", f"missing: {', '.join(missing)}", fix)
    else:
        yield Finding("ok", "worker packages", ", ".join(found))
    yield Finding("ok", "flash-attn", _flash_attn())


def _flash_attn() -> str:
    try:
        return f"{version('flash-attn')}, tried by the worker at its start"
    except PackageNotFoundError:
        return "not installed: attention is torch's own (sdpa)"


def _state(settings: Settings) -> Iterator[Finding]:
    folder = settings.state_dir
    nearest = next(p for p in (folder, *folder.parents) if p.exists())
    if folder.exists() and folder.stat().st_mode & 0o077:
        yield Finding("warn", "state folder", f"{folder} is readable by others", "chmod 700")
    elif not os.access(nearest, os.W_OK):
        yield Finding("bad", "state folder", f"{nearest} cannot be written", "server.state_dir")
    else:
        yield Finding("ok", "state folder", str(folder))
    free_bytes = shutil.disk_usage(nearest).free
    level: Level = "ok" if free_bytes >= LEAST_FREE_BYTES else "warn"
    yield Finding(level, "disk", f"{free_bytes / 1024**3:.1f} GiB free at {nearest}")


def _port(settings: Settings) -> Iterator[Finding]:
    where = f"{settings.server.host}:{settings.server.port}"
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((settings.server.host, settings.server.port))
            yield Finding("ok", "port", f"{where} is free")
        except OSError as fault:
            fix = "is Tandem running already? otherwise choose another server.port"
            yield Finding("warn", "port", f"{where}: {fault.strerror}", fix)


def _worker(settings: Settings) -> Iterator[Finding]:
    if settings.worker is None:
        yield Finding("ok", "worker", "none configured: a gateway alone")
        return
    path = model_path(settings.state_dir, settings.engine.model)
    if path.exists():
        yield Finding("ok", "model", str(path))
    else:
        name = settings.engine.model
        fix = f"tandem fetch-model {name}" if name in REGISTRY else "worker.model"
        yield Finding("bad", "model", f"nothing at {path}", fix)


def _backend(backend: Backend) -> Finding:
    subject = f"backend {backend.name}"
    origin = backend.origin
    try:
        with socket.create_connection((origin.host, origin.port), timeout=BACKEND_S):
            pass
    except OSError as fault:
        return Finding("warn", subject, f"cannot be reached: {fault}", "is it running?")
    path, headers = list_request(backend)
    url = f"{'https' if origin.tls else 'http'}://{origin.authority.decode()}{path}"
    headers += backend.own_headers
    verify = origin.tls or False  # as calls do: the same certificates, and no proxy
    try:
        answer = httpx.get(url, headers=headers, timeout=BACKEND_S, verify=verify, trust_env=False)
    except httpx.HTTPError as fault:
        return Finding("warn", subject, f"{type(fault).__name__} on its model list")
    if answer.status_code in (401, 403):
        return Finding("bad", subject, "refuses our key", f"backends.{backend.name}.keys")
    return Finding("ok", subject, f"answers ({answer.status_code} on its model list)")
