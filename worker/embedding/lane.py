"""Questions for vectors, answered between the rounds of what runs. Knows no tensor and no socket.

One chunk at a time, in the share of the device's time that short requests have beside long ones.
Every question ends in exactly one answer, unless nobody waits for it any more.
"""

from collections import deque
from collections.abc import Callable
from typing import Protocol

import structlog

from proto.faults import Refusal
from proto.messages import Embedded, Refused
from proto.worker_settings import QueueSettings
from worker.admission import draining, queue_full, queue_timeout
from worker.mailbox import Outbox
from worker.side import SideLane
from worker.types import Forget, Outgoing, Texts

log = structlog.get_logger()

EMBEDDING_FAILED = "embedding.failed"


class TextEmbedder(Protocol):
    """What the lane asks of the engine (`embedder.Embedder`, or a scripted one in tests)."""

    def start(self, ids: tuple[int, ...]) -> None: ...
    def read_chunk(self) -> tuple[float, ...] | None: ...
    def stop(self) -> None: ...


class EmbedLane:
    """One question at a time, and a few that wait for it. `queue`: the bounds of waiting.

    `side`: whose share of the time it takes. `embedder`: None for a model that makes no vectors.
    """

    def __init__(
        self,
        embedder: TextEmbedder | None,
        queue: QueueSettings,
        side: SideLane,
        outbox: Outbox,
        clock: Callable[[], float],
    ) -> None:
        self._embedder = embedder
        self._queue = queue
        self._side = side
        self._outbox = outbox
        self._clock = clock
        self._waiting: deque[Texts] = deque()
        self._open: Texts | None = None  # the one that is being answered
        self._is_begun = False  # the text whose turn it is
        self._vectors: list[tuple[float, ...]] = []  # of the texts so far
        self._is_draining = False

    def __len__(self) -> int:
        return len(self._waiting) + (self._open is not None)

    def take(self, command: Texts | Forget) -> None:
        """A question that was prepared, or one that nobody waits for any more."""
        if isinstance(command, Texts):
            self._add(command)
        else:
            self._forget(command)

    def step(self, *, is_alone: bool) -> bool:
        """Reads one chunk, if there is one and its time has come; returns whether it did."""
        began_s = self._clock()
        if not len(self) or not self._side.may_step(began_s, is_alone=is_alone):
            return False
        self._read_chunk()
        if not is_alone:  # what nobody else wanted is not held against short requests
            self._side.saw_step(self._clock(), self._clock() - began_s)
        return True

    def watch_clock(self, now_s: float, *, is_over: bool) -> None:
        """Refuses what has waited for too long. `is_over`: the drain's time is up."""
        for texts in tuple(self._waiting):
            if now_s - texts.arrived_s >= self._queue.timeout_s:
                self._waiting.remove(texts)
                self._refuse(texts, queue_timeout())
        if is_over and self._open is not None:
            self._refuse(self._open, draining())
            self._close()

    def start_drain(self) -> None:
        """The question that is being answered goes on; the others are refused."""
        self._is_draining = True
        while self._waiting:
            self._refuse(self._waiting.popleft(), draining())

    def _add(self, texts: Texts) -> None:
        if self._is_draining:
            self._refuse(texts, draining())
        elif len(self._waiting) >= self._queue.size:
            self._refuse(texts, queue_full())
        else:
            self._waiting.append(texts)

    def _forget(self, forget: Forget) -> None:
        self._waiting = deque(texts for texts in self._waiting if not forget.means(texts))
        if self._open is not None and forget.means(self._open):
            self._close()

    def _read_chunk(self) -> None:
        embedder = self._embedder
        assert embedder is not None, "a model without pooling is asked for no vector"
        if self._open is None:
            self._open, self._vectors = self._waiting.popleft(), []
        texts, index = self._open, len(self._vectors)
        try:
            if not self._is_begun:
                embedder.start(texts.ids[index])
                self._is_begun = True
            vector = embedder.read_chunk()
        except AssertionError:
            raise
        except Exception as fault:
            log.exception(EMBEDDING_FAILED, req_id=texts.req_id)
            self._refuse(texts, Refusal("internal", type(fault).__name__))
            self._close()
            return
        if vector is not None:
            self._is_begun = False
            self._vectors.append(vector)
            if len(self._vectors) == len(texts.ids):
                self._answer(texts)

    def _answer(self, texts: Texts) -> None:
        tokens = sum(map(len, texts.ids))
        embedded = Embedded(texts.req_id, tuple(self._vectors), tokens)
        self._outbox.put(Outgoing(embedded, texts.asker))
        self._close()

    def _refuse(self, texts: Texts, refusal: Refusal) -> None:
        refused = Refused(
            refusal.code,
            refusal.detail,
            req_id=texts.req_id,
            retry_after_ms=refusal.retry_after_ms,
        )
        self._outbox.put(Outgoing(refused, texts.asker))

    def _close(self) -> None:
        assert self._embedder is not None
        self._embedder.stop()
        self._open, self._vectors, self._is_begun = None, [], False
