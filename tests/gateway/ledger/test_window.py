"""When the windows of budgets begin, and what they forget."""

from datetime import UTC, datetime
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.ledger.window import start_ms
from gateway.settings.types import Window
from gateway.store.db import Database
from tests.gateway.ledger.budgeted import KEY, Desk, budget
from tests.gateway.ledger.made import NOON_MS, FakeClock

HOUR_S = 3600.0


def at(text: str) -> int:
    return int(datetime.fromisoformat(text).timestamp() * 1000)


@pytest.mark.parametrize(
    ("window", "now", "begin"),
    [
        ("day", "2026-07-31T12:00:00Z", "2026-07-31T00:00:00Z"),
        ("day", "2026-07-31T00:00:00Z", "2026-07-31T00:00:00Z"),
        ("day", "2026-07-31T01:30:00+02:00", "2026-07-30T00:00:00Z"),
        ("month", "2026-07-31T23:59:59.999Z", "2026-07-01T00:00:00Z"),
        ("month", "2028-02-29T12:00:00Z", "2028-02-01T00:00:00Z"),
        ("month", "2026-08-01T00:00:00Z", "2026-08-01T00:00:00Z"),
        ("1h", "2026-07-31T00:30:00Z", "2026-07-30T23:30:00Z"),
        ("1d", "2026-07-31T00:30:00Z", "2026-07-30T00:30:00Z"),
        ("30d", "2026-03-02T00:00:00Z", "2026-01-31T00:00:00Z"),
    ],
)
def test_a_window_begins(window: Window, now: str, begin: str) -> None:
    assert start_ms(window, at(now)) == at(begin)


@given(st.integers(0, 2**42))
def test_a_month_is_that_of_the_calendar(now_ms: int) -> None:
    now = datetime.fromtimestamp(now_ms / 1000, UTC)
    begin = now.replace(day=1, hour=0, minute=0, second=0, microsecond=0)
    assert start_ms("month", now_ms) == round(begin.timestamp() * 1000)


@pytest.mark.parametrize("is_recorded", [True, False])
@pytest.mark.parametrize(
    ("window", "kept_s", "gone_s"),
    [
        ("day", 12 * HOUR_S - 61, 12 * HOUR_S),
        ("month", 12 * HOUR_S - 61, 12 * HOUR_S),  # it is the last of July
        ("1h", HOUR_S - 61, HOUR_S + 61),
        ("1d", 24 * HOUR_S - 61, 24 * HOUR_S + 61),
        ("30d", 720 * HOUR_S - 61, 720 * HOUR_S + 61),
    ],
)
def test_what_was_spent_is_forgotten_with_its_window(
    sqlite: Database, tmp_path: Path, window: Window, kept_s: float, gone_s: float,
    is_recorded: bool,
) -> None:  # fmt: skip
    """In the books as in memory; spent at noon on the last of July."""
    clock = FakeClock(NOON_MS)
    desk = Desk(sqlite if is_recorded else None, tmp_path, clock, **{KEY: budget(30, window)})
    desk.spend(30)
    if is_recorded:
        desk.write()
    clock.pass_s(kept_s)
    if is_recorded:
        desk.write()
    assert desk.spent == 30
    clock.pass_s(gone_s - kept_s)
    if is_recorded:
        desk.write()
    assert desk.spent == 0


def test_a_new_day_begins_at_once_for_a_sum_that_was_read(sqlite: Database, tmp_path: Path) -> None:
    """Between midnight and the next reading the sum of yesterday does not count."""
    clock = FakeClock(at("2026-07-31T23:59:00Z"))
    desk = Desk(sqlite, tmp_path, clock)
    desk.spend(30)
    desk.write()
    clock.pass_s(59)
    desk.budgets._accounts[KEY].read_s = None
    desk.write()  # a reading a second before midnight
    assert desk.spent == 30
    clock.pass_s(1)
    assert desk.spent == 0
