"""Writes the books behind everyone's back: the two threads of the ledger. Knows no SQL, no price.

`Ledger.open` and `Ledger.close` put an entry into memory and return. One thread writes batches to
the database; a second one puts rows that the queue has no room for into the spill file.
"""

from collections.abc import Callable
from pathlib import Path
from threading import Event, Thread
from time import sleep
from typing import Protocol

import structlog

from gateway.ledger.books import STOP_S, Counts, PriceRow
from gateway.ledger.budget import Budgets
from gateway.ledger.clock import Clock
from gateway.ledger.entry import Entry
from gateway.ledger.inserts import mark_lost, write
from gateway.ledger.intake import Batch, Intake, values_of
from gateway.ledger.living import Alone, Living
from gateway.ledger.row import REQUEST_ID, Bound, Columns, NoRow, bound, fitted, head_from
from gateway.ledger.spill import SpillFile
from gateway.ledger.upkeep import Upkeep
from gateway.settings.types import LedgerSettings
from gateway.store.db import Database, MigrationFailed
from gateway.store.schema import bring_up_to_date

log = structlog.get_logger(__name__)

COMMIT_S = 1.0  # a hard kill costs the rows of this long
BREATH_ROWS = 30  # prepared at a stretch: the interpreter runs one thread at a time, and requests
BREATH_S = 0.0005  # must not wait for the writer longer than a fraction of a millisecond
RETRY_FIRST_S = 0.25  # after a database that refused; doubled each time
RETRY_MOST_S = 10.0
LAST_FLUSH_S = 2.0  # for a disk that is slow when the process ends
LOG_EVERY_S = 60.0  # for what would otherwise be said with every row


class Joinable(Protocol):
    """A thread that can be waited for."""

    def join(self, timeout: float | None = None) -> None:
        """Returns when the thread has ended or the time is over."""


StartThread = Callable[[str, Callable[[], None]], Joinable]


def start_daemon(name: str, work: Callable[[], None]) -> Joinable:
    """A thread that does not keep the process alive: a stuck database must not either."""
    thread = Thread(target=work, name=name, daemon=True)
    thread.start()
    return thread


