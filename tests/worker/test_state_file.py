"""The file of a kept state: what it gives back, and that it gives back nothing else."""

import os
import resource
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import fields, replace
from pathlib import Path

import pytest
import torch
from structlog.testing import capture_logs
from torch import Tensor

from worker.prefill import Plan
from worker.state.fingerprint import Fingerprint
from worker.state.lineage import Lineage
from worker.state.state_file import Head, StateFault, owner_of, read_head, read_state, write_state
from worker.state.state_folder import FolderBounds, StateFolder

HEAD = Head(
    "session", owner_of("someone"), 0, (5, 6, 511), Plan("llama", 32, (2,)), Lineage(2, 3),
    "drafter", (0, 2),
)  # fmt: skip
PRINT = Fingerprint("w" * 64, "bf16", "bf16", "t", "llama", 32, "sdpa", "a cpu", 2, "2.13")
MINE = PRINT.hash


def _tensors() -> dict[str, Tensor]:
    made = torch.Generator().manual_seed(1)
    return {
        "keys": torch.randn(2, 1, 3, 4, generator=made).bfloat16(),
        "recurrent": torch.randn(1, 2, 2, generator=made),
        "counts": torch.arange(4),
        "nothing": torch.empty(2, 0, 3),
    }


def _is_same(one: dict[str, Tensor], other: dict[str, Tensor]) -> bool:
    return one.keys() == other.keys() and all(
        part.dtype == other[name].dtype and torch.equal(part, other[name])
        for name, part in one.items()
    )


@pytest.fixture
def path(tmp_path: Path) -> Path:
    path = tmp_path / "x.safetensors"
    write_state(path, MINE, HEAD, _tensors(), used_s=1000.0)
    return path


def _reason(path: Path) -> str | None:
    """Why a file is not used; None where it gives exactly what was written."""
    try:
        head, parts = read_state(path, MINE)
    except StateFault as fault:
        return fault.reason
    assert head == HEAD and _is_same(parts, _tensors())
    return None


def test_a_file_gives_back_what_was_written(path: Path):
    head, parts = read_state(path, MINE)
    assert head == HEAD == read_head(path, MINE)
    assert _is_same(parts, _tensors())
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert path.stat().st_mtime == 1000.0
    assert [file.name for file in path.parent.iterdir()] == [path.name]


def test_tensors_outlive_the_file(path: Path):
    _, parts = read_state(path, MINE)
    path.unlink()
    assert _is_same(parts, _tensors())


def test_the_salt_is_not_in_the_file(path: Path):
    assert b"someone" not in path.read_bytes()
    assert owner_of("someone").encode() in path.read_bytes()
    assert owner_of("someone") != owner_of("someone else")


def test_x12_no_byte_can_be_another_without_being_noticed(path: Path):
    whole, reasons = path.read_bytes(), set()
    for index in range(len(whole)):
        for flipped in (0x01, 0xFF):
            path.write_bytes(whole[:index] + bytes([whole[index] ^ flipped]) + whole[index + 1 :])
            reasons.add(_reason(path))
    # What only spells the same otherwise is as good: it gave what was written.
    assert {"damaged", "format", "fingerprint"} <= reasons <= {
        None, "damaged", "format", "fingerprint",
    }  # fmt: skip


def test_x12_what_a_file_says_of_itself_is_checked_without_its_payload(path: Path):
    whole, reasons = path.read_bytes(), set()
    for index in range(len(whole)):
        path.write_bytes(whole[:index] + bytes([whole[index] ^ 4]) + whole[index + 1 :])
        try:
            assert read_head(path, MINE) == HEAD
        except StateFault as fault:
            reasons.add(fault.reason)
    assert reasons == {"damaged", "format", "fingerprint"}


def test_x12_a_file_that_is_cut_short_or_grew_is_noticed(path: Path):
    whole = path.read_bytes()
    for length in range(len(whole)):
        path.write_bytes(whole[:length])
        assert _reason(path) is not None
    path.write_bytes(whole + b"\0")
    assert _reason(path) == "damaged"


def test_a_file_of_another_worker_or_format_is_told_apart(path: Path):
    assert _reason(path.with_name("none")) == "absent"
    with pytest.raises(StateFault, match="fingerprint"):
        read_state(path, replace(PRINT, chunk=64).hash)
    with pytest.raises(StateFault, match="fingerprint"):
        read_head(path, replace(PRINT, weights_hash="v" * 64).hash)
    path.write_bytes(path.read_bytes().replace(b'"format":"1"', b'"format":"2"'))
    assert _reason(path) == "format"


