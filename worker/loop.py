"""The whole life of a run on one screen. Knows no socket, no tensor and no wire dialect.

A plain synchronous loop: what it owns changes nowhere else. Commands come in through one box,
messages go out through another.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import structlog

from proto.faults import Refusal
from proto.messages import Beat
from worker.admission import REPEAT_S, Queue, Rates, draining, memory_full, queue_timeout
from worker.cache_answers import CacheAnswers
from worker.embedding.lane import EmbedLane
from worker.grammar.closing import FormCloser
from worker.hosting import Hosting
from worker.lanes import Lanes
from worker.mailbox import Board, Inbox, Outbox
from worker.metrics import Metrics
from worker.pricing import Pricing
from worker.record import RunRecord
from worker.reporter import Reporter
from worker.run import Run, RunLimits, Vocabulary
from worker.siblings import SharedPrompts
from worker.side import SideLane
from worker.state.slot import Slot
from worker.steps import Steps, TokenEngine
from worker.turns import Turns
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
    ToPreparer,
    Warmable,
)
from worker.warm import WarmPass
from worker.watch import Watching

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
        warm: WarmPass[Slot],
        turns: Turns,
        lanes: int,
        drain_s: float,
        inbox: Inbox[ToLoop],
        preparer: Inbox[ToPreparer],
        outbox: Outbox,
        board: Board,
        hosting: Hosting | None = None,
        clock: Callable[[], float],
    ) -> None:
        self._engine, self._pricing = engine, pricing
        self._vocabulary = Vocabulary(token_bytes, end_ids, FormCloser(token_bytes))
        self._limits = limits
        self._queue = queue
        self._side = side
        self._embeds = embeds
        self._warm = warm
        self._cache = CacheAnswers(engine, outbox)
        self._turns = turns
        self._drain_s = drain_s
        self._inbox = inbox
        self._preparer = preparer
        self._board = board
        self._clock = clock
        self._shared: SharedPrompts[Any] = SharedPrompts()
        self._drain_at: float | None = None
        self._started_s = self._board_s = clock()
        self._rates = Rates()
        self._metrics = Metrics()
        self._tell = Reporter(
            outbox, self._metrics, self._rates, tokenizer_hash=tokenizer_hash, clock=clock
        )
        watching = Watching(engine, hosting, self._vocabulary.closer)
        self._lanes = Lanes(
            engine,
            queue,
            self._shared,
            self._tell,
            lanes=lanes,
            clock=clock,
            guard=self._guard,
            begin=watching.begin,
        )
        self._steps = Steps(
            engine, self._shared, pricing, self._rates, self._metrics, self._tell, clock,
            self._lanes.may_starve, watching,
        )  # fmt: skip

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
        began_s = self._clock()
        self._watch_clocks()  # (2)
        self._lanes.start_queued()  # (3)
        self._lanes.take_back()
        moving = self._turns.choose(self._lanes.running)
        has_moved = bool(moving) or self._step_side(is_alone=True)
        stepped_s = 0.0
        for run in moving:  # (4)
            self._step_side(is_alone=False)
            stepped_s += self._step_main(run)
        has_moved = self._embeds.step(is_alone=not has_moved) or has_moved
        has_moved |= self._warm.step(is_idle=not has_moved and self._is_idle)
        has_moved |= self._pricing.step(is_idle=not has_moved and self._is_idle)
        if not has_moved and self._is_idle:
            has_moved = self._engine.file_away()
        if moving:
            self._rates.saw_turn(stepped_s, self._clock() - began_s)
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
            case Warmable():
                self._warm.add(command)
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
        return (*self._lanes.running, *(() if side is None else (side,)))

    @property
    def _waiting(self) -> tuple[Run, ...]:
        return (*self._queue, *self._side)

    def refuse_late(self) -> None:
        """Answers what was still being prepared when the last run ended."""
        for command in self._inbox.take_all(0.0):
            self._obey(command)

    def _enqueue(self, prepared: Prepared) -> None:
        self._warm.saw_request(prepared.session)
        self._warm.saw_prompt(prepared.session, prepared.prompt)
        self._warm.defer()
        if self._queue.is_full:
            self._lanes.start_queued()  # a burst on an idle worker: the first of it need not wait
        run = Run(prepared, self._limits, self._vocabulary)
        run.said = [] if self._warm.wants(prepared, is_side=False) else None
        try:
            if self._drain_at is not None:
                raise draining()
            # A short one goes past the queue; where nothing waits or runs, it may as well be kept.
            is_busy = self._lanes.busy + len(self._queue) >= self._lanes.count
            if self._side.admits(run) and (is_busy or run.lane == "side"):
                self._side.add(run)
                run.record.kind = "side"
                self._tell.place(run, 0, 0)
                return
            self._queue.add(run)
        except Refusal as refusal:
            self._tell.refused(run.record, refusal)
            return
        self._tell_place(run)

    def _tell_place(self, run: Run) -> None:
        estimate_ms = self._queue.estimate_ms(
            run, self._lanes.running, self._lanes.count, self._turns, self._rates
        )
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
        self._warm.defer()  # what it has read so far is kept like any other

    def _drop(self, run: Run) -> None:
        """Takes a run out of wherever it waits."""
        (self._side.remove if run in self._side else self._lanes.drop)(run)
        self._shared.leave(run, (*self._started, *self._waiting))

    # (2) Clocks, and ends asked for from outside.

    def _watch_clocks(self) -> None:
        now = self._clock()
        for run in self._waiting:
            ending = run.wish or run.ending_by_clock(now)
            if ending is not None:
                self._drop(run)
                self._tell.done(run, ending)
            elif now - (run.waits_since_s or run.record.arrived_s) >= self._queue.timeout_s:
                self._drop(run)
                is_starved = run.waits_since_s is not None
                self._tell.refused(run.record, memory_full() if is_starved else queue_timeout())
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

    # (4) One chunk or one round, and what it gives.

    def _step_side(self, *, is_alone: bool) -> bool:
        side = self._side
        if side.running is None and len(side):
            side.running = side.next()
            self._lanes.start(side.running, is_side=True)
        began_s = self._clock()
        run = side.running
        if run is None or run.is_parked or not side.may_step(began_s, is_alone=is_alone):
            return False
        self._advance(run)
        side.saw_step(self._clock(), self._clock() - began_s)
        return True

    def _step_main(self, run: Run) -> float:
        """Seconds of chunk or round in it; the turn's are those, and what is written of them."""
        was_reading, began_s, stepped_s = run.is_reading, self._clock(), self._rates.stepped_s
        self._advance(run)
        self._turns.saw_step(run, self._clock() - began_s, was_reading=was_reading)
        return self._rates.stepped_s - stepped_s

    def _advance(self, run: Run) -> None:
        ending = None
        with self._guard(run):
            ending = self._steps.step(run)
        if ending is not None:
            self._end(run, ending)

    @contextmanager
    def _guard(self, run: Run) -> Iterator[None]:
        """One request must not end the worker: what fails in here ends that run alone."""
        try:
            yield
        except AssertionError:
            raise
        except Exception as fault:
            log.exception(ROUND_FAILED, run_id=run.id)
            if run in self._queue:
                self._lanes.drop(run)
            self._end(run, Ending("error", "internal", type(fault).__name__), is_sound=False)

    # The end of a run that holds a slot, in every way there is.

    def _end(self, run: Run, ending: Ending, *, is_sound: bool = True) -> None:
        is_side = run is self._side.running
        if is_side:
            self._side.running = None
        self._lanes.close(run, is_sound=is_sound)
        self._shared.leave(run, (*self._started, *self._waiting))
        self._tell.done(run, ending)
        replied = self._warm.saw_reply(run.prepared, ending.finish, run.said or (), is_side=is_side)
        if replied is not None and not self._preparer.is_full:
            hidden = run.out.hidden_segments(len(replied.submit.call.messages))
            self._preparer.put(replace(replied, hidden=hidden))

    # (5) What the link may show.

    def _show(self) -> None:
        now = self._clock()
        self._board.pulse_s = now
        if now - self._board_s < BOARD_S:
            return
        self._board_s = now
        parked = sum(run.is_parked for run in self._lanes.running)
        gauges = {
            "running": len(self._lanes.running) - parked,
            "waiting": len(self._waiting),
            "side_running": int(self._side.running is not None),
            "parked": parked,
            "memory_waiting": self._lanes.memory_waiting,
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
            metrics=(
                *self._metrics.samples(gauges, self._engine.cache_facts()),
                *self._warm.samples(),
                *self._engine.memory_samples(),
            ),
        )

    @property
    def _is_idle(self) -> bool:
        is_coming = not self._preparer.is_empty  # a request, or only a reply to be looked at
        return self._state() == "idle" and not self._waiting and not is_coming

    def _state(self) -> str:
        if self._drain_at is not None:
            return "draining"
        return "busy" if self._started or len(self._embeds) else "idle"
