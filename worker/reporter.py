"""What the outside hears of runs: messages, the log line, the counters. Knows no engine.

Every run ends here exactly once, in `done` or in `refused`.
"""

from collections.abc import Callable

import structlog

from proto.events import FinishReason
from proto.faults import Refusal
from proto.messages import Delta, Done, Drain, MonitorCounts, Progress, Queued, Refused
from worker.admission import Rates
from worker.mailbox import Outbox
from worker.metrics import Metrics
from worker.record import RunRecord
from worker.run import Run
from worker.types import Ending, Outgoing

log = structlog.get_logger()

RUN_FINISHED = "run.finished"

PROGRESS_AFTER_S, PROGRESS_EVERY_S = 5.0, 1.0


class Reporter:
    """Tells of runs. One thread uses it, that of the loop."""

    def __init__(
        self, outbox: Outbox, metrics: Metrics, rates: Rates, *, tokenizer_hash: str,
        clock: Callable[[], float],
    ) -> None:  # fmt: skip
        self._outbox = outbox
        self._metrics = metrics
        self._rates = rates
        self._tokenizer_hash = tokenizer_hash
        self._clock = clock

    def place(self, run: Run, position: int, est_wait_ms: int) -> None:
        """How many runs are before it, and for about how long."""
        run.told_s = self._clock()
        note_ids = None
        if run.record.est_wait_ms is None:
            run.record.est_wait_ms = est_wait_ms
            note_ids = run.record.notes.new_ids or None
        self._send(
            Queued(
                run.id,
                position,
                est_wait_ms,
                len(run.prompt),
                run.prompt_hash,
                self._tokenizer_hash,
                note_ids,
                run.record.notes.tokens,
            )
        )

    def memory_wait(self, run: Run) -> None:
        """That a run is next, and waits for memory."""
        run.told_s = self._clock()
        self._send(Progress(run.id, "memory_wait", 0, len(run.prompt), 0))

    def progress(self, run: Run, done: int) -> None:
        """How far a long prompt has been read; not for short ones, and once a second at most."""
        now = self._clock()
        assert run.record.admitted_s is not None
        is_slow = now - run.record.admitted_s >= PROGRESS_AFTER_S
        if is_slow and now - run.told_s >= PROGRESS_EVERY_S:
            run.told_s = now
            cached = run.record.start.position
            self._send(Progress(run.id, "prefill", done, len(run.prompt), cached))

    def delta(self, delta: Delta | None) -> None:
        """Tokens of a run, where there are any to be told of."""
        if delta is not None:
            self._send(delta)

    def drain(self, drain_s: float) -> None:
        """That no new run is taken."""
        self._send(Drain(int(drain_s * 1000)))

    def done(self, run: Run, ending: Ending) -> None:
        """The end of a run that was taken.

        Where a round failed on its way, the tokens before that have their numbers: they go out.
        """
        self.delta(run.release(is_over=True))
        self.closed(
            run.record, run.number - 1, ending, closed_by=run.thinking_closed_by,
            margin=run.margin, reasoned_chars=run.text.reasoned_chars,
        )  # fmt: skip

    def closed(
        self, record: RunRecord, last_token: int, ending: Ending, *, closed_by: str | None = None,
        margin: float | None = None, reasoned_chars: int = 0,
    ) -> None:  # fmt: skip
        """The end of a run by its record alone."""
        self._note_end(record, ending.finish, ending.detail, ending.error)
        if record.completion_tokens:
            self._rates.saw_answer(record.kind, record.completion_tokens)
        self._send(
            Done(
                record.run_id,
                last_token,
                ending.finish,
                record.usage(),
                record.timings(),
                record.speculation(),
                str(record.start.source),
                MonitorCounts(record.monitor_acts, record.monitor_shadows),
                detail=ending.detail,
                thinking_closed_by=closed_by,
                choice_margin=margin,
                error=ending.error,
                reasoned_chars=reasoned_chars,
            )
        )

    def refused(self, record: RunRecord, refusal: Refusal) -> None:
        """That a run is not served."""
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

    def _note_end(
        self, record: RunRecord, finish: FinishReason | str, detail: str, error: str | None
    ) -> None:
        record.ended_s = self._clock()
        record.finish, record.detail, record.error = finish, detail, error
        self._metrics.saw_end(record)
        log.info(RUN_FINISHED, **record.log_fields())

    def _send(self, message: Queued | Progress | Delta | Done | Refused | Drain) -> None:
        self._outbox.put(Outgoing(message))
