"""Token ids of earlier texts, kept on disk a tenant each, and where they go on from. Ids, no text.

Knows no drafter and no run. Files are read, written and sorted in one thread, the store writer; a
search reads what that thread has published and waits for nothing.
"""

import os
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import structlog

from proto.worker_settings import StoreMode
from worker.draft.suffix_array import MOST_ID, SuffixArray, find, sort_part
from worker.draft.suffix_log import HEADER_WORDS, LogFault, LogFile, SuffixLog
from worker.limits import STORE_JOBS, STORE_WORDS, STORES_OPEN
from worker.mailbox import Inbox

log = structlog.get_logger()

STORE_FAILED = "suffix_store.failed"

MERGED_UNDER = 16  # a part is sorted again with the new one unless it is so many times as large
WAIT_S = 1.0
CLOSE_S = 10.0  # for the last documents, when the worker stops
NICENESS = 10  # of the store writer: sorting yields to decoding
FOLDER_NAME_CHARS = 16


@dataclass(frozen=True, slots=True)
class StoreBounds:
    """In words: an id, or a third of what stands before a document.

    `limit`: above it the older half goes. `sorted_after`: so many new ones are not found at most.
    """

    limit: int = STORE_WORDS
    sorted_after: int = 4_096


class StoreWriter:
    """The thread in which stores do what takes time. Jobs run in the order in which they came."""

    def __init__(self) -> None:
        self._jobs: Inbox[Callable[[], None] | None] = Inbox(STORE_JOBS)
        self._thread = threading.Thread(target=self._run, name="store writer", daemon=True)
        self._is_closing = threading.Event()
        self.dropped_documents = 0

    @property
    def is_full(self) -> bool:
        """Whether a document shall rather be dropped than wait."""
        return self._jobs.is_full

    @property
    def is_closing(self) -> bool:
        """Whether what is not needed for the files shall be left."""
        return self._is_closing.is_set()

    def put(self, job: Callable[[], None]) -> None:
        """Has a job done. The thread starts with the first one."""
        if self._thread.ident is None:
            self._thread.start()
        self._jobs.put(job)

    def wait(self, timeout_s: float) -> bool:
        """Waits until all jobs put so far are done; whether they were, in time."""
        done = threading.Event()
        self.put(done.set)
        return done.wait(timeout_s)

    def close(self, timeout_s: float) -> None:
        """Writes what waits, without sorting it, and ends."""
        self._is_closing.set()
        self._jobs.put(None)
        if self._thread.ident is not None:
            self._thread.join(timeout_s)

    def _run(self) -> None:
        os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), NICENESS)
        while True:
            for job in self._jobs.take_all(WAIT_S):
                if job is None:
                    return
                try:
                    job()
                except Exception as fault:  # noqa: BLE001 - a store that fails costs speed only
                    log.error(STORE_FAILED, fault=type(fault).__name__)


