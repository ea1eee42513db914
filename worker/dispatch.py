"""What each message of a gateway means, and where each message of the loop goes.

Knows no socket and no bytes: the link feeds it decoded messages and carries out what it sends.
"""

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, replace

import structlog

from proto.faults import Refusal, RefusalCode
from proto.limits import LINK_BEAT_S, LINK_DONE_KEPT_S, LINK_LEASE_S, QUOTED_ERROR_CHARS
from proto.messages import (
    STATE_KINDS,
    Ack,
    Attach,
    Beat,
    Cache,
    Cancel,
    Count,
    Credit,
    Delta,
    Done,
    Drain,
    Embed,
    FromWorker,
    Hello,
    LinkMessage,
    Metric,
    Queued,
    Ready,
    Refused,
    Submit,
)  # fmt: skip
from worker.admission import draining, queue_full
from worker.limits import DONE_LOGS
from worker.mailbox import Inbox
from worker.outbound import RunLog
from worker.types import (
    Allow,
    Arrival,
    CacheQuestion,
    EmbedQuestion,
    EndRun,
    Forget,
    Outgoing,
    Question,
    Rejected,
    ToLoop,
    ToPreparer,
)  # fmt: skip

log = structlog.get_logger()

GATEWAY_JOINED = "gateway.joined"
GATEWAY_LOST = "gateway.lost"

ORPHAN_GRACE_S = 60.0  # a resumable run outlives its gateway this long

Send = Callable[[bytes, FromWorker], bool]


@dataclass(slots=True)
class Peer:
    """A gateway behind one connection. `heard_s`: when it last said anything."""

    gateway_id: str
    heard_s: float


