"""A suffix store's file: what was written whole is read back, whatever happened to the rest."""

import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from structlog.testing import capture_logs

from worker.draft import suffix_log
from worker.draft.suffix_log import (
    HEADER_WORDS,
    STORE_CUT_BACK,
    STORE_HALVED,
    STORE_READ_ONLY,
    STORE_REFUSED,
    LogFault,
    LogFile,
    SuffixLog,
)

DOCUMENTS = [[1, 2, 3], [7], [2**23, 0, 5, 5], [9, 8]]


def file_in(folder: Path, **changes: Any) -> LogFile:
    facts = {"salt": "tenant", "tokenizer_hash": "t", "is_writable": True}
    return LogFile(folder / "suffixes" / "t", **{**facts, **changes})


def written(file: LogFile, documents: list[list[int]]) -> Path:
    log = SuffixLog(file)
    for ids in documents:
        log.append(np.array(ids, dtype=np.int32))
    log.close()
    return file.path


def documents_of(log: SuffixLog) -> list[list[int]]:
    """The documents of an open log, by its marks."""
    documents: list[list[int]] = []
    is_id_before = False
    for word in log.words()[HEADER_WORDS:].tolist():
        if word >= 0:
            documents = documents if is_id_before else [*documents, []]
            documents[-1].append(word)
        is_id_before = word >= 0
    return documents


def read(file: LogFile) -> list[list[int]]:
    log = SuffixLog(file)
    documents = documents_of(log)
    log.close()
    return documents


def picture(folder: Path) -> dict[str, Any]:
    """All names below a folder with mode, time and bytes."""
    found = [(path, path.stat()) for path in [folder, *folder.rglob("*")]]
    return {
        str(path): (stat.st_mode, stat.st_mtime_ns, path.is_file() and path.read_bytes())
        for path, stat in found
    }


def test_documents_are_there_when_the_file_is_opened_again(tmp_path: Path):
    file = file_in(tmp_path)
    written(file, DOCUMENTS)
    assert read(file) == DOCUMENTS
    written(file, [[4, 4]])
    assert read(file) == [*DOCUMENTS, [4, 4]]


def test_a_file_cut_anywhere_keeps_its_whole_documents(tmp_path: Path):
    file = file_in(tmp_path)
    whole = written(file, DOCUMENTS).read_bytes()
    ends = [HEADER_WORDS * 4]
    for ids in DOCUMENTS:
        ends.append(ends[-1] + (3 + len(ids)) * 4)
    assert ends[-1] == len(whole)
    for size in range(len(whole)):
        file.path.write_bytes(whole[:size])
        with capture_logs() as lines:
            kept = read(file)
        assert kept == DOCUMENTS[: sum(size >= end for end in ends[1:])]
        wanted = STORE_REFUSED if size < ends[0] else STORE_CUT_BACK
        assert [line["event"] for line in lines] == ([] if size in ends else [wanted])
        with capture_logs() as lines:
            assert written(file, [[6, 6]]).exists() and read(file) == [*kept, [6, 6]]
        assert not lines


def test_a_file_with_any_byte_changed_gives_no_wrong_id(tmp_path: Path):
    file = file_in(tmp_path)
    whole = written(file, DOCUMENTS).read_bytes()
    for at in range(len(whole)):
        for flip in (0x01, 0x80, 0xFF):
            changed = bytearray(whole)
            changed[at] ^= flip
            file.path.write_bytes(changed)
            with capture_logs() as lines:
                kept = read(file)
            assert kept == DOCUMENTS[: len(kept)] and len(kept) < len(DOCUMENTS)
            wanted = STORE_REFUSED if at < HEADER_WORDS * 4 else STORE_CUT_BACK
            assert [line["event"] for line in lines] == [wanted]


def test_zeros_behind_the_last_document_are_none(tmp_path: Path):
    """What a loss of power leaves where a block was never written."""
    file = file_in(tmp_path)
    path = written(file, DOCUMENTS)
    path.write_bytes(path.read_bytes() + bytes(512))
    with capture_logs() as lines:
        assert read(file) == DOCUMENTS
    assert [(line["event"], line["lost_bytes"]) for line in lines] == [(STORE_CUT_BACK, 512)]


