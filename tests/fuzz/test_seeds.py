"""Every seed of every fuzz target holds, in the gate too; and no check is one that cannot fail."""

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from typing import Any

import pytest
import structlog

from gateway.exchange import Exchange
from gateway.relay import headers as relay_headers
from gateway.relay.connection import Connection
from gateway.relay.tap import StreamTap
from gateway.surfaces import envelope
from gateway.surfaces.sse import SseParser
from tests.fuzz.target import TARGETS, load, with_small_limits


@pytest.fixture(autouse=True)
def quiet() -> Iterator[None]:
    """Thousands of broken answers are not worth a line each."""
    with structlog.testing.capture_logs():
        yield


@pytest.mark.parametrize("name", TARGETS)
def test_every_seed_holds(name: str) -> None:
    """The invariants of a target for each input that its fuzzing begins with."""
    target = load(name)
    with ExitStack() as stack:
        check = with_small_limits(target, stack)
        for seed in target.SEEDS:
            check(seed)


@pytest.mark.parametrize(
    ("name", "what"), [(name, what) for name in TARGETS for what in load(name).FINDS]
)
def test_what_was_found_once_holds(name: str, what: str) -> None:
    """An input that a fuzzer, or who wrote one, broke the gateway with."""
    target = load(name)
    with ExitStack() as stack:
        with_small_limits(target, stack)(target.FINDS[what])


def _drop_last_byte(take: Callable[..., None]) -> Callable[..., None]:
    def take_less(self: Any, piece: bytes, **more: Any) -> None:
        take(self, piece[:-1], **more)

    return take_less


def _forget(*arguments: Any, **more: Any) -> None:
    """Does nothing."""


FAULTS = [
    ("answers", Connection, "on_body", _drop_last_byte(Connection.on_body)),
    ("answers", Connection, "_note_no_body", _forget),
    ("streams", SseParser, "finish", lambda self: []),
    ("streams", StreamTap, "_read_rest", _forget),
    ("requests", Exchange, "take_body", _drop_last_byte(Exchange.take_body)),
    ("requests", Exchange, "note_data", lambda exchange, data_bytes: True),
    ("headers", relay_headers, "named_by_connection", lambda headers: frozenset()),
    ("headers", relay_headers, "_NOT_SENT_UP", frozenset({b"host", b"content-length"})),
    ("bodies", envelope, "JSON_DEPTH", 1),
]


@pytest.mark.parametrize(("name", "place", "what", "fault"), FAULTS)
def test_a_planted_fault_is_seen(
    name: str, place: Any, what: str, fault: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A check that cannot fail finds nothing, however long it runs."""
    monkeypatch.setattr(place, what, fault)
    relay_headers._going_up.cache_clear()
    try:
        with pytest.raises(AssertionError):
            test_every_seed_holds(name)
    finally:
        relay_headers._going_up.cache_clear()
