"""At every moment rows made = written + waiting + dropped, whatever fails in whatever order."""

import shutil
import tempfile
from pathlib import Path

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule
from structlog.testing import capture_logs

from gateway.ledger.entry import Entry
from gateway.ledger.spill import SpillFile
from gateway.ledger.writer import Ledger
from gateway.store.db import Database
from tests.gateway.ledger.faults import WornDisk, trouble
from tests.gateway.ledger.made import UNHURRIED, FakeClock, closed, hand_driven, opened, outcomes

SPILL_BYTES = 1500  # a few rows
QUEUE = 4


class LedgerMachine(RuleBasedStateMachine):
    """Requests come and go, the database and the disk fail, the gateway starts anew."""

    def __init__(self) -> None:
        super().__init__()
        self.folder = Path(tempfile.mkdtemp(prefix="tandem-account-"))
        self.database = Database.open(self.folder / "ledger.sqlite")
        self._trouble = trouble(self.database)
        self.down = self._trouble.__enter__()
        self._logs = capture_logs()
        self._logs.__enter__()
        self.clock = FakeClock()
        self.running: list[Entry] = []
        self.handed: set[str] = set()
        self.number = 0
        self.lost = 0  # dropped in earlier lives
        self.books = self._start()

    def _start(self) -> Ledger:
        def claim(folder: Path) -> SpillFile:
            self.disk = WornDisk.claim(folder, SPILL_BYTES)
            return self.disk

        return hand_driven(self.database, self.folder, self.clock, queue=QUEUE, claim_spill=claim)

    def _name(self) -> str:
        self.number += 1
        return f"req-{self.number:04}"

    @rule()
    def arrive(self) -> None:
        entry = opened(self._name())
        self.running.append(entry)
        self.books.open(entry)

    @precondition(lambda self: self.running)
    @rule(place=st.integers(0, 99))
    def end(self, place: int) -> None:
        entry = self.running.pop(place % len(self.running))
        entry.close(1.0, outcome="aborted")
        self.books.close(entry)
        self.handed.add(entry.request_id)

    @rule(count=st.integers(1, 6), run_id=st.sampled_from([None, None, "run-1", "run-2"]))
    def burst(self, count: int, run_id: str | None) -> None:
        for _ in range(count):
            entry = closed(self._name(), run_id=run_id)
            self.books.close(entry)
            self.handed.add(entry.request_id)

    @rule(wait_s=st.sampled_from([0.0, 1.0, 60.0]))
    def write(self, wait_s: float) -> None:
        self.clock.pass_s(wait_s)
        self.books.step()

    @rule()
    def flush(self) -> None:
        self.books.flush_spill()

    @rule(is_down=st.booleans(), is_full=st.booleans())
    def weather(self, is_down: bool, is_full: bool) -> None:
        self.down.is_down = is_down
        self.disk.is_full = is_full

    @rule(lines=st.integers(1, 3), kind=st.sampled_from(["statement", "commit", "commit_answer"]))
    def fail_soon(self, lines: int, kind: str) -> None:
        self.down.fails_at = (kind, self.down.count[kind] + lines)  # type: ignore[assignment,index]

    @rule()
    def restart(self) -> None:
        self.lost += self.books.stop(0).dropped
        self.running.clear()
        self.books = self._start()

    @invariant()
    def account_holds(self) -> None:
        counts = self.books.counts()
        assert counts.made == counts.written + counts.waiting + counts.dropped
        assert min(counts.made, counts.written, counts.queued, counts.spilled) >= 0
        assert self.disk.size_bytes <= SPILL_BYTES

    def teardown(self) -> None:
        self.down.is_down = self.disk.is_full = False
        self.down.fails_at = None
        for _ in range(200):
            self.clock.pass_s(60)
            self.books.step()
            self.books.flush_spill()
            if not self.books.counts().waiting:
                break
        counts = self.books.counts()
        assert not counts.waiting
        found = {
            name for name, end in outcomes(self.database).items() if end in ("succeeded", "aborted")
        }
        assert found <= self.handed
        assert len(self.handed) - len(found) <= counts.dropped + self.lost
        self.books.stop(0)
        self._logs.__exit__(None, None, None)
        self._trouble.__exit__(None, None, None)
        self.database.close()
        shutil.rmtree(self.folder)


LedgerMachine.TestCase.settings = settings(UNHURRIED, max_examples=40, stateful_step_count=30)
TestAccount = LedgerMachine.TestCase