def test_a_record_that_goes_on_behind_the_end_is_not_whole(tmp_path: Path):
    """Not even where the checksum of what is there happens to be right."""
    file = file_in(tmp_path)
    path = written(file, DOCUMENTS)
    whole, count = bytearray(path.read_bytes()), len(DOCUMENTS[-1])
    at = len(whole) - (3 + count) * 4
    assert whole[at : at + 4] == (~count).to_bytes(4, "little", signed=True)
    whole[at : at + 4] = (~(count + 9)).to_bytes(4, "little", signed=True)
    path.write_bytes(whole)
    assert read(file) == DOCUMENTS[:-1]


@pytest.mark.parametrize("is_writable", [True, False])
def test_a_whole_file_of_others_is_refused_and_left_alone(tmp_path: Path, is_writable: bool):
    path = written(file_in(tmp_path), DOCUMENTS)
    other = file_in(tmp_path, tokenizer_hash="other", is_writable=is_writable)
    stranger = file_in(tmp_path, salt="stranger", is_writable=is_writable)
    stranger.path.write_bytes(path.read_bytes())  # another tenant's file under this one's name
    for file, reason in ((other, "tokenizer"), (stranger, "salt")):
        before = file.path.read_bytes()
        with capture_logs() as lines, pytest.raises(LogFault, match=reason):
            SuffixLog(file)
        assert [(line["event"], line["reason"]) for line in lines] == [(STORE_REFUSED, reason)]
        assert file.path.read_bytes() == before
    written(file_in(tmp_path), [[6]])  # no lock was left behind
    assert read(file_in(tmp_path)) == [*DOCUMENTS, [6]]


def test_a_file_of_another_format_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    with monkeypatch.context() as future:
        future.setattr(suffix_log, "FORMAT", 2)
        written(file_in(tmp_path), DOCUMENTS)
    with pytest.raises(LogFault, match="format"):
        SuffixLog(file_in(tmp_path))


def test_a_file_that_is_only_read_stays_as_it_is(tmp_path: Path):
    file = file_in(tmp_path, is_writable=False)
    with pytest.raises(FileNotFoundError):
        SuffixLog(file)
    assert list(tmp_path.iterdir()) == []
    path = written(file_in(tmp_path), DOCUMENTS)
    path.write_bytes(path.read_bytes()[:-1])
    path.chmod(0o644)
    before = picture(tmp_path)
    assert read(file) == DOCUMENTS[:-1]
    damaged = bytes(7)
    assert picture(tmp_path) == before
    path.write_bytes(damaged)
    with pytest.raises(LogFault, match="damaged"):
        SuffixLog(file)
    assert path.read_bytes() == damaged and len(picture(tmp_path)) == len(before)


def test_folders_and_files_are_the_owners_alone(tmp_path: Path):
    old_mask = os.umask(0)
    try:
        file = file_in(tmp_path)
        written(file, DOCUMENTS)
        log = SuffixLog(file)
        log.keep_newest(12)
        log.close()
        assert file.path.stat().st_mode & 0o777 == 0o600
        file.path.chmod(0o644)  # as a careless copy has it
        file.folder.chmod(0o755)
        written(file, DOCUMENTS)
    finally:
        os.umask(old_mask)
    modes = {path.suffix: path.stat().st_mode & 0o777 for path in file.folder.iterdir()}
    assert modes == {".ids": 0o600, ".lock": 0o600}
    assert [place.stat().st_mode & 0o777 for place in (file.folder, file.folder.parent)] == [
        0o700
    ] * 2


def test_neither_names_nor_bytes_tell_the_salt(tmp_path: Path):
    file = file_in(tmp_path, salt="a-tenant-of-ours")
    path = written(file, DOCUMENTS)
    assert b"a-tenant-of-ours" not in path.read_bytes() and "tenant" not in path.name


