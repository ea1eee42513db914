"""The runs that hold a slot or had one: who starts, who is set aside, who comes back.

Knows what to ask of the engine; no step of a run, no message but a refusal, and no clock's rule.
"""

from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any

from proto.faults import Refusal
from worker.admission import Queue, memory_full
from worker.memory_gate import Verdict
from worker.memory_wait import MemoryWait
from worker.reporter import Reporter
from worker.run import Run
from worker.siblings import SharedPrompts
from worker.steps import TokenEngine


class Lanes:
    """So many runs decode in turn. One thread uses it, that of the loop.

    `running`: runs that were started, parked ones and those set aside included.
    """

    def __init__(
        self,
        engine: TokenEngine,
        queue: Queue,
        shared: SharedPrompts[Any],
        tell: Reporter,
        *,
        lanes: int,
        clock: Callable[[], float],
        guard: Callable[[Run], AbstractContextManager[None]],
        begin: Callable[[Run], None],
    ) -> None:
        self.count = lanes
        self.running: list[Run] = []
        self._engine = engine
        self._queue = queue
        self._shared = shared
        self._tell = tell
        self._clock = clock
        self._guard = guard  # a fault in it ends that run alone
        self._begin = begin  # the last word on a prompt of which nothing is forwarded
        self._wait: MemoryWait[Run] = MemoryWait()

    @property
    def busy(self) -> int:
        """Lanes that are taken. A parked run frees its lane; when its credit comes it goes on
        beside the next one."""
        return sum(not run.is_parked for run in self.running)

    @property
    def memory_waiting(self) -> int:
        """Runs that wait for memory."""
        return len(self._wait)

    def start_queued(self) -> None:
        """Starts who is next, as long as there is a lane, a slot and memory for it."""
        is_due = self._wait.take_due(self._clock())
        for run in (*self._wait, *(run for run in self._queue if run not in self._wait)):
            if self.busy >= self.count or not (self._engine.free_slots or self._set_aside()):
                return
            if self._shared.must_wait(run) or (run in self._wait and not is_due):
                continue
            if not self._wait.may_ask(run):
                return
            self._try(run)

    def _try(self, run: Run) -> None:
        run.shared = self._shared.peek(run)
        with self._guard(run):
            self._settle(run, self._engine.room_for(run.ask(is_side=False)))

    def _settle(self, run: Run, verdict: Verdict) -> None:
        if verdict.kind == "wait" and not self.running:
            # Nothing that could end holds it: others on this machine do.
            self._refuse(run, memory_full())
        elif verdict.kind == "never":
            sentence = (
                f"the prompt needs {verdict.need_bytes} bytes of memory; alone, at most "
                f"{verdict.most_bytes} fit here"
            )
            self._refuse(run, Refusal("too_long", sentence))
        elif verdict.kind == "wait":
            if run not in self._wait:
                self._wait.add(run)
                run.waits_since_s = self._clock()
            self._tell.memory_wait(run)
        else:
            self._queue.remove(run)
            self._wait.started(run)
            self.running.append(run)
            self.start(run, is_side=False)

    def _refuse(self, run: Run, refusal: Refusal) -> None:
        self.drop(run)
        self._tell.refused(run.record, refusal)

    def start(self, run: Run, *, is_side: bool) -> None:
        """Gives a run its slot, or ends it where that fails."""
        run.record.admitted_s = run.told_s = self._clock()
        run.shared = self._shared.take(run)
        with self._guard(run):
            self._begin(run)
            run.slot = self._engine.open(run.ask(is_side=is_side))
            run.record.start = run.slot.start

    def drop(self, run: Run) -> None:
        """A run leaves the queue without having been started."""
        self._queue.remove(run)
        self._wait.remove(run)
        self._wait.saw_end()

    def close(self, run: Run, *, is_sound: bool) -> None:
        """A run is over: its slot is free, and memory may be."""
        if run.slot is not None:
            self._engine.close(run.slot, is_sound=is_sound)
        elif run.aside is not None:
            self._engine.drop_aside(run.aside)
        self._wait.saw_end()
        for other in self.running:
            other.is_starved = False
        if run in self.running:
            self.running.remove(run)

    def may_starve(self, run: Run) -> bool:
        """Whether a run that finds no memory to grow can wait for another one's end."""
        return any(not other.is_parked for other in self.running if other is not run)

    def take_back(self) -> None:
        """Runs whose client reads on, and whose slot another has, get one again."""
        for run in tuple(self.running):
            if run.aside is None or run.is_parked:
                continue
            if self._engine.free_slots or self._set_aside():
                with self._guard(run):
                    run.slot = self._engine.take_back(run.aside, run.chooser)
                    run.aside = run.aside if run.slot is None else None

    def _set_aside(self) -> bool:
        """Frees the slot of a run that waits for its client, who must not hold up the next."""
        for run in self.running:
            if run.is_parked and run.slot is not None and not run.is_starved:
                run.aside = self._engine.set_aside(run.slot)
                if run.aside is not None:
                    run.slot = None
                    return True
        return False
