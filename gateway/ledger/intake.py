"""Rows on their way to the database, and the account of them. Knows no database and no thread.

What requests hand over waits in a bounded queue; rows it has no room for go to the spill file. At
every moment rows made = written + waiting + dropped.
"""

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from threading import Lock
from typing import Any

from gateway.ledger.books import Counts
from gateway.ledger.entry import Entry
from gateway.ledger.row import Bound, unbound
from gateway.ledger.spill import Chunk, Spill, SpillFile, decode, encode

YOUNG_S = 0.1  # a request that is no older may be over before its head is written: twice the work
BATCH_ROWS = 250  # in one transaction: what waits for it is memory, and cold when it is written

Source = Entry | dict[str, Any]  # a row to be: a closed request, or a line of the spill


def columns_of(source: Source) -> dict[str, Any]:
    """Its columns by name, as far as they are known."""
    return source.columns() if isinstance(source, Entry) else source


def values_of(source: Source) -> dict[str, Any]:
    """What was set of them, as quickly as it goes: also as None."""
    return source.values() if isinstance(source, Entry) else source


@dataclass(slots=True)
class Batch:
    """Rows that are being written. `chunk`: their place in the spill, if they come from there.

    `sources` as they came; then `parts`, of which the last one is next.
    """

    sources: list[Source]
    heads: list[Entry]
    chunk: Chunk | None = None
    parts: list[list[Bound]] | None = None

    def rest(self) -> list[Source]:
        """What is not settled yet."""
        if self.parts is None:
            return self.sources
        return [unbound(row) for part in self.parts for row in part]