def test_the_second_who_would_write_only_reads(tmp_path: Path):
    first = SuffixLog(file_in(tmp_path))
    first.append(np.array([1, 2], dtype=np.int32))
    with capture_logs() as lines:
        second = SuffixLog(file_in(tmp_path))
    assert [line["event"] for line in lines] == [STORE_READ_ONLY]
    assert not second.is_writable and documents_of(second) == [[1, 2]]
    first.append(np.array([3, 4], dtype=np.int32))
    first.close()
    second.close()
    third = SuffixLog(file_in(tmp_path))
    assert third.is_writable and documents_of(third) == [[1, 2], [3, 4]]
    third.close()


def test_the_newest_documents_are_kept_and_old_words_stay_readable(tmp_path: Path):
    file = file_in(tmp_path)
    log = SuffixLog(file)
    documents = [[number] * 7 for number in range(10)]
    for ids in documents:
        log.append(np.array(ids, dtype=np.int32))
    before = log.words()
    picture_before = before.tolist()
    with capture_logs() as lines:
        log.keep_newest(59)  # of 100 words in records of 10
    assert documents_of(log) == documents[5:]
    assert [line["event"] for line in lines] == [STORE_HALVED]
    log.append(np.array([77, 78], dtype=np.int32))
    log.close()
    assert before.tolist() == picture_before
    assert read(file) == [*documents[5:], [77, 78]]
    assert sorted(path.suffix for path in file.folder.iterdir()) == [".ids", ".lock"]


@pytest.mark.parametrize("step", ["fsync", "replace", "killed"])
def test_halving_that_fails_leaves_the_old_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, step: str
):
    file = file_in(tmp_path)
    written(file, DOCUMENTS)
    log = SuffixLog(file)

    def fails(*_: object) -> None:
        raise OSError("no space")

    with monkeypatch.context() as faulty:
        faulty.setattr(suffix_log.os, "fsync", fails if step != "replace" else os.fsync)
        faulty.setattr(suffix_log.Path, "replace", fails)
        if step == "killed":  # nothing tidies up
            faulty.setattr(suffix_log.Path, "unlink", lambda *_, **__: None)
        with pytest.raises(OSError, match="no space"):
            log.keep_newest(10)
    assert file.path.with_suffix(".new").exists() == (step == "killed")
    assert documents_of(log) == DOCUMENTS
    log.close()
    assert read(file) == DOCUMENTS
    assert not file.path.with_suffix(".new").exists()


def test_a_document_that_the_disk_has_no_room_for_leaves_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    file = file_in(tmp_path)
    written(file, DOCUMENTS)
    log = SuffixLog(file)
    write = os.write
    with monkeypatch.context() as full:
        full.setattr(suffix_log.os, "write", lambda fd, data: write(fd, data[:-5]))
        with pytest.raises(OSError):
            log.append(np.array([1, 2, 3], dtype=np.int32))
    log.append(np.array([5], dtype=np.int32))
    log.close()
    with capture_logs() as lines:
        assert read(file) == [*DOCUMENTS, [5]]
    assert not lines


APPENDS = """
import sys
from pathlib import Path
import numpy as np
from worker.draft.suffix_log import LogFile, SuffixLog
log = SuffixLog(LogFile(Path(sys.argv[1]) / "suffixes" / "t", "tenant", "t", True))
for number in range(1000):
    log.append(np.full(300_000 + number, number, dtype=np.int32))
    print(number, flush=True)
"""


def test_a_killed_writer_loses_no_document_that_was_written(tmp_path: Path):
    process = subprocess.Popen(
        [sys.executable, "-c", APPENDS, str(tmp_path)], stdout=subprocess.PIPE, text=True
    )
    assert process.stdout is not None
    for line in process.stdout:
        if int(line) == 20:
            process.send_signal(signal.SIGKILL)
            break
    last = max([20, *map(int, process.stdout.read().split())])
    process.stdout.close()
    assert process.wait() == -signal.SIGKILL
    log = SuffixLog(file_in(tmp_path))
    assert log.is_writable  # the lock went with its owner
    words = log.words()[HEADER_WORDS:]
    log.close()
    ids = words[words >= 0]
    found, counts = np.unique(ids, return_counts=True)
    assert len(found) > last and found.tolist() == list(range(len(found)))
    assert counts.tolist() == [300_000 + number for number in found]