def test_whatever_differs_makes_another_fingerprint():
    changed = [
        replace(PRINT, **{field.name: getattr(PRINT, field.name) * 2}) for field in fields(PRINT)
    ]
    assert len({one.hash for one in (PRINT, *changed)}) == len(fields(PRINT)) + 1


# The folder.


class Clock:
    """A clock that is set by hand."""

    def __init__(self) -> None:
        self.now = 1_000_000.0

    def __call__(self) -> float:
        return self.now


def _folder(path: Path, clock: Clock, size: int = 10**9, mark: Fingerprint = PRINT) -> StateFolder:
    return StateFolder(path, mark, "disk", FolderBounds(size, ttl_s=100.0), clock)


def _write(folder: StateFolder, name: str, used_s: float) -> int:
    size_bytes = folder.write(name, HEAD, _tensors(), used_s)
    folder.add(name, size_bytes, used_s)
    return size_bytes


def test_a_folder_is_its_owners_alone_and_made_when_needed(tmp_path: Path):
    folder = _folder(tmp_path / "a" / "b", Clock())
    assert not (tmp_path / "a").exists()
    assert _write(folder, "x", 1e6) > 0
    assert stat.S_IMODE((tmp_path / "a" / "b").stat().st_mode) == 0o700


def test_what_was_half_written_and_what_others_wrote_goes_at_the_start(tmp_path: Path):
    clock = Clock()
    for mark in (PRINT, replace(PRINT, torch="2.14")):
        _write(_folder(tmp_path / mark.torch, clock, mark=mark), "x", clock.now)
        for file in (tmp_path / mark.torch).iterdir():
            (tmp_path / "all").mkdir(exist_ok=True)
            file.rename(tmp_path / "all" / file.name)
    for name in ("a.safetensors.77.new", ".tmpA1b2", "kept.txt"):
        (tmp_path / "all" / name).touch()
    with capture_logs() as logs:
        folder = _folder(tmp_path / "all", clock)
    assert list(folder) == ["x"] and folder.removed == {"fingerprint": 1}
    assert len(list((tmp_path / "all").iterdir())) == 2 and (tmp_path / "all/kept.txt").exists()
    assert [entry["event"] for entry in logs] == ["kept_files.refused"]


def test_a_damaged_file_is_removed_and_counted(tmp_path: Path):
    folder = _folder(tmp_path, Clock())
    _write(folder, "x", 1e6)
    [file] = tmp_path.iterdir()
    os.truncate(file, 100)
    assert folder.read("x") is None and folder.removed == {"damaged": 1}
    assert "x" not in folder and not list(tmp_path.iterdir())
    assert folder.read("x") is None and folder.removed == {"damaged": 1, "absent": 1}


def test_the_files_not_used_for_longest_go_first(tmp_path: Path):
    clock = Clock()
    folder = _folder(tmp_path, clock)
    sizes = [
        _write(folder, name, clock.now - age) for name, age in (("a", 30), ("b", 20), ("c", 9))
    ]
    folder.touch("a")
    assert list(folder) == ["a", "c", "b"]
    full = _folder(tmp_path, clock, size=2 * sizes[0])
    assert list(full) == ["a", "c"] and full.removed == {"room": 1}
    assert len(list(tmp_path.iterdir())) == 2
    clock.now += 95
    assert list(_folder(tmp_path, clock)) == ["a"]  # by the files' own times
    clock.now += 600
    full.look_through()
    assert list(full) == [] and not list(tmp_path.iterdir())
    assert full.removed == {"room": 1, "old": 2}


def test_a_place_that_cannot_be_written_is_told_once_and_no_error(tmp_path: Path):
    (tmp_path / "file").touch()
    folder = _folder(tmp_path / "file", Clock())
    with capture_logs() as logs:
        assert [_write(folder, name, 1e6) for name in "ab"] == [0, 0]
    assert [entry["event"] for entry in logs] == ["kept_files.not_written"]
    assert folder.not_written == 2 and list(folder) == []


@contextmanager
def _small_files() -> Iterator[None]:
    """No file can grow beyond 200 bytes, as on a disk that is full. Not for a whole test: what
    pytest writes is a file, too."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (200, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


def test_a_file_that_does_not_fit_leaves_nothing_behind(tmp_path: Path):
    folder = _folder(tmp_path, Clock())
    with capture_logs(), _small_files():
        assert _write(folder, "x", 1e6) == 0
    assert not list(tmp_path.iterdir())