class Intake:
    """Takes rows in and hands them out. `put` and `put_head` neither wait nor raise.

    One thread takes a batch, begins it, settles each part as written or refused, and releases it.
    `on_batch` is called when a whole batch waits, `on_overflow` when a row went to the spill.
    `is_over`: `end` was called, and nothing of a batch counts any more.
    """

    def __init__(
        self,
        spill_file: SpillFile,
        *,
        queue_rows: int,
        on_batch: Callable[[], None],
        on_overflow: Callable[[], None],
    ) -> None:
        self._queue: deque[Entry] = deque()  # at most _queue_rows
        self._heads: deque[Entry] = deque()  # at most half as many
        self._queue_rows = queue_rows
        self._most_heads = queue_rows // 2
        self._on_batch = on_batch
        self._on_overflow = on_overflow
        self._lock = Lock()  # of every count; held for a few instructions at a time
        self._spill = Spill(spill_file, self._lock)
        self._made = spill_file.row_count
        self._written = 0
        self._dropped = 0
        self._taken = 0
        self.is_over = False
        self.batch: Batch | None = None

    def put_head(self, entry: Entry) -> None:
        """Notes an open request, if there is room: a head is not a row in the books."""
        if len(self._heads) + len(self._queue) < self._most_heads:
            self._heads.append(entry)

    def put(self, entry: Entry) -> None:
        """Takes a closed request in, once."""
        with self._lock:
            if entry.is_booked:
                return  # whoever hands it over again changes nothing
            entry.is_booked = True
            queued = len(self._queue)
            is_room = queued < self._queue_rows and not self.is_over
            if is_room:
                self._made += 1
                self._queue.append(entry)
        if not is_room:
            self._put_beyond(encode(entry.columns()))
        elif queued + 1 == BATCH_ROWS:
            self._on_batch()

    def counts(self) -> Counts:
        """Where the rows are, all at one moment."""
        with self._lock:
            return Counts(
                made=self._made,
                written=self._written,
                queued=len(self._queue) + self._taken,
                spilled=self._spill.row_count,
                dropped=self._dropped,
            )

    @property
    def is_batch_waiting(self) -> bool:
        """Whether there is enough for another transaction at once."""
        return len(self._queue) >= BATCH_ROWS or self._spill.row_count > 0

    def take_spilled(self) -> Batch | None:
        """The oldest rows of the spill; None when it is empty or the disk is busy.

        Raises: OSError.
        """
        chunk = self._spill.take() if self._spill.row_count else None
        if chunk is None:
            return None
        sources: list[Source] = []
        unreadable = 0
        for line in chunk.lines:
            decoded = decode(line)
            if decoded is not None:
                sources.append(decoded)
            elif line.endswith(b"\n"):  # a piece without an end was never counted as a row
                unreadable += 1
        with self._lock:
            self._dropped += unreadable
            self._spill.settle(unreadable)
            self.batch = Batch(sources, [], chunk)
        return self.batch

    def take_queued(self, now_s: float) -> Batch | None:
        """The oldest rows of the queue, and the requests that have been open for a while."""
        with self._lock:
            entries = _pop(self._queue, BATCH_ROWS)
            heads = self._due_heads(now_s - YOUNG_S)
            if not entries and not heads:
                return None
            self._taken = len(entries)
            self.batch = Batch(list(entries), heads)
        return self.batch

    def begin(self, batch: Batch, rows: list[Bound]) -> None:
        """These rows were made of the batch's sources; a source that made none is dropped."""
        with self._lock:
            if not self.is_over:
                self._account(batch, len(batch.sources) - len(rows), is_written=False)
                batch.parts = [rows]

    def settle(self, batch: Batch, *, is_written: bool) -> None:
        """The rows of the last part wait no longer."""
        with self._lock:
            if not self.is_over and batch.parts:
                self._account(batch, len(batch.parts.pop()), is_written=is_written)

    def release(self, batch: Batch) -> None:
        """Every row is settled: the spill need not keep them.

        Raises: OSError; they are not handed out again all the same.
        """
        self.batch = None
        if batch.chunk is not None and not self.is_over:
            self._spill.release(batch.chunk)

    def flush(self, wait_s: float = -1) -> None:
        """Moves the overflow to the file.

        Raises: OSError.
        """
        self._spill.flush(wait_s)

    def end(self) -> None:
        """Hands nothing out any more and moves all that waits to the spill."""
        with self._lock:
            self.is_over = True
            rest = self._unsettled()
            rest += _pop(self._queue, len(self._queue))
            self._taken = len(rest)
        for source in rest:
            line = encode(columns_of(source))
            with self._lock:
                self._taken -= 1
                if not self._spill.accept(line):
                    self._dropped += 1

    def close(self, wait_s: float) -> None:
        """Counts what never reached the file as dropped, and lets go of it."""
        with self._lock:
            self._dropped += self._spill.give_up()
        self._spill.close(wait_s)

    def _unsettled(self) -> list[Source]:
        """Rows of the batch that only memory holds."""
        batch = self.batch
        if batch is None or (batch.chunk is not None and batch.chunk.end_bytes is not None):
            return []
        rest = batch.rest()
        if batch.chunk is not None:
            self._spill.settle(len(rest))
        return list(rest)

    def _due_heads(self, newest_s: float) -> list[Entry]:
        """Open requests that arrived before; the younger ones stay."""
        due: list[Entry] = []
        young: list[Entry] = []
        for entry in _pop(self._heads, len(self._heads)):
            if not entry.is_closed:
                is_due = entry.arrived_s <= newest_s and len(due) < BATCH_ROWS
                (due if is_due else young).append(entry)
        self._heads.extendleft(reversed(young))
        return due

    def _account(self, batch: Batch, row_count: int, *, is_written: bool) -> None:
        if is_written:
            self._written += row_count
        else:
            self._dropped += row_count
        if batch.chunk is None:
            self._taken -= row_count
        else:
            self._spill.settle(row_count)

    def _put_beyond(self, line: bytes) -> None:
        with self._lock:
            self._made += 1
            if self.is_over or not self._spill.accept(line):
                self._dropped += 1
        self._on_overflow()


def _pop(queue: deque[Entry], most: int) -> list[Entry]:
    return [queue.popleft() for _ in range(min(most, len(queue)))]
