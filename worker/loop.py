"""The whole life of a run on one screen. Knows no socket, no tensor and no wire dialect.

A plain synchronous loop: what it owns changes nowhere else. Commands come in through one box,
messages go out through another.
"""

from collections.abc import Callable, Sequence
from typing import Protocol

import structlog

from proto.faults import Refusal
from proto.messages import Beat, Delta, Done, Drain, MonitorCounts, Progress, Queued, Refused
from worker import prefill
from worker.admission import REPEAT_S, Queue, Rates
from worker.mailbox import Board, Inbox, Outbox
from worker.metrics import Metrics
from worker.record import RunRecord
from worker.run import Run, RunLimits
from worker.sampling.params import Sampling
from worker.state.slot import Slot
from worker.text.detokenize import Released
from worker.types import (
    Allow,
    Broken,
    Ending,
    EndRun,
    Outgoing,
    Prepared,
    Rejected,
    StartDrain,
    ThreadDied,
    ToLoop,
)

log = structlog.get_logger()

RUN_FINISHED = "run.finished"
DRAIN_STARTED = "drain.started"
ROUND_FAILED = "round.failed"

IDLE_WAIT_S = 0.5  # longest sleep, so that clocks are looked at
BOARD_S = 1.0  # how often the numbers for the beats are made
PROGRESS_AFTER_S, PROGRESS_EVERY_S = 5.0, 1.0
DRAINING_RETRY_MS = 30_000


class TokenEngine(Protocol):
    """What the loop asks of the engine (`engine.Engine`, or a scripted one in tests)."""

    @property
    def free_slots(self) -> int: ...
    @property
    def kv_bytes_free(self) -> int: ...
    def open(self, prompt: tuple[int, ...]) -> Slot: ...
    def close(self, slot: Slot) -> None: ...
    def plan(self, prompt: tuple[int, ...]) -> prefill.Plan: ...
    def read_chunk(self, slot: Slot, end: int, sampling: Sampling, number: int) -> int | None: ...
    def round(self, slot: Slot, sampling: Sampling, number: int) -> int: ...


class WorkerFailed(Exception):
    """Another thread of the worker died, so that the process must end."""


