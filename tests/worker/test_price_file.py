"""The price table on disk: of one worker on one machine, or it is not used."""

import json
import os
from dataclasses import fields, replace
from pathlib import Path

import pytest
from structlog.testing import capture_logs

from worker.price_file import Fingerprint, PriceFile
from worker.speculation.prices import Prices

PRINT = Fingerprint(
    "hash", "bf16", "a CPU", "sdpa", threads=2, max_rows=64, max_len=8192, torch="2"
)
OTHER = Fingerprint("x", "fp32", "b CPU", "flash", threads=3, max_rows=32, max_len=512, torch="3")
TABLE = Prices(
    {256: 10.0}, {256: {"chain": {1: 10.0, 4: 16.0}, "tree": {1: 10.0, 4: 20.0}}},
    {"chain": 0.5, "tree": 1.5},
)  # fmt: skip


@pytest.fixture
def file(tmp_path: Path) -> PriceFile:
    return PriceFile(tmp_path / "state" / "prices", PRINT)


def _same(one: Prices | None, other: Prices) -> bool:
    return one is not None and one.to_fields() == other.to_fields()


def test_what_was_written_is_read_by_the_next(file: PriceFile, tmp_path: Path):
    with capture_logs() as logs:
        assert file.read() is None  # nothing is there, and nothing is said of it
        assert file.write(TABLE)
        assert _same(PriceFile(file.path.parent, PRINT).read(), TABLE)
        assert file.write(replace(TABLE, plain={256: 11.0}))
        assert _same(file.read(), replace(TABLE, plain={256: 11.0}))
    assert not logs
    assert os.listdir(file.path.parent) == [file.path.name]
    assert file.path.stat().st_mode & 0o777 == 0o600
    assert file.path.parent.stat().st_mode & 0o777 == 0o700


@pytest.mark.parametrize("part", [field.name for field in fields(Fingerprint)])
def test_a_worker_that_differs_in_any_part_has_a_table_of_its_own(part: str, file: PriceFile):
    value = 2 if part == "version" else getattr(OTHER, part)
    assert value != getattr(PRINT, part)
    changed = replace(PRINT, **{part: value})
    file.write(TABLE)
    other = PriceFile(file.path.parent, changed)
    assert other.path != file.path
    assert other.read() is None
    file.path.rename(other.path)  # even under the right name it is foreign
    with capture_logs() as logs:
        assert other.read() is None
    assert [line["event"] for line in logs] == ["prices.refused"]


def _spoilt(text: str) -> list[bytes]:
    table = json.loads(text)
    table["prices"]["plain"]["256"] = -1.0
    broken = [json.dumps(table).encode(), text.encode()[:-20], b"", b"\xff\xfe", b"[]", b"7"]
    return [*broken, b"[" * 100_000, text.replace("10.0", "NaN").encode(), b" " * 2_000_000]


def test_a_broken_file_is_said_once_and_replaced(file: PriceFile):
    file.write(TABLE)
    for content in _spoilt(file.path.read_text()):
        file.path.write_bytes(content)
        with capture_logs() as logs:
            assert file.read() is None, content[:80]
        assert [line["event"] for line in logs] == ["prices.refused"]
        assert file.write(TABLE)
        assert _same(file.read(), TABLE)


def test_a_folder_that_cannot_be_written_is_one_warning(tmp_path: Path):
    (tmp_path / "prices").write_text("a file where a folder should be")
    with capture_logs() as logs:
        assert not PriceFile(tmp_path / "prices", PRINT).write(TABLE)
    assert [(line["event"], line["log_level"]) for line in logs] == [
        ("prices.not_written", "warning")
    ]


def test_a_write_that_fails_leaves_the_old_table_and_no_rest(
    file: PriceFile, monkeypatch: pytest.MonkeyPatch
):
    file.write(TABLE)

    def full(*_: object, **__: object) -> None:
        raise OSError("no space left")

    monkeypatch.setattr(json, "dump", full)
    with capture_logs():
        assert not file.write(replace(TABLE, plain={256: 11.0}))
    assert os.listdir(file.path.parent) == [file.path.name]
    assert _same(file.read(), TABLE)


def test_what_a_process_with_our_number_left_behind_is_no_obstacle(file: PriceFile):
    file.path.parent.mkdir(parents=True)
    file.path.with_suffix(f".{os.getpid()}.new").write_text("half of a table")
    assert file.write(TABLE)
    assert os.listdir(file.path.parent) == [file.path.name]