class Dispatch:
    """Owners, epochs, credits and acknowledgements of all runs of this worker."""

    def __init__(
        self,
        ready: Ready,
        send: Send,
        *,
        preparer: Inbox[ToPreparer],
        loop: Inbox[ToLoop],
    ) -> None:
        self._ready = ready
        self._send = send
        self._preparer = preparer
        self._loop = loop
        self._peers: dict[bytes, Peer] = {}
        self._logs: dict[str, RunLog] = {}
        # Questions that may be called off: asked by whom, and not answered yet.
        self._asked: set[tuple[bytes, str]] = set()
        self._drain: Drain | None = None
        self.has_loop = True  # false at the end, when nobody reads what is put into its box
        self._faults: Counter[str] = Counter()

    @property
    def unacknowledged(self) -> int:
        """Runs whose owner lives and has not acknowledged their end."""
        return sum(entry.owner is not None for entry in self._logs.values())

    # From a gateway.

    def receive(self, sender: bytes, message: LinkMessage, now_s: float) -> None:
        """Acts on one message."""
        if isinstance(message, Hello):
            self._hello(sender, message, now_s)
            return
        peer = self._peers.get(sender)
        if peer is None:
            self.refuse_bytes(sender, "say Hello first")
            return
        peer.heard_s = now_s
        match message:
            case Beat():
                return
            case Submit():
                self._submit(sender, peer, message, now_s)
            case Attach(run_id, epoch, from_token, credit):
                self._attach(sender, peer, run_id, epoch, from_token, credit)
            case Ack():
                self._acknowledge(peer, message)
            case Cancel():
                self._cancel(sender, peer, message)
            case Credit():
                self._credit(peer, message)
            case Count():
                self._count(sender, message)
            case Embed():
                self._embed(sender, message, now_s)
            case Cache():
                self._cache(sender, message)
            case _:
                self.refuse_bytes(sender, f"{type(message).__name__} is not for a worker")

    def refuse_bytes(self, sender: bytes, detail: str, code: RefusalCode = "bad_message") -> None:
        """Counts and answers what is no message that can be acted on."""
        self._faults[code] += 1
        self._send(sender, Refused(code, detail[:QUOTED_ERROR_CHARS]))

    def _hello(self, sender: bytes, hello: Hello, now_s: float) -> None:
        version = self._ready.proto
        if not hello.proto_min <= version <= hello.proto_max:
            self.refuse_bytes(sender, f"this worker speaks protocol {version}", "version")
            return
        if sender not in self._peers:
            log.info(GATEWAY_JOINED, gateway_id=hello.gateway_id)
        self._peers[sender] = Peer(hello.gateway_id, now_s)
        self._send(sender, self._ready)
        if self._drain is not None:
            self._send(sender, self._drain)

    def _submit(self, sender: bytes, peer: Peer, submit: Submit, now_s: float) -> None:
        entry = self._logs.get(submit.run_id)
        is_next = entry is not None and entry.done is not None and (
            submit.start_token == entry.done.last_token + 1 and submit.epoch >= entry.epoch
        )  # fmt: skip
        if entry is not None and not is_next:
            start, credit = submit.start_token, submit.credit
            self._attach(sender, peer, submit.run_id, submit.epoch, start, credit)
            return
        if not self.has_loop:
            self._faults["draining"] += 1
            self._turn_away(sender, draining(), run_id=submit.run_id)
            return
        self._logs[submit.run_id] = RunLog(
            owner=sender,
            gateway_id=peer.gateway_id,
            epoch=submit.epoch,
            first=submit.start_token,
            credit=submit.credit,
            is_resumable=submit.resumable,
        )
        arrival = Arrival(submit, now_s)
        if self._drain is not None:
            self._loop.put(_rejected(arrival, draining()))
        elif self._preparer.is_full:
            self._loop.put(_rejected(arrival, queue_full()))
        else:
            self._preparer.put(arrival)

    def _attach(
        self, sender: bytes, peer: Peer, run_id: str, epoch: int, from_token: int, credit: int
    ) -> None:
        entry = self._logs.get(run_id)
        if entry is None:
            self._refuse_run(sender, run_id, "unknown_run", "no such run lives here")
            return
        if _is_stale(entry, peer, epoch):
            self._refuse_run(sender, run_id, "stale_epoch", f"the run is at epoch {entry.epoch}")
            return
        if entry.is_trimmed(from_token):
            self._refuse_run(sender, run_id, "trimmed", "older records are acknowledged and gone")
            return
        entry.owner, entry.gateway_id, entry.epoch = sender, peer.gateway_id, epoch
        entry.lost_s = None
        entry.allowed = from_token - 1 + credit
        self._loop.put(Allow(run_id, entry.allowed))
        for delta in entry.since(from_token):
            self._send(sender, delta)
        if entry.done is not None:
            self._send(sender, entry.done)

    def _acknowledge(self, peer: Peer, ack: Ack) -> None:
        entry = self._owned(peer, ack.run_id)
        if entry is None:
            return
        entry.acknowledge(ack.upto)
        if ack.done and entry.done is not None:
            del self._logs[ack.run_id]

    def _cancel(self, sender: bytes, peer: Peer, cancel: Cancel) -> None:
        entry = self._logs.get(cancel.run_id)
        if entry is None:
            if (sender, cancel.run_id) in self._asked:
                self._asked.discard((sender, cancel.run_id))
                self._preparer.put(Forget(sender, cancel.run_id))
            else:
                self._faults["unknown_run"] += 1
            return
        if _is_stale(entry, peer, cancel.epoch):
            detail = f"the run is at epoch {entry.epoch}"
            self._refuse_run(sender, cancel.run_id, "stale_epoch", detail)
            return
        # Whoever cancels hears the end, also of a run whose owner was lost.
        entry.owner, entry.gateway_id, entry.epoch = sender, peer.gateway_id, cancel.epoch
        if entry.done is not None:
            self._send(sender, entry.done)
        else:
            self._end(cancel.run_id, entry)

    def _end(self, run_id: str, entry: RunLog) -> None:
        entry.cancel_reason = "client_left"
        self._loop.put(EndRun(run_id, "cancelled", "client_left"))

    def _owned(self, peer: Peer, run_id: str) -> RunLog | None:
        """The run, if it is this gateway's: one that lost it must not speak for the new owner."""
        entry = self._logs.get(run_id)
        if entry is None or entry.gateway_id != peer.gateway_id:
            self._faults["unknown_run"] += 1
            return None
        return entry

    def _credit(self, peer: Peer, credit: Credit) -> None:
        entry = self._owned(peer, credit.run_id)
        if entry is None:
            return
        entry.allowed += max(0, credit.tokens)
        self._loop.put(Allow(credit.run_id, entry.allowed))

    def _count(self, sender: bytes, count: Count) -> None:
        if self._preparer.is_full:
            self._turn_away(sender, queue_full(), req_id=count.req_id)
        else:
            self._preparer.put(Question(count, sender))

    def _embed(self, sender: bytes, embed: Embed, now_s: float) -> None:
        if not self._ready.caps.embed:
            refusal = Refusal("bad_request", "this model makes no embeddings")
        elif not self.has_loop:  # while there is one, the loop refuses when it drains
            refusal = draining()
        elif self._preparer.is_full:
            refusal = queue_full()
        else:
            self._asked.add((sender, embed.req_id))
            self._preparer.put(EmbedQuestion(embed, sender, now_s))
            return
        self._turn_away(sender, refusal, req_id=embed.req_id)

    def _cache(self, sender: bytes, cache: Cache) -> None:
        kinds = frozenset(STATE_KINDS if cache.kinds is None else cache.kinds)
        unknown = kinds.difference(STATE_KINDS)
        if unknown:
            detail = f"no state is of the kind {min(unknown)[:64]!r}"
            refusal = Refusal("bad_request", detail, param="kind")
        elif not self.has_loop:
            refusal = draining()
        else:
            self._asked.add((sender, cache.req_id))
            self._loop.put(CacheQuestion(cache.req_id, sender, cache.op, kinds))
            return
        self._turn_away(sender, refusal, req_id=cache.req_id)

    def _turn_away(
        self, sender: bytes, refusal: Refusal, *, run_id: str | None = None,
        req_id: str | None = None,
    ) -> None:  # fmt: skip
        code, detail, after_ms = refusal.code, refusal.detail, refusal.retry_after_ms
        self._send(sender, Refused(code, detail, run_id, req_id, refusal.param, after_ms))

    def _refuse_run(self, sender: bytes, run_id: str, code: RefusalCode, detail: str) -> None:
        self._faults[code] += 1
        self._send(sender, Refused(code, detail, run_id=run_id))

    # From the loop and the preparer.

    def forward(self, outgoing: Outgoing, now_s: float) -> None:
        """Sends one message to whom it concerns, and keeps what must be acknowledged."""
        message = outgoing.message
        if outgoing.asker is not None:
            self._asked.discard((outgoing.asker, getattr(message, "req_id", "")))
            self._send(outgoing.asker, message)
            return
        if isinstance(message, Drain):
            self._drain = message
            for sender in self._peers:
                self._send(sender, message)
            return
        run_id = getattr(message, "run_id", None)
        entry = self._logs.get(run_id) if run_id is not None else None
        if run_id is None or entry is None:
            self._faults["unowned"] += 1
            return
        self._note(run_id, entry, message, now_s)
        if entry.owner is not None:
            self._send(entry.owner, message)

    def _note(self, run_id: str, entry: RunLog, message: FromWorker, now_s: float) -> None:
        match message:
            case Queued():
                # What came while the run was being prepared, when the loop did not know it yet.
                self._loop.put(Allow(run_id, entry.allowed))
                if entry.cancel_reason is not None:
                    self._end(run_id, entry)
            case Delta():
                entry.add(message)
                if entry.is_over_limit and entry.cancel_reason is None:
                    entry.cancel_reason = "log_full"
                    self._loop.put(EndRun(run_id, "length", "log_full"))
            case Done():
                entry.done, entry.done_sent_s = message, now_s
                self._bound_done_logs()
            case Refused():
                del self._logs[run_id]

    def _bound_done_logs(self) -> None:
        finished = [run_id for run_id, entry in self._logs.items() if entry.done is not None]
        for run_id in finished[:-DONE_LOGS]:
            del self._logs[run_id]

    # As time goes by.

    def tick(self, now_s: float, beat: Beat | None) -> None:
        """Once a second: leases, repeated ends, and a beat to all (None: the loop is stuck)."""
        for sender, peer in tuple(self._peers.items()):
            if now_s - peer.heard_s > LINK_LEASE_S:
                self._lose(sender, peer, now_s)
            elif beat is not None:
                self._send(sender, replace(beat, metrics=beat.metrics + self._samples()))
        for run_id, entry in tuple(self._logs.items()):
            self._keep_or_drop(run_id, entry, now_s)

    def _lose(self, sender: bytes, peer: Peer, now_s: float) -> None:
        log.warning(GATEWAY_LOST, gateway_id=peer.gateway_id)
        del self._peers[sender]
        asked = {question for question in self._asked if question[0] == sender}
        if asked:
            self._asked -= asked
            self._preparer.put(Forget(sender))
        for run_id, entry in self._logs.items():
            if entry.owner == sender:
                entry.owner, entry.lost_s = None, now_s
                if entry.done is None and not entry.is_resumable:
                    self._end(run_id, entry)

    def _keep_or_drop(self, run_id: str, entry: RunLog, now_s: float) -> None:
        lost_for_s = 0.0 if entry.lost_s is None else now_s - entry.lost_s
        if entry.done is None:
            if lost_for_s > ORPHAN_GRACE_S and entry.cancel_reason is None:
                self._end(run_id, entry)
        elif lost_for_s > LINK_DONE_KEPT_S:
            del self._logs[run_id]
        elif entry.owner is not None and now_s - entry.done_sent_s >= LINK_BEAT_S:
            entry.done_sent_s = now_s
            self._send(entry.owner, entry.done)

    def _samples(self) -> tuple[Metric, ...]:
        ready = self._ready
        labels = {"model": ready.model, "layout": ready.layout, "device": ready.device}
        return (
            Metric("tandem_worker_info", labels, 1),
            *(
                Metric("tandem_worker_link_faults_total", {"kind": kind}, count)
                for kind, count in self._faults.items()
            ),
        )


def _is_stale(entry: RunLog, peer: Peer, epoch: int) -> bool:
    """Whether a run belongs to somebody else by now: an older epoch, or a stranger at the same."""
    return epoch < entry.epoch or (epoch == entry.epoch and peer.gateway_id != entry.gateway_id)


def _rejected(arrival: Arrival, refusal: Refusal) -> Rejected:
    after_ms = refusal.retry_after_ms
    return Rejected(arrival, refusal.code, refusal.detail, retry_after_ms=after_ms)
