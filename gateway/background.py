"""A thread for small work that nobody waits for: lines into files. Knows no file.

Whoever puts work in never waits and never fails; what finds no room is counted and not done.
"""

from collections import deque
from collections.abc import Callable
from threading import Event, Lock, Thread

import structlog

log = structlog.get_logger(__name__)

QUEUED = 10_000  # pieces of work, about a minute of a busy gateway
LAST_WORK_S = 2.0  # for what waits when the process ends


class Background:
    """The thread; it begins with the first work. `dropped_count`: what found no room, so far."""

    def __init__(self, name: str, most: int = QUEUED) -> None:
        self.dropped_count = 0
        self._dropped_said = 0
        self._name = name
        self._most = most
        self._works: deque[Callable[[], None]] = deque()
        self._wake = Event()
        self._ends = False
        self._lock = Lock()
        self._thread: Thread | None = None

    def put(self, work: Callable[[], None]) -> None:
        """Has something done after what was put in before."""
        if self._ends or len(self._works) >= self._most:
            self.dropped_count += 1
            return
        self._works.append(work)
        if self._thread is None:
            self._begin()
        if not self._wake.is_set():
            self._wake.set()

    def close(self, wait_s: float = LAST_WORK_S) -> None:
        """Does what waits, for about `wait_s` at most. What comes later is counted as dropped."""
        self._ends = True
        self._wake.set()
        if self._thread is not None:
            self._thread.join(wait_s)

    def _begin(self) -> None:
        with self._lock:
            if self._thread is None:
                self._thread = Thread(target=self._run, name=self._name, daemon=True)
                self._thread.start()

    def _run(self) -> None:
        while True:
            self._wake.wait()
            self._wake.clear()
            while self._works:
                self._do(self._works.popleft())
            if dropped := self.dropped_count - self._dropped_said:
                self._dropped_said += dropped
                log.error("background.dropped", thread=self._name, count=dropped)
            if self._ends:
                return

    def _do(self, work: Callable[[], None]) -> None:
        try:
            work()
        except Exception as fault:  # noqa: BLE001 - the thread must outlive it
            log.error("background.failed", thread=self._name, fault=type(fault).__name__)
