"""The one thread that uses the store's database, for callers on an event loop. Knows no row.

Whatever the database does, a caller waits no longer than it said, and the loop never.
"""

import asyncio
import time
from collections.abc import Callable
from concurrent.futures import Future
from contextlib import suppress
from queue import Full, Queue
from threading import Thread
from typing import Any, TypeVar

import structlog

from conductor.ports import PortFault
from gateway.store.connection import Cursor
from gateway.store.db import Database, MigrationFailed
from gateway.store.schema import STORE, bring_up_to_date

log = structlog.get_logger(__name__)

WAIT_S = 1.0  # for one answer, where nothing else is said; what is asked of it has a default
MOST_WAITING = 256  # jobs; more come only when the database stands still
RETRY_S = 10.0  # after tables that could not be made

Result = TypeVar("Result")
Work = Callable[[Cursor], Any]


class Desk:
    """Does work in transactions of one database, in the order it comes.

    The database need not be there at the start: its tables are made as soon as it is.
    """

    def __init__(
        self,
        database: Database,
        *,
        wait_s: float = WAIT_S,
        now_s: Callable[[], float] = time.monotonic,
        migrate: Callable[[Database], None] = lambda database: bring_up_to_date(database, STORE),
    ) -> None:
        self._database = database
        self._wait_s = wait_s
        self._now_s = now_s
        self._migrate = migrate
        self._jobs: Queue[tuple[Future[Any], Work] | None] = Queue(MOST_WAITING)
        self._thread: Thread | None = None
        self._is_migrated = False
        self._not_before_s = 0.0
        self._is_failing = False

    def start(self) -> None:
        """Makes the tables if they are not there, and returns at once."""
        with suppress(Full):  # then others are at it
            self._jobs.put_nowait((Future(), lambda cursor: None))
        self._start_thread()

    async def do(self, work: Callable[[Cursor], Result], wait_s: float | None = None) -> Result:
        """The result of work that is one transaction, if it comes in time. Raises: PortFault."""
        future: Future[Result] = Future()
        try:
            self._jobs.put_nowait((future, work))
        except Full:
            raise PortFault("busy") from None
        self._start_thread()
        try:
            async with asyncio.timeout(self._wait_s if wait_s is None else wait_s):
                return await asyncio.wrap_future(future)
        except TimeoutError:
            raise PortFault("timeout") from None

    def close(self, wait_s: float) -> None:
        """Ends the thread once it did what waits, or leaves it behind after `wait_s`. Blocks."""
        if self._thread is None:
            return
        with suppress(Full):  # it stands still, and ends with the process
            self._jobs.put(None, timeout=wait_s)
        self._thread.join(wait_s)

    def _start_thread(self) -> None:
        if self._thread is None:
            # A stuck database must not keep the process alive.
            self._thread = Thread(target=self._work, name="store", daemon=True)
            self._thread.start()

    def _work(self) -> None:
        while (job := self._jobs.get()) is not None:
            future, work = job
            if not future.set_running_or_notify_cancel():
                continue  # whoever asked has gone
            try:
                future.set_result(self._transact(work))
            except Exception as fault:  # noqa: BLE001 - the thread outlives it; the asker is told
                future.set_exception(fault)
        self._database.writer.close()

    def _transact(self, work: Work) -> Any:
        writer = self._database.writer
        try:
            self._bring_up_to_date()
            with writer.transaction() as cursor:
                result = work(cursor)
        except MigrationFailed as fault:
            self._not_before_s = self._now_s() + RETRY_S
            raise self._failed("tables", fault.reason) from fault
        except Exception as fault:
            if writer.is_rows_fault(fault):
                raise PortFault("row") from fault
            if writer.is_fault(fault):
                raise self._failed("database", writer.reason_of(fault)) from fault
            raise
        if self._is_failing:
            self._is_failing = False
            log.info("notebook.resumed")
        return result

    def _bring_up_to_date(self) -> None:
        if self._is_migrated:
            return
        if self._now_s() < self._not_before_s:
            raise PortFault("tables")
        self._migrate(self._database)
        self._is_migrated = True

    def _failed(self, word: str, reason: str) -> PortFault:
        """Said once, until it works again."""
        if not self._is_failing:
            self._is_failing = True
            log.error("notebook.failed", reason=reason)
        return PortFault(word)
