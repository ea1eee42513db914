"""The whole life of a run on one screen. Knows no socket, no tensor and no wire dialect.

A plain synchronous loop: what it owns changes nowhere else. Commands come in through one box,
messages go out through another.
"""

from collections.abc import Callable, Sequence
from typing import Any

import structlog

from proto.faults import Refusal
from proto.messages import Beat
from worker.admission import REPEAT_S, Queue, Rates, draining, queue_timeout
from worker.cache_answers import CacheAnswers
from worker.embedding.lane import EmbedLane
from worker.grammar.closing import FormCloser
from worker.mailbox import Board, Inbox, Outbox
from worker.metrics import Metrics
from worker.pricing import Pricing
from worker.record import RunRecord
from worker.reporter import Reporter
from worker.run import Run, RunLimits, Vocabulary
from worker.siblings import SharedPrompts
from worker.side import SideLane
from worker.steps import Steps, TokenEngine
from worker.types import (
    Allow,
    Broken,
    CacheQuestion,
    Ending,
    EndRun,
    Forget,
    Prepared,
    Rejected,
    StartDrain,
    Texts,
    ThreadDied,
    ToLoop,
)

log = structlog.get_logger()

DRAIN_STARTED = "drain.started"
ROUND_FAILED = "round.failed"

IDLE_WAIT_S = 0.5  # longest sleep, so that clocks are looked at
BOARD_S = 1.0  # how often the numbers for the beats are made


class WorkerFailed(Exception):
    """Another thread of the worker died, so that the process must end."""