class Ledger:
    """The books in a database. Build it, `start` it, `stop` it before the process ends.

    The database need not be there at the start: tables are made, by `migrate`, and rows that a
    crash left open are closed as lost, as soon as it is.
    """

    def __init__(
        self,
        database: Database,
        settings: LedgerSettings,
        *,
        state_dir: Path,
        price: PriceRow,
        clock: Clock,
        migrate: Callable[[Database], None] = bring_up_to_date,
        start_thread: StartThread = start_daemon,
        claim_spill: Callable[[Path], SpillFile] = SpillFile.claim,
        budgets: Budgets | None = None,
        living: Living | None = None,
    ) -> None:
        self._wake = Event()
        self._spill_wake = Event()
        self._spill_file = claim_spill(state_dir)
        self._intake = Intake(
            self._spill_file,
            queue_rows=settings.queue,
            on_batch=self._wake.set,
            on_overflow=self._spill_wake.set,
        )
        self._database = database
        self._upkeep = Upkeep(database, settings, clock)
        self._budgets = budgets or Budgets(clock)
        self._budgets.read_by(self._wake.set)
        self._migrate = migrate
        self._price = price
        self._clock = clock
        self._start_thread = start_thread
        self._living = living or Alone()
        self._threads: list[Joinable] = []
        self._is_migrated = False
        self._is_recovered = False
        self._was_spilled = False
        self._inherited_count = self._spill_file.row_count
        self._stop_at: float | None = None
        self._retry_at = 0.0
        self._retry_s = 0.0
        self._dropped_said = 0
        self._write_faults = _Seldom()
        self._spill_faults = _Seldom()
        self._price_faults = _Seldom()
        self._losses = _Seldom()

    def start(self) -> None:
        """Starts both threads."""
        found = self._spill_file
        if found.row_count or found.torn_count:
            log.warning(
                "ledger.spill_found", row_count=found.row_count, torn_count=found.torn_count
            )
        self._threads = [
            self._start_thread("ledger-writer", self._write_until_stopped),
            self._start_thread("ledger-spill", self._spill_until_stopped),
        ]

    def open(self, entry: Entry) -> None:
        """Makes an admitted request known, so that a crash cannot hide it."""
        self._intake.put_head(entry)

    def close(self, entry: Entry) -> None:
        """Books a closed entry, once. Costs a few microseconds, whatever the database does."""
        self._intake.put(entry)

    def counts(self) -> Counts:
        """Where the rows are, all at one moment."""
        return self._intake.counts()

    def use_prices(self, price: PriceRow) -> None:
        """Prices the rows written from now on by another list (a reload)."""
        self._price = price

    def stop(self, wait_s: float = STOP_S) -> Counts:
        """Writes what waits, for about `wait_s` at most; the rest goes to the spill file."""
        if self._stop_at is not None:
            return self.counts()
        self._stop_at = self._clock.now_s() + wait_s
        self._retry_at = 0.0
        self._wake.set()
        self._spill_wake.set()
        for thread in self._threads:
            thread.join(max(0.0, self._stop_at - self._clock.now_s()))
        self._spill_the_rest()
        counts = self.counts()
        log.info(
            "ledger.stopped",
            written=counts.written,
            waiting=counts.waiting,
            dropped=counts.dropped,
        )
        return counts

    def step(self) -> float:
        """One round of the writer thread; returns the seconds until the next is due."""
        now_s = self._clock.now_s()
        if now_s < self._retry_at:
            return self._retry_at - now_s
        try:
            is_more = self._write_batch()
            if not is_more and self._stop_at is None:
                self._upkeep.run_if_due()
            if self._stop_at is None:
                self._budgets.read_if_due(self._database.writer)
        except Exception as fault:  # noqa: BLE001 - the rows stay; the thread must outlive it
            return self._note_fault(fault)
        if self._retry_s:
            self._retry_s = 0.0
            log.info("ledger.write_resumed", waiting=self.counts().waiting)
        self._report_losses()
        return 0.0 if is_more else COMMIT_S

    def flush_spill(self) -> float | None:
        """One round of the spill thread; seconds until the next, None: when rows overflow."""
        try:
            self._intake.flush()
        except OSError as fault:
            self._note_spill_fault(fault)
            return RETRY_MOST_S
        finally:
            self._report_losses()
        return LOG_EVERY_S if self._dropped_said < self.counts().dropped else None

    def _write_until_stopped(self) -> None:
        while not self._is_done():
            pause_s = self.step()
            if pause_s and not self._is_done():
                self._wake.wait(pause_s)
            self._wake.clear()
        self._database.writer.close()  # SQLite folds its journal into the file

    def _spill_until_stopped(self) -> None:
        pause_s: float | None = None
        while self._stop_at is None:
            self._spill_wake.wait(pause_s)
            self._spill_wake.clear()
            pause_s = self.flush_spill()

    def _is_done(self) -> bool:
        if self._stop_at is None:
            return False
        return not self.counts().queued or self._clock.now_s() >= self._stop_at

    def _write_batch(self) -> bool:
        """Writes what is oldest; whether there is a whole batch more."""
        if not self._is_migrated:
            self._migrate(self._database)
            self._is_migrated = True
        batch = self._intake.batch or self._take()
        if batch is None:
            return False
        if batch.parts is None:
            self._begin(batch)
        self._write(batch)
        return self._intake.is_batch_waiting

    def _take(self) -> Batch | None:
        """What the run before left goes first, then the spill and the queue take turns: or a full
        queue, which a kill would cost us, would wait for as long as rows overflow."""
        takes = [self._take_spilled, self._take_queued]
        if self._was_spilled and self._inherited_count <= 0:
            takes.reverse()
        batch = takes[0]() or takes[1]()
        self._was_spilled = batch is not None and batch.chunk is not None
        if batch is not None and batch.chunk is not None:
            self._inherited_count -= len(batch.chunk.lines)
        return batch

    def _take_spilled(self) -> Batch | None:
        """Rows that overflowed, of this run or one before. A broken disk holds up no others."""
        try:
            return self._intake.take_spilled()
        except OSError as fault:
            self._note_spill_fault(fault)
            return None

    def _take_queued(self) -> Batch | None:
        """Rows of this run. First, once: what is still open belongs to runs that crashed, unless
        another process of this installation lives, whose requests may be among it."""
        if not self._is_recovered:
            with self._living.joining() as is_alone:
                lost_count = mark_lost(self._database.writer) if is_alone else 0
            self._is_recovered = True
            if lost_count:
                reason = "the run before did not end cleanly"
                log.warning("ledger.rows_lost", row_count=lost_count, reason=reason)
        return self._intake.take_queued(self._clock.now_s())

    def _begin(self, batch: Batch) -> None:
        """Turns values into priced rows. From here on a row's prices are frozen."""
        rows = []
        for number, source in enumerate(batch.sources, start=1):
            values = values_of(source)
            try:
                row = fitted(values)
            except NoRow as fault:
                request_id = values.get("request_id")
                log.error("ledger.row_refused", reason=str(fault), request_id=request_id)
            else:
                self._add_price(row)
                rows.append(bound(row))
            if number % BREATH_ROWS == 0:
                sleep(BREATH_S)
        self._intake.begin(batch, rows)

    def _add_price(self, row: Columns) -> None:
        try:
            self._price(row)
        except Exception as fault:  # noqa: BLE001 - a faulty price list must not cost the row
            if self._price_faults.is_due(self._clock.now_s()):
                log.error("ledger.price_failed", fault=type(fault).__name__, model=row.get("model"))

    def _write(self, batch: Batch) -> None:
        """Writes part after part. Raises: what the database says, with the rest kept."""
        while batch.parts and not self._intake.is_over:
            part = batch.parts[-1]
            try:
                self._commit(batch.heads, part)
            except Exception as fault:
                if not self._database.writer.is_rows_fault(fault):
                    raise
                self._halve(batch, batch.parts, fault)
            else:
                batch.heads = []
                self._budgets.note_written(part)
                self._intake.settle(batch, is_written=True)
        try:
            self._intake.release(batch)
        except OSError as fault:
            self._note_spill_fault(fault)

    def _commit(self, entries: list[Entry], rows: list[Bound]) -> None:
        if entries or rows:
            heads = [head_from(entry.values()) for entry in entries]
            write(self._database.writer, heads, rows)

    def _halve(self, batch: Batch, parts: list[list[Bound]], fault: Exception) -> None:
        """One of these rows is refused: finds it, so that it holds up no other."""
        part = parts[-1]
        if batch.heads:
            batch.heads = []
        elif len(part) > 1:
            middle = len(part) // 2
            parts[-1:] = [part[middle:], part[:middle]]
        else:
            reason = self._database.writer.reason_of(fault)
            log.error("ledger.row_refused", reason=reason, request_id=part[0][REQUEST_ID])
            self._intake.settle(batch, is_written=False)

    def _note_fault(self, fault: Exception) -> float:
        """Says it seldom, and waits longer each time."""
        now_s = self._clock.now_s()
        self._retry_s = min(self._retry_s * 2 or RETRY_FIRST_S, RETRY_MOST_S)
        if self._stop_at is not None:
            self._retry_s = RETRY_FIRST_S
        self._retry_at = now_s + self._retry_s
        self._budgets.note_away()
        if self._write_faults.is_due(now_s):
            writer = self._database.writer
            is_migration = isinstance(fault, MigrationFailed)
            log.error(
                "ledger.write_failed",
                reason=str(fault) if is_migration else writer.reason_of(fault),
                waiting=self.counts().waiting,
                exc_info=not (is_migration or writer.is_fault(fault)),
            )
        self._report_losses()
        return self._retry_s

    def _note_spill_fault(self, fault: OSError) -> None:
        if self._spill_faults.is_due(self._clock.now_s()):
            log.error("ledger.spill_failed", errno=fault.errno, reason=fault.strerror)

    def _report_losses(self) -> None:
        dropped = self.counts().dropped
        lost = dropped - self._dropped_said
        if lost and self._losses.is_due(self._clock.now_s()):
            self._dropped_said = dropped
            log.error("ledger.rows_dropped", row_count=lost, dropped_total=dropped)

    def _spill_the_rest(self) -> None:
        self._intake.end()
        try:
            self._intake.flush(LAST_FLUSH_S)
        except OSError as fault:
            self._note_spill_fault(fault)
        self._intake.close(LAST_FLUSH_S)
        self._losses = _Seldom()
        self._report_losses()


class _Seldom:
    """Something that is said at most once a minute."""

    def __init__(self) -> None:
        self._next_s: float | None = None

    def is_due(self, now_s: float) -> bool:
        """Whether it may be said now; then not for a while."""
        if self._next_s is not None and now_s < self._next_s:
            return False
        self._next_s = now_s + LOG_EVERY_S
        return True