class SuffixStore:
    """One tenant's texts, or with no file the corpus alone. One thread calls it; no call waits.

    Documents are found once they are sorted, a few thousand ids after they were added. What is
    newer is mostly in the sequence that asks, which has an index of its own.
    """

    def __init__(
        self,
        file: LogFile | None,
        writer: StoreWriter,
        corpus: tuple[SuffixArray, ...] = (),
        bounds: StoreBounds = StoreBounds(),
    ) -> None:
        self._file = file
        self._writer = writer
        self._corpus = corpus
        self._bounds = bounds
        self._log: SuffixLog | None = None
        self._parts: list[SuffixArray] = []  # one after another, each much larger than the next
        self._published = corpus  # the parts and the corpus; replaced, never changed
        if file is not None:
            writer.put(lambda: self._open(file))

    def find(self, tail: Sequence[int], least: int) -> tuple[int, list[Sequence[int]]]:
        """How many ids at the end of `tail` stand in a document too, and how these went on.

        See `worker.draft.suffix_array.find`.
        """
        return find(self._published, tail, least)

    def add(self, ids: Sequence[int]) -> None:
        """Keeps one document; dropped when the writer is far behind.

        Of a very long one the end is kept.
        """
        if self._file is None or len(ids) < 2:
            return
        if self._writer.is_full:
            self._writer.dropped_documents += 1
            return
        document = tuple(ids[-self._bounds.limit // 4 :])
        self._writer.put(lambda: self._append(document))

    def close(self) -> None:
        """Finds and takes nothing any more; what was added is still written."""
        self._published = ()
        if self._file is not None:
            self._writer.put(self._close)

    def _open(self, file: LogFile) -> None:
        try:
            self._log = SuffixLog(file)
        except (FileNotFoundError, LogFault):  # nobody has written it; or it is told already
            return
        self._sort()

    def _append(self, ids: tuple[int, ...]) -> None:
        if self._log is None or not self._log.is_writable:
            return
        document = np.asarray(ids, dtype=np.int32)
        assert document.min() >= 0 and document.max() < MOST_ID, "no ids of a vocabulary"
        try:
            self._log.append(document)
            if self._log.end > self._bounds.limit:
                self._log.keep_newest(self._bounds.limit // 2)
                self._parts = []  # they are of the old file; searched until the new one is sorted
        except OSError:
            self._log.close()
            self._log = None  # a disk that is full stays so: it is told once
            raise
        if self._log.end - self._sorted_end() >= self._bounds.sorted_after:
            self._sort()

    def _sort(self) -> None:
        """Sorts what is new, together with those parts before it that are not much larger."""
        assert self._log is not None
        start, parts = self._sorted_end(), list(self._parts)
        while parts and parts[-1].size < MERGED_UNDER * (self._log.end - start):
            start = parts.pop().start
        if start == self._log.end:
            return
        array = sort_part(self._log.words(), start, lambda: self._writer.is_closing)
        if array is not None:
            self._parts = [*parts, array]
            self._published = (*self._parts, *self._corpus)

    def _sorted_end(self) -> int:
        return len(self._parts[-1].words) if self._parts else HEADER_WORDS

    def _close(self) -> None:
        if self._log is not None:
            self._log.close()
        self._log, self._parts, self._published = None, [], ()


class SuffixStores:
    """The stores of all tenants, opened when first asked for, at most `most` of them open.

    Tenants share nothing but the corpus, which is the operator's own.
    """

    def __init__(
        self,
        folder: Path,
        mode: StoreMode,
        tokenizer_hash: str,
        *,
        corpus: SuffixArray | None = None,
        most: int = STORES_OPEN,
        bounds: StoreBounds = StoreBounds(),
    ) -> None:
        # A folder for each tokenizer, so that a change of models and back loses nothing.
        self._folder = folder / tokenizer_hash[:FOLDER_NAME_CHARS]
        self._mode = mode
        self._tokenizer_hash = tokenizer_hash
        self._corpus = () if corpus is None else (corpus,)
        self._most = most
        self._bounds = bounds
        self._writer = StoreWriter()
        self._open: dict[str, SuffixStore] = {}  # the one used last is the last

    def of(self, salt: str) -> SuffixStore | None:
        """The store of one tenant; None where there is none to be had."""
        store = self._open.pop(salt, None)
        if store is None:
            store = self._new(salt)
        if store is not None:
            self._open[salt] = store
        return store

    def close(self, timeout_s: float = CLOSE_S) -> None:
        """Writes what was added and lets go of all files."""
        for store in self._open.values():
            store.close()
        self._open.clear()
        self._writer.close(timeout_s)

    def _new(self, salt: str) -> SuffixStore | None:
        file: LogFile | None = None
        if self._mode != "off":
            is_writable = self._mode != "readonly"
            file = LogFile(self._folder, salt, self._tokenizer_hash, is_writable)
            if not is_writable and not file.path.exists():
                file = None
        if (file is None and not self._corpus) or self._writer.is_full:
            return None
        if len(self._open) >= self._most:
            self._open.pop(next(iter(self._open))).close()
        return SuffixStore(file, self._writer, self._corpus, self._bounds)
