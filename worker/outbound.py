"""What one run has said that nobody has acknowledged yet. Knows no socket and no loop."""

import dataclasses
from collections import deque
from collections.abc import Iterator
from typing import TypeVar

from proto.limits import LINK_RING_BYTES, LINK_RING_RECORDS
from proto.messages import CallPart, Delta, Done, MonitorEvent

Part = TypeVar("Part", CallPart, MonitorEvent)

RECORD_BYTES = 64  # what a numbered record weighs beside its text


class RunLog:
    """The numbered records of a run until they are acknowledged, and who owns it.

    `owner`: the connection that hears it, None while its gateway is lost (`lost_s` says since
    when). `allowed`: number of the last token that may be released, as the credits add up.
    """

    def __init__(
        self, *, owner: bytes, gateway_id: str, epoch: int, first: int, credit: int,
        is_resumable: bool,
    ) -> None:  # fmt: skip
        self.owner: bytes | None = owner
        self.gateway_id = gateway_id
        self.epoch = epoch
        self.is_resumable = is_resumable
        self.allowed = first - 1 + credit
        self.lost_s: float | None = None
        self.cancel_reason: str | None = None
        self.done: Done | None = None
        self.done_sent_s = 0.0
        self._oldest = first  # number of the first record that is still here
        self._next = first
        self._deltas: deque[Delta] = deque()
        self._size_bytes = 0

    @property
    def is_over_limit(self) -> bool:
        """Whether more is held than one run may hold."""
        records = self._next - self._oldest
        return records > LINK_RING_RECORDS or self._size_bytes > LINK_RING_BYTES

    def add(self, delta: Delta) -> None:
        """Keeps records as they are released. Numbers have no gaps."""
        assert delta.first == self._next, "a run's records must be numbered without gaps"
        self._deltas.append(delta)
        self._next += len(delta.ids)
        self._size_bytes += _size_of(delta)

    def acknowledge(self, upto: int) -> None:
        """Drops the records up to this number."""
        while self._deltas and self._oldest <= upto:
            delta = self._deltas.popleft()
            self._size_bytes -= _size_of(delta)
            end = delta.first + len(delta.ids)
            if end - 1 > upto:
                rest = _cut(delta, upto + 1)
                self._deltas.appendleft(rest)
                self._size_bytes += _size_of(rest)
            self._oldest = min(end, upto + 1)

    def is_trimmed(self, from_token: int) -> bool:
        """Whether records from this number on are no longer all here."""
        return from_token < self._oldest

    def since(self, from_token: int) -> Iterator[Delta]:
        """The records from exactly this number on."""
        for delta in self._deltas:
            if delta.first >= from_token:
                yield delta
            elif delta.first + len(delta.ids) > from_token:
                yield _cut(delta, from_token)


def _size_of(delta: Delta) -> int:
    text = sum(len(piece.encode("utf-8", "replace")) for piece in delta.pieces)
    calls = sum(len(part.args or "") + RECORD_BYTES for part in delta.calls or ())
    return len(delta.ids) * RECORD_BYTES + text + calls


def _cut(delta: Delta, first: int) -> Delta:
    """The part of a delta from token `first` on."""
    skip = first - delta.first
    return dataclasses.replace(
        delta,
        first=first,
        ids=delta.ids[skip:],
        pieces=delta.pieces[skip:],
        kinds=delta.kinds[skip:],
        hidden=delta.hidden[skip:],
        calls=_from(delta.calls, first),
        events=_from(delta.events, first),
        logprobs=delta.logprobs[skip:] if delta.logprobs else None,
    )


def _from(parts: tuple[Part, ...] | None, first: int) -> tuple[Part, ...] | None:
    return tuple(part for part in parts if part.at >= first) if parts else None
