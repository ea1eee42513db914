"""When the next prompt of a conversation is read ahead: behind a reply, in idle time. Policy only.

Knows no tensor, no text and no client. It changes which states are kept, and never an answer.
"""

import hashlib
import json
from collections import Counter, OrderedDict
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from itertools import chain, takewhile
from typing import Generic, Protocol, TypeVar

import structlog

from proto.chat import reply_message
from proto.deltas import events_of
from proto.events import FinishReason
from proto.messages import METRIC_PREFIX, Delta, Metric, Submit
from proto.worker_settings import WarmSettings
from worker.limits import WARM_PENDING, WARM_READ
from worker.types import Prepared, Replied, Warmable

log = structlog.get_logger()

WARM_FAILED = "warm.failed"

Slot = TypeVar("Slot")


class AheadEngine(Protocol[Slot]):
    """What reads a prompt that nobody has asked for yet."""

    def open_ahead(
        self, prompt: tuple[int, ...], cuts: tuple[int, ...], salt: str
    ) -> Slot | None: ...
    def read_ahead(self, slot: Slot) -> bool: ...
    def close(self, slot: Slot, *, is_sound: bool = True) -> None: ...


@dataclass(slots=True)
class _Pending(Generic[Slot]):
    """A prompt that is to be read. `slot`: while it is being read."""

    warmable: Warmable
    slot: Slot | None = None
    is_started: bool = False
    is_deferred: bool = False


class WarmPass(Generic[Slot]):
    """What is to be read ahead, one prompt a conversation. One thread uses it, that of the loop.

    `open_ahead` gives no slot where the prompt is kept already or finds no room; `read_ahead` reads
    a chunk and says whether the prompt is read whole; a closed slot leaves what it read behind.
    `counts`: by event.
    """

    def __init__(
        self, engine: AheadEngine[Slot], settings: WarmSettings, clock: Callable[[], float]
    ) -> None:
        self.counts: Counter[str] = Counter()
        self._engine = engine
        self._settings = settings
        self._clock = clock
        # Each by conversation, the oldest first.
        self._awaited: OrderedDict[str, float] = OrderedDict()  # replies, and when they ended
        self._pending: OrderedDict[str, _Pending[Slot]] = OrderedDict()
        self._read: OrderedDict[str, tuple[int, ...]] = OrderedDict()

    def wants(self, prepared: Prepared, *, is_side: bool) -> bool:
        """Whether a run may have a next turn, so that what it says is kept until its end."""
        submit = prepared.arrival.submit
        return (
            self._settings.enabled
            and not is_side
            and submit.plan.lane == "main"
            and submit.params.cache_prompt
            and submit.call.prompt is None
            and submit.choices == submit.start_token == 1
        )

    def saw_reply(
        self, prepared: Prepared, finish: FinishReason, deltas: Iterable[Delta], *, is_side: bool
    ) -> Replied | None:
        """What the preparer is to be told after a run; None where no next turn is likely.

        A reply that was cancelled is hardly ever sent back; one that a limit cut mostly is.
        """
        may_go_on = finish in ("stop", "tool_calls", "length")
        if not may_go_on or not self.wants(prepared, is_side=is_side):
            return None
        reply = reply_message(chain.from_iterable(map(events_of, deltas)))
        if not (reply.content or reply.calls):
            return None
        now = self._clock()
        self._awaited.pop(prepared.session, None)
        self._awaited[prepared.session] = now
        if len(self._awaited) > WARM_PENDING:
            self._awaited.popitem(last=False)
        return Replied(prepared.arrival.submit, reply, prepared.session, now)

    def add(self, warmable: Warmable) -> None:
        """Takes what the preparer has made of a reply."""
        session = warmable.session
        if self._awaited.get(session) != warmable.made_s:
            self.counts["dropped"] += 1  # the next request, or a later reply, was there before it
            return
        del self._awaited[session]
        if not warmable.prompt:
            self.counts["skipped"] += 1
            return
        self._drop(session)
        self._pending[session] = _Pending(warmable)
        if len(self._pending) > WARM_PENDING:
            self._drop(next(iter(self._pending)))

    def saw_request(self, session: str) -> None:
        """The conversation goes on: what was to be read for it comes too late."""
        self._awaited.pop(session, None)
        self._drop(session)

    def saw_prompt(self, session: str, prompt: tuple[int, ...]) -> None:
        """Notes whether what was read ahead is what the next prompt begins with."""
        read = self._read.pop(session, None)
        if read is not None:
            self.counts["hit" if prompt[: len(read)] == read else "miss"] += 1

    def step(self, *, is_idle: bool) -> bool:
        """At most one chunk, if nothing else is to do; returns whether anything moved on."""
        self._drop_old()
        if not is_idle:
            return self.defer()
        entry = next(iter(self._pending.values()), None)
        if entry is None:
            return False
        try:
            self._read_on(entry)
        except AssertionError:
            raise
        except Exception:
            # Nobody asked for this, so it must not be anybody's error.
            log.exception(WARM_FAILED)
            self.counts["failed"] += 1
            self._remove(entry, is_sound=False)
        return True

    def defer(self) -> bool:
        """Makes way for a request, what was read stays kept; whether that freed a slot."""
        has_freed = False
        for entry in self._pending.values():
            if not entry.is_deferred:
                entry.is_deferred = True
                self.counts["deferred"] += 1
            has_freed |= entry.slot is not None
            self._close(entry)
        return has_freed

    def samples(self) -> tuple[Metric, ...]:
        """The counts, as the samples of a `Beat`."""
        return tuple(
            Metric(f"{METRIC_PREFIX}warm_total", {"event": event}, count)
            for event, count in self.counts.items()
        )

    def _read_on(self, entry: _Pending[Slot]) -> None:
        warmable = entry.warmable
        if entry.slot is None:
            entry.slot = self._engine.open_ahead(warmable.prompt, warmable.cuts, warmable.salt)
            if entry.slot is None:
                self.counts["skipped"] += 1
                self._remove(entry)
                return
            self.counts["started"] += not entry.is_started
            entry.is_started = True
        if self._engine.read_ahead(entry.slot):
            self.counts["done"] += 1
            self._remove(entry)
            self._read[warmable.session] = warmable.prompt
            if len(self._read) > WARM_READ:
                self._read.popitem(last=False)

    def _drop_old(self) -> None:
        oldest_s = self._clock() - self._settings.max_age_s
        for session, entry in tuple(self._pending.items()):
            if entry.warmable.made_s <= oldest_s:
                self._drop(session)

    def _drop(self, session: str) -> None:
        entry = self._pending.get(session)
        if entry is not None:
            self.counts["dropped"] += 1
            self._remove(entry)

    def _remove(self, entry: _Pending[Slot], *, is_sound: bool = True) -> None:
        del self._pending[entry.warmable.session]
        self._close(entry, is_sound=is_sound)

    def _close(self, entry: _Pending[Slot], *, is_sound: bool = True) -> None:
        if entry.slot is not None:
            slot, entry.slot = entry.slot, None
            self._engine.close(slot, is_sound=is_sound)


def session_key(submit: Submit) -> str:
    """What tells a tenant's conversations apart: their plan's name, else how they begin."""
    call, name = submit.call, submit.plan.session
    lead = [*takewhile(lambda message: message.role != "user", call.messages)]
    first = call.messages[len(lead) : len(lead) + 1]
    begun = [call.prompt, *(message.text for message in (*lead, *first))]
    identity = json.dumps([submit.cache_salt, name if name is not None else begun])
    return hashlib.sha256(identity.encode()).hexdigest()
