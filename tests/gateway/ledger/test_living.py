"""Several gateway processes on one ledger: open rows belong to the living."""

from pathlib import Path
from threading import Event, Thread

import pytest

from gateway.ledger.living import LivingProcesses
from gateway.store.db import Database
from tests.gateway.ledger.made import FakeClock, closed, hand_driven, opened, outcomes

WITHIN_S = 5.0


@pytest.fixture
def clock() -> FakeClock:
    return FakeClock()


def test_a_process_that_starts_beside_a_living_one_leaves_its_open_rows_alone(
    database: Database, tmp_path: Path, clock: FakeClock
) -> None:
    running = hand_driven(database, tmp_path, clock, living=LivingProcesses(tmp_path))
    entry = opened("req-a")
    running.open(entry)
    running.step()
    beside = hand_driven(database, tmp_path, clock, living=LivingProcesses(tmp_path))
    beside.close(closed("req-b"))
    beside.step()
    assert outcomes(database) == {"req-a": None, "req-b": "succeeded"}


def test_the_first_process_after_all_have_ended_finds_what_they_left_open(
    database: Database, tmp_path: Path, clock: FakeClock
) -> None:
    """Two lived; the first to start after only one of them has gone still changes nothing."""
    lives = [LivingProcesses(tmp_path) for _ in range(2)]
    for number, living in enumerate(lives):
        ledger = hand_driven(database, tmp_path, clock, living=living)
        ledger.open(opened(f"req-{number}"))
        ledger.step()
    lives[0].leave()
    hand_driven(database, tmp_path, clock, living=(third := LivingProcesses(tmp_path))).step()
    assert outcomes(database) == {"req-0": None, "req-1": None}
    lives[1].leave()
    third.leave()
    hand_driven(database, tmp_path, clock, living=LivingProcesses(tmp_path)).step()
    assert outcomes(database) == {"req-0": "lost", "req-1": "lost"}


class Joining(Thread):
    """Joins in a thread of its own. `found`: whether it was alone, once it has joined."""

    def __init__(self, folder: Path) -> None:
        super().__init__(daemon=True)
        self.asks = Event()
        self.found: list[bool] = []
        self._living = LivingProcesses(folder)
        self.start()
        assert self.asks.wait(WITHIN_S)

    def run(self) -> None:
        self.asks.set()
        with self._living.joining() as is_alone:
            self.found.append(is_alone)


def test_nobody_joins_while_another_closes_what_was_left_open(tmp_path: Path) -> None:
    with LivingProcesses(tmp_path).joining() as is_alone:
        assert is_alone
        second = Joining(tmp_path)
        second.join(0.05)
        assert not second.found
    second.join(WITHIN_S)
    assert second.found == [False]


def test_a_process_whose_recovery_failed_does_not_count_as_living(tmp_path: Path) -> None:
    """The database was away: until it is back, another process may close what was left open."""
    first = LivingProcesses(tmp_path)
    with pytest.raises(ZeroDivisionError), first.joining():
        raise ZeroDivisionError
    second = Joining(tmp_path)
    second.join(WITHIN_S)
    assert second.found == [True]