class Loop:
    """Serves runs until it is drained. Every method is called by one thread."""

    def __init__(
        self,
        engine: TokenEngine,
        pricing: Pricing,
        *,
        end_ids: frozenset[int],
        token_bytes: Sequence[bytes | None],
        tokenizer_hash: str,
        limits: RunLimits,
        queue: Queue,
        side: SideLane,
        embeds: EmbedLane,
        lanes: int,
        drain_s: float,
        inbox: Inbox[ToLoop],
        outbox: Outbox,
        board: Board,
        clock: Callable[[], float],
    ) -> None:
        self._engine, self._pricing = engine, pricing
        self._vocabulary = Vocabulary(token_bytes, end_ids, FormCloser(token_bytes))
        self._limits = limits
        self._queue = queue
        self._side = side
        self._embeds = embeds
        self._cache = CacheAnswers(engine, outbox)
        self._lanes = lanes
        self._drain_s = drain_s
        self._inbox = inbox
        self._board = board
        self._clock = clock
        self._running: list[Run] = []  # those that hold a slot, parked ones included
        self._shared: SharedPrompts[Any] = SharedPrompts()
        self._drain_at: float | None = None
        self._started_s = self._board_s = clock()
        self._rates = Rates()
        self._metrics = Metrics()
        self._tell = Reporter(
            outbox, self._metrics, self._rates, tokenizer_hash=tokenizer_hash, clock=clock
        )
        self._steps = Steps(
            engine, self._shared, pricing, self._rates, self._metrics, self._tell, clock
        )

    def run(self) -> None:
        """Turns until drained; sleeps while there is nothing to do."""
        is_busy = True
        while not self.is_drained:
            is_busy = self.turn(0.0 if is_busy else IDLE_WAIT_S)

    @property
    def is_drained(self) -> bool:
        """Whether a drain was asked for and no run is left."""
        is_empty = not (self._started or self._waiting or len(self._embeds))
        return self._drain_at is not None and is_empty

    def turn(self, wait_s: float = 0.0) -> bool:
        """One iteration; returns whether anything moved on."""
        for command in self._inbox.take_all(wait_s):  # (1)
            self._obey(command)
        self._watch_clocks()  # (2)
        self._start_queued()  # (3)
        self._take_back()
        moving = [run for run in self._running if run.slot is not None and not run.is_parked]
        has_moved = bool(moving) or self._step_side(is_alone=True)
        for run in moving:  # (4)
            self._step_side(is_alone=False)
            self._advance(run)
        has_moved = self._embeds.step(is_alone=not has_moved) or has_moved
        has_moved |= self._pricing.step(is_idle=not has_moved and self._state() == "idle")
        if not has_moved and self._state() == "idle":
            has_moved = self._engine.file_away()
        self._show()  # (5)
        return has_moved

    # (1) What came in.

    def _obey(self, command: ToLoop) -> None:
        match command:
            case Prepared():
                self._enqueue(command)
            case Rejected(arrival, code, detail, param, retry_after_ms):
                record = RunRecord(arrival.submit.run_id, arrival.arrived_s)
                self._tell.refused(
                    record, Refusal(code, detail, param=param, retry_after_ms=retry_after_ms)
                )
            case Broken(arrival, error):
                submit = arrival.submit
                record = RunRecord(submit.run_id, arrival.arrived_s)
                ending = Ending("error", "internal", error)
                self._tell.closed(record, submit.start_token - 1, ending)
            case EndRun(run_id, finish, detail):
                for run in self._find(run_id):
                    run.wish = Ending(finish, detail)
            case Allow(run_id, upto):
                for run in self._find(run_id):
                    run.allowed = upto
            case Texts() | Forget():
                self._embeds.take(command)
            case CacheQuestion():
                self._cache.answer(command)
            case StartDrain():
                self._start_drain()
            case ThreadDied(name, error):
                raise WorkerFailed(f"the {name} thread ended by {error}")

    def _find(self, run_id: str) -> list[Run]:
        return [run for run in (*self._started, *self._waiting) if run.id == run_id]

    @property
    def _started(self) -> tuple[Run, ...]:
        side = self._side.running
        return (*self._running, *(() if side is None else (side,)))

    @property
    def _waiting(self) -> tuple[Run, ...]:
        return (*self._queue, *self._side)

    def refuse_late(self) -> None:
        """Answers what was still being prepared when the last run ended."""
        for command in self._inbox.take_all(0.0):
            self._obey(command)

    def _enqueue(self, prepared: Prepared) -> None:
        if self._queue.is_full:
            self._start_queued()  # a burst on an idle worker: the first of it need not wait
        run = Run(prepared, self._limits, self._vocabulary)
        try:
            if self._drain_at is not None:
                raise draining()
            # A short one goes past the queue; where nothing waits or runs, it may as well be kept.
            is_busy = self._busy_lanes + len(self._queue) >= self._lanes
            if self._side.admits(run) and (is_busy or run.lane == "side"):
                self._side.add(run)
                self._tell.place(run, 0, 0)
                return
            self._queue.add(run)
        except Refusal as refusal:
            self._tell.refused(run.record, refusal)
            return
        self._tell_place(run)

    def _tell_place(self, run: Run) -> None:
        estimate_ms = self._queue.estimate_ms(run, self._running, self._lanes, self._rates)
        self._tell.place(run, self._queue.position(run), estimate_ms)

    def _start_drain(self) -> None:
        if self._drain_at is not None:
            return
        self._drain_at = self._clock() + self._drain_s
        log.info(DRAIN_STARTED, running=len(self._started), queued=len(self._waiting))
        self._tell.drain(self._drain_s)
        for run in self._waiting:
            self._drop(run)
            self._tell.refused(run.record, draining())
        self._embeds.start_drain()

    def _drop(self, run: Run) -> None:
        """Takes a run out of wherever it waits."""
        (self._side if run in self._side else self._queue).remove(run)
        self._shared.leave(run, (*self._started, *self._waiting))

    # (2) Clocks, and ends asked for from outside.

    def _watch_clocks(self) -> None:
        now = self._clock()
        for run in self._waiting:
            ending = run.wish or run.ending_by_clock(now)
            if ending is not None:
                self._drop(run)
                self._tell.done(run, ending)
            elif now - run.record.arrived_s >= self._queue.timeout_s:
                self._drop(run)
                self._tell.refused(run.record, queue_timeout())
            elif now - run.told_s >= REPEAT_S and run in self._queue:
                self._tell_place(run)
        is_over = self._drain_at is not None and now >= self._drain_at
        self._embeds.watch_clock(now, is_over=is_over)
        for run in self._started:
            ending = run.wish or run.ending_by_clock(now)
            if ending is None and is_over:
                ending = Ending("length", "wall_clock")
            if ending is not None:
                self._end(run, ending)

    # (3) Whose turn it is.

    def _start_queued(self) -> None:
        while self._busy_lanes < self._lanes:
            run = next((run for run in self._queue if not self._shared.must_wait(run)), None)
            if run is None or not (self._engine.free_slots or self._set_aside()):
                return
            self._queue.remove(run)
            self._running.append(run)
            self._start(run, is_side=False)

    def _start(self, run: Run, *, is_side: bool) -> None:
        run.record.admitted_s = run.told_s = self._clock()
        run.shared = self._shared.take(run)
        run.slot = self._engine.open(run.ask(is_side=is_side))
        run.record.start = run.slot.start

    def _set_aside(self) -> bool:
        """Frees the slot of a run that waits for its client, who must not hold up the next."""
        for run in self._running:
            if run.is_parked and run.slot is not None:
                run.aside = self._engine.set_aside(run.slot)
                if run.aside is not None:
                    run.slot = None
                    return True
        return False

    def _take_back(self) -> None:
        """Runs whose client reads on, and whose slot another has, get one again."""
        for run in self._running:
            if run.aside is None or run.is_parked:
                continue
            if self._engine.free_slots or self._set_aside():
                run.slot, run.aside = self._engine.take_back(run.aside, run.chooser), None

    @property
    def _busy_lanes(self) -> int:
        # A parked run frees its lane; when its credit comes it goes on beside the next one.
        return sum(not run.is_parked for run in self._running)

    # (4) One chunk or one round, and what it gives.

    def _step_side(self, *, is_alone: bool) -> bool:
        side = self._side
        if side.running is None and len(side):
            side.running = side.next()
            self._start(side.running, is_side=True)
        began_s = self._clock()
        run = side.running
        if run is None or run.is_parked or not side.may_step(began_s, is_alone=is_alone):
            return False
        self._advance(run)
        side.saw_step(self._clock(), self._clock() - began_s)
        return True

    def _advance(self, run: Run) -> None:
        try:
            ending = self._steps.step(run)
        except AssertionError:
            raise
        except Exception as fault:
            log.exception(ROUND_FAILED, run_id=run.id)
            ending = Ending("error", "internal", type(fault).__name__)
        if ending is not None:
            self._end(run, ending, is_sound=ending.finish != "error")

    # The end of a run that holds a slot, in every way there is.

    def _end(self, run: Run, ending: Ending, *, is_sound: bool = True) -> None:
        if run.slot is not None:
            self._engine.close(run.slot, is_sound=is_sound)
        elif run.aside is not None:
            self._engine.drop_aside(run.aside)
        if run is self._side.running:
            self._side.running = None
        else:
            self._running.remove(run)
        self._shared.leave(run, (*self._started, *self._waiting))
        self._tell.done(run, ending)

    # (5) What the link may show.

    def _show(self) -> None:
        now = self._clock()
        self._board.pulse_s = now
        if now - self._board_s < BOARD_S:
            return
        self._board_s = now
        parked = sum(run.is_parked for run in self._running)
        gauges = {
            "running": len(self._running) - parked,
            "waiting": len(self._waiting),
            "side_running": int(self._side.running is not None),
            "parked": parked,
            "uptime_s": now - self._started_s,
        }
        self._board.beat = Beat(
            state=self._state(),
            running=len(self._started),
            queued=len(self._waiting),
            free_slots=self._engine.free_slots,
            kv_bytes_free=self._engine.kv_bytes_free,
            prefill_tps=self._rates.prefill_tps,
            decode_tps=self._rates.decode_tps,
            metrics=self._metrics.samples(gauges, self._engine.cache_facts()),
        )

    def _state(self) -> str:
        if self._drain_at is not None:
            return "draining"
        return "busy" if self._started or len(self._embeds) else "idle"
