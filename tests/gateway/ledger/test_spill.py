"""The spill file: whole lines, one owner, nothing lost that was not torn."""

import errno
from pathlib import Path
from threading import Event, Lock, Thread

import pytest
from structlog.testing import capture_logs

from gateway.ledger.books import Counts
from gateway.ledger.spill import LINE_BYTES, Spill, SpillFile, decode, encode
from gateway.store.db import Database
from tests.gateway.ledger.faults import WornDisk
from tests.gateway.ledger.made import FakeClock, closed, hand_driven, outcomes, stored


def lines_of(file: SpillFile) -> list[bytes]:
    lines: list[bytes] = []
    while some := file.read(sum(map(len, lines))):
        lines += some
    return lines


def test_a_line_holds_a_row() -> None:
    row = {"request_id": "a", "model": "模\n型\ud800", "max_tokens": 10**30, "decode_tps": 1.5}
    line = encode(row)
    assert line.count(b"\n") == 1 and line.endswith(b"\n")
    assert decode(line) == row


@pytest.mark.parametrize("line", [b"\n", b"{\n", b"[1]\n", b"\xff\xfe\n", b"\0\0\0\n", b'{"a"'])
def test_what_is_no_row_is_none(line: bytes) -> None:
    assert decode(line) is None


def test_a_file_is_found_as_it_was_left(tmp_path: Path) -> None:
    file = SpillFile.claim(tmp_path)
    file.append(b"one\ntwo\n")
    file.append(b"three\n")
    file.close()
    again = SpillFile.claim(tmp_path)
    assert lines_of(again) == [b"one\n", b"two\n", b"three\n"]
    assert (again.row_count, again.torn_count) == (3, 0)
    again.clear()
    again.close()
    assert SpillFile.claim(tmp_path).row_count == 0


def test_a_torn_end_is_counted_and_cut_off(tmp_path: Path) -> None:
    path = tmp_path / "ledger.spill"
    path.write_bytes(b"one\ntwo\nthree and no e")
    file = SpillFile.claim(tmp_path)
    assert (file.row_count, file.torn_count) == (2, 1)
    file.append(b"three\n")
    assert path.read_bytes() == b"one\ntwo\nthree\n"


def test_a_file_longer_than_what_is_read_at_a_time(tmp_path: Path) -> None:
    line = b"x" * 999 + b"\n"
    (tmp_path / "ledger.spill").write_bytes(line * 3000 + b"torn")
    file = SpillFile.claim(tmp_path)
    assert (file.row_count, file.torn_count) == (3000, 1)
    assert lines_of(file) == [line] * 3000