class Loop:
    """Serves runs until it is drained. Every method is called by one thread."""

    def __init__(
        self,
        engine: TokenEngine,
        *,
        end_ids: frozenset[int],
        token_bytes: Sequence[bytes | None],
        tokenizer_hash: str,
        limits: RunLimits,
        queue: Queue,
        lanes: int,
        drain_s: float,
        inbox: Inbox[ToLoop],
        outbox: Outbox,
        board: Board,
        clock: Callable[[], float],
    ) -> None:
        self._engine = engine
        self._end_ids = end_ids
        self._token_bytes = token_bytes
        self._tokenizer_hash = tokenizer_hash
        self._limits = limits
        self._queue = queue
        self._lanes = lanes
        self._drain_s = drain_s
        self._inbox = inbox
        self._outbox = outbox
        self._board = board
        self._clock = clock
        self._running: list[Run] = []  # those that hold a slot, parked ones included
        self._drain_at: float | None = None
        self._started_s = self._board_s = clock()
        self._rates = Rates()
        self._metrics = Metrics()

    def run(self) -> None:
        """Turns until drained; sleeps while there is nothing to do."""
        is_busy = True
        while not self.is_drained:
            is_busy = self.turn(0.0 if is_busy else IDLE_WAIT_S)

    @property
    def is_drained(self) -> bool:
        """Whether a drain was asked for and no run is left."""
        return self._drain_at is not None and not self._running and not len(self._queue)

    def turn(self, wait_s: float = 0.0) -> bool:
        """One iteration; returns whether any run moved on."""
        for command in self._inbox.take_all(wait_s):  # (1)
            self._obey(command)
        self._watch_clocks()  # (2)
        self._start_queued()  # (3)
        moving = [run for run in self._running if not run.is_parked]
        for run in moving:  # (4)
            self._advance(run)
        self._show()  # (5)
        return bool(moving)

    # (1) What came in.

    def _obey(self, command: ToLoop) -> None:
        match command:
            case Prepared():
                self._enqueue(command)
            case Rejected(arrival, code, detail, param, retry_after_ms):
                record = RunRecord(arrival.submit.run_id, arrival.arrived_s)
                self._refuse(
                    record, Refusal(code, detail, param=param, retry_after_ms=retry_after_ms)
                )
            case Broken(arrival, error):
                submit = arrival.submit
                record = RunRecord(submit.run_id, arrival.arrived_s)
                ending = Ending("error", "internal", error)
                self._close(record, submit.start_token - 1, ending)
            case EndRun(run_id, finish, detail):
                for run in (*self._running, *self._queue):
                    if run.id == run_id:
                        run.wish = Ending(finish, detail)
            case Allow(run_id, upto):
                for run in (*self._running, *self._queue):
                    if run.id == run_id:
                        run.allowed = upto
            case StartDrain():
                self._start_drain()
            case ThreadDied(name, error):
                raise WorkerFailed(f"the {name} thread ended by {error}")

    def refuse_late(self) -> None:
        """Answers what was still being prepared when the last run ended."""
        for command in self._inbox.take_all(0.0):
            self._obey(command)

    def _enqueue(self, prepared: Prepared) -> None:
        if self._queue.is_full:
            self._start_queued()  # a burst on an idle worker: the first of it need not wait
        run = Run(prepared, self._limits, self._token_bytes)
        try:
            if self._drain_at is not None:
                raise _draining()
            self._queue.add(run)
        except Refusal as refusal:
            self._refuse(run.record, refusal)
            return
        self._tell_place(run)

    def _tell_place(self, run: Run) -> None:
        run.told_s = self._clock()
        self._send(
            Queued(
                run.id,
                self._queue.position(run),
                self._queue.estimate_ms(run, self._running, self._lanes, self._rates),
                len(run.prompt),
                run.prompt_hash,
                self._tokenizer_hash,
            )
        )

    def _start_drain(self) -> None:
        if self._drain_at is not None:
            return
        self._drain_at = self._clock() + self._drain_s
        log.info(DRAIN_STARTED, running=len(self._running), queued=len(self._queue))
        self._send(Drain(int(self._drain_s * 1000)))
        for run in self._queue:
            self._queue.remove(run)
            self._refuse(run.record, _draining())

    # (2) Clocks, and ends asked for from outside.

    def _watch_clocks(self) -> None:
        now = self._clock()
        for run in self._queue:
            ending = run.wish or run.ending_by_clock(now)
            if ending is not None:
                self._queue.remove(run)
                self._end(run, ending)
            elif now - run.record.arrived_s >= self._queue.timeout_s:
                self._queue.remove(run)
                self._refuse(run.record, self._queue.timeout())
            elif now - run.told_s >= REPEAT_S:
                self._tell_place(run)
        is_over = self._drain_at is not None and now >= self._drain_at
        for run in tuple(self._running):
            ending = run.wish or run.ending_by_clock(now)
            if ending is None and is_over:
                ending = Ending("length", "wall_clock")
            if ending is not None:
                self._end(run, ending)

    # (3) Whose turn it is.

    def _start_queued(self) -> None:
        while len(self._queue) and self._engine.free_slots and self._busy_lanes < self._lanes:
            run = self._queue.take()
            run.record.admitted_s = run.told_s = self._clock()
            run.slot = self._engine.open(run.prompt)
            run.plan = self._engine.plan(run.prompt)
            self._running.append(run)

    @property
    def _busy_lanes(self) -> int:
        # A parked run frees its lane; when its credit comes it goes on beside the next one.
        return sum(not run.is_parked for run in self._running)

    # (4) One chunk or one round, and what it gives.

    def _advance(self, run: Run) -> None:
        try:
            token = self._read_chunk(run) if run.is_reading else self._round(run)
        except AssertionError:
            raise
        except Exception as fault:
            log.exception(ROUND_FAILED, run_id=run.id)
            self._end(run, Ending("error", "internal", type(fault).__name__))
            return
        if token is not None:
            self._commit(run, token)

    def _read_chunk(self, run: Run) -> int | None:
        assert run.slot is not None and run.plan is not None
        start, length, began_s = run.slot.kv_len, len(run.prompt), self._clock()
        end = run.plan.chunk_end(start, length)
        token = self._engine.read_chunk(run.slot, end, run.sampling, run.number)
        now = self._clock()
        run.record.forwarded_tokens += end - start
        self._rates.saw_prefill(end - start, now - began_s)
        self._metrics.saw_chunk(now - began_s)
        self._tell_progress(run, end, now)
        return token

    def _tell_progress(self, run: Run, done: int, now: float) -> None:
        assert run.record.admitted_s is not None
        is_slow = now - run.record.admitted_s >= PROGRESS_AFTER_S
        if is_slow and now - run.told_s >= PROGRESS_EVERY_S:
            run.told_s = now
            self._send(Progress(run.id, "prefill", done, len(run.prompt), 0))

    def _round(self, run: Run) -> int:
        assert run.slot is not None
        began_s = self._clock()
        token = self._engine.round(run.slot, run.sampling, run.number)
        seconds = self._clock() - began_s
        run.record.rounds += 1
        self._rates.saw_round(1, seconds)
        self._metrics.saw_round(seconds)
        return token

    def _commit(self, run: Run, token: int) -> None:
        now = self._clock()
        run.record.count_token(now)
        is_end = token in self._end_ids
        released = Released("") if is_end else run.text.push(token)
        ending = (
            (Ending("stop", "stop_string") if released.is_stopped else None)
            or (Ending("stop", "eos") if is_end else None)
            or run.ending_by_length()
            or run.ending_by_clock(now)
        )
        piece = released.text
        if ending is not None and not released.is_stopped:
            tail = run.text.finish()
            piece += tail.text
            ending = Ending("stop", "stop_string") if tail.is_stopped else ending
        self._send(Delta(run.id, run.number, (token,), (piece,), ("text",), (False,)))
        run.number += 1
        if ending is not None:
            self._end(run, ending)

    # The end of a run, in every way there is.

    def _end(self, run: Run, ending: Ending) -> None:
        if run.slot is not None:
            self._engine.close(run.slot)
            self._running.remove(run)
        self._close(run.record, run.number - 1, ending)

    def _close(self, record: RunRecord, last_token: int, ending: Ending) -> None:
        self._note_end(record, ending.finish, ending.detail, ending.error)
        if record.completion_tokens:
            self._rates.saw_answer(record.completion_tokens)
        self._send(
            Done(
                record.run_id,
                last_token,
                ending.finish,
                record.usage(),
                record.timings(),
                record.speculation(),
                "none",
                MonitorCounts(),
                detail=ending.detail,
                error=ending.error,
            )
        )

    def _refuse(self, record: RunRecord, refusal: Refusal) -> None:
        # Only these two have a detail that is a word; others quote and must not be logged.
        word = refusal.detail if refusal.code in ("busy", "draining") else refusal.code
        record.param = refusal.param
        self._note_end(record, "refused", word, None)
        self._metrics.saw_refusal(refusal.code, word)
        self._send(
            Refused(
                refusal.code,
                refusal.detail,
                run_id=record.run_id,
                param=refusal.param,
                retry_after_ms=refusal.retry_after_ms,
            )
        )

    def _note_end(self, record: RunRecord, finish: str, detail: str, error: str | None) -> None:
        record.ended_s = self._clock()
        record.finish, record.detail, record.error = finish, detail, error
        self._metrics.saw_end(record)
        log.info(RUN_FINISHED, **record.log_fields())

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
            "waiting": len(self._queue),
            "parked": parked,
            "uptime_s": now - self._started_s,
        }
        self._board.beat = Beat(
            state=self._state(),
            running=len(self._running),
            queued=len(self._queue),
            free_slots=self._engine.free_slots,
            kv_bytes_free=self._engine.kv_bytes_free,
            prefill_tps=self._rates.prefill_tps,
            decode_tps=self._rates.decode_tps,
            metrics=self._metrics.samples(gauges),
        )

    def _state(self) -> str:
        if self._drain_at is not None:
            return "draining"
        return "busy" if self._running else "idle"

    def _send(self, message: Queued | Progress | Delta | Done | Refused | Drain) -> None:
        self._outbox.put(Outgoing(message))


def _draining() -> Refusal:
    return Refusal("draining", "draining", retry_after_ms=DRAINING_RETRY_MS)
