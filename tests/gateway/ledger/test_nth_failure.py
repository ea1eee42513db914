"""The writer with its Nth operation failing, for every N until a run meets no fault."""

from collections.abc import Callable
from pathlib import Path

import pytest
from structlog.testing import capture_logs

from gateway.ledger.spill import SpillFile
from gateway.ledger.writer import Ledger
from gateway.store.db import Database
from tests.gateway.ledger.faults import KINDS, Kind, WornDisk, trouble
from tests.gateway.ledger.made import FakeClock, closed, hand_driven, opened, outcomes

MOST = 80  # a scenario has fewer operations of a kind
ROWS = 7


def check_account(books: Ledger) -> None:
    counts = books.counts()
    assert counts.made == counts.written + counts.waiting + counts.dropped


def run(
    database: Database,
    state_dir: Path,
    prefix: str,
    claim_spill: Callable[[Path], SpillFile] = SpillFile.claim,
) -> int:
    """A life of a ledger: heads, rows, overflow, a refused row, an end, another start.

    Returns how many rows were dropped, and counted.
    """
    clock = FakeClock()
    books = hand_driven(database, state_dir, clock, queue=3, claim_spill=claim_spill)
    entries = [opened(f"{prefix}-{i}") for i in range(ROWS)]
    for i, entry in enumerate(entries):
        books.open(entry)
        if i in (2, 4):
            entry.run_id = prefix  # the second of these is refused: its run is billed
        if i == 1:
            books.step()
        entry.close(1.0, outcome="succeeded")
        books.close(entry)
        books.flush_spill()
        check_account(books)
    for _ in range(3):
        clock.pass_s(20)
        books.step()
        check_account(books)
    books.close(closed(f"{prefix}-last"))
    books.stop(0)
    check_account(books)
    again = hand_driven(database, state_dir, clock, claim_spill=claim_spill)
    check_account(again)
    rounds = 0
    while again.counts().waiting or rounds < 3:
        clock.pass_s(20)
        again.step()
        check_account(again)
        rounds += 1
        assert rounds < 50
    return books.counts().dropped + again.stop(0).dropped


def missing(database: Database, prefix: str) -> set[str]:
    """The requests of a run that are not in the books as they ended."""
    expected = {f"{prefix}-{i}" for i in range(ROWS)} | {f"{prefix}-last"}
    return expected - {name for name, end in outcomes(database).items() if end == "succeeded"}


@pytest.mark.parametrize("kind", KINDS)
def test_no_row_is_lost_whichever_operation_fails(
    database: Database, tmp_path: Path, kind: Kind
) -> None:
    struck = 0
    for number in range(1, MOST):
        prefix = f"r{number:02}"
        with trouble(database) as faulty, capture_logs():
            faulty.fails_at = (kind, number)
            faulty.hangs_up = kind == "connect"  # or there would be one for each life
            run(database, tmp_path / prefix, prefix)
            has_struck = faulty.has_struck
        gone = missing(database, prefix)
        assert len(gone) == 1 and gone <= {f"{prefix}-2", f"{prefix}-4"}  # billed already
        if not has_struck:
            break
        struck += 1
    assert 2 < struck < MOST - 1


def test_no_row_is_lost_in_silence_whichever_operation_of_the_spill_fails(
    sqlite: Database, tmp_path: Path
) -> None:
    for number in range(1, MOST):
        prefix = f"r{number:02}"
        disks: list[WornDisk] = []

        def claim(folder: Path, number: int = number, disks: list[WornDisk] = disks) -> SpillFile:
            disk = WornDisk.claim(folder)
            assert isinstance(disk, WornDisk)
            disk.fails_at = number
            disks.append(disk)
            return disk

        with capture_logs():
            dropped = run(sqlite, tmp_path / prefix, prefix, claim)
        assert 1 <= len(missing(sqlite, prefix)) <= dropped
        if all(disk.count < number for disk in disks):
            break
    assert 5 < number < MOST - 1