def test_a_write_that_fails_leaves_no_trace(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = SpillFile.claim(tmp_path)
    file.append(b"one\n")
    writes = iter([2, OSError(errno.ENOSPC, "full")])
    real = __import__("os").pwrite

    def pwrite(descriptor: int, data: bytes, offset: int) -> int:
        step = next(writes)
        if isinstance(step, OSError):
            raise step
        return int(real(descriptor, data[:step], offset))

    with monkeypatch.context() as patch, pytest.raises(OSError, match="full"):
        patch.setattr("gateway.ledger.spill.os.pwrite", pwrite)
        file.append(b"two\n")
    assert lines_of(file) == [b"one\n"]
    file.append(b"three\n")
    assert lines_of(file) == [b"one\n", b"three\n"]


def test_each_process_has_a_file_of_its_own(tmp_path: Path) -> None:
    first, second = SpillFile.claim(tmp_path), SpillFile.claim(tmp_path)
    assert (first.path.name, second.path.name) == ("ledger.spill", "ledger.spill.1")
    assert second.path.stat().st_mode & 0o777 == 0o600
    first.close()
    assert SpillFile.claim(tmp_path).path.name == "ledger.spill"


def test_what_dead_processes_left_is_taken_over(tmp_path: Path) -> None:
    first, second, third = (SpillFile.claim(tmp_path) for _ in range(3))
    first.append(b"one\n")
    second.append(b"two\nthree\n")
    third.append(b"four\n")
    first.close()
    second.close()
    again = SpillFile.claim(tmp_path)
    assert lines_of(again) == [b"one\n", b"two\n", b"three\n"]
    assert again.row_count == 3
    assert second.path.stat().st_size == 0
    assert lines_of(third) == [b"four\n"]  # its process lives


def test_files_that_do_not_fit_together_wait(tmp_path: Path) -> None:
    first, second = SpillFile.claim(tmp_path), SpillFile.claim(tmp_path)
    first.append(b"one\n")
    second.append(b"two\n")
    first.close()
    second.close()
    assert SpillFile.claim(tmp_path, most_bytes=6).row_count == 1
    assert second.path.read_bytes() == b"two\n"


@pytest.mark.parametrize(("room", "kept"), [(9, 2), (10, 3), (11, 3)])
def test_the_bound_counts_file_and_memory(tmp_path: Path, room: int, kept: int) -> None:
    lock = Lock()
    spill = Spill(SpillFile.claim(tmp_path, most_bytes=room), lock)
    for number, line in enumerate([b"one\n", b"two\n", b"3\n"]):
        with lock:
            assert spill.accept(line) == (number < kept)
        spill.flush()
    assert spill.row_count == kept
    assert (tmp_path / "ledger.spill").stat().st_size <= room


def test_no_line_is_longer_than_what_is_read_at_a_time(tmp_path: Path) -> None:
    spill = Spill(SpillFile.claim(tmp_path), Lock())
    assert spill.accept(b"x" * (LINE_BYTES - 1) + b"\n")
    assert not spill.accept(b"x" * LINE_BYTES + b"\n")


def test_a_damaged_file_holds_nobody_up(sqlite: Database, tmp_path: Path) -> None:
    good = [encode({"ts_ms": 1, "request_id": f"req-{i}", "outcome": "failed"}) for i in range(3)]
    damage = b"\0" * (2 * LINE_BYTES) + b"\n"
    state = tmp_path / "state"
    state.mkdir()
    (state / "ledger.spill").write_bytes(good[0] + b"{no row\n" + good[1] + damage + good[2])
    clock = FakeClock()
    books = hand_driven(sqlite, state, clock)
    assert books.counts() == Counts(made=5, spilled=5)
    with capture_logs() as logs:
        for _ in range(6):
            books.step()
    assert books.counts() == Counts(made=5, written=3, dropped=2)
    assert set(outcomes(sqlite)) == {"req-0", "req-1", "req-2"}
    assert any(entry["event"] == "ledger.rows_dropped" for entry in logs)
    assert (state / "ledger.spill").stat().st_size == 0


def test_a_full_disk_keeps_rows_in_memory_until_there_is_room(
    sqlite: Database, tmp_path: Path
) -> None:
    disks: list[WornDisk] = []

    def claim(folder: Path) -> SpillFile:
        disks.append(WornDisk.claim(folder, 1_200))
        return disks[-1]

    clock = FakeClock()
    books = hand_driven(sqlite, tmp_path, clock, queue=1, claim_spill=claim)
    disks[0].is_full = True
    with capture_logs() as logs:
        for i in range(9):
            books.close(closed(f"req-{i}"))
            books.flush_spill()
    counts = books.counts()
    assert counts.queued == 1 and counts.spilled > 2 and counts.dropped > 2
    assert counts.made == 9 == counts.waiting + counts.dropped
    said = [entry for entry in logs if entry["event"] == "ledger.spill_failed"]
    assert [entry["errno"] for entry in said] == [errno.ENOSPC]  # once a minute
    disks[0].is_full = False
    books.flush_spill()
    assert (tmp_path / "ledger.spill").read_bytes().count(b"\n") == counts.spilled


def test_what_a_full_disk_cannot_take_at_the_end_is_counted(
    sqlite: Database, tmp_path: Path
) -> None:
    disks: list[WornDisk] = []

    def claim(folder: Path) -> SpillFile:
        disks.append(WornDisk.claim(folder))
        return disks[-1]

    books = hand_driven(sqlite, tmp_path, FakeClock(), claim_spill=claim)
    disks[0].is_full = True
    for _ in range(3):
        books.close(closed())
    with capture_logs() as logs:
        assert books.stop(0) == Counts(made=3, dropped=3)
    names = [entry["event"] for entry in logs]
    assert names == ["ledger.spill_failed", "ledger.rows_dropped", "ledger.stopped"]


class StuckDisk(SpillFile):
    """A disk that does not answer until it is let go."""

    started: Event
    released: Event

    def append(self, data: bytes) -> None:
        self.started.set()
        assert self.released.wait(30)
        super().append(data)


def test_a_disk_that_hangs_stops_neither_requests_nor_the_database(
    sqlite: Database, tmp_path: Path
) -> None:
    StuckDisk.started, StuckDisk.released = Event(), Event()
    books = hand_driven(sqlite, tmp_path, FakeClock(), queue=2, claim_spill=StuckDisk.claim)
    for i in range(4):
        books.close(closed(f"req-{i}"))
    flushing = Thread(target=books.flush_spill)
    flushing.start()
    assert StuckDisk.started.wait(30)
    books.close(closed("req-4"))
    books.step()  # the queue is written although the spill is busy
    assert set(outcomes(sqlite)) == {"req-0", "req-1"}
    assert books.counts() == Counts(made=5, written=2, spilled=3)
    StuckDisk.released.set()
    flushing.join()
    books.step()
    assert books.counts() == Counts(made=5, written=5)


def test_a_disk_that_cannot_be_read_does_not_hold_up_the_queue(
    sqlite: Database, tmp_path: Path
) -> None:
    disks: list[WornDisk] = []

    def claim(folder: Path) -> SpillFile:
        disks.append(WornDisk.claim(folder))
        return disks[-1]

    books = hand_driven(sqlite, tmp_path, FakeClock(), queue=1, claim_spill=claim)
    books.close(closed("req-0"))
    books.close(closed("req-1"))
    books.flush_spill()
    disks[0].fails_at = disks[0].count + 1  # the read
    with capture_logs() as logs:
        books.step()
        assert outcomes(sqlite) == {"req-0": "succeeded"}
        disks[0].fails_at = disks[0].count + 2  # emptying the file
        books.step()
        assert len(outcomes(sqlite)) == 2
        books.close(closed("req-2"))
        books.step()
    assert books.counts() == Counts(made=3, written=3)
    assert [entry["event"] for entry in logs] == ["ledger.spill_failed"]


def test_a_value_that_json_does_not_know_is_kept_as_text(sqlite: Database, tmp_path: Path) -> None:
    books = hand_driven(sqlite, tmp_path, FakeClock(), queue=0)
    books.close(closed("req-0", model=tmp_path))
    books.step()
    assert [row.model for row in stored(sqlite)] == [str(tmp_path)]
