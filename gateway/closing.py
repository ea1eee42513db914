"""Where requests end: read, judged, booked, counted and logged, behind their clients' backs.

Nothing of this is on the way of a request: what has ended is gathered for a moment and settled in
one go, which costs a fraction of doing each in its turn. Knows no socket.
"""

import asyncio
from collections import deque
from dataclasses import dataclass

import structlog

from gateway.backends.base import Backend
from gateway.ledger.books import Books
from gateway.ledger.budget import Reserve
from gateway.ledger.entry import Entry, Outcome, body_hash
from gateway.observe.logs import AccessLog
from gateway.observe.metrics import Metrics
from gateway.relay.booking import book_relayed
from gateway.relay.counting import Counting, book_counts, question_about
from gateway.relay.forward import Relayed
from gateway.surfaces.request import ModelRequest

log = structlog.get_logger(__name__)

GATHER_S = 0.005
AT_ONCE = 32  # settled in one turn of the event loop: it must not be held for long
MOST_WAITING = 1_000  # beyond it requests settle on their own way


@dataclass(slots=True)
class Ended:
    """A request that is over. `outcome` None: what was relayed will tell.

    `ended_s`: a reading of the clock of `entry`. `request` is None when it could not be read.
    """

    entry: Entry
    outcome: Outcome | None
    ended_s: float
    request: ModelRequest | None = None
    relayed: Relayed | None = None
    backend: Backend | None = None
    reserve: Reserve | None = None


class Closing:
    """Closes entries, each once. `hash_key`: of this installation's hashes.

    An entry that a tokenizer is asked about closes when it has answered, as of when it ended.
    """

    def __init__(
        self, ledger: Books, metrics: Metrics, access_log: AccessLog, hash_key: bytes,
        counting: Counting,
    ) -> None:  # fmt: skip
        self._ledger = ledger
        self._metrics = metrics
        self._access_log = access_log
        self._hash_key = hash_key
        self._counting = counting
        self._waiting: deque[Ended] = deque()  # at most MOST_WAITING
        self._is_due = False

    def take(self, ended: Ended) -> None:
        """Takes over a request that has ended."""
        if len(self._waiting) >= MOST_WAITING:
            self._settle(self._waiting.popleft())
        self._waiting.append(ended)
        if not self._is_due:
            self._is_due = True
            asyncio.get_running_loop().call_later(GATHER_S, self._settle_some)

    def settle_all(self) -> None:
        """Closes everything that waits, now."""
        while self._waiting:
            self._settle(self._waiting.popleft())

    def _settle_some(self) -> None:
        for _ in range(min(AT_ONCE, len(self._waiting))):
            self._settle(self._waiting.popleft())
        self._is_due = bool(self._waiting)
        if self._is_due:
            asyncio.get_running_loop().call_soon(self._settle_some)

    def _settle(self, ended: Ended) -> None:
        entry = ended.entry
        try:
            outcome = ended.outcome = self._read(ended)
            if entry.usage_source == "estimated" and self._will_count(ended):
                return
        except Exception:
            log.exception("request.not_booked", request_id=entry.request_id)
            outcome = ended.outcome or "failed"
        self._close(ended, outcome)

    def _will_count(self, ended: Ended) -> bool:
        """Whether a tokenizer is asked, and the entry closed when it has answered."""
        entry, request, relayed, backend = ended.entry, ended.request, ended.relayed, ended.backend
        if request is None or relayed is None or relayed.tap is None or backend is None:
            return False
        question = question_about(entry, request, relayed.tap, backend)
        if question is None:
            return False
        outcome = ended.outcome or "failed"

        def done(counts: tuple[int, int] | None) -> None:
            if counts is not None:
                book_counts(entry, counts)
            self._close(ended, outcome)

        return self._counting.take(question, done)

    def _close(self, ended: Ended, outcome: Outcome) -> None:
        entry = ended.entry
        entry.close(ended.ended_s, outcome=outcome)
        if ended.reserve is not None:
            ended.reserve.settle(entry)
        self._ledger.close(entry)
        self._metrics.note_closed(entry)
        self._access_log(entry)

    def _read(self, ended: Ended) -> Outcome:
        """What the request and its answer say, into the entry; returns how it went."""
        entry, request, relayed = ended.entry, ended.request, ended.relayed
        if request is not None:
            envelope = request.envelope
            if envelope.spans:
                entry.body_hash = body_hash(self._hash_key, envelope.text, envelope.spans)
            if relayed is not None and ended.backend is not None:
                relayed.judge()
                book_relayed(entry, relayed, request, ended.backend.settings)
                if relayed.tap is not None and not relayed.tap.is_on:
                    self._metrics.tap_faults += 1
                return ended.outcome or relayed.outcome or "failed"
        return ended.outcome or "failed"
